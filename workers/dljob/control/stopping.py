"""Ending a job before its end: by the annotation `dljob.io/stop`, or by a deadline.

The intent is written first, as the condition Failed=False with its reason. Then PrimeMaster is asked to stop, and when
it has, or cannot, or takes too long, or is lost, the job has failed for that reason; unless it ended well in the
meantime.
"""

from __future__ import annotations

from collections.abc import Iterator

from dljob.control import commands, names, reasons
from dljob.control.accept import Refused
from dljob.control.attempts import ENDED, broken
from dljob.control.case import PATIENCE_SECONDS, Case, seconds
from dljob.control.fields import bounded, text
from dljob.control.model import Command
from dljob.control.steps import Intent, Step, Verdict
from dljob.control.submit import watch

AGAIN_SECONDS = 5.0
BEFORE_RUNNING = ("", "Pending", "Provisioning", "Scheduling")


def stop(case: Case) -> Step | None:
    """Stop a job that is to be stopped."""
    if "Failed" in case.conditions:
        return _carry_out(case)
    wanted = _annotated(case) or _overdue(case)
    if wanted is None:
        return None
    if not case.submitted or case.cluster is None:
        verdict = Verdict(success=False, reason=wanted.reason, message=wanted.message, at=case.now)
        return Step(f"nothing runs that could be stopped: {wanted.reason}", change=verdict)
    return Step(f"the job is to be stopped: {wanted.reason}", change=wanted)


def wait(case: Case) -> float | None:
    """Seconds until the next deadline; None without one."""
    left = [at - case.now for at, _ in _deadlines(case) if at > case.now]
    return min(left) if left else None


def command_id(case: Case) -> str:
    """The id of the stop in this attempt."""
    return f"stop/{case.attempt}"


def _annotated(case: Case) -> Intent | None:
    value = case.annotations.get(names.STOP)
    if not value:
        return None
    entry = commands.entry(case, "stop", "job", value, "Sent", "the job is being stopped")
    return Intent(reasons.STOPPED, f"annotation {names.STOP}: {bounded(value, 64)}", (entry,))


def _overdue(case: Case) -> Intent | None:
    return next((intent for at, intent in _deadlines(case) if at <= case.now), None)


def _deadlines(case: Case) -> Iterator[tuple[float, Intent]]:
    """(unix seconds, what happens then)."""
    start = seconds(text(case.old, "startTime"))
    if start is None or isinstance(case.terms, Refused) or case.halt or not case.wanted or _ended_well(case):
        return
    active, before = case.terms.active_deadline, case.terms.pre_running_deadline
    if active is not None:
        message = f"activeDeadlineSeconds of {active} passed since {text(case.old, 'startTime')}"
        yield start + active, Intent(reasons.DEADLINE_EXCEEDED, message)
    if before is not None and _never_ran(case):
        why = text(case.old, "message") or text(case.old, "reason")
        message = f"not running after preRunningDeadlineSeconds of {before}: {why}"
        yield start + before, Intent(reasons.PRE_RUNNING_DEADLINE, message)


def _ended_well(case: Case) -> bool:
    """Whether PrimeMaster has said that the job succeeded, and only saves yet; an operator that was away remembers."""
    return text(case.snapshot or case.old, "reason") == reasons.COMPLETED


def _never_ran(case: Case) -> bool:
    """Whether the job has not run yet: an operator that was away hears PrimeMaster before it says so."""
    if text(case.old, "phase") not in BEFORE_RUNNING:
        return False
    if case.snapshot:
        return text(case.snapshot, "phase") in BEFORE_RUNNING
    master = case.observed.master
    patient = master is None or master.age < PATIENCE_SECONDS
    return not (case.submitted and patient and watch(case))


def _carry_out(case: Case) -> Step:
    failing = case.conditions["Failed"]
    verdict = Verdict(success=False, reason=failing.reason, message=failing.message, at=case.now)
    left = case.since("Failed") + commands.limit(case) - case.now
    over = case.ray_job is not None and case.ray_job.status in ENDED and not case.told
    id_ = command_id(case)
    late = left <= 0 and commands.asked(case, id_, PATIENCE_SECONDS)
    if late or over or _gone(case):
        return Step(f"the job was to be stopped, and is taken for stopped: {verdict.reason}", change=verdict)
    left = left if left > 0 else AGAIN_SECONDS
    if case.reachable and id_ not in case.observed.commands:
        action = Command(id_, case.cluster_name, case.address, "stop", "job", _who(verdict.reason))
        return Step("PrimeMaster is asked to stop the job", (action,), requeue=left)
    return Step("PrimeMaster is stopping the job", requeue=left)


def _gone(case: Case) -> bool:
    """Whether nobody is left who could stop the job, or save anything of it."""
    return case.cluster is None or case.suspended or broken(case) is not None


def _who(reason: str) -> str:
    return "annotation" if reason == reasons.STOPPED else reason
