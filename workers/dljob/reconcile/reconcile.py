"""One pass over one job: the first policy that wants something decides; then the whole status follows.

Level-triggered: nothing is remembered but the status, so any pass from any state, after a crash between any two
actions, comes to the same end.
"""

from __future__ import annotations

from collections.abc import Callable

from dljob.reconcile.children import annotate, children
from dljob.reconcile.policies import (
    attempts,
    commands,
    elastic,
    evidence,
    finish,
    leaving,
    machines,
    stopping,
    suspending,
)
from dljob.reconcile.policies.submit import submission, watch
from dljob.reconcile.state import names
from dljob.reconcile.state.context import ReconcileContext
from dljob.reconcile.state.fields import text
from dljob.reconcile.state.model import Delete, Observed, ReconcileResult, Settings
from dljob.reconcile.state.steps import PolicyDecision
from dljob.reconcile.status import cluster
from dljob.reconcile.status import events as telling
from dljob.reconcile.status import status as statuses

Policy = Callable[[ReconcileContext], PolicyDecision | None]

LOOK_SECONDS, WAIT_SECONDS = 30.0, 5.0
"""Between looks at a RayCluster that is not the job's: while PrimeMaster answers, and while something is waited for."""

POLICIES: tuple[Policy, ...] = (
    finish.verdict,
    stopping.stop,
    suspending.suspend,
    attempts.lost,
    machines.force,
    attempts.leftover,
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


def reconcile(observed: Observed, settings: Settings, now: float) -> ReconcileResult:
    """What to do now about one job. `now` in unix seconds."""
    case = ReconcileContext(observed, settings, now)
    if case.meta.get("deletionTimestamp"):
        return leaving.leave(case)
    manager = text(observed.job, "spec", "managedBy")
    if manager not in ("", names.CONTROLLER):
        return ReconcileResult(f"{manager} manages this job")
    if case.annotations.get(names.PAUSE) == "true":
        return ReconcileResult(f"annotation {names.PAUSE} says hands off")
    step = (leaving.release(case) or machines.force(case) or finish.after(case)) if case.finished else _step(case)
    new = statuses.status(case, step.change)
    write, later = statuses.due(case, new)
    if any(isinstance(action, Delete) and action.kind == "DLJob" for action in step.actions):
        write = False  # there is no status to write after it
    if not write and not step.actions:
        step = annotate.plans(case) or step
    events = (*step.events, *telling.events(case.old, new))
    waits = [seconds for seconds in (step.requeue, later, *_waits(case)) if seconds is not None]
    return ReconcileResult(
        step.reason,
        actions=step.actions,
        events=events,
        status=new if write else None,
        watch=None if case.finished else watch(case),
        requeue=min(waits) if waits else None,
        left=step.left,
        written_first=step.written_first,
    )


def _step(case: ReconcileContext) -> PolicyDecision:
    for policy in POLICIES:
        step = policy(case)
        if step is not None:
            return step
    return PolicyDecision("everything is as it should be")


def _waits(case: ReconcileContext) -> tuple[float | None, ...]:
    """Seconds until something is to be looked at again for no other reason than that time passes."""
    if case.finished:
        return (machines.wait(case),)
    return stopping.wait(case), attempts.patience(case), cluster.silence(case), machines.wait(case), _look(case)


def _look(case: ReconcileContext) -> float | None:
    """No watch tells of a RayCluster that is not ours: it is looked at now and then."""
    if not case.ref:
        return None
    return LOOK_SECONDS if case.reachable else WAIT_SECONDS
