"""Everything that is known of one DLJob at one moment, put together for `reconcile`."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import Literal

from dljob.control import names
from dljob.control.fields import items, part, text
from dljob.control.model import Object, Observed, Trouble
from dljob.kube.api import CONFIG_MAPS, PODS, Json, Kube, NotThereError
from dljob.kube.kuberay_client import RayClusters
from dljob_operator import hangs
from dljob_operator.cache import Cache
from dljob_operator.machines import Machines
from dljob_operator.poller import Pollers
from dljob_operator.references import References, Seen
from dljob_operator.workqueue import Key


@dataclass(slots=True)
class Memory:
    """What the operator remembers of a job and nobody else does; it may be lost."""

    uid: str
    attempt: int = 0
    troubles: dict[str, Trouble] = field(default_factory=dict[str, Trouble])
    commands: tuple[str, ...] = ()
    logs_saved: bool = False
    """Looked up again while a job that is over has none: another operator may save them."""
    hangs: dict[str, hangs.Hang] = field(default_factory=dict[str, hangs.Hang])
    """Pods that do not get on, and a RayCluster that KubeRay leaves alone, by uid."""
    look_again: float | None = None
    """Seconds until they are to be looked at again; None: none hangs."""
    unrest: int = 0
    """Passes in a row that changed something and were followed by another at once, and were no nearer to an end."""
    left: int = 0
    """What the last pass left to the next, as it said."""


class Observer:
    """Looks into the caches; asks the API server why pods hang or stay, and whether an ended job's logs are saved."""

    def __init__(self, cache: Cache, pollers: Pollers, kube: Kube, references: References) -> None:
        self._cache = cache
        self._references = references
        self._pollers = pollers
        self._kube = kube
        self._machines = Machines(kube)
        self._memories: dict[Key, Memory] = {}
        self.kuberay: Literal["", "missing", "old"] = ""

    def memory(self, key: Key, uid: str, attempt: int) -> Memory:
        """What is remembered; nothing of a namesake, and no troubles of an earlier attempt."""
        found = self._memories.get(key)
        if found is None or found.uid != uid:
            found = self._memories[key] = Memory(uid, attempt)
        if found.attempt != attempt:
            found.attempt, found.logs_saved = attempt, False
            found.troubles.clear()
        return found

    def forget(self, key: Key) -> None:
        """The DLJob is gone."""
        memory = self._memories.pop(key, None)
        if memory is not None:
            self._references.forget(memory.uid)

    async def observe(self, key: Key) -> tuple[Observed, Memory] | None:
        """All there is to know; None when there is no such DLJob (any more). May raise ApiError."""
        job = self._cache.jobs.get(key)
        if job is None:
            return None
        meta, status = job["metadata"], part(job, "status")
        attempt: int = status.get("attempt") or 1
        memory = self.memory(key, meta["uid"], attempt)
        if status.get("completionTime") and not memory.logs_saved:
            memory.logs_saved = await self._has_logs(key, meta["uid"], attempt)
        there = await self._there(key, job, attempt)
        master, ray_job = self._pollers.views(key)
        there, memory.look_again = await hangs.told(self._kube, key.namespace, there, memory.hangs, time.monotonic())
        seen = Observed(
            job=job,
            cluster=there.cluster,
            pods=await self._machines.told(there.pods),
            locked=there.locked,
            objection=there.objection,
            master=master,
            ray_job=ray_job,
            troubles=tuple(memory.troubles.values()),
            logs_saved=memory.logs_saved,
            kuberay=self.kuberay,
            commands=memory.commands,
        )
        return seen, memory

    async def _there(self, key: Key, job: Object, attempt: int) -> Seen:
        """The RayCluster of the job, or the one that it runs on."""
        ref = text(job, "spec", "rayClusterRef", "name")
        if ref:
            return await self._references.look(job["metadata"]["uid"], Key(key.namespace, ref))
        await self._not_lost(key, job)
        await self._not_left(key, job, attempt)
        name, cluster = self._cluster(key, job, attempt)
        return Seen(cluster, self._cache.pods_of(Key(key.namespace, name)))

    async def _not_lost(self, key: Key, job: Object) -> None:
        """Look live before a RayCluster counts as gone: an attempt is thrown away for that, and watches err."""
        recorded, uid = (text(job, "status", "rayCluster", field) for field in ("name", "uid"))
        if not uid or text(job, "status", "completionTime") or text(job, "metadata", "deletionTimestamp"):
            return
        where = Key(key.namespace, recorded)
        known = self._cache.clusters.entries.get(where)
        if known is None or known.uid != uid:
            await self._look_for(where)

    async def _look_for(self, where: Key) -> None:
        """Look for a RayCluster live."""
        with contextlib.suppress(NotThereError):
            self._cache.put_cluster(await RayClusters(self._kube).get(where.name, where.namespace))

    async def _not_left(self, key: Key, job: Object, attempt: int) -> None:
        """Look live before what is left of the last attempt counts as gone: its ranks may still write.

        Its RayCluster, too, may have been made in vain, or by who died then, and no watch has told of it yet.
        """
        recorded = text(job, "status", "rayCluster", "name")
        if not recorded or self._cluster(key, job, attempt)[0] == recorded:
            return
        await self._look_for(Key(key.namespace, recorded))
        for body in await self._kube.list(PODS, key.namespace, labels=f"ray.io/cluster={recorded}"):
            self._cache.put_pod(body)

    def _cluster(self, key: Key, job: Object, attempt: int) -> tuple[str, Json | None]:
        """The RayCluster to look at: the one in the status while anything of it is there, else the attempt's."""
        own = names.cluster_name(key.name, job["metadata"]["uid"], attempt)
        recorded = text(job, "status", "rayCluster", "name") or own
        where = Key(key.namespace, recorded)
        if recorded != own and self._cache.clusters.get(where) is None and not self._cache.pods_of(where):
            recorded = own
        return recorded, self._cache.clusters.get(Key(key.namespace, recorded))

    async def _has_logs(self, key: Key, uid: str, attempt: int) -> bool:
        """Whether the logs of this attempt are kept; those of one that was suspended are not the job's last."""
        try:
            found = await self._kube.get(CONFIG_MAPS, names.logs_map(key.name), key.namespace)
        except NotThereError:
            return False
        told = part(found, "metadata", "labels").get(names.ATTEMPT, "1")
        return told == str(attempt) and any(
            owner.get("uid") == uid for owner in items(found, "metadata", "ownerReferences")
        )
