"""Going on with a job that was stopped or that failed: the annotation `dljob.io/resume: <any new value>`.

The job begins its next attempt, as after a suspension: with its uid, its checkpoints and its spec as it is now. Its
budgets and deadlines begin anew. What cannot be obeyed is refused, once for each value, in `status.lastCommands`.
"""

from __future__ import annotations

from dataclasses import replace

from dljob.reconcile.policies import attempts, commands, finish
from dljob.reconcile.state import names, reasons
from dljob.reconcile.state.context import ReconcileContext
from dljob.reconcile.state.fields import field, items, part
from dljob.reconcile.state.model import Event
from dljob.reconcile.state.steps import JobEnd, NewAttempt, Noted, PolicyDecision

KIND = "resume"


def resume(case: ReconcileContext) -> PolicyDecision | None:
    """Begin the next attempt of an ended job that somebody resumes."""
    value = _new_value(case)
    if not value:
        return None
    if obstacle := _obstacle(case):
        return _refuse(case, value, "Refused", reasons.COMMAND_REFUSED, obstacle)
    # On a RayCluster that stays, ranks of a job that did not stop in time may save until their lease is over.
    wait = finish.ended(case) + attempts.lease_seconds(case) + attempts.CLOCKS_SECONDS - case.now if case.ref else 0.0
    if wait > 0:
        return PolicyDecision("the last attempt's ranks may live until their lease is over", requeue=wait)
    message = f"annotation {names.RESUME}: attempt {case.attempt + 1} goes on from the last checkpoint"
    entry = commands.entry(case, KIND, "job", value, "Sent", message)
    change = NewAttempt(reasons.JOB_RESUMED, message, counted=False, fault=False, commands=(entry,))
    return PolicyDecision("somebody resumes the ended job", change=change)


def ignore(case: ReconcileContext) -> PolicyDecision | None:
    """Note an order to resume a job that has not ended: it must not go on by itself when it ends later."""
    value = _new_value(case)
    if not value:
        return None
    return _refuse(case, value, "Ignored", reasons.COMMAND_IGNORED, "the job has not ended")


def ignore_at_end(case: ReconcileContext, step: PolicyDecision) -> PolicyDecision:
    """Return the step that ends a job with the order to resume settled that came before; another step as it is."""
    match step.change, ignore(case):
        case JobEnd() as end, PolicyDecision(change=Noted(commands), events=events):
            return replace(step, change=replace(end, commands=commands), events=(*step.events, *events))
        case _:
            return step


def _new_value(case: ReconcileContext) -> str:
    """Return the value of the annotation; empty: there is none, or it was settled before."""
    value = case.annotations.get(names.RESUME, "")
    id_ = commands.command_id(KIND, "job", value)
    return "" if any(known.get("id") == id_ for known in items(case.old, "lastCommands")) else value


def _obstacle(case: ReconcileContext) -> str:
    """Return why an ended job cannot go on; empty: it can."""
    if case.holds("Complete"):
        return "the job has succeeded: nothing is left to go on with"
    if names.STOP in case.annotations:
        return f"annotation {names.STOP} would stop it again: remove it, and give {names.RESUME} another value"
    if not field(case.observed.job, "spec", "checkpoint", "path"):
        return "spec.checkpoint.path is not set: its checkpoints were in its pods, which are gone"
    if not part(case.old, "carried", "state", "checkpoints"):
        return "it has no complete checkpoint: delete the job and create it again to begin at its start"
    return ""


def _refuse(case: ReconcileContext, value: str, state: str, reason: str, obstacle: str) -> PolicyDecision:
    event = Event("Warning", reason, f"{KIND} of job: {obstacle}", "Command")
    noted = Noted((commands.entry(case, KIND, "job", value, state, obstacle),))
    return PolicyDecision(f"the job is not resumed: {obstacle}", change=noted, events=(event,))
