"""Deletion of a DLJob on an existing RayCluster (rayClusterRef): a finalizer holds it until the job has stopped.

The finalizer is there from before the submission to the end of the job. A job with its own RayCluster needs none: the
garbage collector deletes the RayCluster with the DLJob, with or without an operator.
"""

from __future__ import annotations

from dljob.reconcile.policies.attempts import ENDED, lingering
from dljob.reconcile.policies.commands import is_delivered
from dljob.reconcile.policies.submit import watch
from dljob.reconcile.state.context import ReconcileContext, seconds
from dljob.reconcile.state.fields import text
from dljob.reconcile.state.model import Command, Finalize, ReconcileResult
from dljob.reconcile.state.steps import PolicyDecision
from dljob.spec.status import TERMINAL

LEAVE_SECONDS = 60.0
"""Seconds for stopping a deleted job, or for a silence of PrimeMaster. Then the finalizer goes and ranks run on."""
AGAIN_SECONDS = 5.0


def hold(case: ReconcileContext) -> PolicyDecision | None:
    """Add the finalizer before anything is submitted to a RayCluster that stays."""
    if not case.ref or case.has_finalizer or not case.head_ready:
        return None
    return PolicyDecision("the finalizer is added: the job must be stopped before its DLJob goes", (Finalize(on=True),))


def release(case: ReconcileContext) -> PolicyDecision | None:
    """Remove the finalizer of a job that is over, once its head cannot run on."""
    if not case.has_finalizer:
        return None
    seconds_left = lingering(case)
    if seconds_left is not None:
        return PolicyDecision("the job is over, and its head may run until its grace is over", requeue=seconds_left)
    return PolicyDecision("nothing is left to stop", (Finalize(on=False),))


def leave(case: ReconcileContext) -> ReconcileResult:
    """Return what to do about a DLJob that is being deleted."""
    if not case.has_finalizer:
        return ReconcileResult("the DLJob is being deleted, and its children go with it")
    # The time limit is there for users: an unreachable head must not hold a DLJob in deletion for ever.
    began = seconds(text(case.meta, "deletionTimestamp")) or case.now
    seconds_left = began + LEAVE_SECONDS - case.now
    id_ = f"delete/{case.attempt}"
    if (seconds_left <= 0 and is_delivered(case, id_, LEAVE_SECONDS)) or _stopped(case):
        return ReconcileResult(
            "the DLJob is being deleted, and nothing of it runs that could be stopped", (Finalize(on=False),)
        )
    again = min(seconds_left, AGAIN_SECONDS) if seconds_left > 0 else AGAIN_SECONDS
    if case.reachable and id_ not in case.observed.commands:
        action = Command(id_, case.cluster_name, case.address, "stop", "job", "deletion")
        return ReconcileResult(
            "the DLJob is being deleted: PrimeMaster is asked to stop", (action,), (), None, watch(case), again
        )
    return ReconcileResult("the DLJob is being deleted: PrimeMaster is stopping", watch=watch(case), requeue=again)


def _stopped(case: ReconcileContext) -> bool:
    """Whether nothing of the job runs, as far as the operator can see."""
    if case.finished or not case.submitted or case.cluster is None or case.suspended:
        return lingering(case) is None
    if case.snapshot.get("phase") in TERMINAL:
        return True
    view = case.ray_job
    return not case.has_reported and view is not None and view.status in (*ENDED, "MISSING")
