"""Assembly of the operator: client, caches, queue, workers and further tasks, within kopf's lifetime."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import kopf

from dljob.kube.api import Kube
from dljob.kube.connection import ApiConnection, find
from dljob.kube.head import address
from dljob.kube.kuberay_client import RayClusters
from dljob.kube.token_key import TokenKey
from dljob.reconcile.leadership.lease import LeaseTiming
from dljob.reconcile.state.model import Settings
from dljob.tasks import ErrorLog
from dljob_operator.controller.metrics import Metrics
from dljob_operator.leader import lease
from dljob_operator.watch import handlers
from dljob_operator.watch.cache import Cache
from dljob_operator.watch.crd import lacking
from dljob_operator.watch.namespaces import ServedNamespaces
from dljob_operator.watch.relist import EVERY
from dljob_operator.watch.workqueue import WorkQueue

log = logging.getLogger(__package__)

LOOK_AGAIN = 10.0
"""Shortest interval, in seconds, of looks for what the cluster lacks: KubeRay, or fields of the CRD."""
LOOK_RARELY = 60.0
"""Longest interval, in seconds: a cluster may lack it for weeks."""
LOOK_TWICE = 2.0
"""Pause, in seconds, before an API server that did not answer is asked again."""
CRD_FIX = "apply this version's CRD: `helm upgrade` with crds.install, or kubectl apply -f crds/dljob.io_dljobs.yaml"
HANGS_SECONDS = 15.0
"""Time, in seconds, for kopf to end; it takes up to 7 s under load."""
ANEW_SECONDS = 5.0
"""Pause, in seconds, before the process restarts after kopf has given up; another operator acts meanwhile."""


@dataclass(frozen=True, slots=True)
class Elect:
    """Settings of leader election among several operators."""

    pace: LeaseTiming = field(default_factory=LeaseTiming)
    name: str = lease.NAME
    namespace: str = ""
    """Namespace of the Lease; empty: the operator's own."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line."""

    settings: Settings
    key: TokenKey
    namespaces: tuple[str, ...] = ()
    """Watched namespaces; empty: all."""
    namespace_selector: str = ""
    """Label selector of the namespaces that are served, among all; empty: all."""
    elect: Elect | None = None
    """None: this operator is the only one, and acts."""
    context: str | None = None
    kubeconfig: str | None = None
    workers: int = 16
    metrics_port: int = 8080
    """0: none; also for the other ports."""
    health_port: int = 8081
    webhook_port: int = 0
    webhook_certificate: Path = Path("/etc/dljob/webhook")
    """Folder with `tls.crt` and `tls.key`."""
    relist_seconds: float = EVERY
    look_again_seconds: float = LOOK_AGAIN
    head_url: Callable[[str, int], str] = address
    """Returns the URL of a head's port."""


