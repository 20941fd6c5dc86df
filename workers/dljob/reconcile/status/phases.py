"""The phase: one word for people. Programs wait for conditions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dljob.reconcile.policies import suspending
from dljob.reconcile.state import reasons
from dljob.reconcile.state.accept import Refused
from dljob.reconcile.state.context import ReconcileContext
from dljob.reconcile.state.fields import text
from dljob.reconcile.state.steps import Change, Ending, Halt, Intent, JobEnd, NewAttempt, Said, SubmitOrder
from dljob.reconcile.status import cluster

OF_MASTER = {
    "Pending": "Scheduling",
    "Scheduling": "Scheduling",
    "Running": "Running",
    "Recovering": "Recovering",
    "Stopping": "Stopping",
}
"""PrimeMaster's phase -> the job's. Its terminal phases become the job's by a policy's `JobEnd`."""

OF_HALT = {
    reasons.SUSPENDING: "Suspending",
    reasons.JOB_SUSPENDED: "Suspended",
    reasons.JOB_RESUMED: "Provisioning",
}
"""The reason of the condition Suspended -> the job's phase."""

OF_ENDING: dict[Ending, str] = {"Complete": "Succeeded", "Failed": "Failed", "Stopped": "Stopped"}
"""The terminal condition -> the job's phase."""


@dataclass(frozen=True, slots=True)
class PhaseReason:
    """The job's phase, and why."""

    phase: str
    reason: str
    message: str = ""


STARTING = PhaseReason("Scheduling", reasons.STARTING, "PrimeMaster is being started")


def place(case: ReconcileContext, change: Change | None) -> PhaseReason:
    """Return the phase after a change."""
    match change:
        case JobEnd():
            return PhaseReason(OF_ENDING[change.condition], change.reason, change.message)
        case NewAttempt(reason=reasons.SUSPENDING):
            return PhaseReason("Suspending", change.reason, change.message)
        case Halt(reason=reasons.JOB_SUSPENDED) if case.invalid is not None:
            return _invalid(case, case.invalid)
        case Halt():
            return PhaseReason(OF_HALT[change.reason], change.reason, change.message)
        case NewAttempt():
            return PhaseReason("Recovering" if _ran(case) else "Provisioning", change.reason, change.message)
        case Intent():
            return PhaseReason("Stopping", change.reason, change.message)
        case SubmitOrder() if case.submitted:
            return _as_it_was(case)
        case SubmitOrder():
            return replace(STARTING, phase="Recovering") if _ran(case) else STARTING
        case _:
            return _standing(case)


def _standing(case: ReconcileContext) -> PhaseReason:
    # An ordered stop beats a suspension, as in the order of the policies.
    if case.stopping is not None:
        _, ordered = case.stopping
        return PhaseReason("Stopping", ordered.reason, ordered.message)
    # What keeps a suspended job from being resumed is said before somebody tries.
    if case.invalid is not None and case.halt != reasons.SUSPENDING:
        return _invalid(case, case.invalid)
    if case.halt:
        return PhaseReason(OF_HALT[case.halt], case.halt, suspending.describe_suspension(case))
    if case.snapshot:
        phase = OF_MASTER.get(text(case.snapshot, "phase"), "Scheduling")
        # PrimeMaster sees only that nodes are missing; the pods tell why.
        stuck = _stuck(case) if phase == "Scheduling" else None
        if case.lacks_room and case.growing:
            stuck = stuck or PhaseReason(phase, reasons.WORKERS_PENDING, text(case.snapshot, "message"))
        return stuck or PhaseReason(phase, text(case.snapshot, "reason") or phase, text(case.snapshot, "message"))
    # This operator has no report yet, an earlier one had: the old phase holds until PrimeMaster answers.
    if case.has_reported:
        return _as_it_was(case)
    if case.suspended:
        return PhaseReason("Queued", reasons.WAITS_IN_QUEUE if case.queued else reasons.CLUSTER_SUSPENDED)
    if case.attempt > 1 and (_ran(case) or case.cluster is None):
        return _as_it_was(case)
    return _before(case)


def _invalid(case: ReconcileContext, refusal: Refused) -> PhaseReason:
    suspended = "" if case.should_run else "; the job is suspended"
    return PhaseReason("Invalid", refusal.reason, f"{refusal.message}{suspended}{_waiting_attempt(case)}")


def _waiting_attempt(case: ReconcileContext) -> str:
    """Return which attempt waits for a better spec, as the end of a message; empty: no attempt ran before."""
    if case.attempt == 1 or not case.holds("Recovering"):
        return ""
    reason = case.conditions["Recovering"].reason
    return f"; attempt {case.attempt - 1} is lost ({reason}), and the next one begins when the spec is corrected"


def _as_it_was(case: ReconcileContext) -> PhaseReason:
    phase = text(case.old, "phase") or "Scheduling"
    if phase == "Invalid":  # the spec was mended
        return PhaseReason("Recovering" if _ran(case) else "Provisioning", reasons.PROVISIONING)
    return PhaseReason(phase, text(case.old, "reason") or phase, text(case.old, "message"))


def _before(case: ReconcileContext) -> PhaseReason:
    """Return the phase before PrimeMaster's first report: what the RayCluster waits for."""
    if case.submitted:
        return _stuck(case) or STARTING
    waits = _waits(case)
    phase = "Pending" if case.cluster is None else "Provisioning"
    return PhaseReason(phase, waits.reason, waits.message) if waits else PhaseReason(phase, reasons.PROVISIONING)


def _waits(case: ReconcileContext) -> Said | None:
    return next((condition for condition in cluster.ready(case) if condition.status != "True"), None)


def _stuck(case: ReconcileContext) -> PhaseReason | None:
    """Return why pods cannot start without help: PrimeMaster sees only that machines are missing."""
    waits = _waits(case)
    if waits is None or waits.reason in (reasons.WORKERS_PENDING, reasons.HEAD_PENDING):
        return None
    return PhaseReason("Scheduling", waits.reason, waits.message)


def _ran(case: ReconcileContext) -> bool:
    """Whether the job once ran, as far as its phase tells, which a spec that became invalid since hides."""
    return case.old.get("phase") in ("Running", "Recovering") or case.holds("Recovering")
