"""Observation of one DLJob for `reconcile`: everything known about it at one moment."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Literal

from dljob.kube.api import CONFIG_MAPS, PODS, Json, Kube, NotThereError
from dljob.kube.kuberay_client import RayClusters
from dljob.reconcile.policies.resources import reads_history
from dljob.reconcile.state import names
from dljob.reconcile.state.fields import items, part, text
from dljob.reconcile.state.model import Object, Observed, Pod, Trouble
from dljob_operator.controller import hangs
from dljob_operator.controller.machines import Machines
from dljob_operator.controller.poller import Pollers
from dljob_operator.controller.references import ClusterView, References
from dljob_operator.watch.cache import Cache
from dljob_operator.watch.clock import MACHINE, OperatorClock
from dljob_operator.watch.workqueue import Key


@dataclass(slots=True)
class OperatorMemory:
    """In-memory notes of the operator about a job, which no other place has; they may be lost."""

    uid: str
    attempt: int = 0
    troubles: dict[str, Trouble] = field(default_factory=dict[str, Trouble])
    commands: tuple[str, ...] = ()
    logs_saved: bool = False
    """Whether the logs are saved; asked again for an ended job, since another operator may save them."""
    use_kept: bool = False
    """Whether what the ranks of an ended job used is kept, or nothing of it can be: it is not looked for again."""
    config_maps: dict[str, str] = field(default_factory=dict[str, str])
    """uid by name of the ConfigMaps made or adopted for the attempt."""
    services: dict[str, str] = field(default_factory=dict[str, str])
    """Digest of what was written last, by kind/name of Services and EndpointSlices; empty for a deleted one."""
    hangs: dict[str, hangs.Hang] = field(default_factory=dict[str, hangs.Hang])
    """Stuck pods, and a RayCluster that KubeRay does not act on, by uid."""
    look_again: float | None = None
    """Seconds until the stuck ones are looked at again; None: none is stuck."""
    unrest: int = 0
    """Consecutive passes that changed something and called for another, without progress."""
    cleared_clusters: int = 0
    """Work left by the last pass, in its own count."""


class Observer:
    """Reads the caches; asks the API server why pods hang or stay, and whether an ended job's logs are saved."""

    def __init__(
        self, cache: Cache, pollers: Pollers, kube: Kube, references: References, clock: OperatorClock = MACHINE
    ) -> None:
        self._cache = cache
        self._references = references
        self._pollers = pollers
        self._kube = kube
        self._machines = Machines(kube, clock)
        self._now = clock.monotonic
        self._memories: dict[Key, OperatorMemory] = {}
        self.kuberay: Literal["", "missing", "old"] = ""

    def memory(self, key: Key, uid: str, attempt: int) -> OperatorMemory:
        """Return the notes about a job, without those of a namesake, or the troubles of an earlier attempt."""
        job_memory = self._memories.get(key)
        if job_memory is None or job_memory.uid != uid:
            job_memory = self._memories[key] = OperatorMemory(uid, attempt)
        if job_memory.attempt != attempt:
            job_memory.attempt, job_memory.logs_saved = attempt, False
            # A new attempt has other children, so earlier failures say nothing about it.
            job_memory.troubles.clear()
            job_memory.config_maps.clear()
        return job_memory

    def forget(self, key: Key) -> None:
        """Forget a deleted DLJob."""
        memory = self._memories.pop(key, None)
        if memory is not None:
            self._references.forget(memory.uid)

    async def observe(self, key: Key) -> tuple[Observed, OperatorMemory] | None:
        """Return everything known about a DLJob; None when it does not exist. May raise ApiError."""
        job = self._cache.jobs.get(key)
        if job is None:
            return None
        meta, status = job["metadata"], part(job, "status")
        attempt: int = status.get("attempt") or 1
        memory = self.memory(key, meta["uid"], attempt)
        # Only for an ended job: a running one's logs are saved once, at its end.
        if status.get("completionTime") and not memory.logs_saved:
            memory.logs_saved = await self._has_logs(key, meta["uid"], attempt)
        cluster_view = await self._find_cluster(key, job, attempt)
        master, ray_job = self._pollers.views(key)
        cluster_view, memory.look_again = await hangs.add_pod_problems(
            self._kube, key.namespace, cluster_view, memory.hangs, self._now()
        )
        earlier, strays = self._earlier(key, job, attempt)
        history = await self._resource_history(key, job, memory)
        observed = Observed(
            job=job,
            cluster=cluster_view.cluster,
            pods=await self._machines.with_node_states(cluster_view.pods),
            earlier=await self._machines.with_node_states(earlier),
            strays=strays,
            locked=cluster_view.locked,
            objection=cluster_view.objection,
            master=master,
            ray_job=ray_job,
            troubles=tuple(memory.troubles.values()),
            logs_saved=memory.logs_saved,
            resource_history=history,
            kuberay=self.kuberay,
            commands=memory.commands,
            services=dict(memory.services),
        )
        return observed, memory

    async def _resource_history(self, key: Key, job: Object, memory: OperatorMemory) -> str | None:
        """Return what is kept about earlier jobs of the name, where a choice needs it, or the end of the job."""
        if memory.use_kept or not reads_history(job):
            return None
        try:
            config_map = await self._kube.get(CONFIG_MAPS, names.RESOURCE_USE, key.namespace)
        except NotThereError:
            return ""
        entry = text(config_map, "data", key.name)
        memory.use_kept = bool(text(job, "status", "completionTime")) and memory.uid in entry
        return entry

    async def _find_cluster(self, key: Key, job: Object, attempt: int) -> ClusterView:
        """Return the RayCluster of the job, its own or the one that it refers to."""
        ref = text(job, "spec", "rayClusterRef", "name")
        if ref:
            # Live in each pass: a watch without a selector would bring all RayClusters and pods there are (ADR 15).
            return await self._references.read_cluster(job["metadata"]["uid"], Key(key.namespace, ref))
        # These reads cost a call only when something is missing from the cache.
        await self._confirm_loss(key, job)
        await self._confirm_end(key, job, attempt)
        name, cluster = self._cluster(key, job, attempt)
        return ClusterView(cluster, self._cache.pods_of(Key(key.namespace, name)))

    def _earlier(self, key: Key, job: Object, attempt: int) -> tuple[tuple[Pod, ...], tuple[Object, ...]]:
        """Return what is left of earlier attempts beside the RayCluster that is looked at: pods, and RayClusters."""
        looked_at = self._cluster(key, job, attempt)[0]
        past = {names.cluster_name(key.name, job["metadata"]["uid"], number) for number in range(1, attempt)} - {
            looked_at
        }
        cluster_by_key = {
            cluster_key: self._cache.clusters.get(cluster_key)
            for cluster_key in (Key(key.namespace, name) for name in sorted(past))
        }
        # Pods of a RayCluster that exists go with it.
        pods = [
            pod
            for cluster_key, cluster in cluster_by_key.items()
            if cluster is None
            for pod in self._cache.pods_of(cluster_key)
        ]
        return tuple(pods), tuple(cluster for cluster in cluster_by_key.values() if cluster is not None)

    async def _confirm_loss(self, key: Key, job: Object) -> None:
        """Read a RayCluster live before it counts as lost: that would end the attempt, and a watch may be wrong."""
        recorded, uid = (text(job, "status", "rayCluster", field) for field in ("name", "uid"))
        # No RayCluster is recorded, or the job is over: none can be lost.
        if not uid or text(job, "status", "completionTime") or text(job, "metadata", "deletionTimestamp"):
            return
        cluster_key = Key(key.namespace, recorded)
        known = self._cache.clusters.entries.get(cluster_key)
        if known is None or known.uid != uid:
            # Unknown to the cache, or another object of that name there: ask the API server before believing it.
            await self._refresh_cluster(cluster_key)

    async def _refresh_cluster(self, cluster_key: Key) -> None:
        """Read a RayCluster live into the cache, if it exists."""
        with contextlib.suppress(NotThereError):
            self._cache.put_cluster(
                await RayClusters(self._kube).get_ray_cluster(cluster_key.name, cluster_key.namespace)
            )

    async def _confirm_end(self, key: Key, job: Object, attempt: int) -> None:
        """Read the rest of the last attempt live before it counts as gone: its ranks may still write checkpoints.

        Its RayCluster may also be unknown to the watch: created by an operator that died then, or late.
        """
        recorded = text(job, "status", "rayCluster", "name")
        # This attempt's own, or something of it is cached: the caches suffice.
        if not recorded or self._cluster(key, job, attempt)[0] == recorded:
            return
        await self._refresh_cluster(Key(key.namespace, recorded))
        # All that have the job's uid: pods of attempts before the last one may be there, too.
        for body in await self._kube.list(PODS, key.namespace, labels=f"{names.LABEL_UID}={job['metadata']['uid']}"):
            self._cache.put_pod(body)

    def _cluster(self, key: Key, job: Object, attempt: int) -> tuple[str, Json | None]:
        """Return the RayCluster to look at: the recorded one while anything of it exists, else the attempt's own."""
        own_name = names.cluster_name(key.name, job["metadata"]["uid"], attempt)
        recorded = text(job, "status", "rayCluster", "name") or own_name
        recorded_key = Key(key.namespace, recorded)
        # The status names the last attempt's cluster until nothing of it is left: two must never run at once.
        if (
            recorded != own_name
            and self._cache.clusters.get(recorded_key) is None
            and not self._cache.pods_of(recorded_key)
        ):
            recorded = own_name
        return recorded, self._cache.clusters.get(Key(key.namespace, recorded))

    async def _has_logs(self, key: Key, uid: str, attempt: int) -> bool:
        """Whether the logs of this attempt are kept; those of a suspended attempt are not the job's last."""
        try:
            config_map = await self._kube.get(CONFIG_MAPS, names.logs_map(key.name), key.namespace)
        except NotThereError:
            return False
        kept_attempt = part(config_map, "metadata", "labels").get(names.ATTEMPT, "1")
        return kept_attempt == str(attempt) and any(
            owner.get("uid") == uid for owner in items(config_map, "metadata", "ownerReferences")
        )
