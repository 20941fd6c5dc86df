"""What lives in an operator's process: probes and metrics from the first moment, the caches, and who acts by them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from prometheus_client import start_http_server

from dljob.control.lease import Candidate
from dljob.kube.api import DLJOBS, PODS, Kube
from dljob.kube.kuberay_client import RayClusters
from dljob.kube.objects import Objects
from dljob_operator import handlers, lease, probes
from dljob_operator.acting import Acting
from dljob_operator.heads import Heads
from dljob_operator.lease import Election
from dljob_operator.probes import SickError
from dljob_operator.relist import Relist, Sight

if TYPE_CHECKING:
    from dljob_operator.app import App

log = logging.getLogger(__name__)

LAG_SECONDS = 30.0
"""An event loop that is that far behind fails the liveness probe."""


class Life:
    """One life; `app` is what it is the life of."""

    def __init__(self, app: App) -> None:
        options = app.options
        self._app = app
        self._heads = Heads(options.key, url=options.head_url)
        self._heads.on_call = app.metrics.asked
        self._relist = Relist(app.queue, options.namespaces or (None,), app.metrics.missed)
        self._acting: Acting | None = None
        self._election: Election | None = None
        self._lead: asyncio.Task[Any] | None = None
        self._server: Any = None
        self._probes: Any = None
        app.queue.close()  # until this operator acts
        app.metrics.observe(app.queue, app.cache, lambda: self.leads)

    async def serve(self) -> None:
        """Serve probes and metrics, before anything is asked of the API server."""
        options = self._app.options
        self._app.spawn("beat", self._app.beat())
        if options.metrics_port:
            self._server, _ = start_http_server(options.metrics_port, registry=self._app.metrics.registry)
        if options.health_port:
            self._probes = await probes.serve(options.health_port, self.health, self.ready)

    async def close(self) -> None:
        """The very end."""
        await self._app.cancel()
        await self._heads.close()
        if self._probes:
            await self._probes.cleanup()
        if self._server:
            self._server.shutdown()
            self._server.server_close()

    async def run(self, kube: Kube, own: Kube) -> None:
        """From the first call to the last. `own` is for the Lease alone."""
        app, elect = self._app, self._app.options.elect
        kube.transport.on_call = app.metrics.called
        if elect:
            where = elect.namespace or kube.namespace
            self._election = Election(own, Candidate(lease.own_identity(), elect.name, where, elect.pace))
            kube.transport.fence = self._heads.fence = self._election.fence
        app.kuberay = await app.look(kube)
        self._kube = kube
        await app.watch(self._begin, self._end)

    async def _begin(self) -> None:
        """Start everything; kopf's watches follow."""
        app = self._app
        app.spawn("CRD", app.watch_crd(self._kube))
        app.spawn("KubeRay", self._watch_kuberay())
        app.spawn("relist", self._relist_all())
        self._lead = app.spawn("lead", self._act())

    async def _end(self) -> None:
        """Stop everything; kopf has stopped its watches."""
        await self.retire()
        await self._app.cancel()
        self._app.over.set()

    async def retire(self) -> None:
        """Act no more, and let another act."""
        if self._lead is None:
            return
        lead, self._lead = self._lead, None
        lead.cancel()
        await asyncio.gather(lead, return_exceptions=True)
        if self._election:
            await self._election.release()

    # -- tasks

    async def _relist_all(self) -> None:
        await self._relist.run(self._sights, self._app.options.relist_seconds)

    async def _act(self) -> None:
        """Complete the caches, then act: at once, or as long as the Lease is held."""
        if await self._relist.fill(self._sights()):
            self._app.anew("DLJobs are served now")
            return
        self._retire_on_signals()
        await (self._election.run(self._work) if self._election else self._work())

    async def _work(self) -> None:
        app = self._app
        settings = app.options.settings
        acting = Acting(self._kube, self._heads, app.cache, queue=app.queue, metrics=app.metrics, settings=settings)
        acting.kuberay(app.kuberay)
        self._acting = acting
        try:
            await acting.run(app.options.workers)
        finally:
            self._acting = None

    def _retire_on_signals(self) -> None:
        """kopf, on a signal, ends its watches first, which takes seconds under load: the Lease is given up before."""
        if not self._election or threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()

        def told(number: int) -> None:
            log.info("%s: ending", signal.Signals(number).name)
            self._app.spawn("retirement", self._retire_and_stop())

        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError):
                loop.add_signal_handler(number, told, number)

    async def _retire_and_stop(self) -> None:
        try:
            await self.retire()
        finally:
            self._app.stop()

    async def _watch_kuberay(self) -> None:
        """While KubeRay is missing or old, look again; a kind that is served now is watched from a new start on."""
        app = self._app
        watched = app.kuberay
        while app.kuberay:
            await asyncio.sleep(app.options.look_again_seconds)
            now = await app.look(self._kube)
            if now == app.kuberay:
                continue
            if watched == "missing":
                app.anew("RayClusters are served now")
                return
            app.kuberay = now
            if self._acting:
                self._acting.kuberay(now)
            for key in list(app.cache.jobs.entries):
                app.queue.add(key)

    def _sights(self) -> Sequence[Sight]:
        kube, cache, selectors = self._kube, self._app.cache, handlers.SELECTORS
        found = [
            Sight(Objects(kube, DLJOBS), "", cache.jobs, cache.put_job, cache.drop_job),
            Sight(Objects(kube, PODS), selectors[PODS.plural], cache.pods, cache.put_pod, cache.drop_pod),
        ]
        if self._app.kuberay != "missing":
            clusters = RayClusters(kube)
            selector = selectors[clusters.resource.plural]
            found.append(Sight(clusters, selector, cache.clusters, cache.put_cluster, cache.drop_cluster))
        return found

    # -- what is told

    @property
    def leads(self) -> bool:
        """Whether this operator acts."""
        return self._acting is not None and (self._election is None or self._election.leads)

    @property
    def role(self) -> Literal["leader", "standby", "starting"]:
        """What this operator is now."""
        if self._relist.waits_for:
            return "starting"
        return "leader" if self.leads else "standby"

    def ready(self) -> dict[str, object]:
        """Whether it could act at once: its caches are complete. Raises SickError when not."""
        if self._relist.waits_for:
            raise SickError(f"the caches are not complete: {self._relist.waits_for}")
        return {"role": self.role}

    def health(self) -> dict[str, object]:
        """How it is; raises SickError when a new start would help: not when the API server is away."""
        app, acting = self._app, self._acting
        if acting and (stuck := acting.stuck):
            raise SickError(f"passes hang: {', '.join(stuck)}")
        if app.lag > LAG_SECONDS:
            raise SickError(f"the event loop is {app.lag:.0f} s behind")
        if self._relist.deaf:
            raise SickError(f"the watch of {self._relist.deaf} is dead: lists tell what it does not")
        return {
            "role": self.role,
            "leader": self._election.holder if self._election else "",
            "jobs": len(app.cache.jobs.entries),
            "rayClusters": len(app.cache.clusters.entries),
            "pods": len(app.cache.pods.entries),
            "polled": acting.polled if acting else 0,
            "waiting": len(app.queue),
            "kuberay": app.kuberay or "served",
            "crd": f"lacks {app.lacks}" if app.lacks else "served",
        }
