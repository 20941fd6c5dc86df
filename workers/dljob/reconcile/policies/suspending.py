"""Suspending and resuming a job: `spec.suspend`.

The intent is written first, as the condition Suspended=False with reason Suspending. Then PrimeMaster is asked to write
checkpoints from memory to disk and to stop. Once it has stopped, cannot stop, or takes too long, the logs are kept and
the next attempt is counted, at no cost to maxClusterRestarts. From there the RayCluster is deleted like that of a lost
attempt, and Suspended becomes True when nothing of it is left. A resumed job begins that next attempt, with the spec as
it is then.

A suspension that has begun is finished: a job that is resumed meanwhile starts after it has stopped. An order that
PrimeMaster may have taken cannot be called back (ADR 35).
"""

from __future__ import annotations

from dljob.reconcile.policies import attempts, commands, finish, machines, services
from dljob.reconcile.policies.attempts import ENDED
from dljob.reconcile.state import reasons
from dljob.reconcile.state.context import PATIENCE_SECONDS, ReconcileContext
from dljob.reconcile.state.fields import field, text
from dljob.reconcile.state.model import Command
from dljob.reconcile.state.steps import Halt, NewAttempt, PolicyDecision

AGAIN_SECONDS = 5.0
SHOWN = 3
"""Number of pods that a message names."""
NOTHING_RAN = "nothing of it ran yet"
SAVED = "Suspended"
"""PrimeMaster's phase once nothing of the attempt runs and everything in memory is on disk."""


def suspend(case: ReconcileContext) -> PolicyDecision | None:
    """Suspend a job that spec.suspend holds, and keep it suspended; resume one that spec.suspend releases."""
    # Suspended, and nothing of the job is left.
    if case.halt == reasons.JOB_SUSPENDED and not _begun(case):
        return _rest(case)
    # Being suspended: end the attempt, then clear its RayCluster away.
    if case.halt == reasons.SUSPENDING:
        # Clients are told first: then the servers drain.
        return services.remove(case) or _end_attempt(case) or _clear(case)
    # A status may have been restored from before the order: a PrimeMaster that reports Suspended has ended the attempt
    # all the same.
    if case.should_run and case.snapshot.get("phase") != SAVED and not case.halt:
        return None
    # Nothing exists yet, so nothing must be stopped: the job stays at its attempt.
    if not _begun(case):
        return PolicyDecision("the job is suspended before anything was made", change=_halted(case, NOTHING_RAN))
    message = f"attempt {case.attempt} is being stopped: what is in memory is saved first"
    if case.replaced:
        message = describe_suspension(case)
    elif not has_begun(case):
        message = f"pods of earlier attempts are being deleted{_still_there(case)}"
    return PolicyDecision("the job is to be suspended", change=Halt(reasons.SUSPENDING, message))


def _begun(case: ReconcileContext) -> bool:
    """Whether anything was created for the attempt, or is left of an earlier one."""
    return has_begun(case) or bool(case.observed.earlier)


def has_begun(case: ReconcileContext) -> bool:
    """Whether anything was created for the attempt, or is left of the one before."""
    named = bool(text(case.old, "attemptSpecHash") or case.recorded.get("uid"))
    return named or case.cluster is not None or case.replaced


def _rest(case: ReconcileContext) -> PolicyDecision:
    if case.should_run:
        return PolicyDecision("the job is resumed", change=_resumed(case))
    return commands.restart(case) or PolicyDecision("the job is suspended")


def _end_attempt(case: ReconcileContext) -> PolicyDecision | None:
    """End the attempt in order and count the next one; None: the attempt has ended."""
    if case.replaced or not has_begun(case):
        return None
    # Without a head, or with another one, no process is left that could save anything.
    if case.submitted and not case.suspended and attempts.broken(case) is None:
        until = case.since("Suspended") + commands.limit(case)
        step = _ask(case, until) or finish.logs(case, until)
        if step is not None:
            return step
    events = (finish.word_on_logs(case),) if case.has_reported and case.cluster is not None else ()
    change = NewAttempt(reasons.SUSPENDING, _stopped(case, case.attempt), counted=False, fault=False)
    return PolicyDecision(
        f"attempt {case.attempt} has ended, and the job is being suspended", change=change, events=events
    )


