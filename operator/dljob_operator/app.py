"""The operator put together: client, caches, queue, workers and the tasks beside them, inside kopf's life."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

import kopf

from dljob.control import names
from dljob.control.lease import Pace
from dljob.control.model import Settings
from dljob.kube.api import ApiError, Kube
from dljob.kube.connection import Way, find
from dljob.kube.head import address
from dljob.kube.kuberay_client import RayClusters
from dljob.kube.token_key import TokenKey
from dljob_operator import handlers, lease
from dljob_operator.cache import Cache
from dljob_operator.crd import lacking
from dljob_operator.life import Life
from dljob_operator.metrics import Metrics
from dljob_operator.relist import EVERY
from dljob_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)

LOOK_AGAIN = 10.0
"""Seconds between two looks for KubeRay while it is missing or old."""
LOOK_TWICE = 2.0
"""Seconds after which an API server that did not answer is asked again."""
CRD_FIX = "apply this version's CRD: `helm upgrade` with crds.install, or kubectl apply -f crds/dljob.io_dljobs.yaml"
HANGS_SECONDS = 15.0
"""kopf takes up to 7 s to end under load."""
ANEW_SECONDS = 5.0
"""Before kopf, which has given up, is begun again with the whole process: another operator acts meanwhile."""


@dataclass(frozen=True, slots=True)
class Elect:
    """How the one of several operators that acts is found."""

    pace: Pace = field(default_factory=Pace)
    name: str = lease.NAME
    namespace: str = ""
    """Empty: the operator's own."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    settings: Settings
    key: TokenKey
    namespaces: tuple[str, ...] = ()
    """Empty: all."""
    elect: Elect | None = None
    """None: this operator acts, and is the only one."""
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
        """It ended to begin anew: for a watch that it could not have before, or since kopf gave up."""
        self.hangs = False
        """Tasks are left that do not end: the process must end without them."""
        self.over = asyncio.Event()
        """The life has ended, and kopf soon will."""
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []
        self._failure: BaseException | None = None
        self._beat = time.monotonic()
        self.lacks = ""
        """Fields that the served DLJob lacks, in words."""
        self.kuberay: Literal["", "missing", "old"] = ""
        """What is wrong with KubeRay."""

    def stop(self) -> None:
        """End soon, and well."""
        self._stop.set()

    async def run(self) -> None:
        """Work until a signal or `stop`. Raises what ended a task that must not end."""
        life = Life(self)
        await life.serve()
        try:
            way, manager = await self._way(), names.MANAGER
            async with Kube(way, manager=manager) as kube, Kube(await self._way(), manager=manager) as own:
                await life.run(kube, own)
        finally:
            await life.close()
        if self._failure:
            raise self._failure

    async def watch(self, begin: handlers.Act, end: handlers.Act) -> None:
        """Kopf's life. What ends kopf and none of our own tasks is met with a new start, not with the kubelet's."""
        options = self.options
        registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
        handlers.configure(settings)
        handlers.login(self._way, registry)
        handlers.watch_all(registry, self.cache, self.queue, kuberay=self.kuberay != "missing")
        handlers.life(registry, begin, end)
        running = kopf.operator(
            registry=registry,
            settings=settings,
            standalone=True,
            clusterwide=not options.namespaces,
            namespaces=options.namespaces,
            stop_flag=self._stop,
        )
        try:
            await self._ended_or_hangs(asyncio.create_task(running, name="kopf"))
        except Exception:
            if self._stop.is_set() and self.hangs:
                log.warning("ending without kopf, which hangs")
                return
            if self._failure or self._stop.is_set():
                raise
            log.exception("kopf has given up: starting anew in %g s", ANEW_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ANEW_SECONDS):
                    await self._stop.wait()
            self.again = not self._stop.is_set()

    async def _ended_or_hangs(self, running: asyncio.Task[None]) -> None:
        """Wait until kopf has ended. It may hang (1.45, where credentials are refused) after our life in it has."""
        over = asyncio.create_task(self.over.wait(), name="over")
        await asyncio.wait({running, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        done, _ = await asyncio.wait({running}, timeout=HANGS_SECONDS)
        self.hangs = not done
        if self.hangs:
            raise RuntimeError(f"kopf did not end within {HANGS_SECONDS:g} s")
        running.result()

    async def _way(self) -> Way:
        return await find(self.options.context, self.options.kubeconfig)

    async def look(self, kube: Kube) -> Literal["", "missing", "old"]:
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

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task without which the operator cannot go on."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

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

    def anew(self, why: str) -> None:
        """Replace the process, for a watch that kopf can only begin at its start."""
        log.info("%s: starting anew to watch them", why)
        self.again = True
        self._stop.set()

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
