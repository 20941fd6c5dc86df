"""Resync: all objects are listed from time to time, and compared with the watches' caches.

A watch that breaks at the wrong moment loses a deletion: kopf 1.45 does not compare its list with what it knew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dljob.kube.api import CHUNK, DLJOBS, PODS, ApiError, Kube
from dljob.kube.kuberay_client import RayClusters
from dljob.kube.objects import Objects
from dljob.reconcile.state.model import Object
from dljob.tasks import ErrorLog
from dljob_operator.watch.cache import Cache, ObjectStore, key_of, keys
from dljob_operator.watch.clock import MACHINE, OperatorClock
from dljob_operator.watch.feed import SELECTORS
from dljob_operator.watch.workqueue import Key, WorkQueue

log = logging.getLogger(__package__)

EVERY = 300.0
"""Interval of the lists in seconds, with a jitter of a fifth."""
JOBS = 20
"""DLJobs per page of a list: each may have 1.5 MiB, and the operator 512 MiB."""
DEAF = 2
"""Consecutive lists with changes of a kind whose watch was silent meanwhile, after which the watch counts as dead."""
AGAIN = 1.0
"""Pause, in seconds, between attempts at the first lists; it doubles each time."""
LONGEST = 10.0


@dataclass(frozen=True, slots=True)
class ResyncSource:
    """A kind of objects, with its store."""

    objects: Objects
    labels: str
    store: ObjectStore[Any]
    put: Callable[[Object], Key | None]
    drop: Callable[[Key, str], Key | None]
    page: int = CHUNK
    """Objects per page of a list."""


class Relist:
    """Lists the kinds, stores new objects, drops deleted ones, and queues the DLJobs concerned."""

    def __init__(
        self,
        queue: WorkQueue,
        namespaces: Sequence[str | None],
        missed: Callable[[str, int], None],
        clock: OperatorClock = MACHINE,
    ) -> None:
        self._queue = queue
        self._namespaces = namespaces
        self._missed = missed
        self._jitter = clock.jitter
        self._events_before: dict[str, int] = {}
        self._deaf: dict[str, int] = {}
        self.waits_for = "the first lists"
        """Why the caches are not complete; empty once they are."""

    @property
    def deaf(self) -> str:
        """The kind whose watch is dead; empty: none."""
        return next((kind for kind, times in self._deaf.items() if times >= DEAF), "")

    async def fill(self, sources: Sequence[ResyncSource]) -> bool:
        """List everything once, however long it takes; return whether a kind was not served at first.

        The caches count as complete only after all kinds: no DLJob may be looked at before its RayCluster.
        """
        absent = False
        # In the order of `_sights`; nothing acts before the last of them.
        for source in sources:
            pause, errors = AGAIN, _errors(source)
            while True:
                try:
                    await self._compare(source)
                    break
                except ApiError as error:
                    # The kind was not served when kopf began, so no watch of it runs.
                    absent = absent or error.status == 404
                    self.waits_for = f"cannot list {source.objects.resource.plural}: {error.message}"
                    errors.failed(error)
                except Exception as error:  # noqa: BLE001 - an unreadable answer today may be readable tomorrow
                    self.waits_for = f"the list of {source.objects.resource.plural} cannot be read"
                    errors.failed(error)
                await asyncio.sleep(pause)
                pause = min(LONGEST, 2 * pause)
        self.waits_for = ""
        return absent

    async def run(self, sources: Callable[[], Sequence[ResyncSource]], every: float = EVERY) -> None:
        """List for ever; `sources` gives the kinds each time, since RayClusters may come later."""
        errors: dict[str, ErrorLog] = {}
        while True:
            await asyncio.sleep(every * self._jitter())
            for source in sources():
                error_log = errors.setdefault(source.objects.resource.plural, _errors(source))
                try:
                    await self.once(source)
                    error_log.worked()
                except Exception as error:  # noqa: BLE001 - one unreadable list must not end all later ones
                    error_log.failed(error)

    async def once(self, source: ResyncSource) -> int:
        """Compare one kind; return the number of changes that the watch had missed. Raises ApiError."""
        news = await self._compare(source)
        kind = source.objects.resource.kind
        events_received = source.store.events_received
        # A watch that told nothing between two lists, while the lists found changes, is dead.
        silent = events_received == self._events_before.get(kind, -1)
        self._events_before[kind] = events_received
        # One list may just be ahead of the watch.
        self._deaf[kind] = self._deaf.get(kind, 0) + 1 if news and silent else 0
        if news:
            self._missed(kind, news)
            log.info("a list of %s showed %d changes that the watch had missed", kind, news)
        return news

    async def _compare(self, source: ResyncSource) -> int:
        before = list(keys(source.store))
        listed_uids: dict[Key, str] = {}
        concerned: list[Key | None] = []
        deleted_uids: set[str] = set()  # uids deleted since the list began: a later page may still contain them
        source.store.deleted_uids.append(deleted_uids)
        try:
            for namespace in self._namespaces:
                async for page in source.objects.pages(namespace, source.labels, source.page):
                    for item in page["items"]:
                        listed_uids[key_of(item)] = uid = item["metadata"]["uid"]
                        concerned.append(None if uid in deleted_uids else source.put(item))
        finally:
            source.store.deleted_uids = [uids for uids in source.store.deleted_uids if uids is not deleted_uids]
        # Only objects known before the list: those that came since are missing in it, and not deleted.
        concerned += [source.drop(key, uid) for key, uid in before if listed_uids.get(key) != uid]
        news = [key for key in concerned if key is not None]
        for key in news:
            self._queue.add(key)
        return len(news)


def sources(kube: Kube, cache: Cache, *, kuberay: bool) -> list[ResyncSource]:
    """Return the watched kinds; RayClusters only when they are served."""
    resync_sources = [
        ResyncSource(Objects(kube, DLJOBS), "", cache.jobs, cache.put_job, cache.drop_job, page=JOBS),
        ResyncSource(Objects(kube, PODS), SELECTORS[PODS.plural], cache.pods, cache.put_pod, cache.drop_pod),
    ]
    if kuberay:
        clusters = RayClusters(kube)
        selector = SELECTORS[clusters.resource.plural]
        resync_sources.append(ResyncSource(clusters, selector, cache.clusters, cache.put_cluster, cache.drop_cluster))
    return resync_sources


def _errors(source: ResyncSource) -> ErrorLog:
    return ErrorLog(f"the list of {source.objects.resource.plural}", log)
