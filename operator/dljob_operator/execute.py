"""The hands: each action of an Outcome as a call, and the status as a patch that a stale view cannot make.

A call that was made before a crash is made again after it, and finds its work done: names are fixed, creations adopt
what is there and ours, deletions name a uid, submissions and commands an id.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, assert_never

from dljob.control import names, patches
from dljob.control.fields import items, part
from dljob.control.model import (
    Action,
    Annotate,
    Command,
    Create,
    CreateToken,
    Delete,
    Finalize,
    Object,
    PatchCluster,
    SaveLogs,
    Submit,
)
from dljob.errors import UnreachableError
from dljob.kube.api import CONFIG_MAPS, DLJOBS, PODS, RAYCLUSTERS, SECRETS, ApiError, Json, Kube, NotThereError
from dljob.kube.gateway import Tails
from dljob.kube.head import HeadError
from dljob.kube.kuberay_client import RayClusters
from dljob.kube.objects import Objects
from dljob.kube.resources import NETWORK_POLICIES
from dljob.plan.pods import TOKEN_KEY
from dljob_operator.cache import Cache
from dljob_operator.heads import Heads
from dljob_operator.observe import Memory
from dljob_operator.pods import digest
from dljob_operator.workqueue import Key

PATCHES = 3
"""A patch whose tests fail is made anew, so often in all."""
LOG_BYTES = 600 * 1024
"""Of all tails together: a ConfigMap holds 1 MiB, and JSON makes the text longer."""


class TakenError(UnreachableError):
    """The name of a child is taken by an object that is not the job's."""

    status = 409


class StaleError(UnreachableError):
    """What was decided rests on an old view of the DLJob; a newer one is in the cache now."""


