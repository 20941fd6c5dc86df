"""Suspending a job and resuming it: `spec.suspend`.

The intent is written first, as the condition Suspended=False with reason Suspending. Then PrimeMaster is asked to bring
to disk what is in memory and to stop; when it has, or cannot, or takes too long, logs are kept and the next attempt is
counted, which costs nothing. So the RayCluster goes as one does whose attempt was lost, and Suspended is True when
nothing of it is left. Resumed, that attempt begins, with the spec as it is then.

What was begun is finished: a job that is wanted back while it still stops goes on when it has stopped.
"""

from __future__ import annotations

from dljob.control import attempts, commands, finish, machines, reasons
from dljob.control.attempts import ENDED
from dljob.control.case import PATIENCE_SECONDS, Case
from dljob.control.fields import field, text
from dljob.control.model import Command
from dljob.control.steps import Halt, NewAttempt, Step

AGAIN_SECONDS = 5.0
SHOWN = 3
"""So many pods are named."""
SAVED = "Suspended"
"""PrimeMaster's phase when nothing of the attempt is left, and what was in memory is on disk."""


def suspend(case: Case) -> Step | None:
    """Suspend a job that is not wanted to run, and keep it so; resume one that is."""
    if case.halt == reasons.JOB_SUSPENDED and not _begun(case):
        return _rest(case)
    if case.halt == reasons.SUSPENDING:
        return _end_attempt(case) or _clear(case)
    if case.wanted and case.snapshot.get("phase") != SAVED and not case.halt:
        return None
    if not _begun(case):
        return Step("the job is suspended before anything was made", change=_halted(case, "nothing of it ran yet"))
    message = f"attempt {case.attempt} is being stopped: what is in memory is saved first"
    return Step("the job is to be suspended", change=Halt(reasons.SUSPENDING, message))


def _begun(case: Case) -> bool:
    """Whether anything was made for the attempt."""
    return bool(text(case.old, "attemptSpecHash") or case.recorded.get("uid")) or case.cluster is not None


def _rest(case: Case) -> Step:
    if case.wanted:
        return Step("the job is resumed", change=_resumed(case))
    return commands.restart(case) or Step("the job is suspended")


def _end_attempt(case: Case) -> Step | None:
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
    return Step(f"attempt {case.attempt} has ended, to be suspended", change=change, events=events)


def _ask(case: Case, until: float) -> Step | None:
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
        return Step("PrimeMaster is asked to save and to stop", (action,), requeue=left)
    return Step("PrimeMaster saves and stops", requeue=left)


def words(case: Case) -> str:
    """What is to be said of a suspension now: what the job goes on from, and what is still there of it."""
    if not case.replaced:
        return case.conditions["Suspended"].message
    pods = case.observed.pods if case.leftover is not None or case.observed.cluster is None else ()
    more = f" and {len(pods) - SHOWN} others" if len(pods) > SHOWN else ""
    names = ", ".join(pod.name for pod in pods[:SHOWN])
    return _stopped(case, case.attempt - 1) + (f"; still there: {names}{more}" if names else "")


def _stopped(case: Case, attempt: int) -> str:
    """What the next attempt goes on from."""
    step = field(case.snapshot or case.old, "progress", "lastCheckpointStep")
    saved = f"its last checkpoint is of step {step}" if isinstance(step, int) else "it has saved no checkpoint"
    return f"attempt {attempt} was stopped; {saved}"


def _clear(case: Case) -> Step:
    """Let the RayCluster and its pods go; only then is the job suspended."""
    left = attempts.leftover(case)
    if left is not None:
        return left
    if case.wanted:
        return Step("the job is wanted back", change=_resumed(case))
    if case.observed.pods and case.observed.cluster is None:  # one that is there is somebody else's
        return machines.force(case) or Step("the last attempt's pods are leaving")
    return Step("nothing of the job is left", change=_halted(case, words(case)))


def _halted(case: Case, done: str) -> Halt:
    how = f"`dljob resume {case.name}`, or spec.suspend: false"
    return Halt(reasons.JOB_SUSPENDED, f"{done}; to go on: {how}")


def _resumed(case: Case) -> Halt:
    return Halt(reasons.JOB_RESUMED, f"attempt {case.attempt} begins")
