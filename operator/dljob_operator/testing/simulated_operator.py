"""One operator process: the real caches, lists, work queue, passes and pollers, on a loop of virtual time.

What is simulated is around them: the API server's watches and answers, the heads, the clocks, and the end of the
process at any call. Left out is what kopf and the process do: probes, metrics, the webhook and the Lease.
"""

from __future__ import annotations

import asyncio

from dljob.kube.token_key import TokenKey
from dljob.reconcile.reconcile import reconcile
from dljob.reconcile.state.fields import part
from dljob.reconcile.state.model import Observed, ReconcileResult, Settings
from dljob_operator.controller.heads import Heads
from dljob_operator.controller.leader_tasks import LeaderTasks
from dljob_operator.controller.metrics import Metrics
from dljob_operator.testing.api_client import SimulatedKube, selects
from dljob_operator.testing.api_server import Body
from dljob_operator.testing.head_client import HeadClient
from dljob_operator.testing.simulated_process import SimulatedProcess
from dljob_operator.testing.world import StoryState
from dljob_operator.watch.cache import Cache
from dljob_operator.watch.clock import JITTER, OperatorClock
from dljob_operator.watch.feed import SELECTORS, feeds, job_feed
from dljob_operator.watch.relist import Relist, sources
from dljob_operator.watch.workqueue import WorkQueue

KEY = TokenKey(b"simulated operators share one key")
WORKERS = 4
METRICS = Metrics("simulated")
"""Metrics of all simulated operators, which nobody reads: to register them costs a millisecond."""


class SimulatedOperator(SimulatedProcess):
    """An operator from its start to its end."""

    def __init__(self, world: StoryState, number: int, skew: float, behind: int = 0, lag: float = 0.0) -> None:
        """Start the process.

        Args:
            world: its surroundings.
            number: counts the operators of a story.
            skew: seconds that its wall clock is ahead.
            behind: changes that its first lists lack.
            lag: seconds until it receives these changes.
        """
        super().__init__(world.agenda, number, world.broken)
        self.world = world
        self._clock = OperatorClock(
            lambda: world.agenda.now + skew,
            lambda: world.agenda.now,
            lambda: 1 - JITTER + 2 * JITTER * world.rng.random(),
        )
        self._cache, self._queue = Cache(), WorkQueue(self._clock)
        others = feeds(self._cache, self._queue, kuberay=True)
        self._feeds = {feed.resource.kind: feed for feed in (job_feed(self._cache, self._queue), *others)}
        self._kube = SimulatedKube(self, world)
        self._told_at: dict[str, float] = {}
        self._first(behind, lag)
        self._main = self.loop.create_task(self._live(), name=f"operator {number}")
        self._main.add_done_callback(self._ended)

    async def _live(self) -> None:
        """Do what the real process does: fill the caches, list again from time to time, and act."""
        self._queue.close()
        kinds = sources(self._kube, self._cache, kuberay=True)
        relist = Relist(self._queue, (None,), lambda _kind, _count: None, self._clock)
        await relist.fill(kinds)
        heads = Heads(
            KEY, url=lambda host, _port: host, way=lambda host, _token, _of: HeadClient(self, self.world, host)
        )
        known = (self._kube, heads, self._cache)
        acting = LeaderTasks(
            *known,
            workers=WORKERS,
            queue=self._queue,
            metrics=METRICS,
            settings=self.world.settings,
            decide=self._decide,
            clock=self._clock,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(relist.run(lambda: kinds))
            tasks.create_task(acting.run())

    def _decide(self, observed: Observed, settings: Settings, now: float) -> ReconcileResult:
        outcome = reconcile(observed, settings, now)
        self.world.decided(self, observed, outcome)
        return outcome

    def _ended(self, main: asyncio.Task[None]) -> None:
        """Report a process that ends by itself: its tasks must not."""
        if self.alive and not main.cancelled():
            self.world.broken(f"raised: operator {self.number} ended: {main.exception()!r}")

    def end(self) -> None:
        """Crash between two callbacks."""
        self.alive = False
        self.loop.kill(self._main)

    # -- its watches

    def _first(self, behind: int, lag: float) -> None:
        """Make the first lists so many changes old, and let the watches bring the rest late: the API server lags."""
        old_objects, since = self.world.past(behind)
        kinds = self._feeds if since else ()
        self._past = {
            kind: [body for (body_kind, _), body in old_objects.items() if body_kind == kind] for kind in kinds
        }
        self.late = dict.fromkeys(kinds, self.world.agenda.now + lag)
        for kind, body, is_deleted in since:
            self.hear(kind, body, is_deleted=is_deleted)

    def past(self, kind: str) -> list[Body] | None:
        """Return the objects of the first list of a kind, if that list is to be old."""
        return self._past.pop(kind, None)

    def hear(self, kind: str, body: Body, *, is_deleted: bool) -> None:
        """Let a watch bring a change, after a delay and in order."""
        feed = self._feeds.get(kind)
        if not self.alive or feed is None:
            return
        if not selects(SELECTORS.get(feed.resource.plural, ""), part(body, "metadata", "labels")):
            return
        # A lost deletion: only a list can find it.
        if is_deleted and self.loses == kind:
            self.loses = ""
            return
        agenda = self.world.agenda
        # Not before an earlier event of this kind: a watch keeps the order.
        at = max(agenda.now + 0.001 + 0.05 * agenda.rng.random() ** 3, self._told_at.get(kind, 0.0))
        self._told_at[kind] = max(at, self.late.get(kind, 0.0))
        agenda.at(self._told_at[kind], lambda: self._bring(kind, body, is_deleted=is_deleted))

    def _bring(self, kind: str, body: Body, *, is_deleted: bool) -> None:
        if not self.alive:
            return
        # In kopf's order: the index first, then the event; deletions come as events alone.
        if not is_deleted:
            self._feeds[kind].on_index(body)
        self._feeds[kind].on_event("DELETED" if is_deleted else "MODIFIED", body)

    # -- its calls

    async def travel(self, *, reads: bool = False) -> None:
        """Wait while a message travels; the operator may crash meanwhile, unless it only `reads` from a head."""
        await self.sleep(self.world.travel(fatal=not reads) if self.alive else 0.0)
