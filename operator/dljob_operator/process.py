"""Process of an operator: probes and metrics from the first moment, the caches, and the leader's tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any, Literal

from prometheus_client import start_http_server

from dljob.kube.api import Kube, NotThereError
from dljob.kube.connection import own_account_reference
from dljob.kube.resources import CONFIG_MAPS
from dljob.reconcile.leadership.lease import Candidate
from dljob.reconcile.leadership.releases import Installation
from dljob.reconcile.state import names
from dljob_operator.app import App
from dljob_operator.controller.heads import Heads
from dljob_operator.controller.leader_tasks import LeaderTasks
from dljob_operator.leader import lease, probes
from dljob_operator.leader.lease import Election
from dljob_operator.leader.probes import SickError
from dljob_operator.leader.releases import Releases
from dljob_operator.watch.feed import job_feed
from dljob_operator.watch.job_watch import watch_jobs
from dljob_operator.watch.relist import Relist, ResyncSource, sources
from dljob_operator.webhook import server
from dljob_operator.webhook.certificate import DAY
from dljob_operator.webhook.server import Webhook

log = logging.getLogger(__package__)

LAG_SECONDS = 30.0
"""Lag of the event loop, in seconds, that fails the liveness probe."""


async def run(app: App) -> None:
    """Work until a signal or `App.stop`. Raises the error of a task that must not end."""
    process = OperatorProcess(app)
    # Probes first: the API server may be away for minutes, and the kubelet must see a live process meanwhile.
    await process.serve()
    try:
        way, manager = await app.connection(), names.MANAGER
        # Two clients: the second one is for the Lease, so that a flood of calls cannot delay a renewal.
        async with Kube(way, manager=manager) as kube, Kube(await app.connection(), manager=manager) as lease_kube:
            await process.run(kube, lease_kube)
    finally:
        await process.close()
    # kopf ends in order after `App` has stopped it, so the task's error ends the process only here.
    if app.failure:
        raise app.failure


class OperatorProcess:
    """One run of the operator `app`, from its probes to its end."""

    def __init__(self, app: App) -> None:
        options = app.options
        self._app = app
        self._heads = Heads(options.key, url=options.head_url)
        self._heads.on_call = app.metrics.count_call
        self._relist = Relist(app.queue, options.namespaces or (None,), app.metrics.missed)
        self._acting: LeaderTasks | None = None
        self._election: Election | None = None
        self._others: Releases | None = None
        self._lead: asyncio.Task[Any] | None = None
        self._server: Any = None
        self._probes: Any = None
        self._webhook: Webhook | None = None
        app.queue.close()  # until this operator leads: a standby fills its caches, and must not work on keys
        app.metrics.observe(app.queue, app.cache, lambda: self.leads)

    async def serve(self) -> None:
        """Serve probes and metrics before the API server is asked: a kubelet must see an operator that waits for it."""
        options = self._app.options
        # Before the servers: `health` reads the lag that this task records.
        self._app.spawn("beat", self._app.record_ticks())
        if options.metrics_port:
            self._server, _ = start_http_server(options.metrics_port, registry=self._app.metrics.registry)
        if options.health_port:
            self._probes = await probes.serve(options.health_port, self.health, self.ready)
        if options.webhook_port:
            metrics, folder = self._app.metrics, options.webhook_certificate
            self._webhook = webhook = server.create_webhook(options.settings, folder, metrics.admitted)
            # Asked at each scrape, so it counts down between two looks at the files.
            metrics.certified(lambda: webhook.certificate.days * DAY)
            self._app.spawn("webhook", server.begin(webhook, options.webhook_port))

    async def close(self) -> None:
        """End everything, the servers last."""
        # The tasks before the connections to heads that they use.
        await self._app.cancel()
        await self._heads.close()
        if self._webhook:
            await self._webhook.close()
        if self._probes:
            await self._probes.cleanup()
        if self._server:
            self._server.shutdown()
            self._server.server_close()

    async def run(self, kube: Kube, lease_kube: Kube) -> None:
        """Run from the first API call to the last.

        Args:
            kube: the client of all work, fenced by the Lease.
            lease_kube: a client for the Lease alone, so that a renewal never waits behind other calls.
        """
        app, elect = self._app, self._app.options.elect
        kube.transport.on_call = app.metrics.called
        if elect:
            lease_namespace = elect.namespace or kube.namespace
            version, serves, key = app.options.settings.version, app.options.namespaces, app.options.key.id
            release = Installation(lease_namespace, elect.name, version=version, serves=serves, key=key)
            self._others = Releases(lease_kube, release, elect.pace, app.metrics.other_release, clock=lease.clock)
            owner = own_account_reference(lease_namespace)
            candidate = Candidate(
                lease.own_identity(), elect.name, lease_namespace, elect.pace, notes=release.notes(), owner=owner
            )
            self._election = Election(lease_kube, candidate, others=self._others)
            # The fence is in the transports, so that no caller can forget it.
            kube.transport.fence = self._heads.fence = self._election.fence
        # Before the watches: kopf can only register kinds at its start, and RayClusters may not be served yet.
        app.kuberay = await app.check_kuberay(kube)
        self._kube = kube
        if self._webhook:
            self._webhook.exists = self._has_config_map
        await app.watch(self._begin, self._end)

    async def _begin(self) -> None:
        """Start the tasks; kopf's watches of the other kinds follow."""
        app = self._app
        app.spawn("CRD", app.watch_crd(self._kube))
        app.spawn("KubeRay", self._watch_kuberay())
        jobs = job_feed(app.cache, app.queue)
        for namespace in app.options.namespaces or (None,):
            app.spawn("watch", watch_jobs(self._kube, namespace, jobs))
        if app.options.namespace_selector:
            app.spawn("namespaces", app.served.follow(self._kube))
        app.spawn("relist", self._relist_all())
        # Waits for the caches, then acts.
        self._lead = app.spawn("lead", self._act())

    async def _end(self) -> None:
        """Stop the tasks; kopf has stopped its watches."""
        await self.retire()
        await self._app.cancel()
        # From here on a kopf that hangs may be left behind (`App._ended_or_hangs`).
        self._app.over.set()

    async def retire(self) -> None:
        """Stop acting first, then give the Lease up, so that another operator can take it at once."""
        if self._lead is None:
            return
        # Taken at once: a signal and the cleanup of kopf both retire this operator.
        lead, self._lead = self._lead, None
        # The work has ended before the Lease is given up: its successor acts at once.
        lead.cancel()
        # An error of the work must not keep the Lease: it is released all the same.
        await asyncio.gather(lead, return_exceptions=True)
        if self._election:
            await self._election.release()

    async def _has_config_map(self, namespace: str, name: str) -> bool:
        try:
            await self._kube.get(CONFIG_MAPS, name, namespace)
        except NotThereError:
            return False
        return True

    # -- tasks

    async def _relist_all(self) -> None:
        await self._relist.run(self._resync_sources, self._app.options.relist_seconds)

    async def _act(self) -> None:
        """Fill the caches, then act: at once, or while the Lease is held."""
        if await self._relist.fill(self._resync_sources()):
            # A kind was not served at kopf's start, so no watch of it runs.
            self._app.rerun("DLJobs are served now")
            return
        self._retire_on_signals()
        await (self._election.run(self._work) if self._election else self._work())

    async def _work(self) -> None:
        app = self._app
        settings, workers = app.options.settings, app.options.workers
        known = (self._kube, self._heads, app.cache)
        acting = LeaderTasks(
            *known, workers=workers, queue=app.queue, metrics=app.metrics, settings=settings, served=app.served
        )
        acting.kuberay(app.kuberay)
        self._acting = acting
        try:
            await acting.run()
        finally:
            # Probes and metrics read this: nothing acts any more.
            self._acting = None

    def _retire_on_signals(self) -> None:
        """Give the Lease up on a signal, before kopf ends its watches, which takes seconds under load."""
        # asyncio sets signal handlers in the main thread only.
        if not self._election or threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()

        def retire(number: int) -> None:
            log.info("%s: ending", signal.Signals(number).name)
            # As a task, since a signal handler cannot wait.
            self._app.spawn("retirement", self._retire_and_stop())

        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError):
                # These replace kopf's handlers, which would end its watches first.
                loop.add_signal_handler(number, retire, number)

    async def _retire_and_stop(self) -> None:
        try:
            await self.retire()
        finally:
            # Also when the Lease could not be released: the signal asked for an end.
            self._app.stop()

    async def _watch_kuberay(self) -> None:
        """Look again for KubeRay while it is missing or old; restart once its kinds are served and can be watched."""
        app = self._app
        watched, began = app.kuberay, time.monotonic()
        while app.kuberay:
            await asyncio.sleep(app.look_again_after(time.monotonic() - began))
            now = await app.check_kuberay(self._kube)
            if now == app.kuberay:
                continue
            # kopf began without a watch of RayClusters, and only a new process can add one.
            if watched == "missing":
                app.rerun("RayClusters are served now")
                return
            # Merely old before: its kinds are watched already, so nothing has to restart.
            app.kuberay = now
            if self._acting:
                self._acting.kuberay(now)
            # Passes that found no usable KubeRay wait for nothing else; bring their jobs up.
            for key in list(app.cache.jobs.entries):
                app.queue.add(key)

    def _resync_sources(self) -> Sequence[ResyncSource]:
        return sources(self._kube, self._app.cache, kuberay=self._app.kuberay != "missing")

    # -- what is told

    @property
    def leads(self) -> bool:
        """Whether this operator acts."""
        # Both: after the Lease is lost, the tasks take a moment to end.
        return self._acting is not None and (self._election is None or self._election.leads)

    @property
    def role(self) -> Literal["leader", "standby", "starting"]:
        """The present role of this operator."""
        if self._relist.waits_for:
            return "starting"
        return "leader" if self.leads else "standby"

    def ready(self) -> dict[str, object]:
        """Report readiness: the caches are complete, so it could act at once. Raises SickError when they are not."""
        if self._relist.waits_for:
            raise SickError(f"the caches are not complete: {self._relist.waits_for}")
        if not self._app.served.known:
            raise SickError("no namespace is served before those that --namespace-selector selects can be listed")
        return {"role": self.role, **self._other_release()}

    def health(self) -> dict[str, object]:
        """Report liveness. Raises SickError when a restart would help; an absent API server is no such case."""
        app, acting = self._app, self._acting
        # Each of these is a state in which only a new process helps.
        if acting and (stuck := acting.stuck):
            raise SickError(f"passes hang: {', '.join(stuck)}")
        if app.lag > LAG_SECONDS:
            raise SickError(f"the event loop is {app.lag:.0f} s behind")
        if self._relist.deaf:
            raise SickError(f"the watch of {self._relist.deaf} is dead: lists show changes that it missed")
        return {
            "role": self.role,
            "leader": self._election.holder if self._election else "",
            **self._other_release(),
            "jobs": len(app.cache.jobs.entries),
            "rayClusters": len(app.cache.clusters.entries),
            "pods": len(app.cache.pods.entries),
            "polled": acting.polled if acting else 0,
            "waiting": len(app.queue),
            "kuberay": app.kuberay or "served",
            "crd": f"lacks {app.lacks}" if app.lacks else "served",
        }

    def _other_release(self) -> dict[str, object]:
        """Describe the other release that this one stands by for, or that acts beside it."""
        others = self._others
        release_texts = {"standsBy": others.stands_by, "actsToo": others.acts_too} if others else {}
        return {key: words for key, words in release_texts.items() if words}
