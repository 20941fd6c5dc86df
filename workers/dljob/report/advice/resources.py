"""Advice on memory and CPUs: what ranks used at most against what they ask for. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import stdev
from typing import Any

from dljob.report.advice.job_use import JobUse, RoleUse
from dljob.report.advice.proposals import LEAST, Advice, Gain, Proposal
from dljob.report.advice.values import mapping, rows
from dljob.spec.chosen_resources import (
    GROWTH,
    LEAST_S,
    MARGIN,
    USUAL,
    WINDOWS,
    rounded_cpu,
    rounded_memory,
    shown_mib,
    usual_of,
)
from dljob.spec.quantity import GRAIN, parse_cpu, parse_memory, show, show_memory
from dljob.telemetry.wording import counted, seconds


def advise(uses: Sequence[JobUse]) -> Advice:
    """Return advice on the resources of each role of the last job, from all."""
    advice = Advice()
    for role in rows(uses[-1].spec.get("roles")):
        name = str(role.get("name"))
        role_uses = [use.roles[name] for use in uses if name in use.roles]
        if role.get("reserve") == "Quota":
            advice += Advice.no(f"roles.{name}.resources", "a role that reserves a quota starts processes of its own")
        else:
            advice += _memory(name, role, role_uses, uses) + _cpu(name, role, role_uses)
    return advice


def _asked(role: Mapping[str, Any], key: str) -> str:
    quantity = mapping(role.get("resources")).get(key)
    return "" if quantity is None else str(quantity)


def _short_of_time(uses: Sequence[RoleUse]) -> str:
    """Return what is missing in time; empty: nothing."""
    total = sum(use.productive_s / use.ranks for use in uses)
    if total >= LEAST_S:
        return ""
    return f"too little history: {seconds(total)} of productive time a rank, wanted are {seconds(LEAST_S)}"


def _memory(name: str, role: Mapping[str, Any], role_uses: Sequence[RoleUse], jobs: Sequence[JobUse]) -> Advice:
    subject = f"roles.{name}.resources.memory"
    asked_text, peaks = _asked(role, "memory"), [peak for use in role_uses for peak in use.peaks]
    if not asked_text:
        return Advice.no(subject, "the role asks for no memory, so none is reserved: nothing can be freed")
    if short := _short_of_time(role_uses):
        return Advice.no(subject, short)
    if not peaks:
        return Advice.no(subject, "no peak of its memory was recorded")
    try:
        asked = parse_memory(asked_text) // GRAIN
    except ValueError as error:
        return Advice.no(subject, str(error))
    if killed := sum(use.out_of_memory for use in role_uses):
        lost = (sum(use.lost_s for use in role_uses), sum(job.seconds for job in jobs))
        return _more_memory(name, asked, killed, max(peaks), lost)
    if (growth := max(use.growth for use in role_uses)) > GROWTH:
        return Advice.no(
            subject, f"the peak still grew by {growth:.0%} in the last quarter of a run: run it for longer"
        )
    highest = max(peaks)
    proposed = rounded_memory(highest * MARGIN)
    share = 1 - proposed / asked
    measured = (
        f"{counted(len(peaks), 'rank')} of {counted(len(role_uses), 'run')} had at most {shown_mib(highest)} resident"
    )
    if abs(share) < LEAST:
        return Advice.no(subject, f"{asked_text} fits: {measured}")
    # What one rank more may need beyond all that were seen; of few ranks nothing is known but the margin.
    spread = 2 * stdev(peaks) / asked if len(peaks) > 2 else 0.0
    gain = Gain("memory", share, max(spread, (MARGIN - 1) * highest / asked))
    reason = f"{measured}, of {asked_text}; a fifth more"
    return _proposal(name, "memory", (asked_text, show_memory(proposed * GRAIN)), reason, gain)


def _more_memory(name: str, asked: int, killed: int, highest: int, recovery_and_total_s: tuple[float, float]) -> Advice:
    """Propose more memory, as ranks were killed: half as much again, or what they had grown to."""
    proposed = rounded_memory(max(asked * 1.5, highest * MARGIN))
    recovery_s, total_s = recovery_and_total_s
    share = recovery_s / total_s if total_s else 0.0
    time_text = f"{seconds(recovery_s)} of {seconds(total_s)}"
    reason = f"{counted(killed, 'rank')} killed for want of it; their recovery took {time_text}"
    # Kills are counted: their number is as unsure as its root.
    gain = Gain("goodput", share, share / math.sqrt(killed))
    return _proposal(name, "memory", (show_memory(asked * GRAIN), show_memory(proposed * GRAIN)), reason, gain)


def _cpu(name: str, role: Mapping[str, Any], role_uses: Sequence[RoleUse]) -> Advice:
    subject = f"roles.{name}.resources.cpu"
    asked_text = _asked(role, "cpu") or "1"
    if short := _short_of_time(role_uses):
        return Advice.no(subject, short)
    windows = sorted(value for use in role_uses for value in use.cpus)
    if not windows:
        return Advice.no(subject, "no CPU time was recorded")
    if len(windows) < WINDOWS:
        return Advice.no(subject, f"too little history: {counted(len(windows), 'measurement')}, wanted are {WINDOWS}")
    try:
        asked = parse_cpu(asked_text) / GRAIN
    except ValueError as error:
        return Advice.no(subject, str(error))
    usual, most = usual_of(windows), windows[-1]
    measured = counted(len(windows), "measurement")
    measured_text = f"{USUAL:.0%} of {measured} are at most {usual:.2f} CPUs, the highest {most:.2f}"
    if usual > asked:
        return Advice.no(
            subject, f"{measured_text}, of {asked_text}: more may help, but nothing recorded says how much"
        )
    proposed = rounded_cpu(usual * MARGIN)
    share = 1 - proposed / asked
    if share < LEAST:
        return Advice.no(subject, f"{asked_text} fits: {measured_text}")
    gain, reason = Gain("cpu", share, max(0.0, most - usual) / asked), f"{measured_text}, of {asked_text}; a fifth more"
    return _proposal(name, "cpu", (asked_text, show(round(proposed * GRAIN))), reason, gain)


def _proposal(role: str, key: str, change: tuple[str, str], reason: str, gain: Gain) -> Advice:
    field = ("roles", role, "resources", key)
    return Advice((Proposal(field, ".".join(field), *change, change[1], reason, gain),))