def _ask(case: ReconcileContext, until: float) -> PolicyDecision | None:
    """Order PrimeMaster to save and stop; None: it has stopped, or will not."""
    if case.cluster is None or case.leaving or case.snapshot.get("phase") == SAVED:
        return None
    # The launcher ended, or was never started, and no PrimeMaster reported: nothing is in memory.
    nowhere = case.ray_job is not None and case.ray_job.status in (*ENDED, "MISSING") and not case.has_reported
    id_, seconds_left = f"suspend/{case.attempt}", until - case.now
    late = seconds_left <= 0 and commands.is_delivered(case, id_, PATIENCE_SECONDS)
    unknown = commands.refusal(case, id_) is not None  # a PrimeMaster of a version without this command
    if nowhere or late or unknown:
        return None
    seconds_left = seconds_left if seconds_left > 0 else AGAIN_SECONDS
    if case.reachable and id_ not in case.observed.commands:
        action = Command(id_, case.cluster_name, case.address, "suspend", "job", "spec.suspend")
        return PolicyDecision("PrimeMaster is asked to save and to stop", (action,), requeue=seconds_left)
    return PolicyDecision("PrimeMaster saves and stops", requeue=seconds_left)


def describe_suspension(case: ReconcileContext) -> str:
    """Return the message of a suspension: the checkpoint to resume from, and the pods that are still there."""
    if not case.replaced:
        return case.conditions["Suspended"].message
    return _stopped(case, case.attempt - 1) + _still_there(case)


def _still_there(case: ReconcileContext) -> str:
    """Return the pods that a suspension waits for, as the end of a message."""
    is_ours = case.leftover is not None or case.observed.cluster is None
    pods = (*(case.observed.pods if is_ours else ()), *case.observed.earlier)
    more = f" and {len(pods) - SHOWN} others" if len(pods) > SHOWN else ""
    names = ", ".join(pod.name for pod in pods[:SHOWN])
    return f"; still there: {names}{more}" if names else ""


def _stopped(case: ReconcileContext, attempt: int) -> str:
    """Return which checkpoint the next attempt resumes from."""
    step = field(case.snapshot or case.old, "progress", "lastCheckpointStep")
    saved = f"its last checkpoint is of step {step}" if isinstance(step, int) else "it has saved no checkpoint"
    return f"attempt {attempt} was stopped; {saved}"


def _clear(case: ReconcileContext) -> PolicyDecision:
    """Delete the RayCluster and wait for its pods; only then is the job suspended.

    A RayCluster deleted in the foreground stays until its pods are gone, which includes pods on a lost node.
    """
    pending = machines.force(case) or attempts.leftover(case)
    if pending is not None:
        return pending
    if case.should_run:
        return PolicyDecision("spec.suspend was withdrawn: the job is resumed", change=_resumed(case))
    if case.observed.pods and case.observed.cluster is None:  # pods of an existing RayCluster belong to its owner
        return PolicyDecision("the last attempt's pods are being deleted")
    # An attempt begins once the ranks of the last one are dead: pods on a lost node may outlive several attempts.
    if case.observed.earlier:
        return PolicyDecision("pods of earlier attempts are being deleted")
    done = describe_suspension(case) if case.replaced else NOTHING_RAN
    return PolicyDecision("nothing of the job is left", change=_halted(case, done))


def _halted(case: ReconcileContext, done: str) -> Halt:
    how = f"`dljob resume {case.name}`, or spec.suspend: false"
    return Halt(reasons.JOB_SUSPENDED, f"{done}; to go on: {how}")


def _resumed(case: ReconcileContext) -> Halt:
    return Halt(reasons.JOB_RESUMED, f"attempt {case.attempt} begins")