class App:
    """One operator: its options, tasks and shared state, within the lifetime of kopf."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.cache = Cache()
        self.queue = WorkQueue()
        self.served = ServedNamespaces(options.namespace_selector, self.cache, self.queue)
        self.metrics = Metrics(options.settings.version)
        self.restarts = False
        """Whether to restart: for a watch that was impossible before, or because kopf gave up."""
        self.hangs = False
        """Whether tasks are left that do not end, so that the process must end without them."""
        self.over = asyncio.Event()
        """Set when the operator's tasks have ended; kopf is about to end."""
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []
        self.failure: BaseException | None = None
        """Error of a task that must not end."""
        self._last_tick = time.monotonic()
        self.lacks = ""
        """Fields that the served CRD lacks, in words."""
        self.kuberay: Literal["", "missing", "old"] = ""
        """Problem with KubeRay; empty: none."""

    def stop(self) -> None:
        """Ask for an orderly end."""
        self._stop.set()

    async def watch(self, begin: handlers.Act, end: handlers.Act) -> None:
        """Run kopf. When kopf ends by itself, this process restarts, without the kubelet, whose backoff is longer."""
        options = self.options
        registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
        handlers.configure(settings)
        handlers.login(self.connection, registry)
        # kopf cannot add a watch later: a kind that is not served is left out, and `rerun` restarts the process for it.
        handlers.watch_all(registry, self.cache, self.queue, kuberay=self.kuberay != "missing")
        handlers.register_start_and_stop(registry, begin, end)
        # `standalone`: without kopf's peering; the Lease elects. kopf only watches, also in a standby.
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
                # Asked to end: our own tasks have ended, so the process may leave kopf behind (`main._run`).
                log.warning("ending without kopf, which hangs")
                return
            if self.failure or self._stop.is_set():
                # A bug of ours, or a stop that failed: a restart would hide it.
                raise
            log.exception("kopf has given up: restarting the process in %g s", ANEW_SECONDS)
            # A stop during the pause ends the process instead of restarting it.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ANEW_SECONDS):
                    await self._stop.wait()
            self.restarts = not self._stop.is_set()

    async def _ended_or_hangs(self, running: asyncio.Task[None]) -> None:
        """Wait until kopf has ended. Version 1.45 may hang where credentials are refused, after our tasks ended."""
        # Our tasks have ended by then, so nothing is lost by leaving kopf behind.
        over = asyncio.create_task(self.over.wait(), name="over")
        await asyncio.wait({running, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        done, _ = await asyncio.wait({running}, timeout=HANGS_SECONDS)
        self.hangs = not done
        if self.hangs:
            raise RuntimeError(f"kopf did not end within {HANGS_SECONDS:g} s")
        running.result()

    async def connection(self) -> ApiConnection:
        """Return the way to the API server."""
        return await find(self.options.context, self.options.kubeconfig)

    async def check_kuberay(self, kube: Kube) -> Literal["", "missing", "old"]:
        """Return the problem with KubeRay, if any; wait for an API server that is away."""
        errors = ErrorLog("the look for KubeRay", log)
        while True:
            try:
                return await RayClusters(kube).trouble()
            except Exception as error:  # noqa: BLE001 - an unreadable answer today may be readable tomorrow
                errors.failed(error)
            await asyncio.sleep(LOOK_TWICE)

    # -- used by the process

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that must not end before the operator does."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        # A cancelled task belongs to an orderly end.
        if not task.cancelled() and (error := task.exception()):
            # A bug of ours ends the container, and the kubelet's backoff is right for it; only kopf's end is absorbed.
            log.critical("%s ended: %r", task.get_name(), error)
            self.failure = error
            self._stop.set()

    async def cancel(self) -> None:
        """End all tasks."""
        for task in self._tasks:
            task.cancel()
        # `_ended` has reported their errors; here each task only has to be over.
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def rerun(self, reason: str) -> None:
        """Restart the process for a watch that kopf can only begin at its start."""
        log.info("%s: restarting the process to watch them", reason)
        self.restarts = True
        self._stop.set()

    async def watch_crd(self, kube: Kube) -> None:
        """Log fields that the served CRD lacks, and look again until it has them."""
        errors, began = ErrorLog("the look at how DLJobs are served", log), time.monotonic()
        while True:
            try:
                lacking_fields = await lacking(kube)
            except Exception as error:  # noqa: BLE001 - an unreadable answer must not end the operator
                errors.failed(error)
            else:
                errors.worked()
                # Once for each set of fields: the look repeats every few seconds.
                if lacking_fields and lacking_fields != self.lacks:
                    log.error("the served CRD lacks %s: values written there are lost; %s", lacking_fields, CRD_FIX)
                self.lacks = lacking_fields
                if not lacking_fields:
                    return
            await asyncio.sleep(self.look_again_after(time.monotonic() - began))

    def look_again_after(self, waited: float) -> float:
        """Return the seconds until the next look for what the cluster has lacked for `waited` seconds."""
        return max(self.options.look_again_seconds, min(LOOK_RARELY, waited / 6))

    async def record_ticks(self) -> None:
        """Note the time every second, so that `lag` tells for how long the event loop has been stuck."""
        while True:
            self._last_tick = time.monotonic()
            await asyncio.sleep(1.0)

    @property
    def lag(self) -> float:
        """Lag of the event loop in seconds."""
        # `record_ticks` itself sleeps for 1 s, which is no lag.
        return max(0.0, time.monotonic() - self._last_tick - 1.0)