class Hands:
    """Performs actions, and keeps the caches up with what the answers say."""

    def __init__(self, kube: Kube, cache: Cache, heads: Heads) -> None:
        self._kube = kube
        self._cache = cache
        self._heads = heads
        resources = (DLJOBS, CONFIG_MAPS, NETWORK_POLICIES, PODS)
        kinds = (RayClusters(kube), *(Objects(kube, resource) for resource in resources))
        self._kinds = {objects.resource.kind: objects for objects in kinds}
        self._keep: Mapping[str, Callable[[Object], Any]] = {
            "DLJob": cache.put_job,
            "RayCluster": cache.put_cluster,
            "Pod": cache.put_pod,
        }
        self._drop: Mapping[str, Callable[[Key, str], Any]] = {
            "DLJob": cache.drop_job,
            "RayCluster": cache.drop_cluster,
            "Pod": cache.drop_pod,
        }

    async def perform(self, key: Key, memory: Memory, action: Action) -> None:
        """Make one action come true.

        Raises:
            ApiError: The API server refused, or did not answer.
            HeadError: The head did.
            TakenError: The name belongs to somebody else.
            StaleError: It was decided from an old view.
        """
        match action:
            case Create():
                await self._create(key, memory.uid, action)
            case CreateToken():
                await self._create_token(key, memory.uid, action)
            case Delete():
                await self._delete(key, action)
            case PatchCluster():
                await self._patch_cluster(key, action)
            case Annotate():
                await self._annotate(key, action)
            case Finalize():
                await self._finalize(key, on=action.on)
            case Submit():
                await self._submit(key, memory, action)
            case Command():
                gateway = self._heads.gateway(memory.uid, action.cluster, action.address)
                job = names.job_uid(memory.uid)
                await gateway.command(job, id=action.id, kind=action.kind, target=action.target, by=action.by)
                memory.commands = (*memory.commands, action.id)
            case SaveLogs():
                await self._save_logs(key, memory, action)
            case _:
                assert_never(action)

    async def write_status(self, key: Key, seen: Object, status: Object) -> Json:
        """Turn the status that was seen into another, if it is still what was seen.

        Raises:
            ApiError: 409 when the DLJob has changed meanwhile.
        """
        version = seen["metadata"]["resourceVersion"]
        latest = self._cache.jobs.get(key)
        if latest and _same_state(latest, seen):
            version = latest["metadata"]["resourceVersion"]  # only our own annotations came between
        patch = {"metadata": {"resourceVersion": version}, "status": difference(part(seen, "status"), status)}
        made = await self._kube.patch(DLJOBS, key.name, key.namespace, patch, sub="status")
        self._cache.put_job(made)
        return made

    async def refresh(self, key: Key) -> None:
        """Read a DLJob live, after its status could not be written."""
        try:
            self._cache.put_job(await self._kube.get(DLJOBS, key.name, key.namespace))
        except NotThereError:
            self._cache.drop_job(key)

    async def _create(self, key: Key, uid: str, action: Create) -> None:
        objects = self._kinds[action.kind]
        if action.kind == "RayCluster":
            await self._still_begins(key, uid, action.body["metadata"]["name"])
        try:
            made = await objects.create(action.body, key.namespace)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            made = await self._adopt(objects, action.body["metadata"]["name"], key, uid)
        if action.kind in self._keep:
            self._keep[action.kind](made)

    async def _adopt(self, objects: Objects, name: str, key: Key, uid: str) -> Json:
        found = await objects.get(name, key.namespace)
        owners = items(found, "metadata", "ownerReferences")
        if any(owner.get("uid") == uid and owner.get("controller") for owner in owners):
            return found
        raise _taken(found, objects.resource.kind)

    async def _create_token(self, key: Key, uid: str, action: CreateToken) -> None:
        token = self._heads.token(uid, action.cluster)
        body = _child("Secret", action.name, action.labels, action.owner)
        body |= {"type": "Opaque", "data": {TOKEN_KEY: base64.b64encode(token.encode()).decode()}}
        try:
            await self._kube.create(SECRETS, body, key.namespace)
        except ApiError as error:
            # Secrets are not read, so whose it is cannot be seen; the name holds a hash of the job's uid, and with a
            # wrong token in it the head would refuse us, which says so.
            if error.reason != "AlreadyExists":
                raise

    async def _delete(self, key: Key, action: Delete) -> None:
        objects, only = self._kinds[action.kind], {"uid": action.uid, "version": action.version}
        try:
            left = await objects.delete(action.name, key.namespace, **only, grace=action.grace)
        except NotThereError:
            left = {}
        except ApiError as error:
            if error.status != 409 or not action.version:
                raise
            await self.refresh(key)
            raise StaleError(f"{action.kind} {action.name} has changed") from None
        if left.get("kind") == action.kind and _held(left):
            self._keep[action.kind](left)  # a finalizer holds it; now it is known to be leaving
        else:
            self._drop[action.kind](Key(key.namespace, action.name), action.uid)

    async def _patch_cluster(self, key: Key, action: PatchCluster) -> None:
        """Read live what is patched: KubeRay writes to it too, and then it is read again."""
        for left in reversed(range(PATCHES)):
            found = await self._kinds["RayCluster"].get(action.name, key.namespace)
            wanted = patches.operations(found, action)
            try:
                if wanted:
                    found = await self._kube.patch(RAYCLUSTERS, action.name, key.namespace, wanted, kind="json")
                self._cache.put_cluster(found)
            except ApiError as error:
                if error.status not in (409, 422) or not left:
                    raise
            else:
                return

    async def _annotate(self, key: Key, action: Annotate) -> None:
        patch = {"metadata": {"annotations": dict(action.annotations)}}
        try:
            made = await self._kinds[action.kind].patch(action.name, patch, key.namespace)
        except NotThereError:
            if action.kind != "Pod":
                raise
            self._cache.drop_pod(Key(key.namespace, action.name))  # its successor is annotated when it holds units
        else:
            self._keep[action.kind](made)

    async def _finalize(self, key: Key, *, on: bool) -> None:
        meta = part(self._cache.jobs.get(key), "metadata")
        kept = [name for name in meta.get("finalizers") or () if name != names.FINALIZER]
        wanted = [*kept, names.FINALIZER] if on else kept
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": wanted}}
        try:
            made = await self._kube.patch(DLJOBS, key.name, key.namespace, patch)
        except NotThereError:
            self._cache.drop_job(key)
            return
        if made["metadata"].get("deletionTimestamp") and not wanted:
            self._cache.drop_job(key)  # it is gone; the answer is what it was
        else:
            self._cache.put_job(made)

    async def _submit(self, key: Key, memory: Memory, action: Submit) -> None:
        pod, container = action.head
        await self._still_ordered(key, memory.uid, action.id)
        if container:
            await self._same_head(key, pod, container)
        ray = self._heads.ray(memory.uid, action.cluster, action.address)
        if action.session and (session := await ray.session()) != action.session:
            raise HeadError(0, f"the head has lost its memory: Ray's session is {session}, not {action.session}")
        for name, content in action.packages.items():
            await ray.keep(name, content.encode())
        await ray.submit(action.id, action.argv, runtime_env=action.runtime_env, metadata=action.metadata)

    async def _still_begins(self, key: Key, uid: str, cluster: str) -> None:
        """Look at the DLJob as it is: from an old view an attempt that was given up would begin once more."""
        found = await self._kube.get(DLJOBS, key.name, key.namespace)
        self._cache.put_job(found)
        meta, status = found["metadata"], part(found, "status")
        own = names.cluster_name(key.name, uid, status.get("attempt") or 1)
        over = status.get("completionTime") or meta.get("deletionTimestamp")
        if meta["uid"] != uid or own != cluster or over:
            raise StaleError(f"RayCluster {cluster} is not wanted any more")

    async def _still_ordered(self, key: Key, uid: str, submission: str) -> None:
        """Look at the DLJob as it is: another operator may have given this attempt up, or somebody deleted the job."""
        found = await self._kube.get(DLJOBS, key.name, key.namespace)
        self._cache.put_job(found)
        if found["metadata"]["uid"] != uid or part(found, "status").get("submissionId") != submission:
            raise HeadError(0, f"submission {submission} is not ordered any more")

    async def _same_head(self, key: Key, pod: str, container: str) -> None:
        """Look at the head as it is, not as a watch told: a head that restarted would take a known id once more."""
        found = await self._kube.list(PODS, key.namespace, fields=f"metadata.name={pod}")
        if not any(digest(body).container == container for body in found):
            raise HeadError(0, f"head pod {pod} is another one than the submission was ordered for, or restarted since")

    async def _save_logs(self, key: Key, memory: Memory, action: SaveLogs) -> None:
        await self._not_of_others(key, action.name)
        gateway = self._heads.gateway(memory.uid, action.cluster, action.address)
        tails = await gateway.tails(names.job_uid(memory.uid), LOG_BYTES)
        body = _child("ConfigMap", action.name, action.labels, action.owner)
        body["metadata"]["annotations"] = {"dljob.io/cut": ",".join(tails.cut)[:4096]} if tails.cut else {}
        await self._kube.apply(CONFIG_MAPS, {**body, "data": _files(tails)}, key.namespace)
        memory.logs_saved = True

    async def _not_of_others(self, key: Key, name: str) -> None:
        """To apply is to take: a ConfigMap of that name may be somebody's own, or that of an earlier namesake."""
        try:
            found = await self._kube.get(CONFIG_MAPS, name, key.namespace)
        except NotThereError:
            return
        if part(found, "metadata", "labels").get(names.LABEL_NAME) != key.name:
            raise _taken(found, CONFIG_MAPS.kind)


