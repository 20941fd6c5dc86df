"""Bugs to plant in the operator: in its decisions first, then in its shell."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from dljob.kube.api import Kube
from dljob.kube.gateway import GatewayClient, answered
from dljob.reconcile import reconcile
from dljob.reconcile.children import annotate, children
from dljob.reconcile.policies import attempts, finish, leaving, machines, resuming, stopping, suspending
from dljob.reconcile.state import names, reasons
from dljob.reconcile.state.context import ReconcileContext
from dljob.reconcile.state.model import Annotate, Finalize
from dljob.reconcile.state.steps import PolicyDecision
from dljob.reconcile.status import status as statuses
from dljob_operator.controller.observe import Observer
from dljob_operator.controller.poller import Pollers
from dljob_operator.watch.relist import Relist
from dljob_operator.watch.workqueue import LONGEST_RETRY, WorkQueue

Patch = pytest.MonkeyPatch
BUGS: dict[str, Callable[[Patch], None]] = {}


def bug(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    BUGS[plant.__name__] = plant
    return plant


def instead(patch: Patch, policy, other) -> None:
    """Another policy in the place of one."""
    patch.setattr(reconcile, "POLICIES", tuple(other if each is policy else each for each in reconcile.POLICIES))


@bug
def forgets_the_last_cluster(patch):
    """The RayCluster of an attempt that was lost is left alone."""
    instead(patch, attempts.leftover, lambda case: None)


@bug
def counts_no_restart(patch):
    """No attempt uses up maxClusterRestarts."""

    class Free(attempts.NewAttempt):
        def __init__(self, reason, message, counted=True, fault=True):
            super().__init__(reason, message, counted=False, fault=fault)

    patch.setattr(attempts, "NewAttempt", Free)


@bug
def waits_for_dead_kubelets(patch):
    """A pod that is over on a node that is lost is waited for."""
    instead(patch, machines.force, lambda case: None)
    patch.setattr(machines, "force", lambda case: None)


@bug
def never_lets_go(patch):
    """The finalizer of a job that is over stays."""
    patch.setattr(leaving, "release", lambda case: None)


@bug
def lets_go_too_early(patch):
    """Nothing holds a DLJob whose job runs on a RayCluster that stays."""
    instead(patch, leaving.hold, lambda case: None)


@bug
def annotates_again_and_again(patch):
    """A plan that is there is written once more."""
    plan = {names.PLAN_HASH: ""}

    def plans(case: ReconcileContext) -> PolicyDecision | None:
        told = {**plan, names.PLAN: f"{case.now:.3f}"}
        return PolicyDecision("again", (Annotate("DLJob", case.name, told),)) if case.cluster is not None else None

    patch.setattr(annotate, "plans", plans)


@bug
def does_not_wait_for_ranks(patch):
    """The next attempt begins while ranks of the last one may live."""
    patch.setattr(attempts, "clearing", lambda case: None)
    patch.setattr(statuses, "clearing", lambda case: None)


@bug
def keeps_the_cluster(patch):
    """The RayCluster of a job that is over stays."""
    patch.setattr(finish, "_cluster", lambda case: None)


@bug
def forgets_what_it_made(patch):
    """What was made is made again."""
    patch.setattr(children, "missing", children.missing)
    old = children.missing

    def again(case: ReconcileContext) -> PolicyDecision | None:
        return old(replace_cluster(case)) if case.now % 2 < 1 else old(case)

    instead(patch, old, again)


def replace_cluster(case: ReconcileContext) -> ReconcileContext:
    return ReconcileContext(replace(case.observed, cluster=None), case.settings, case.now)


@bug
def hears_no_verdict(patch):
    """What PrimeMaster says of the end is not heard."""
    instead(patch, finish.verdict, lambda case: None)


@bug
def suspends_without_waiting(patch):
    """A job is called suspended while its RayCluster is still there."""
    patch.setattr(attempts, "leftover", lambda case: None)
    patch.setattr(statuses, "clearing", lambda case: None)


@bug
def counts_a_suspension(patch):
    """Being suspended uses up maxClusterRestarts."""

    def counted(reason, message, **_):
        return attempts.NewAttempt(reasons.HEAD_LOST, message)

    patch.setattr(suspending, "NewAttempt", counted)


@bug
def never_resumes(patch):
    """A job that is suspended stays so."""
    patch.setattr(suspending, "_rest", lambda case: PolicyDecision("the job is suspended"))


@bug
def obeys_an_order_from_before_the_end(patch):
    """An order to resume a job that has not ended is obeyed when the job ends."""
    patch.setattr(resuming, "ignore_at_end", lambda case, step: step)


@bug
def counts_no_grace(patch):
    """The lease of the last attempt's ranks is counted without the graces of its pods, in which its head lives on."""
    until = attempts._ranks_until

    def bare(case: ReconcileContext) -> float:
        pods = tuple(replace(pod, ends=None) for pod in case.observed.pods)
        return until(ReconcileContext(replace(case.observed, pods=pods), case.settings, case.now))

    patch.setattr(attempts, "_ranks_until", bare)


