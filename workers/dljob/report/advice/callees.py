"""Advice on the number of ranks of a role that others call, such as rollouts: who waits for whom. No I/O.

The prediction is the utilization law of operational analysis (P. J. Denning and J. P. Buzen, The Operational Analysis
of Queueing Network Models, ACM Computing Surveys 10(3), 1978): the work that a caller asks for in all does not depend
on the number of ranks, so that each of n ranks is busy for `work / n`. The caller waits as much less as a rank is busy
less; what it waits beyond that, such as for one long call, stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import stdev
from typing import Any, NamedTuple

from dljob.report.advice.job_use import JobUse
from dljob.report.advice.proposals import LEAST, LEAST_POINTS, Advice, Gain, Proposal
from dljob.report.advice.values import rows
from dljob.telemetry.wording import counted, seconds

LEAST_S = 300.0
"""Productive seconds of the caller, in all runs together, from which its waits are known."""
WINDOWS = 10
"""Parts of the runs' time between which waits may differ."""
WAITS = 0.05
"""Share of the caller's time that it waits, from which more ranks are tried; and less of which is aimed at."""
BUSY = 0.5
"""Share of the caller's waits for which a rank is busy, under which more ranks would only share out their idleness."""
FACTOR = 2
"""Most that a role is grown by at once: records do not reach further."""
FEWER = 0.01
"""Most points of the caller's time that fewer ranks may cost."""


class Waits(NamedTuple):
    """Shares of a caller's time: what it waits, and for which a rank that it calls is busy, on average and at most."""

    waited: float
    busy: float
    busiest: float
    off: float
    """Twice the deviation of the mean of `waited`."""

    def at_work(self, factor: float) -> float:
        """Return the share of its time for which the caller would work with so many times the ranks."""
        working_share = 1 - self.waited
        return working_share / (working_share + max(0.0, self.waited - self.busy * (1 - 1 / factor)))


def advise(uses: Sequence[JobUse]) -> Advice:
    """Return advice on the number of ranks of each role that others call."""
    advice, newest = Advice(), uses[-1]
    for role in rows(newest.spec.get("roles")):
        name = str(role.get("name"))
        callers = {caller for use in uses for caller, callee in use.calls if callee == name}
        if callers and name in newest.roles:
            advice += _role(name, role, callers, uses)
    return advice


def _fixed(role: Mapping[str, Any]) -> str:
    """Return why a role's number of ranks is no matter of waits; empty where it is."""
    if role.get("type") == "Elastic":
        return "its ranks train together: their number is part of what is trained"
    if role.get("replicasPerGroup", 1) != 1:
        return "its ranks form groups, each of which works as one"
    if role.get("autoscale") or "maxReplicas" in role:
        return "it grows and shrinks while the job runs"
    return ""


def _role(name: str, role: Mapping[str, Any], callers: set[str], uses: Sequence[JobUse]) -> Advice:
    subject = f"roles.{name}.replicas"
    if reason := _fixed(role):
        return Advice.no(subject, reason)
    by_caller = {caller: [use.calls[caller, name] for use in uses if (caller, name) in use.calls] for caller in callers}
    # The caller that loses most.
    caller, calls = max(by_caller.items(), key=lambda item: sum(call.waited_s for call in item[1]))
    time = sum(call.seconds for call in calls)
    if time < LEAST_S:
        return Advice.no(
            subject, f"too little history: {caller} ran for {seconds(time)}, wanted are {seconds(LEAST_S)}"
        )
    windows = [share for call in calls for share in call.windows]
    if len(windows) < WINDOWS:
        return Advice.no(
            subject, f"too little history: {counted(len(windows), 'sample')} of waits, wanted are {WINDOWS}"
        )
    served = [call.served_s for call in calls if call.served_s]
    if not served:
        return Advice.no(subject, f"no time of calls in {name} was recorded")
    mean = sum(sum(ranks) / len(ranks) for ranks in served) / time
    waits = Waits(
        min(0.99, sum(call.waited_s for call in calls) / time),
        min(1.0, mean),
        min(1.0, sum(max(ranks) for ranks in served) / time),
        2 * stdev(windows) / math.sqrt(len(windows)),
    )
    return _number(subject, caller, int(max(1, uses[-1].roles[name].ranks)), waits)


def _number(subject: str, caller: str, ranks: int, waits: Waits) -> Advice:
    measured = (
        f"{caller} waits for it {waits.waited:.0%} of its time, +/- {100 * waits.off:.1f}, and a rank is busy "
        f"{waits.busy:.0%} of that time"
    )
    if waits.waited < WAITS:
        return _fewer(subject, measured, caller, ranks, waits)
    if waits.busy < BUSY * waits.waited:
        return Advice.no(
            subject, f"{measured}: most of the wait is not for a rank that works, so more do not shorten it"
        )
    work_share = 1 - waits.waited
    new_ranks = next(
        (n for n in range(ranks + 1, FACTOR * ranks) if 1 - waits.at_work(n / ranks) <= WAITS), FACTOR * ranks
    )
    gain = waits.at_work(new_ranks / ranks) - work_share
    # The wait ends with the rank that is busy longest, and that rank may have what cannot be shared out.
    skew = waits._replace(busy=max(0.0, 2 * waits.busy - waits.busiest)).at_work(new_ranks / ranks)
    unsure = waits.off + work_share + gain - skew
    if gain < max(LEAST_POINTS, unsure):
        points = f"{100 * gain:.1f} points of its time, +/- {100 * unsure:.1f}"
        return Advice.no(subject, f"{measured}: {new_ranks} instead of {ranks} would bring {points}")
    reason = (
        f"{measured}; with {new_ranks} it would work {work_share + gain:.0%} of its time instead of {work_share:.0%}"
    )
    return _proposal(subject, (ranks, new_ranks), reason, Gain("work", gain, unsure))


def _fewer(subject: str, measured: str, caller: str, ranks: int, waits: Waits) -> Advice:
    """Propose the fewest ranks that cost the caller less than a point: all that they work more is waited for."""
    work_share = waits.at_work(1)
    new_ranks = next((n for n in range(1, ranks) if work_share - waits.at_work(n / ranks) <= FEWER), ranks)
    share = 1 - new_ranks / ranks
    if share < LEAST:
        return Advice.no(subject, f"{ranks} fit: {measured}")
    cost = 100 * max(0.0, work_share - waits.at_work(new_ranks / ranks))
    reason = f"{measured}; with {new_ranks} {caller} would wait {cost:.1f} points more at most"
    return _proposal(subject, (ranks, new_ranks), reason, Gain("ranks", share, waits.off))


def _proposal(subject: str, change: tuple[int, int], reason: str, gain: Gain) -> Advice:
    now, proposed = change
    return Advice((Proposal(tuple(subject.split(".")), subject, str(now), str(proposed), proposed, reason, gain),))
