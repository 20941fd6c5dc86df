"""What is due of a faults file, and which of a job's incidents belong to which of its faults.

Real jobs and simulated ones are told by the same rules, so that what they say can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dljob.plan.targets import MASTER, NODE
from dljob.spec.loading.faults import Expected, FaultTime, FileFault

JOB = "job"
Key: TypeAlias = tuple[float, str, str]
"""(detected, target, level): an incident's cause may be corrected, these are not."""


@dataclass(frozen=True, slots=True)
class ObservedFault:
    """Something that went wrong in a job, as its status tells it; times in unix seconds."""

    cause: str
    target: str
    level: str
    detected: float
    recovered: float | None = None

    @property
    def key(self) -> Key:
        """What it is known by."""
        return (self.detected, self.target, self.level)

    @property
    def said(self) -> str:
        """In words."""
        return f"{self.cause} of {self.target} at level {self.level}"

    def shown(self) -> dict[str, Any]:
        """As JSON-able data; `seconds` until all was well again."""
        took = None if self.recovered is None else round(self.recovered - self.detected, 3)
        return {"cause": self.cause, "target": self.target, "level": self.level, "seconds": took}


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that was done; `at` in unix seconds, by the clock that the incidents are told by."""

    number: int
    """Its place in the file, from 0."""
    fault: FileFault
    at: float


@dataclass(frozen=True, slots=True)
class Moment:
    """What a job has come to."""

    seconds: float | None = None
    """Since it began to run."""
    step: int | None = None
    events: Mapping[str, int] = field(default_factory=dict[str, int])


def is_due(when: FaultTime, now: Moment) -> bool:
    """Whether a fault's time has come."""
    if when.time is not None:
        return now.seconds is not None and now.seconds >= when.time
    if when.step is not None:
        return now.step is not None and now.step >= when.step
    return now.events.get(when.event or "", 0) >= when.count


def shares(
    strikes: Sequence[InjectedFault], incidents: Iterable[ObservedFault]
) -> tuple[dict[int, list[ObservedFault]], list[ObservedFault]]:
    """By a strike's number the incidents that are laid to it, and those from before all strikes.

    It is the latest strike before it whose target it is about, else the latest before it.
    """
    found: dict[int, list[ObservedFault]] = {strike.number: [] for strike in strikes}
    unasked: list[ObservedFault] = []
    for incident in sorted(incidents, key=lambda i: i.key):
        before = sorted((s for s in strikes if s.at <= incident.detected), key=lambda s: (s.at, s.number), reverse=True)
        fits = [s for s in before if _is_about(s.fault.target, incident.target)]
        if before:
            found[(fits or before)[0].number].append(incident)
        else:
            unasked.append(incident)
    return found, unasked


def _is_about(target: str, told: str) -> bool:
    """Whether an incident of `told` can come of a fault to `target`."""
    head, role = target.partition("/")[0], told.partition("/")[0]
    if head == NODE or told == JOB:
        return MASTER not in (head, told)
    return head == role


def mismatch(expected: Expected | None, incidents: Sequence[ObservedFault]) -> str:
    """What is not as expected, in words; empty when all is."""
    if expected is None or any(_is(expected, incident) for incident in incidents):
        return ""
    wanted = ", ".join(
        f"{name} {value}"
        for name, value in (("cause", expected.cause), ("target", expected.target), ("level", expected.level))
        if value is not None
    )
    told = "; ".join(incident.said for incident in incidents) or "nothing"
    return f"expected {wanted}; the job told {told}"


def _is(expected: Expected, incident: ObservedFault) -> bool:
    # Files that were written before Killed was say Unknown for it.
    causes = {None, incident.cause, "Unknown" if incident.cause == "Killed" else None}
    return (
        expected.cause in causes
        and expected.target in (None, incident.target)
        and expected.level in (None, incident.level)
    )


def report(
    faults: Sequence[FileFault],
    strikes: Sequence[InjectedFault],
    incidents: Iterable[ObservedFault],
    begin: float | None,
) -> dict[str, Any]:
    """What was done, and what the job did: {"faults": [...], "unasked": [...]}, JSON-able; `begin` in unix seconds.

    `problem` says what is not as expected; that it never came, too. `met`: there is none, or nothing was expected.
    """
    found, unasked = shares(strikes, incidents)
    at = {strike.number: strike.at for strike in strikes}
    rows: list[dict[str, Any]] = []
    for number, fault in enumerate(faults):
        own = found.get(number, [])
        came = number in at
        problem = mismatch(fault.expect, own) if came else "it never came"
        row: dict[str, Any] = {
            "fault": fault.fault,
            "target": fault.target,
            "at": round(at[number] - (begin or at[number]), 3) if came else None,
            "incidents": [incident.shown() for incident in own],
            "problem": problem,
            "met": not problem or fault.expect is None,
        }
        rows.append(row)
    return {"faults": rows, "unasked": [incident.shown() for incident in unasked]}


def sets(told: Mapping[str, Any]) -> list[set[tuple[str, str, str]]]:
    """For each fault of a report the set of (cause, target, level) that it came to."""
    return [{(i["cause"], i["target"], i["level"]) for i in row["incidents"]} for row in told["faults"]]
