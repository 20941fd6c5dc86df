"""What acts: workers, pollers and what they remember, made anew each time that this operator comes to act.

What it knew when it acted before is forgotten: another operator has acted since.
"""

from __future__ import annotations

import time
from typing import Literal

from dljob.control.model import Settings
from dljob.kube.api import Kube
from dljob_operator.cache import Cache
from dljob_operator.controller import Controller, Parts, run_workers
from dljob_operator.events import Recorder
from dljob_operator.execute import Hands
from dljob_operator.heads import Heads
from dljob_operator.metrics import Metrics
from dljob_operator.observe import Observer
from dljob_operator.poller import Pollers
from dljob_operator.references import References
from dljob_operator.startup import Startup
from dljob_operator.workqueue import WorkQueue

STUCK_SECONDS = 600.0
"""A pass that takes longer hangs: the liveness probe fails."""


class Acting:
    """One time of acting, from caches that are complete."""

    def __init__(
        self, kube: Kube, heads: Heads, cache: Cache, *, queue: WorkQueue, metrics: Metrics, settings: Settings
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._pollers = Pollers(heads, queue)
        self._startup = Startup(metrics.stage)
        self._observer = Observer(cache, self._pollers, kube, References(kube, cache, heads, settings.service_account))
        parts = Parts(
            queue=queue,
            observer=self._observer,
            hands=Hands(kube, cache, heads),
            pollers=self._pollers,
            recorder=Recorder(kube),
            metrics=metrics,
            startup=self._startup,
        )
        self._controller = Controller(parts, settings)

    async def run(self, workers: int) -> None:
        """Act until cancelled."""
        self._cache.first_seen = self._startup.seen
        self._queue.open()
        try:
            for key, entry in list(self._cache.jobs.entries.items()):
                self._startup.seen(key, entry.value)
                self._queue.add(key)
            await run_workers(self._controller, workers)
        finally:
            self._cache.first_seen = lambda _key, _body: None
            self._queue.close()
            await self._pollers.close()

    def kuberay(self, trouble: Literal["", "missing", "old"]) -> None:
        """What is wrong with KubeRay, from now on."""
        self._observer.kuberay = trouble

    @property
    def polled(self) -> int:
        """How many jobs are asked after."""
        return len(self._pollers)

    @property
    def stuck(self) -> list[str]:
        """The keys of passes that hang."""
        now = time.monotonic()
        return [str(key) for key, began in self._controller.since.items() if now - began > STUCK_SECONDS]
