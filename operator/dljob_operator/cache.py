"""What the watches told, digested: DLJobs whole, RayClusters without what nobody reads, Pods as `control.model.Pod`.

A cache never goes back: an object that is older than what is known of it is ignored, so the answer to a write counts at
once, and its echo in the watch later does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from dljob.control import names
from dljob.control.fields import items, part, text
from dljob.control.model import Object, Pod
from dljob_operator.pods import digest as pod_digest
from dljob_operator.workqueue import Key

Json: TypeAlias = dict[str, Any]
T = TypeVar("T")

_META = (
    *("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"),
    *("labels", "annotations", "ownerReferences"),
)
_COUNTS = ("groupName", "replicas", "minReplicas", "maxReplicas")


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One object."""

    uid: str
    version: int
    job: Key | None
    """The DLJob whose key its changes bring up; None: of none."""
    value: T


@dataclass(frozen=True, slots=True)
class PodOf:
    """A pod, and whose it is."""

    cluster: str
    pod: Pod


@dataclass(slots=True)
class Shelf(Generic[T]):
    """The objects of one kind, by namespace and name."""

    entries: dict[Key, Entry[T]] = field(default_factory=dict[Key, Entry[T]])
    heard: int = 0
    """How often the watch has told of such objects."""
    gone: list[set[str]] = field(default_factory=list[set[str]])
    """For each list that is on its way, the uids of what was dropped meanwhile: it may yet tell of those."""

    def get(self, key: Key) -> T | None:
        """The object, or None."""
        found = self.entries.get(key)
        return found.value if found else None

    def put(self, key: Key, entry: Entry[T]) -> bool:
        """Keep an object unless a newer state of it is known; returns whether it was kept."""
        known = self.entries.get(key)
        if known and known.uid == entry.uid and known.version >= entry.version:
            return False
        self.entries[key] = entry
        return True

    def drop(self, key: Key, uid: str) -> bool:
        """Forget an object, unless another one has its name by now."""
        known = self.entries.get(key)
        for uids in self.gone:
            uids.add(uid or (known.uid if known else ""))
        if known is None or (uid and known.uid != uid):
            return False
        del self.entries[key]
        return True


class Cache:
    """All that is known of the cluster."""

    def __init__(self) -> None:
        self.jobs: Shelf[Json] = Shelf()
        self.clusters: Shelf[Json] = Shelf()
        self.pods: Shelf[PodOf] = Shelf()
        self._pods_of: dict[Key, dict[str, Pod]] = {}
        """(namespace, RayCluster) -> name -> pod."""
        self.first_seen: Callable[[Key, Object], None] = lambda _key, _body: None
        """Told of each DLJob when it is new here."""

    # -- what is told; each returns the DLJob that it concerns, or None when it is no news

    def put_job(self, body: Object) -> Key | None:
        """A DLJob as it is now."""
        meta = body["metadata"]
        key = key_of(body)
        if key not in self.jobs.entries:
            self.first_seen(key, body)
        lean = {**body, "metadata": {name: value for name, value in meta.items() if name != "managedFields"}}
        return key if self.jobs.put(key, Entry(meta["uid"], _version(body), key, lean)) else None

    def put_cluster(self, body: Object) -> Key | None:
        """A RayCluster as it is now."""
        owner = owner_of(body)
        entry = Entry(body["metadata"]["uid"], _version(body), owner, cluster_digest(body))
        return owner if self.clusters.put(key_of(body), entry) else None

    def put_pod(self, body: Object) -> Key | None:
        """A pod as it is now."""
        key, labels = key_of(body), part(body, "metadata", "labels")
        job = Key(key.namespace, labels[names.LABEL_NAME]) if labels.get(names.LABEL_NAME) else None
        value = PodOf(text(labels, "ray.io/cluster"), pod_digest(body))
        if not self.pods.put(key, Entry(body["metadata"]["uid"], _version(body), job, value)):
            return None
        self._pods_of.setdefault(Key(key.namespace, value.cluster), {})[key.name] = value.pod
        return job

    def drop_job(self, key: Key, uid: str = "") -> Key | None:
        """A DLJob is gone."""
        return key if self.jobs.drop(key, uid) else None

    def drop_cluster(self, key: Key, uid: str = "") -> Key | None:
        """A RayCluster is gone."""
        known = self.clusters.entries.get(key)
        return known.job if self.clusters.drop(key, uid) and known else None

    def drop_pod(self, key: Key, uid: str = "") -> Key | None:
        """A pod is gone."""
        known = self.pods.entries.get(key)
        if not self.pods.drop(key, uid) or known is None:
            return None
        where = Key(key.namespace, known.value.cluster)
        siblings = self._pods_of.get(where, {})
        siblings.pop(key.name, None)
        if not siblings:
            self._pods_of.pop(where, None)
        return known.job

    # -- what is asked

    def pods_of(self, cluster: Key) -> tuple[Pod, ...]:
        """The pods of a RayCluster, the head first, then by name."""
        pods = self._pods_of.get(cluster, {}).values()
        return tuple(sorted(pods, key=lambda pod: (not pod.head, pod.name)))


def key_of(body: Object) -> Key:
    """Namespace and name of an object."""
    return Key(body["metadata"]["namespace"], body["metadata"]["name"])


def owner_of(body: Object) -> Key | None:
    """The DLJob that controls an object."""
    for reference in items(body, "metadata", "ownerReferences"):
        if reference.get("controller") and reference["kind"] == "DLJob":
            return Key(body["metadata"]["namespace"], reference["name"])
    return None


def cluster_digest(body: Object) -> Json:
    """A RayCluster as decisions need it: without the plan's text; of a spec that nobody changed its numbers of pods."""
    meta = {name: body["metadata"][name] for name in _META if name in body["metadata"]}
    if names.PLAN in (meta.get("annotations") or {}):
        meta["annotations"] = {name: text for name, text in meta["annotations"].items() if name != names.PLAN}
    spec = part(body, "spec")
    edited = meta.get("generation", 1) > 1
    return {"metadata": meta, "spec": spec if edited else _lean(spec), "status": part(body, "status")}


def _lean(spec: Object) -> Json:
    groups = [{name: group[name] for name in _COUNTS if name in group} for group in items(spec, "workerGroupSpecs")]
    suspended = {name: spec[name] for name in ("suspend",) if name in spec}
    return {**suspended, **({"workerGroupSpecs": groups} if groups else {})}


def _version(body: Object) -> int:
    """Versions of one kind are ordered: officially since Kubernetes 1.35, and in fact before."""
    return int(body["metadata"]["resourceVersion"])


def keys(shelf: Shelf[Any]) -> Iterator[tuple[Key, str]]:
    """(key, uid) of everything on a shelf, as of now."""
    return iter([(key, entry.uid) for key, entry in shelf.entries.items()])