def _held(left: Object) -> bool:
    """Whether an object that was deleted is there yet: a pod is answered with even when it is gone."""
    meta = part(left, "metadata")
    return left.get("kind") != "Pod" or bool(meta.get("finalizers") or meta.get("deletionGracePeriodSeconds"))


def difference(old: Object, new: Object) -> Json:
    """The merge patch (RFC 7396) that turns one object into another."""
    patch: Json = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            inner = difference(part(old, key), part(new, key))
            if inner:
                patch[key] = inner
        elif before != value:
            patch[key] = value
    return patch


def _taken(found: Object, kind: str) -> TakenError:
    owners = items(found, "metadata", "ownerReferences")
    whose = ", ".join(f"{owner['kind']} {owner['name']}" for owner in owners) or "nobody"
    return TakenError(f"{kind} {found['metadata']['name']} exists already and belongs to {whose}")


def _same_state(latest: Object, seen: Object) -> bool:
    def state(body: Object) -> tuple[object, ...]:
        meta = body["metadata"]
        return meta["uid"], meta.get("generation"), meta.get("deletionTimestamp"), body.get("status")

    return state(latest) == state(seen)


def _child(kind: str, name: str, labels: Mapping[str, str], owner: Object) -> Json:
    meta = {"name": name, "labels": dict(labels), "ownerReferences": [dict(owner)]}
    return {"apiVersion": "v1", "kind": kind, "metadata": meta}


def _files(tails: Tails) -> dict[str, str]:
    return {f"{rank.replace('/', '-')}.log": text for rank, text in sorted(tails.logs.items())}
