"""One reconcile of one DLJob: the first policy with something to do decides, then the whole status is computed anew.

`reconcile` is level-triggered: it remembers nothing but the status. So a pass from any state, also after a crash
between any two API calls, converges to the same end (ADR 9).
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
    resources,
    resuming,
    services,
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
"""Seconds between reads of a RayCluster named by spec.rayClusterRef, which the operator does not watch.

The first holds while the job runs, the second while it waits for the RayCluster, its workers or PrimeMaster.
"""

# The order matters. What ends or interrupts the job comes before what makes anything for it, so that no pass creates
# what the next one would delete. What is optional for the job comes last.
POLICIES: tuple[Policy, ...] = (
    # The end of the job is recorded first: no stop, suspension or lost attempt may overwrite a result that is known.
    finish.verdict,
    # An order to stop, or a deadline, beats a suspension and a new attempt: nothing is started only to be stopped.
    stopping.stop,
    # Whatever the job does next, nothing of an attempt that was given up may take its place.
    attempts.strays,
    # A suspension has the pass until it is over: its own steps delete the RayCluster.
    suspending.suspend,
    # A lost attempt is counted before anything of it is deleted.
    attempts.begin_attempt_if_lost,
    # Nobody is sent to ranks that are not ready, or gone with their attempt, while anything else is done.
    services.follow,
    # Pods on dead nodes go by force before their end is awaited: no kubelet will ever report it.
    machines.force,
    # A head on a dead machine: until it is replaced, nothing else can be done for the job.
    machines.replace_head,
    # The RayCluster of the last attempt, and its ranks' lease, end before the next attempt can write a checkpoint.
    attempts.leftover,
    # Before anything is made of the spec.
    resources.choose,
    # ConfigMap, Secret, NetworkPolicy, RayCluster.
    children.missing,
    # On an existing RayCluster the finalizer must be there before anything is submitted.
    leaving.hold,
    # The launcher, once the head is ready.
    submission,
    # From here on PrimeMaster runs the job. Orders of users come before what the operator wants itself.
    commands.restart,
    resuming.ignore,
    commands.checkpoint,
    elastic.scale,
    # PrimeMaster gets the cause of a pod's end while the pod's annotations still name the Ray node that it was.
    evidence.tell,
    machines.exclude,
    elastic.machines,
    # Annotating pods comes after `evidence.tell`, since a pod that restarted gets the id of its new Ray node here.
    annotate.pods,
    # Refused several times: everything else goes first.
    services.retry,
)
"""The policies in the order in which they are asked; a pass takes one step."""


def reconcile(observed: Observed, settings: Settings, now: float) -> ReconcileResult:
    """Return what to do now about one DLJob. `now` is in unix seconds."""
    case = ReconcileContext(observed, settings, now)

    # A DLJob that is being deleted gets no status any more: at most PrimeMaster is stopped and our finalizer removed.
    if case.meta.get("deletionTimestamp"):
        return leaving.leave(case)

    # A job of another controller (spec.managedBy) and a paused job are left as they are.
    manager = text(observed.job, "spec", "managedBy")
    if manager not in ("", names.CONTROLLER):
        return ReconcileResult(f"{manager} manages this job")
    if case.annotations.get(names.PAUSE) == "true":
        return ReconcileResult(f"annotation {names.PAUSE} pauses this job's reconcile")

    # One step: before the end of the job the first policy decides, after it only the cleanup goes on.
    step = _rest(case) if case.finished else _step(case)

    # Each pass computes the whole status from the observation and the step, so that no policy has to maintain it.
    new = statuses.status(case, step.change)
    write, later = statuses.write_due(case, new)
    if any(isinstance(action, Delete) and action.kind == "DLJob" for action in step.actions):
        write = False  # there is no status to write after it

    # The plan's annotations wait for a pass without anything else: patching the DLJob changes its resourceVersion, and
    # the status of the same pass would then be refused.
    if not write and not step.actions:
        step = annotate.plans(case) or step

    # Events are made from the differences of the old status and the new one, so that each is emitted once.
    events = (*step.events, *telling.events(case.old, new))

    # The next pass comes with the next change in the cluster, or when the first of these times is over.
    waits = [seconds for seconds in (step.requeue, later, *_waits(case)) if seconds is not None]
    return ReconcileResult(
        step.reason,
        actions=step.actions,
        events=events,
        status=new if write else None,
        watch=None if case.finished else watch(case),
        requeue=min(waits) if waits else None,
        postponed=step.postponed,
        written_first=step.written_first,
    )


def _rest(case: ReconcileContext) -> PolicyDecision:
    return (
        services.remove(case)
        or resuming.resume(case)
        or leaving.release(case)
        or machines.force(case)
        or attempts.strays(case)
        or resources.keep(case)
        or finish.after(case)
    )


def _step(case: ReconcileContext) -> PolicyDecision:
    for policy in POLICIES:
        step = policy(case)
        if step is not None:
            return resuming.ignore_at_end(case, step)
    return PolicyDecision("everything is as it should be")


def _waits(case: ReconcileContext) -> tuple[float | None, ...]:
    """Return the seconds until the passing of time alone can change a decision, one entry for each clock that runs."""
    if case.finished:
        return (machines.wait(case),)
    return stopping.wait(case), attempts.patience(case), cluster.silence(case), machines.wait(case), _reread_after(case)


def _reread_after(case: ReconcileContext) -> float | None:
    """Return the seconds until spec.rayClusterRef is read again: only RayClusters of its own are watched."""
    if not case.ref:
        return None
    return LOOK_SECONDS if case.reachable and not case.lacks_room else WAIT_SECONDS
