"""CPUs and memory for `resources.auto`, from the records of earlier jobs of the name. No I/O.

The choice is made once, before a job starts, and becomes part of its spec; what runs is never changed. Its text tells
the earlier job and the measurement that it stands on, or why the value to begin with is used.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from dljob.report.advice.job_use import JobUse, RoleUse
from dljob.report.advice.resources import (
    GROWTH,
    LEAST_S,
    MARGIN,
    WINDOWS,
    rounded_cpu,
    rounded_memory,
    shown_mib,
    usual_of,
)
from dljob.report.advice.shapes import comparable
from dljob.spec.model import AutoResources, DLJobManifest, Role
from dljob.spec.quantity import GRAIN, parse_cpu, parse_memory, show, show_memory
from dljob.spec.rules.auto import CHOSEN
from dljob.telemetry.wording import counted, seconds

_KILLED = 1.5
"""What memory grows by after ranks were killed for want of it."""


class ChosenResource(NamedTuple):
    """The value of one resource of a role, and the reason."""

    role: str
    key: str
    value: str
    why: str


class _Use(NamedTuple):
    """What a role's ranks used in one earlier job."""

    job: str
    use: RoleUse


def choose(manifest: DLJobManifest, earlier: Sequence[JobUse]) -> tuple[DLJobManifest, tuple[ChosenResource, ...]]:
    """Return the job with its resources chosen, and what was chosen; the same job if it leaves nothing to choose."""
    if all(role.resources.auto is None for role in manifest.spec.roles):
        return manifest, ()
    spec = manifest.model_dump(mode="json", by_alias=True, exclude_none=True)["spec"]
    (*kept, _), others = comparable([*earlier, JobUse("this job", spec, 0.0, None, False, {})])
    left_out = f"; {others[-1].what}: {others[-1].why}" if others else ""
    roles, made = list[Role](), list[ChosenResource]()
    for role in manifest.spec.roles:
        auto, own = (
            role.resources.auto,
            [_Use(use.name, use.roles[role.name]) for use in kept if role.name in use.roles],
        )
        if auto is None:
            roles.append(role)
            continue
        chosen = _of_role(role, auto, own, left_out)
        made += chosen
        values = {one.key: one.value for one in chosen}
        roles.append(role.model_copy(update={"resources": role.resources.model_copy(update={**values, "auto": None})}))
    said = json.dumps([[one.role, told(one)] for one in made], separators=(",", ":"))
    metadata = manifest.metadata.model_copy(update={"annotations": {**manifest.metadata.annotations, CHOSEN: said}})
    changed = manifest.spec.model_copy(update={"roles": tuple(roles)})
    return manifest.model_copy(update={"metadata": metadata, "spec": changed}), tuple(made)


def told(one: ChosenResource) -> str:
    """Return the sentence about a choice, for the event and the terminal."""
    return f"resources.{one.key} is {one.value}: {one.why}"


def _of_role(role: Role, auto: AutoResources, own: Sequence[_Use], left_out: str) -> list[ChosenResource]:
    made: list[ChosenResource] = []
    if auto.cpu is not None:
        value, why = _cpu(role, own)
        bounds = (parse_cpu(auto.cpu.min), parse_cpu(auto.cpu.max))
        first = role.resources.cpu or auto.cpu.min
        made.append(_within(role.name, "cpu", first, bounds, (value, why, left_out)))
    if auto.memory is not None:
        value, why = _memory(role, own)
        bounds = (parse_memory(auto.memory.min), parse_memory(auto.memory.max))
        first = role.resources.memory or auto.memory.min
        made.append(_within(role.name, "memory", first, bounds, (value, why, left_out)))
    return made


def _within(
    role: str, key: str, first: str, bounds: tuple[int, int], found: tuple[int | None, str, str]
) -> ChosenResource:
    """Return a choice within its bounds; without a measurement that of the spec, and why."""
    value, why, left_out = found
    if value is None:
        return ChosenResource(role, key, first, f"the value to begin with, since {why}{left_out}")
    low, high = bounds
    kept = min(max(value, low), high)
    limit = "" if kept == value else f"; {'auto.' + key}.{'min' if kept == low else 'max'} bounds it"
    shown = show(kept) if key == "cpu" else show_memory(kept)
    return ChosenResource(role, key, shown, f"{why}{limit}")


def _short(own: Sequence[_Use]) -> str:
    """Return why the history does not suffice; empty where it does."""
    if not own:
        return "no earlier job of the name has ended here"
    total = sum(one.use.productive_s / one.use.ranks for one in own)
    if total < LEAST_S:
        return f"its earlier jobs have {seconds(total)} of productive time a rank, wanted are {seconds(LEAST_S)}"
    return ""


def _memory(role: Role, own: Sequence[_Use]) -> tuple[int | None, str]:
    """Return the memory that a rank needs, in grains; None: not known."""
    known = [one for one in own if one.use.peaks]
    if why := _short(own):
        return None, why
    if not known:
        return None, "no peak of its memory was recorded"
    if (growth := max(one.use.growth for one in known)) > GROWTH:
        return None, f"the peak of its memory still grew by {growth:.0%} in the last quarter of a job"
    most = max(known, key=lambda one: max(one.use.peaks))
    highest = max(most.use.peaks)
    source = f"{shown_mib(highest)}, the highest peak of {counted(len(known), 'earlier job')}, that of {most.job}"
    if killed := sum(one.use.out_of_memory for one in own):
        given = parse_memory(role.resources.memory) // GRAIN if role.resources.memory else 0
        value = rounded_memory(max(highest, given) * _KILLED)
        return value * GRAIN, f"half above {source}; {counted(killed, 'rank')} were killed for want of it"
    return rounded_memory(highest * MARGIN) * GRAIN, f"a fifth above {source}"


def _cpu(role: Role, own: Sequence[_Use]) -> tuple[int | None, str]:
    """Return the CPUs that a rank needs, in grains; None: not known."""
    if role.reserve == "Quota":
        return None, "a role that reserves a quota starts processes of its own"
    windows = sorted(value for one in own for value in one.use.cpus)
    if why := _short(own):
        return None, why
    if len(windows) < WINDOWS:
        return None, f"its earlier jobs have {counted(len(windows), 'measurement')} of CPU time, wanted are {WINDOWS}"
    usual = usual_of(windows)
    last = next(one.job for one in reversed(own) if one.use.cpus)
    source = f"{usual:.2f} CPUs, the most in 95% of {counted(len(windows), 'measurement')}, the last ones of {last}"
    return round(rounded_cpu(usual * MARGIN) * GRAIN), f"a fifth above {source}"
