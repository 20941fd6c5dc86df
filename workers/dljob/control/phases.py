"""The phase: one word for people, derived from what is observed; conditions are what programs wait for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dljob.control import cluster, reasons, suspending
from dljob.control.accept import Refused
from dljob.control.case import Case
from dljob.control.fields import text
from dljob.control.steps import Change, Halt, Intent, NewAttempt, Order, Said, Verdict

OF_MASTER = {
    "Pending": "Scheduling",
    "Scheduling": "Scheduling",
    "Running": "Running",
    "Recovering": "Recovering",
    "Stopping": "Stopping",
}
"""PrimeMaster's phase -> the job's; its end becomes ours by a verdict."""

OF_HALT = {
    reasons.SUSPENDING: "Suspending",
    reasons.JOB_SUSPENDED: "Suspended",
    reasons.JOB_RESUMED: "Provisioning",
}
"""Reason of the condition Suspended -> the job's phase."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the job stands, and why."""

    phase: str
    reason: str
    message: str = ""


STARTING = Place("Scheduling", reasons.STARTING, "PrimeMaster is being started")


def place(case: Case, change: Change | None) -> Place:
    """Where the job stands after a change."""
    match change:
        case Verdict():
            return Place("Succeeded" if change.success else "Failed", change.reason, change.message)
        case NewAttempt(reason=reasons.SUSPENDING):
            return Place("Suspending", change.reason, change.message)
        case Halt():
            return Place(OF_HALT[change.reason], change.reason, change.message)
        case NewAttempt():
            return Place("Recovering" if _ran(case) else "Provisioning", change.reason, change.message)
        case Intent():
            return Place("Stopping", change.reason, change.message)
        case Order() if case.submitted:
            return _as_it_was(case)
        case Order():
            return replace(STARTING, phase="Recovering") if _ran(case) else STARTING
        case _:
            return _standing(case)


def _standing(case: Case) -> Place:
    failing = case.conditions.get("Failed")
    if failing is not None:
        return Place("Stopping", failing.reason, failing.message)
    if case.halt:
        return Place(OF_HALT[case.halt], case.halt, suspending.words(case))
    if case.snapshot:
        phase = OF_MASTER.get(text(case.snapshot, "phase"), "Scheduling")
        stuck = _stuck(case) if phase == "Scheduling" else None
        return stuck or Place(phase, text(case.snapshot, "reason") or phase, text(case.snapshot, "message"))
    if case.told:
        return _as_it_was(case)
    if case.suspended:
        return Place("Queued", reasons.WAITS_IN_QUEUE if case.queued else reasons.CLUSTER_SUSPENDED)
    if case.attempt > 1 and (_ran(case) or case.cluster is None):
        return _as_it_was(case)
    return _before(case)


def _as_it_was(case: Case) -> Place:
    phase = text(case.old, "phase") or "Scheduling"
    return Place(phase, text(case.old, "reason") or phase, text(case.old, "message"))


def _before(case: Case) -> Place:
    """Before PrimeMaster speaks: what the RayCluster waits for."""
    if isinstance(case.terms, Refused) and case.cluster is None:
        return Place("Pending", case.terms.reason, case.terms.message)
    if case.submitted:
        return _stuck(case) or STARTING
    waits = _waits(case)
    phase = "Pending" if case.cluster is None else "Provisioning"
    return Place(phase, waits.reason, waits.message) if waits else Place(phase, reasons.PROVISIONING)


def _waits(case: Case) -> Said | None:
    return next((said for said in cluster.ready(case) if said.status != "True"), None)


def _stuck(case: Case) -> Place | None:
    """Pods that do not get on by themselves: PrimeMaster only sees that machines are missing."""
    waits = _waits(case)
    if waits is None or waits.reason in (reasons.WORKERS_PENDING, reasons.HEAD_PENDING):
        return None
    return Place("Scheduling", waits.reason, waits.message)


def _ran(case: Case) -> bool:
    """Whether the job was running once, as far as its phase tells."""
    return case.old.get("phase") in ("Running", "Recovering")
