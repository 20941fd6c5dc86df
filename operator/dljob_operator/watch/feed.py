"""Watch events of each kind, from the API server into the caches and the work queue; `handlers` registers them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from dljob.kube.api import DLJOBS, PODS, RAYCLUSTERS, Resource
from dljob.reconcile.state import names
from dljob.reconcile.state.model import Object
from dljob_operator.watch.cache import Cache, ObjectStore, key_of
from dljob_operator.watch.workqueue import Key, WorkQueue

Put: TypeAlias = Callable[[Object], Key | None]
Drop: TypeAlias = Callable[[Key, str], Key | None]

SELECTORS: Mapping[str, str] = {
    RAYCLUSTERS.plural: f"{names.LABEL_MANAGED}=dljob",
    PODS.plural: names.LABEL_UID,
}
"""Label selector by kind; DLJobs have none."""


class WatchFeed:
    """The events of one kind. Each comes twice: first to be stored (`on_index`), then to be told (`on_event`)."""

    def __init__(self, resource: Resource, store: ObjectStore[Any], put: Put, drop: Drop, queue: WorkQueue) -> None:
        self.resource = resource
        self._store, self._put, self._drop, self._queue = store, put, drop, queue
        self._concerned: dict[str, Key] = {}
        """uid -> key: the index sees an object first and changes the cache; the event after it queues the key."""

    def on_index(self, body: Object) -> None:
        """Store an object."""
        key = self._put(body)
        # None: not newer than the cache, so no job needs a pass.
        if key:
            self._concerned[body["metadata"]["uid"]] = key

    def on_event(self, kind: str | None, body: Object) -> None:
        """Drop a deleted object (`kind` is DELETED), and queue the DLJob that the event concerns."""
        uid: str = body["metadata"]["uid"]
        # Proof that the watch lives: `Relist` compares it with what its lists find.
        self._store.events_received += 1
        key = self._concerned.pop(uid, None)
        if kind == "DELETED":
            # Only here: the index (`on_index`) gets objects that exist.
            key = self._drop(key_of(body), uid) or key
        if key:
            self._queue.add(key)


def job_feed(cache: Cache, queue: WorkQueue) -> WatchFeed:
    """Return the feed of DLJobs, which `job_watch` fills."""
    return WatchFeed(DLJOBS, cache.jobs, cache.put_job, cache.drop_job, queue)


def feeds(cache: Cache, queue: WorkQueue, *, kuberay: bool) -> list[WatchFeed]:
    """Return the feeds of the kinds that kopf watches; RayClusters only when they are served."""
    watch_feeds = [WatchFeed(PODS, cache.pods, cache.put_pod, cache.drop_pod, queue)]
    if kuberay:
        watch_feeds.append(WatchFeed(RAYCLUSTERS, cache.clusters, cache.put_cluster, cache.drop_cluster, queue))
    return watch_feeds
