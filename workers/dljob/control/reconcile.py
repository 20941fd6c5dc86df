"""One pass over one job: the first policy that wants something decides; then the whole status follows.

Level-triggered: nothing is remembered but the status, so any pass from any state, after a crash between any two
actions, comes to the same end.
"""

from __future__ import annotations

from collections.abc import Callable

from dljob.control import (
    annotate,
    attempts,
    children,
    cluster,
    commands,
    elastic,
    evidence,
    finish,
    leaving,
    machines,
    names,
    stopping,
    suspending,
    telling,
)
from dljob.control import status as statuses
from dljob.control.case import Case
from dljob.control.fields import text
from dljob.control.model import Delete, Observed, Outcome, Settings
from dljob.control.steps import Step
from dljob.control.submit import submission, watch

Policy = Callable[[Case], Step | None]

LOOK_SECONDS, WAIT_SECONDS = 30.0, 5.0
"""Between looks at a RayCluster that is not the job's: while PrimeMaster answers, and while something is waited for."""

POLICIES: tuple[Policy, ...] = (
    finish.verdict,
    stopping.stop,
    suspending.suspend,
    attempts.lost,
    attempts.leftover,
    machines.force,
    children.missing,
    leaving.hold,
    submission,
    commands.restart,
    elastic.scale,
    evidence.tell,
    machines.exclude,
    elastic.machines,
    annotate.pods,
)
"""Asked in this order; one step a pass."""


def reconcile(observed: Observed, settings: Settings, now: float) -> Outcome:
    """What to do now about one job. `now` in unix seconds."""
    case = Case(observed, settings, now)
    if case.meta.get("deletionTimestamp"):
        return leaving.leave(case)
    manager = text(observed.job, "spec", "managedBy")
    if manager not in ("", names.CONTROLLER):
        return Outcome(f"{manager} manages this job")
    if case.annotations.get(names.PAUSE) == "true":
        return Outcome(f"annotation {names.PAUSE} says hands off")
    step = (leaving.release(case) or machines.force(case) or finish.after(case)) if case.finished else _step(case)
    new = statuses.status(case, step.change)
    write, later = statuses.due(case, new)
    if any(isinstance(action, Delete) and action.kind == "DLJob" for action in step.actions):
        write = False  # there is no status to write after it
    if not write and not step.actions:
        step = annotate.plans(case) or step
    events = (*step.events, *telling.events(case.old, new))
    waits = [seconds for seconds in (step.requeue, later, *_waits(case)) if seconds is not None]
    return Outcome(
        step.reason,
        actions=step.actions,
        events=events,
        status=new if write else None,
        watch=None if case.finished else watch(case),
        requeue=min(waits) if waits else None,
        left=step.left,
        written_first=step.written_first,
    )


def _step(case: Case) -> Step:
    for policy in POLICIES:
        step = policy(case)
        if step is not None:
            return step
    return Step("everything is as it should be")


def _waits(case: Case) -> tuple[float | None, ...]:
    """Seconds until something is to be looked at again for no other reason than that time passes."""
    if case.finished:
        return (machines.wait(case),)
    return stopping.wait(case), attempts.patience(case), cluster.silence(case), machines.wait(case), _look(case)


def _look(case: Case) -> float | None:
    """No watch tells of a RayCluster that is not ours: it is looked at now and then."""
    if not case.ref:
        return None
    return LOOK_SECONDS if case.reachable else WAIT_SECONDS
