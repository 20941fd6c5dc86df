"""Tasks of a leading operator: workers, pollers and their memory, made anew for each term.

Nothing is kept from an earlier term, since another operator has acted in between.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Literal

from dljob.kube.api import Kube
from dljob.reconcile.reconcile import reconcile
from dljob.reconcile.state.model import Observed, ReconcileResult, Settings
from dljob_operator.controller.controller import Controller, Parts
from dljob_operator.controller.events import Recorder
from dljob_operator.controller.execute import ActionExecutor
from dljob_operator.controller.heads import Heads
from dljob_operator.controller.metrics import Metrics
from dljob_operator.controller.observe import Observer
from dljob_operator.controller.poller import Pollers
from dljob_operator.controller.references import References
from dljob_operator.controller.startup import Startup
from dljob_operator.controller.turns import Turns
from dljob_operator.watch.cache import Cache
from dljob_operator.watch.clock import MACHINE, OperatorClock
from dljob_operator.watch.workqueue import WorkQueue

STUCK_SECONDS = 600.0
"""Time, in seconds, after which a pass counts as stuck and the liveness probe fails."""


class LeaderTasks:
    """One term of a leading operator; its caches are complete. `decide` and `clock` differ in the simulator alone."""

    def __init__(
        self,
        kube: Kube,
        heads: Heads,
        cache: Cache,
        *,
        workers: int,
        queue: WorkQueue,
        metrics: Metrics,
        settings: Settings,
        decide: Callable[[Observed, Settings, float], ReconcileResult] = reconcile,
        clock: OperatorClock = MACHINE,
        served: Container[str] | None = None,
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._turns = Turns(workers)
        self._now = clock.monotonic
        self._pollers = Pollers(heads, queue, cache.count_pods, clock)
        self._startup = Startup(metrics.stage, clock.monotonic)
        references = References(kube, cache, heads, settings.pods.operator, clock)
        self._observer = Observer(cache, self._pollers, kube, references, clock)
        parts = Parts(
            queue=queue,
            observer=self._observer,
            executor=ActionExecutor(kube, cache, heads, self._turns),
            pollers=self._pollers,
            recorder=Recorder(kube, clock),
            metrics=metrics,
            startup=self._startup,
        )
        self._controller = Controller(parts, settings, decide=decide, clock=clock, served=served)

    async def run(self) -> None:
        """Run workers, pollers and the other tasks of a leader until cancelled."""
        self._cache.first_seen = self._startup.begin
        self._queue.open()
        try:
            # Every job gets a pass: the last leader may have died in the middle of any.
            for key, entry in list(self._cache.jobs.entries.items()):
                self._startup.begin(key, entry.value)
                self._queue.add(key)
            await self._controller.run(self._turns)
        finally:
            # The cache outlives this term, and must not report to a term that is over.
            self._cache.first_seen = lambda _key, _body: None
            # The queue before the pollers, whose last answers would still add keys.
            self._queue.close()
            await self._pollers.close()

    def kuberay(self, trouble: Literal["", "missing", "old"]) -> None:
        """Set the problem with KubeRay; empty: none."""
        self._observer.kuberay = trouble

    @property
    def polled(self) -> int:
        """Number of polled jobs."""
        return len(self._pollers)

    @property
    def stuck(self) -> list[str]:
        """Keys of stuck passes."""
        now = self._now()
        return [str(key) for key, began in self._controller.since.items() if now - began > STUCK_SECONDS]
