"""Suspending a job and resuming it: `spec.suspend`.

The intent is written first, as the condition Suspended=False with reason Suspending. Then PrimeMaster is asked to bring
to disk what is in memory and to stop; when it has, or cannot, or takes too long, logs are kept and the next attempt is
counted, which costs nothing. So the RayCluster goes as one does whose attempt was lost, and Suspended is True when
nothing of it is left. Resumed, that attempt begins, with the spec as it is then.

What was begun is finished: a job that is wanted back while it still stops goes on when it has stopped.
"""

from __future__ import annotations

from dljob.reconcile.policies import attempts, commands, finish, machines
from dljob.reconcile.policies.attempts import ENDED
from dljob.reconcile.state import reasons
from dljob.reconcile.state.context import PATIENCE_SECONDS, ReconcileContext
from dljob.reconcile.state.fields import field, text
from dljob.reconcile.state.model import Command
from dljob.reconcile.state.steps import Halt, NewAttempt, PolicyDecision

AGAIN_SECONDS = 5.0
SHOWN = 3
"""So many pods are named."""
SAVED = "Suspended"
"""PrimeMaster's phase when nothing of the attempt is left, and what was in memory is on disk."""


def suspend(case: ReconcileContext) -> PolicyDecision | None:
    """Suspend a job that is not wanted to run, and keep it so; resume one that is."""
    if case.halt == reasons.JOB_SUSPENDED and not _begun(case):
        return _rest(case)
    if case.halt == reasons.SUSPENDING:
        return _end_attempt(case) or _clear(case)
    if case.wanted and case.snapshot.get("phase") != SAVED and not case.halt:
        return None
    if not _begun(case):
        return PolicyDecision(
            "the job is suspended before anything was made", change=_halted(case, "nothing of it ran yet")
        )
    message = f"attempt {case.attempt} is being stopped: what is in memory is saved first"
    said = words(case) if case.replaced else message
    return PolicyDecision("the job is to be suspended", change=Halt(reasons.SUSPENDING, said))


def _begun(case: ReconcileContext) -> bool:
    """Whether anything was made for the attempt, or is left of the one before."""
    made = bool(text(case.old, "attemptSpecHash") or case.recorded.get("uid")) or case.cluster is not None
    return made or case.replaced


def _rest(case: ReconcileContext) -> PolicyDecision:
    if case.wanted:
        return PolicyDecision("the job is resumed", change=_resumed(case))
    return commands.restart(case) or PolicyDecision("the job is suspended")


def _end_attempt(case: ReconcileContext) -> PolicyDecision | None:
    """End the attempt in good order and count the next one; None: it has ended."""
    if case.replaced or not _begun(case):
        return None
    if case.submitted and not case.suspended and attempts.broken(case) is None:
        until = case.since("Suspended") + commands.limit(case)
        step = _ask(case, until) or finish.logs(case, until)
        if step is not None:
            return step
    events = (finish.word_on_logs(case),) if case.told and case.cluster is not None else ()
    change = NewAttempt(reasons.SUSPENDING, _stopped(case, case.attempt), counted=False, fault=False)
    return PolicyDecision(f"attempt {case.attempt} has ended, to be suspended", change=change, events=events)


def _ask(case: ReconcileContext, until: float) -> PolicyDecision | None:
    """Have PrimeMaster save and stop; None: it has, or will not."""
    if case.cluster is None or case.leaving or case.snapshot.get("phase") == SAVED:
        return None
    nowhere = case.ray_job is not None and case.ray_job.status in (*ENDED, "MISSING") and not case.told
    id_, left = f"suspend/{case.attempt}", until - case.now
    late = left <= 0 and commands.asked(case, id_, PATIENCE_SECONDS)
    unknown = commands.refusal(case, id_) is not None  # by a PrimeMaster of a version that cannot be suspended
    if nowhere or late or unknown:
        return None
    left = left if left > 0 else AGAIN_SECONDS
    if case.reachable and id_ not in case.observed.commands:
        action = Command(id_, case.cluster_name, case.address, "suspend", "job", "spec.suspend")
        return PolicyDecision("PrimeMaster is asked to save and to stop", (action,), requeue=left)
    return PolicyDecision("PrimeMaster saves and stops", requeue=left)


def words(case: ReconcileContext) -> str:
    """What is to be said of a suspension now: what the job goes on from, and what is still there of it."""
    if not case.replaced:
        return case.conditions["Suspended"].message
    pods = case.observed.pods if case.leftover is not None or case.observed.cluster is None else ()
    more = f" and {len(pods) - SHOWN} others" if len(pods) > SHOWN else ""
    names = ", ".join(pod.name for pod in pods[:SHOWN])
    return _stopped(case, case.attempt - 1) + (f"; still there: {names}{more}" if names else "")


def _stopped(case: ReconcileContext, attempt: int) -> str:
    """What the next attempt goes on from."""
    step = field(case.snapshot or case.old, "progress", "lastCheckpointStep")
    saved = f"its last checkpoint is of step {step}" if isinstance(step, int) else "it has saved no checkpoint"
    return f"attempt {attempt} was stopped; {saved}"


def _clear(case: ReconcileContext) -> PolicyDecision:
    """Let the RayCluster and its pods go; only then is the job suspended.

    A RayCluster that is deleted in the foreground stays until its pods are gone, also those that nobody tells of.
    """
    left = machines.force(case) or attempts.leftover(case)
    if left is not None:
        return left
    if case.wanted:
        return PolicyDecision("the job is wanted back", change=_resumed(case))
    if case.observed.pods and case.observed.cluster is None:  # one that is there is somebody else's
        return PolicyDecision("the last attempt's pods are leaving")
    return PolicyDecision("nothing of the job is left", change=_halted(case, words(case)))


def _halted(case: ReconcileContext, done: str) -> Halt:
    how = f"`dljob resume {case.name}`, or spec.suspend: false"
    return Halt(reasons.JOB_SUSPENDED, f"{done}; to go on: {how}")


def _resumed(case: ReconcileContext) -> Halt:
    return Halt(reasons.JOB_RESUMED, f"attempt {case.attempt} begins")
