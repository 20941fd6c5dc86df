"""A job that runs on a RayCluster that is there does not end with it: its DLJob is held until the job has been stopped.

A finalizer holds it, from before the submission to the end of the job. A job with a RayCluster of its own needs none:
the RayCluster is deleted with the DLJob, whoever is there to see it.
"""

from __future__ import annotations

from dljob.control.attempts import ENDED
from dljob.control.case import Case, seconds
from dljob.control.commands import asked
from dljob.control.fields import text
from dljob.control.model import Command, Finalize, Outcome
from dljob.control.steps import Step
from dljob.control.submit import watch

LEAVE_SECONDS = 60.0
"""A deleted job may take so long to stop, and PrimeMaster to answer; then its DLJob goes, and what is left runs on."""
AGAIN_SECONDS = 5.0


def hold(case: Case) -> Step | None:
    """Hold the DLJob before anything of it is submitted to a RayCluster that stays."""
    if not case.ref or case.held or not case.head_ready:
        return None
    return Step("the job must be stopped before its DLJob goes", (Finalize(on=True),))


def release(case: Case) -> Step | None:
    """The job is over: its DLJob may go."""
    return Step("nothing is left to stop", (Finalize(on=False),)) if case.held else None


def leave(case: Case) -> Outcome:
    """What to do about a DLJob that is being deleted."""
    if not case.held:
        return Outcome("the DLJob is being deleted, and its children go with it")
    began = seconds(text(case.meta, "deletionTimestamp")) or case.now
    left = began + LEAVE_SECONDS - case.now
    id_ = f"delete/{case.attempt}"
    if (left <= 0 and asked(case, id_, LEAVE_SECONDS)) or _stopped(case):
        return Outcome(
            "the DLJob is being deleted, and nothing of it runs that could be stopped", (Finalize(on=False),)
        )
    again = min(left, AGAIN_SECONDS) if left > 0 else AGAIN_SECONDS
    if case.reachable and id_ not in case.observed.commands:
        action = Command(id_, case.cluster_name, case.address, "stop", "job", "deletion")
        return Outcome(
            "the DLJob is being deleted: PrimeMaster is asked to stop", (action,), (), None, watch(case), again
        )
    return Outcome("the DLJob is being deleted: PrimeMaster is stopping", watch=watch(case), requeue=again)


def _stopped(case: Case) -> bool:
    """Whether nothing of the job runs, as far as can be seen."""
    if case.finished or not case.submitted or case.cluster is None or case.suspended:
        return True
    if case.snapshot.get("phase") in ("Succeeded", "Failed"):
        return True
    view = case.ray_job
    return not case.told and view is not None and view.status in (*ENDED, "MISSING")
