"""Rules of a faults file: when a fault is due, and which of the job's incidents belong to which fault.

Real jobs and simulated ones use the same rules, so that their reports can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dljob.plan.model import JobPlan
from dljob.plan.targets import MASTER, NODE, POD
from dljob.spec.loading.faults import Expected, FaultTime, FileFault

JOB = "job"
Key: TypeAlias = tuple[float, str, str]
"""Identity of an incident as (detected, target, level): its cause may be corrected later, these are not."""


@dataclass(frozen=True, slots=True)
class ObservedFault:
    """An incident in a job, as its status reports it; times in unix seconds."""

    cause: str
    target: str
    level: str
    detected: float
    recovered: float | None = None

    @property
    def key(self) -> Key:
        """The identity of the incident."""
        return (self.detected, self.target, self.level)

    @property
    def summary(self) -> str:
        """The incident as text."""
        return f"{self.cause} of {self.target} at level {self.level}"

    def shown(self) -> dict[str, Any]:
        """Return it as data for JSON; `seconds` is the time until recovery."""
        took = None if self.recovered is None else round(self.recovered - self.detected, 3)
        return {"cause": self.cause, "target": self.target, "level": self.level, "seconds": took}


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that was injected; `at` in unix seconds, on the clock of the incidents."""

    number: int
    """Its index in the file, from 0."""
    fault: FileFault
    at: float


@dataclass(frozen=True, slots=True)
class Moment:
    """The progress of a job at one moment."""

    seconds: float | None = None
    """Seconds since the job began to run."""
    step: int | None = None
    events: Mapping[str, int] = field(default_factory=dict[str, int])


def is_due(when: FaultTime, now: Moment) -> bool:
    """Return whether a fault is due."""
    if when.time is not None:
        return now.seconds is not None and now.seconds >= when.time
    if when.step is not None:
        return now.step is not None and now.step >= when.step
    return now.events.get(when.event or "", 0) >= when.count


def shares(
    strikes: Sequence[InjectedFault], incidents: Iterable[ObservedFault]
) -> tuple[dict[int, list[ObservedFault]], list[ObservedFault]]:
    """Return number of a fault -> its incidents, and the incidents from before all faults.

    An incident belongs to the latest fault before it whose target it can be about, or else to the latest before it.
    """
    incidents_of: dict[int, list[ObservedFault]] = {strike.number: [] for strike in strikes}
    unasked: list[ObservedFault] = []
    for incident in sorted(incidents, key=lambda i: i.key):
        # Newest first: two faults on one target are told apart by time alone.
        before = sorted((s for s in strikes if s.at <= incident.detected), key=lambda s: (s.at, s.number), reverse=True)
        # A fault may have effects elsewhere, too: without a fitting target the latest fault takes the incident.
        fits = [s for s in before if _is_about(s.fault.target, incident.target)]
        if before:
            incidents_of[(fits or before)[0].number].append(incident)
        else:
            unasked.append(incident)
    return incidents_of, unasked


def _is_about(target: str, reported: str) -> bool:
    """Return whether an incident of target `reported` can follow from a fault to `target`."""
    head, role = target.partition("/")[0], reported.partition("/")[0]
    # Faults of nodes, and incidents of the whole job, concern every role, but never PrimeMaster.
    if head in (NODE, POD) or reported == JOB:
        return MASTER not in (head, reported)
    return head == role


def mismatch(expected: Expected | None, incidents: Sequence[ObservedFault]) -> str:
    """Return the difference to the expectation as text; empty when there is none."""
    # One incident that matches is enough, whatever else happened.
    if expected is None or any(_is(expected, incident) for incident in incidents):
        return ""
    expectation = ", ".join(
        f"{name} {value}"
        for name, value in (("cause", expected.cause), ("target", expected.target), ("level", expected.level))
        if value is not None
    )
    reported = "; ".join(incident.summary for incident in incidents) or "nothing"
    return f"expected {expectation}; the job reported {reported}"


def _is(expected: Expected, incident: ObservedFault) -> bool:
    # Whether a killed class rank is Killed or Unknown depends on the kernel of its machine.
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
    """Return what was injected and how the job reacted, as {"faults": [...], "unasked": [...]} for JSON.

    `begin` is in unix seconds. `problem` is the difference to the expectation, also when the fault was never due. `met`
    is true without a problem, or without an expectation.
    """
    incidents_of, unasked = shares(strikes, incidents)
    at = {strike.number: strike.at for strike in strikes}
    rows: list[dict[str, Any]] = []
    for number, fault in enumerate(faults):
        own_incidents = incidents_of.get(number, [])
        came = number in at
        problem = mismatch(fault.expect, own_incidents) if came else "it was never injected"
        row: dict[str, Any] = {
            "fault": fault.fault,
            "target": fault.target,
            # Without a beginning there is no time to count from.
            "at": round(at[number] - (begin or at[number]), 3) if came else None,
            "incidents": [incident.shown() for incident in own_incidents],
            "problem": problem,
            "met": not problem or fault.expect is None,
        }
        rows.append(row)
    return {"faults": rows, "unasked": [incident.shown() for incident in unasked]}


def sets(fault_report: Mapping[str, Any]) -> list[set[tuple[str, str, str]]]:
    """Return for each fault of a report the set of (cause, target, level) of its incidents."""
    return [{(i["cause"], i["target"], i["level"]) for i in row["incidents"]} for row in fault_report["faults"]]


@dataclass(frozen=True, slots=True, order=True)
class FaultDecision:
    """What a job decided about one fault: the class of its cause, the level, and who restarts."""

    fault: str
    """The fault of the file, as `kill a/0`."""
    cause: str
    level: str
    restarts: tuple[str, ...]
    """Ranks that get another process, `a group of ROLE`, or `master`."""


def decisions(fault_report: Mapping[str, Any], plan: JobPlan) -> list[list[FaultDecision]]:
    """Return what was decided about each fault of a report, in the order of the file.

    Reports of a simulated job, of Ray and of pods have the same decisions, whatever their times. `Unknown` counts as
    `Killed`: which of the two a killed class rank is depends on the kernel of its machine.
    """
    all_decisions: list[list[FaultDecision]] = []
    for row in fault_report["faults"]:
        fault = f"{row['fault']} {row['target']}"
        shown = {
            FaultDecision(
                fault,
                "Killed" if incident["cause"] == "Unknown" else incident["cause"],
                incident["level"],
                _restarted(incident["target"], incident["level"], plan),
            )
            for incident in row["incidents"]
        }
        all_decisions.append(sorted(shown))
    return all_decisions


def _restarted(target: str, level: str, plan: JobPlan) -> tuple[str, ...]:
    role, slash, _ = target.partition("/")
    if level == "Job":
        return tuple(f"{name}/{rank}" for name, role_plan in plan.roles.items() for rank in range(role_plan.replicas))
    if slash or role not in plan.roles:
        return (target,)
    # The incident names the role of a group alone.
    if level == "Role":
        return tuple(f"{role}/{rank}" for rank in range(plan.roles[role].replicas))
    return (f"a group of {role}",)