def dead_when_suspended(case: ReconcileContext) -> float | None:
    return None if case.suspended else attempts.lingering(case)


@bug
def lets_go_of_a_suspended_cluster(patch):
    """Nothing is thought to run on a shared RayCluster that is suspended, though its head has its grace."""
    patch.setattr(leaving, "lingering", dead_when_suspended)


@bug
def stops_with_a_suspended_cluster(patch):
    """A stop is over with the suspension of a shared RayCluster, which may be resumed before a pod is deleted."""
    patch.setattr(stopping, "lingering", dead_when_suspended)


@bug
def releases_a_living_head(patch):
    """A job that is over is let go, though the head of its shared RayCluster has its grace."""

    def at_once(case: ReconcileContext) -> PolicyDecision | None:
        return PolicyDecision("nothing is left to stop", (Finalize(on=False),)) if case.has_finalizer else None

    patch.setattr(leaving, "release", at_once)


@bug
def suspends_without_force(patch):
    """A suspension waits for a pod on a lost node, whose end nobody reports."""

    class NoForce:
        force = staticmethod(lambda case: None)

    patch.setattr(suspending, "machines", NoForce)


@bug
def forgets_earlier_attempts(patch):
    """A suspension waits for the pods of the last attempt alone."""
    patch.setattr(Observer, "_earlier", lambda self, key, job, attempt: ((), ()))


@bug
def keeps_a_late_cluster(patch):
    """A RayCluster that a slow request made after its attempt was given up stays."""
    instead(patch, attempts.strays, lambda case: None)
    patch.setattr(attempts, "strays", lambda case: None)


@bug
def believes_a_late_watch(patch):
    """A RayCluster that the cache lacks is gone."""

    async def not_looked_for(self, key, job):
        pass

    patch.setattr(Observer, "_confirm_loss", not_looked_for)


@bug
def polls_the_last_head(patch):
    """The head of the first attempt is asked for ever."""
    follow = Pollers.follow

    def once(self, key, uid, watch, submitted=""):
        if watch is None or self.views(key) == (None, None):
            follow(self, key, uid, watch, submitted)

    patch.setattr(Pollers, "follow", once)


@bug
def forgets_news_during_a_pass(patch):
    """A key that is added while a pass has it is not handed out again."""
    add = WorkQueue.add

    def unless_busy(self, key):
        if key not in self.busy:
            add(self, key)

    patch.setattr(WorkQueue, "add", unless_busy)


@bug
def tries_no_second_time(patch):
    """A pass that failed is not made again."""
    patch.setattr(WorkQueue, "retry", lambda self, key: LONGEST_RETRY)


@bug
def never_lists_again(patch):
    """What a watch lost stays lost."""

    async def never(self, sights, every=0.0):
        await asyncio.get_running_loop().create_future()

    patch.setattr(Relist, "run", never)


@bug
def reads_without_a_timeout(patch):
    """A read of an object waits for its answer, however long that takes."""

    async def patiently(self, resource, name, namespace=None):
        return await self.call("GET", self._path(resource, namespace, name), timeout=math.inf)

    patch.setattr(Kube, "get", patiently)


@bug
def polls_without_a_timeout(patch):
    """A poll of PrimeMaster waits for its answer, however long that takes."""

    async def patiently(self, path, query=None, wait=0.0, *, large=False):
        return answered(await self._ask("GET", path, query=query, limit=math.inf, large=large), path)

    patch.setattr(GatewayClient, "_get", patiently)
