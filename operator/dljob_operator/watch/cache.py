"""Caches of the watches, digested: DLJobs within bounds, RayClusters without unused parts, Pods as `model.Pod`.

A cache never goes back: an object older than the known one is ignored. So the answer to a write counts at once, and its
echo in the watch does nothing later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from dljob.reconcile.state import names
from dljob.reconcile.state.excess import reduced
from dljob.reconcile.state.fields import items, part, text
from dljob.reconcile.state.model import Object, Pod
from dljob_operator.watch.pods import digest as pod_digest
from dljob_operator.watch.workqueue import Key

Json: TypeAlias = dict[str, Any]
T = TypeVar("T")

_META = (
    *("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"),
    *("labels", "annotations", "ownerReferences"),
)
_COUNTS = ("groupName", "replicas", "minReplicas", "maxReplicas")


@dataclass(frozen=True, slots=True)
class CachedObject(Generic[T]):
    """One object in a store."""

    uid: str
    version: int
    job: Key | None
    """DLJob whose key a change of this object queues; None: none."""
    value: T


@dataclass(frozen=True, slots=True)
class PodOf:
    """A pod with the name of its RayCluster."""

    cluster: str
    pod: Pod


@dataclass(slots=True)
class ObjectStore(Generic[T]):
    """The objects of one kind, by namespace and name."""

    entries: dict[Key, CachedObject[T]] = field(default_factory=dict[Key, CachedObject[T]])
    events_received: int = 0
    """Number of watch events of this kind."""
    deleted_uids: list[set[str]] = field(default_factory=list[set[str]])
    """For each list in progress, the uids dropped meanwhile: the list may still contain them."""

    def get(self, key: Key) -> T | None:
        """Return the object, or None."""
        entry = self.entries.get(key)
        return entry.value if entry else None

    def put(self, key: Key, entry: CachedObject[T]) -> bool:
        """Store an object unless a newer state of it is known; return whether it was stored."""
        known = self.entries.get(key)
        # Another uid is another object of the same name, and its version says nothing about this one's.
        if known and known.uid == entry.uid and known.version >= entry.version:
            return False
        self.entries[key] = entry
        return True

    def drop(self, key: Key, uid: str) -> bool:
        """Forget an object, unless another one has its name by now; return whether it was forgotten."""
        known = self.entries.get(key)
        # Noted even if the object is unknown: a list in progress may bring it yet.
        for uids in self.deleted_uids:
            uids.add(uid or (known.uid if known else ""))
        if known is None or (uid and known.uid != uid):
            return False
        del self.entries[key]
        return True


class Cache:
    """Cached state of the cluster."""

    def __init__(self) -> None:
        self.jobs: ObjectStore[Json] = ObjectStore()
        self.clusters: ObjectStore[Json] = ObjectStore()
        self.pods: ObjectStore[PodOf] = ObjectStore()
        self._pods_of: dict[Key, dict[str, Pod]] = {}
        """(namespace, RayCluster) -> name -> pod."""
        self.first_seen: Callable[[Key, Object], None] = lambda _key, _body: None
        """Called with each DLJob that is new to this cache."""

    # -- updates; each returns the key of the DLJob concerned, or None when nothing changed

    def put_job(self, body: Object) -> Key | None:
        """Store the present state of a DLJob."""
        meta = body["metadata"]
        key = key_of(body)
        if key not in self.jobs.entries:
            self.first_seen(key, body)
        # No decision reads managedFields.
        lean = {**body, "metadata": {name: value for name, value in meta.items() if name != "managedFields"}}
        return key if self.jobs.put(key, CachedObject(meta["uid"], _version(body), key, reduced(lean))) else None

    def put_cluster(self, body: Object) -> Key | None:
        """Store the present state of a RayCluster."""
        owner = owner_of(body)
        entry = CachedObject(body["metadata"]["uid"], _version(body), owner, cluster_digest(body))
        return owner if self.clusters.put(key_of(body), entry) else None

    def put_pod(self, body: Object) -> Key | None:
        """Store the present state of a pod."""
        key, labels = key_of(body), part(body, "metadata", "labels")
        job = Key(key.namespace, labels[names.LABEL_NAME]) if labels.get(names.LABEL_NAME) else None
        value = PodOf(text(labels, "ray.io/cluster"), pod_digest(body))
        if not self.pods.put(key, CachedObject(body["metadata"]["uid"], _version(body), job, value)):
            return None
        # A second index, since each pass asks for the pods of one RayCluster.
        self._pods_of.setdefault(Key(key.namespace, value.cluster), {})[key.name] = value.pod
        return job

    def drop_job(self, key: Key, uid: str = "") -> Key | None:
        """Drop a deleted DLJob."""
        return key if self.jobs.drop(key, uid) else None

    def drop_cluster(self, key: Key, uid: str = "") -> Key | None:
        """Drop a deleted RayCluster."""
        known = self.clusters.entries.get(key)
        return known.job if self.clusters.drop(key, uid) and known else None

    def drop_pod(self, key: Key, uid: str = "") -> Key | None:
        """Drop a deleted pod."""
        known = self.pods.entries.get(key)
        if not self.pods.drop(key, uid) or known is None:
            return None
        cluster_key = Key(key.namespace, known.value.cluster)
        siblings = self._pods_of.get(cluster_key, {})
        siblings.pop(key.name, None)
        # No empty entry stays for a RayCluster that is gone.
        if not siblings:
            self._pods_of.pop(cluster_key, None)
        return known.job

    # -- questions

    def count_pods(self, cluster: Key) -> int:
        """Return the number of a RayCluster's pods."""
        return len(self._pods_of.get(cluster, {}))

    def pods_of(self, cluster: Key) -> tuple[Pod, ...]:
        """Return the pods of a RayCluster, the head first, then by name."""
        pods = self._pods_of.get(cluster, {}).values()
        return tuple(sorted(pods, key=lambda pod: (not pod.head, pod.name)))


