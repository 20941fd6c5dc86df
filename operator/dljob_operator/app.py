"""The operator put together: client, caches, queue, workers and the tasks beside them, inside kopf's life."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import kopf
from prometheus_client import start_http_server

from dljob.control import names
from dljob.control.model import Settings
from dljob.kube.api import DLJOBS, PODS, ApiError, Kube
from dljob.kube.connection import Way, find
from dljob.kube.head import address
from dljob.kube.kuberay_client import RayClusters
from dljob.kube.objects import Objects
from dljob.kube.token_key import TokenKey
from dljob_operator import handlers
from dljob_operator.cache import Cache
from dljob_operator.controller import Controller, Parts, run_workers
from dljob_operator.crd import lacking
from dljob_operator.events import Recorder
from dljob_operator.execute import Hands
from dljob_operator.heads import Heads
from dljob_operator.metrics import Metrics
from dljob_operator.observe import Observer
from dljob_operator.poller import Pollers
from dljob_operator.references import References
from dljob_operator.relist import EVERY, Relist, Sight
from dljob_operator.startup import Startup
from dljob_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)

LOOK_AGAIN = 10.0
"""Seconds between two looks for KubeRay while it is missing or old."""
LOOK_TWICE = 2.0
"""Seconds after which an API server that did not answer is asked again."""
CRD_FIX = "apply this version's CRD: `helm upgrade` with crds.install, or kubectl apply -f crds/dljob.io_dljobs.yaml"
STUCK_SECONDS = 600.0
"""A pass that takes longer hangs: the liveness probe fails."""
LAG_SECONDS = 30.0
"""So does an event loop that is that far behind."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    settings: Settings
    key: TokenKey
    namespaces: tuple[str, ...] = ()
    """Empty: all."""
    context: str | None = None
    kubeconfig: str | None = None
    workers: int = 16
    metrics_port: int = 8080
    """0: none, as with the other."""
    health_port: int = 8081
    relist_seconds: float = EVERY
    look_again_seconds: float = LOOK_AGAIN
    head_url: Callable[[str, int], str] = address
    """Where a port of a head is."""


class App:
    """One operator."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.cache = Cache()
        self.queue = WorkQueue()
        self.metrics = Metrics(options.settings.version)
        self.again = False
        """It ended to begin anew, with a watch that it could not have before."""
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []
        self._failure: BaseException | None = None
        self._beat = time.monotonic()
        self.lacks = ""
        """Fields that the served DLJob lacks, in words."""
        self._watched: Literal["", "missing", "old"] = ""
        """What was wrong with KubeRay when the watches were set up."""

    def stop(self) -> None:
        """End soon, and well."""
        self._stop.set()

    async def run(self) -> None:
        """Work until a signal or `stop`. Raises what ended a task that must not end."""
        options = self.options
        async with Kube(await self._way(), manager=names.MANAGER) as kube:
            self._watched = await self._look(kube)
            registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
            handlers.configure(settings)
            handlers.login(self._way, registry)
            handlers.watch_all(registry, self.cache, self.queue, kuberay=self._watched != "missing")
            life = _Life(self, kube)
            handlers.life(registry, life.begin, life.end)
            handlers.probes(registry, (("operator", life.health),))
            await kopf.operator(
                registry=registry,
                settings=settings,
                standalone=True,
                clusterwide=not options.namespaces,
                namespaces=options.namespaces,
                stop_flag=self._stop,
                liveness_endpoint=f"http://0.0.0.0:{options.health_port}/healthz" if options.health_port else None,
            )
        if self._failure:
            raise self._failure

    async def _way(self) -> Way:
        return await find(self.options.context, self.options.kubeconfig)

    async def _look(self, kube: Kube) -> Literal["", "missing", "old"]:
        """Whether KubeRay is there; an API server that is away is waited for."""
        while True:
            try:
                return await RayClusters(kube).trouble()
            except ApiError as error:
                log.warning("cannot see whether KubeRay is there: %s", error.message)
            except Exception:  # an answer that makes no sense today may make some tomorrow
                log.exception("what is served of KubeRay cannot be read")
            await asyncio.sleep(LOOK_TWICE)

    # -- used by the life

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        """Start a task without which the operator cannot go on."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()):
            log.critical("%s ended: %r", task.get_name(), error)
            self._failure = error
            self._stop.set()

    async def cancel(self) -> None:
        """End all tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def watch_kuberay(self, kube: Kube, observer: Observer) -> None:
        """While KubeRay is missing or old, look again; a kind that is served now is watched from a new start on."""
        while observer.kuberay:
            await asyncio.sleep(self.options.look_again_seconds)
            now = await self._look(kube)
            if now == observer.kuberay:
                continue
            if self._watched == "missing":
                log.info("RayClusters are served now: starting anew to watch them")
                self.again = True
                self._stop.set()
                return
            observer.kuberay = now
            for key in list(self.cache.jobs.entries):
                self.queue.add(key)

    async def watch_crd(self, kube: Kube) -> None:
        """Say it when the served DLJob lacks fields, and look again until it has them."""
        while True:
            try:
                found = await lacking(kube)
            except ApiError as error:
                log.warning("cannot see how DLJobs are served: %s", error.message)
            except Exception:  # an answer that makes no sense must not end the operator
                log.exception("how DLJobs are served cannot be read")
            else:
                if found and found != self.lacks:
                    log.error("the served DLJob lacks %s: what is written there is lost; %s", found, CRD_FIX)
                self.lacks = found
                if not found:
                    return
            await asyncio.sleep(self.options.look_again_seconds)

    async def beat(self) -> None:
        """Show that the event loop turns."""
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(1.0)

    @property
    def lag(self) -> float:
        """Seconds that the event loop is behind."""
        return max(0.0, time.monotonic() - self._beat - 1.0)

    @property
    def watched(self) -> Literal["", "missing", "old"]:
        """What was wrong with KubeRay when the watches were set up."""
        return self._watched


class _Life:
    """What lives between kopf's start and its end."""

    def __init__(self, app: App, kube: Kube) -> None:
        options, metrics = app.options, app.metrics
        self._app = app
        self._kube = kube
        self._server: Any = None
        self._heads = Heads(options.key, url=options.head_url)
        self._pollers = Pollers(self._heads, app.queue)
        references = References(kube, app.cache, self._heads, options.settings.service_account)
        self._observer = Observer(app.cache, self._pollers, kube, references)
        self._observer.kuberay = app.watched
        self._startup = Startup(metrics.stage)
        parts = Parts(
            queue=app.queue,
            observer=self._observer,
            hands=Hands(kube, app.cache, self._heads),
            pollers=self._pollers,
            recorder=Recorder(kube),
            metrics=metrics,
            startup=self._startup,
        )
        self._controller = Controller(parts, options.settings)
        kube.transport.on_call = metrics.called
        self._heads.on_call = metrics.asked
        metrics.observe(app.queue, app.cache)
        app.cache.first_seen = self._startup.seen

    async def begin(self) -> None:
        """Start everything; kopf's watches follow."""
        app, options = self._app, self._app.options
        if options.metrics_port:
            self._server, _ = start_http_server(options.metrics_port, registry=app.metrics.registry)
        relist = Relist(app.queue, options.namespaces or (None,), app.metrics.missed)
        app.spawn("workers", run_workers(self._controller, options.workers))
        app.spawn("relist", relist.run(self._sights, options.relist_seconds))
        app.spawn("beat", app.beat())
        app.spawn("CRD", app.watch_crd(self._kube))
        app.spawn("KubeRay", app.watch_kuberay(self._kube, self._observer))

    async def end(self) -> None:
        """Stop everything; kopf has stopped its watches."""
        await self._app.cancel()
        await self._pollers.close()
        await self._heads.close()
        if self._server:
            self._server.shutdown()
            self._server.server_close()

    def health(self) -> dict[str, object]:
        """What the probe tells; raises when the operator should be restarted."""
        stuck = {str(k): t for k, t in self._controller.since.items() if time.monotonic() - t > STUCK_SECONDS}
        if stuck:
            raise RuntimeError(f"passes hang: {', '.join(stuck)}")
        if self._app.lag > LAG_SECONDS:
            raise RuntimeError(f"the event loop is {self._app.lag:.0f} s behind")
        cache = self._app.cache
        return {
            "jobs": len(cache.jobs.entries),
            "rayClusters": len(cache.clusters.entries),
            "pods": len(cache.pods.entries),
            "polled": len(self._pollers),
            "waiting": len(self._app.queue),
            "kuberay": self._observer.kuberay or "served",
            "crd": f"lacks {self._app.lacks}" if self._app.lacks else "served",
        }

    def _sights(self) -> Sequence[Sight]:
        kube, cache, selectors = self._kube, self._app.cache, handlers.SELECTORS
        found = [
            Sight(Objects(kube, DLJOBS), "", cache.jobs, cache.put_job, cache.drop_job),
            Sight(Objects(kube, PODS), selectors[PODS.plural], cache.pods, cache.put_pod, cache.drop_pod),
        ]
        if self._observer.kuberay != "missing":
            clusters = RayClusters(kube)
            selector = selectors[clusters.resource.plural]
            found.append(Sight(clusters, selector, cache.clusters, cache.put_cluster, cache.drop_cluster))
        return found