def key_of(body: Object) -> Key:
    """Return the namespace and name of an object."""
    return Key(body["metadata"]["namespace"], body["metadata"]["name"])


def owner_of(body: Object) -> Key | None:
    """Return the DLJob that controls an object; None when there is none."""
    for reference in items(body, "metadata", "ownerReferences"):
        if reference.get("controller") and reference["kind"] == "DLJob":
            return Key(body["metadata"]["namespace"], reference["name"])
    return None


def cluster_digest(body: Object) -> Json:
    """Return the parts of a RayCluster that decisions need.

    The plan's text is left out, and of a spec that was never edited (generation 1) all but the numbers of pods.
    """
    meta = {name: body["metadata"][name] for name in _META if name in body["metadata"]}
    if names.PLAN in (meta.get("annotations") or {}):
        meta["annotations"] = {name: text for name, text in meta["annotations"].items() if name != names.PLAN}
    spec = part(body, "spec")
    # Generation 1 is as the operator made it: nothing of the spec need be compared.
    edited = meta.get("generation", 1) > 1
    return {"metadata": meta, "spec": spec if edited else _lean(spec), "status": part(body, "status")}


def _lean(spec: Object) -> Json:
    groups = [{name: group[name] for name in _COUNTS if name in group} for group in items(spec, "workerGroupSpecs")]
    suspended = {name: spec[name] for name in ("suspend",) if name in spec}
    return {**suspended, **({"workerGroupSpecs": groups} if groups else {})}


def _version(body: Object) -> int:
    """Return the resourceVersion as a number: ordered officially since Kubernetes 1.35, and in fact before."""
    return int(body["metadata"]["resourceVersion"])


def keys(store: ObjectStore[Any]) -> Iterator[tuple[Key, str]]:
    """Return (key, uid) of everything in a store, as of now."""
    return iter([(key, entry.uid) for key, entry in store.entries.items()])
