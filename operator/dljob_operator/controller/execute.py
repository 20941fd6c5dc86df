"""Execution: each action of a ReconcileResult as an API call, and the status as a patch that no stale view can write.

Actions are idempotent. A call made before a crash is made again after it, and finds its work done: names are fixed,
creations adopt an existing object of this job, deletions carry a uid, submissions and commands an id.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, assert_never

from dljob.errors import UnreachableError
from dljob.kube.api import CONFIG_MAPS, DLJOBS, PODS, SECRETS, ApiError, Json, Kube, NotThereError
from dljob.kube.gateway import GatewayClient, Tails
from dljob.kube.head import HeadError
from dljob.kube.kuberay_client import RayClusters
from dljob.kube.objects import Objects
from dljob.kube.resources import NETWORK_POLICIES
from dljob.raycluster.pods import SPEC_KEY, TOKEN_KEY
from dljob.reconcile.children import patches
from dljob.reconcile.policies.resources import without_oldest
from dljob.reconcile.state import names
from dljob.reconcile.state.fields import items, part
from dljob.reconcile.state.model import (
    Action,
    Annotate,
    Command,
    Create,
    CreateToken,
    Delete,
    Finalize,
    KeepResourceUse,
    Object,
    PatchCluster,
    SaveLogs,
    Serve,
    Submit,
)
from dljob_operator.controller.heads import Heads
from dljob_operator.controller.observe import OperatorMemory
from dljob_operator.controller.services import ServiceWriter
from dljob_operator.controller.turns import Turns
from dljob_operator.watch.cache import Cache
from dljob_operator.watch.pods import digest
from dljob_operator.watch.workqueue import Key

log = logging.getLogger(__package__)

PATCHES = 3
"""Attempts at a JSON patch whose tests fail."""
_LEFT = ("ConfigMap", "NetworkPolicy")
"""Kinds that may stay: the RBAC role of another version may not allow to delete them, and they go with the DLJob."""
LOG_BYTES = 600 * 1024
"""Size of all tails together: a ConfigMap holds 1 MiB, and JSON escapes make the text longer."""
STATUS_BYTES = 128 * 1024
"""Most bytes of the last status beside them."""


class TakenError(UnreachableError):
    """An object that does not belong to the job has the name of one of its children."""

    status = 409


class StaleError(UnreachableError):
    """The decision rests on an old view of the DLJob; a newer one is in the cache now."""


class ActionExecutor:
    """Performs actions, and updates the caches from the answers."""

    def __init__(self, kube: Kube, cache: Cache, heads: Heads, turns: Turns | None = None) -> None:
        self._turns = turns or Turns()
        self._kube = kube
        self._cache = cache
        self._heads = heads
        self._services = ServiceWriter(kube)
        resources = (DLJOBS, CONFIG_MAPS, NETWORK_POLICIES, PODS)
        self._clusters = RayClusters(kube)
        kinds = (self._clusters, *(Objects(kube, resource) for resource in resources))
        self._kinds = {objects.resource.kind: objects for objects in kinds}
        # Answers go into the caches at once: the watch brings them later, and a pass in between would repeat the
        # action.
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

    async def perform(self, key: Key, memory: OperatorMemory, action: Action) -> None:
        """Perform one action.

        Raises:
            ApiError: the API server refused, or did not answer.
            HeadError: the head refused, or did not answer.
            TakenError: the name belongs to another owner.
            StaleError: the decision rests on an old view.
        """
        match action:
            case Create():
                await self._create(key, memory, action)
            case CreateToken():
                await self._create_token(key, memory, action)
            case Delete():
                await self._delete(key, action)
            case PatchCluster() | Annotate() | Finalize():
                await self._edit(key, action)
            case Submit():
                await self._submit(key, memory, action)
            case Command():
                gateway = self._heads.gateway(key.namespace, memory.uid, action.cluster, action.address)
                job = names.job_uid(memory.uid)
                # A silent head may hold this call for seconds, and other jobs need the turn meanwhile (ADR 65).
                async with self._turns.lent():
                    await gateway.command(job, id=action.id, kind=action.kind, target=action.target, by=action.by)
                # In memory alone: after a restart the command is sent again, and its id makes that harmless.
                memory.commands = (*memory.commands, action.id)
            case Serve():
                await self._services.perform(key, memory, action)
            case SaveLogs():
                await self._save_logs(key, memory, action)
            case KeepResourceUse():
                await self._keep_resource_use(key, memory, action)
            case _:
                assert_never(action)

    async def _edit(self, key: Key, action: PatchCluster | Annotate | Finalize) -> None:
        match action:
            case PatchCluster():
                await self._patch_cluster(key, action)
            case Annotate():
                await self._annotate(key, action)
            case Finalize():
                await self._finalize(key, on=action.on)

    async def write_status(self, key: Key, seen_job: Object, status: Object) -> Json:
        """Patch the status from the one that was seen to the new one, if it is still as seen.

        Raises:
            ApiError: 409 when the DLJob has changed meanwhile.
        """
        version = seen_job["metadata"]["resourceVersion"]
        latest = self._cache.jobs.get(key)
        if latest and _same_state(latest, seen_job):
            version = latest["metadata"]["resourceVersion"]  # only the operator's own annotations came between
        # With the resourceVersion of the decision: a late write lands neither on a newer state nor on a namesake.
        patch = {"metadata": {"resourceVersion": version}, "status": difference(part(seen_job, "status"), status)}
        stored_job = await self._kube.patch(DLJOBS, key.name, key.namespace, patch, sub="status")
        self._cache.put_job(stored_job)
        return stored_job

    async def refresh(self, key: Key) -> None:
        """Read a DLJob from the API server, after its status could not be written."""
        try:
            self._cache.put_job(await self._kube.get(DLJOBS, key.name, key.namespace))
        except NotThereError:
            self._cache.drop_job(key)

    async def _create(self, key: Key, memory: OperatorMemory, action: Create) -> None:
        # Fixed names: AlreadyExists means an earlier pass that crashed, a stale cache, or an object of others.
        objects, name = self._kinds[action.kind], action.body["metadata"]["name"]
        if action.kind == "RayCluster":
            # One live read per attempt: an operator that began with an old list once made the RayCluster of an attempt
            # that was abandoned, beside the present one (ADR 40).
            await self._still_begins(key, memory.uid, name)
        try:
            created = await objects.create(action.body, key.namespace)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            created = await self._adopt(objects, name, key, memory.uid)
        # The token's Secret names it as its owner, by uid.
        if action.kind == "ConfigMap":
            memory.config_maps[name] = created["metadata"]["uid"]
        if action.kind in self._keep:
            self._keep[action.kind](created)

    async def _adopt(self, objects: Objects, name: str, key: Key, uid: str) -> Json:
        existing = await objects.get(name, key.namespace)
        owners = items(existing, "metadata", "ownerReferences")
        # By uid: a child of an earlier job of this name is not ours.
        if any(owner.get("uid") == uid and owner.get("controller") for owner in owners):
            return existing
        raise _taken_error(existing, objects.resource.kind)

    async def _create_token(self, key: Key, memory: OperatorMemory, action: CreateToken) -> None:
        token = self._heads.token(memory.uid, action.cluster)
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": action.owner, "uid": memory.config_maps[action.owner]}
        body = _child("Secret", action.name, action.labels, owner)
        # A ConfigMap of the attempt owns it, so that the garbage collector removes the token with the attempt.
        body |= {"type": "Opaque", "data": {TOKEN_KEY: base64.b64encode(token.encode()).decode()}}
        try:
            await self._kube.create(SECRETS, body, key.namespace)
        except ApiError as error:
            # The operator has no right to read Secrets, so it cannot see the owner. The name contains a hash of the
            # job's uid; with a wrong token in it the head would refuse the operator, which the error says.
            if error.reason != "AlreadyExists":
                raise

    async def _delete(self, key: Key, action: Delete) -> None:
        # Preconditions: a namesake created since must stay, and a DLJob that changed must be decided about again.
        objects, only = self._kinds[action.kind], {"uid": action.uid, "version": action.version}
        try:
            remaining = await objects.delete(action.name, key.namespace, **only, grace=action.grace)
        except NotThereError:
            # Gone already, as after a crash right behind this call.
            remaining = {}
        except ApiError as error:
            # Not tried again: it harms nothing, and the attempt could never be cleared away otherwise.
            if error.status == 403 and action.kind in _LEFT:
                log.warning("%s: %s %s stays: %s", key, action.kind, action.name, error.message)
                return
            if error.status != 409 or not action.version:
                raise
            # A version was given, so the object has changed since the decision.
            await self.refresh(key)
            raise StaleError(f"{action.kind} {action.name} has changed") from None
        if action.kind not in self._drop:
            return  # a kind without a cache
        if remaining.get("kind") == action.kind and _still_exists(remaining):
            self._keep[action.kind](remaining)  # a finalizer holds it; the next pass sees its deletionTimestamp
        else:
            self._drop[action.kind](Key(key.namespace, action.name), action.uid)

    async def _patch_cluster(self, key: Key, action: PatchCluster) -> None:
        """Patch a RayCluster as it is now; KubeRay writes to it too, so a conflict is answered by reading it again."""
        for tries_left in reversed(range(PATCHES)):
            cluster = await self._clusters.get_ray_cluster(action.name, key.namespace)
            operations = patches.operations(cluster, action)
            try:
                # Empty when an earlier pass patched it and crashed then.
                if operations:
                    cluster = await self._clusters.patch_ray_cluster(action.name, operations, key.namespace)
                self._cache.put_cluster(cluster)
            except ApiError as error:
                # 409: the RayCluster changed; 422: a `test` operation of the JSON patch failed.
                if error.status not in (409, 422) or not tries_left:
                    raise
            else:
                return

    async def _annotate(self, key: Key, action: Annotate) -> None:
        # No resourceVersion: an annotation of the operator's own conflicts with no other writer.
        patch = {"metadata": {"annotations": dict(action.annotations)}}
        try:
            stored = await self._kinds[action.kind].patch(action.name, patch, key.namespace)
        except NotThereError:
            if action.kind != "Pod":
                raise
            self._cache.drop_pod(Key(key.namespace, action.name))  # its successor is annotated once it holds units
        else:
            self._keep[action.kind](stored)

    async def _finalize(self, key: Key, *, on: bool) -> None:
        # The list of finalizers is replaced as a whole: the resourceVersion keeps those that others add meanwhile.
        meta = part(self._cache.jobs.get(key), "metadata")
        if not meta:
            return  # a watch has reported its end since the decision
        other_finalizers = [name for name in meta.get("finalizers") or () if name != names.FINALIZER]
        new_finalizers = [*other_finalizers, names.FINALIZER] if on else other_finalizers
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": new_finalizers}}
        try:
            stored_job = await self._kube.patch(DLJOBS, key.name, key.namespace, patch)
        except NotThereError:
            self._cache.drop_job(key)
            return
        if stored_job["metadata"].get("deletionTimestamp") and not new_finalizers:
            self._cache.drop_job(key)  # the last finalizer went, and the object with it; the answer is its last state
        else:
            self._cache.put_job(stored_job)

    async def _submit(self, key: Key, memory: OperatorMemory, action: Submit) -> None:
        # 1. live reads: is this submission still wanted, and is the head still the one it was decided for?
        pod, container = action.head
        await self._still_ordered(key, memory.uid, action.id)
        if container:
            await self._same_head(key, pod, container)
        # 2. the environment of the spec that the attempt was made of, which may since have been edited
        env = await self._runtime_env_of(key, action.spec_map) if action.spec_map else action.runtime_env
        ray = self._heads.ray(key.namespace, memory.uid, action.cluster, action.address)
        async with self._turns.lent():
            # 3. a new session is a head that restarted and lost its jobs: it would accept a known id once more
            if action.session and (session := await ray.session()) != action.session:
                raise HeadError(0, f"the head has lost its memory: Ray's session is {session}, not {action.session}")
            # Before the submission that names them: on others' RayClusters this is the only store for a spec (ADR 15).
            for name, content in action.packages.items():
                await ray.keep(name, content.encode())
            await ray.submit(action.id, action.argv, runtime_env=env, metadata=action.metadata)

    async def _still_begins(self, key: Key, uid: str, cluster: str) -> None:
        """Check the DLJob live: an old view would make the RayCluster of an abandoned attempt once more."""
        live_job = await self._kube.get(DLJOBS, key.name, key.namespace)
        self._cache.put_job(live_job)
        meta, status = live_job["metadata"], part(live_job, "status")
        own_cluster = names.cluster_name(key.name, uid, status.get("attempt") or 1)
        over = status.get("completionTime") or meta.get("deletionTimestamp")
        if meta["uid"] != uid or own_cluster != cluster or over:
            raise StaleError(f"RayCluster {cluster} is not wanted any more")

    async def _still_ordered(self, key: Key, uid: str, submission: str) -> None:
        """Check the DLJob live: another operator may have abandoned this attempt, or a user deleted the job."""
        live_job = await self._kube.get(DLJOBS, key.name, key.namespace)
        self._cache.put_job(live_job)
        if live_job["metadata"]["uid"] != uid or part(live_job, "status").get("submissionId") != submission:
            raise HeadError(0, f"submission {submission} is not wanted any more")

    async def _same_head(self, key: Key, pod: str, container: str) -> None:
        """Check the head live, past the watch: a head that restarted has no jobs, and would take a known id again."""
        # A list with one name: a pod that is gone is an empty list, without another error to handle.
        pod_bodies = await self._kube.list(PODS, key.namespace, fields=f"metadata.name={pod}")
        if not any(digest(body).container == container for body in pod_bodies):
            raise HeadError(0, f"head pod {pod} is another one than the submission was ordered for, or restarted since")

    async def _runtime_env_of(self, key: Key, spec_map: str) -> Mapping[str, Any]:
        """Return the runtime environment in the spec that an attempt was made of."""
        try:
            config_map = await self._kube.get(CONFIG_MAPS, spec_map, key.namespace)
        except NotThereError:
            raise HeadError(0, f"ConfigMap {spec_map} with the attempt's spec is gone") from None
        return part(json.loads(config_map["data"][SPEC_KEY]), "spec", "runtimeEnv")

    async def _save_logs(self, key: Key, memory: OperatorMemory, action: SaveLogs) -> None:
        # Server-side apply below, so that a repeated save overwrites the first one.
        await self._not_of_others(key, action.name)
        gateway = self._heads.gateway(key.namespace, memory.uid, action.cluster, action.address)
        async with self._turns.lent():
            tails = await gateway.tails(names.job_uid(memory.uid), LOG_BYTES)
            last = await _last_status(gateway, memory.uid)
        body = _child("ConfigMap", action.name, action.labels, action.owner)
        # Cut to a bound: every rank's log may be cut, and all annotations together may take 256 KiB.
        body["metadata"]["annotations"] = {"dljob.io/cut": ",".join(tails.cut)[:4096]} if tails.cut else {}
        await self._kube.apply(CONFIG_MAPS, {**body, "data": {**_files(tails), **last}}, key.namespace)
        memory.logs_saved = True

    async def _keep_resource_use(self, key: Key, memory: OperatorMemory, action: KeepResourceUse) -> None:
        entry = {action.job: action.value}
        try:
            # By the key of the name alone: jobs of other names may end at the same moment.
            config_map = await self._kube.patch(CONFIG_MAPS, names.RESOURCE_USE, key.namespace, {"data": entry})
        except NotThereError:
            # No owner: it outlives the jobs.
            meta = {"name": names.RESOURCE_USE, "labels": {names.LABEL_MANAGED: "dljob"}}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": entry}
            config_map = await self._kube.create(CONFIG_MAPS, body, key.namespace)
        dropped_names = without_oldest(part(config_map, "data"), action.job)
        if dropped_names:
            dropped = {"data": dict.fromkeys(dropped_names)}
            await self._kube.patch(CONFIG_MAPS, names.RESOURCE_USE, key.namespace, dropped)
        memory.use_kept = True

    async def _not_of_others(self, key: Key, name: str) -> None:
        """Refuse to overwrite a ConfigMap of that name which belongs to another: an apply would take it over."""
        try:
            config_map = await self._kube.get(CONFIG_MAPS, name, key.namespace)
        except NotThereError:
            return
        if part(config_map, "metadata", "labels").get(names.LABEL_NAME) != key.name:
            raise _taken_error(config_map, CONFIG_MAPS.kind)


def _still_exists(remaining: Object) -> bool:
    """Whether a deleted object still exists: the API server answers with the pod even when it is gone."""
    meta = part(remaining, "metadata")
    return remaining.get("kind") != "Pod" or bool(meta.get("finalizers") or meta.get("deletionGracePeriodSeconds"))


def difference(old: Object, new: Object) -> Json:
    """Return the merge patch (RFC 7396) from one object to another."""
    # In a merge patch, null removes a field.
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


def _taken_error(existing: Object, kind: str) -> TakenError:
    owners = items(existing, "metadata", "ownerReferences")
    whose = ", ".join(f"{owner['kind']} {owner['name']}" for owner in owners) or "nobody"
    return TakenError(f"{kind} {existing['metadata']['name']} exists already and belongs to {whose}")


def _same_state(latest: Object, seen_job: Object) -> bool:
    def state(body: Object) -> tuple[object, ...]:
        meta = body["metadata"]
        # Annotations may differ: a change of them queues another pass anyway.
        return meta["uid"], meta.get("generation"), meta.get("deletionTimestamp"), body.get("status")

    return state(latest) == state(seen_job)


def _child(kind: str, name: str, labels: Mapping[str, str], owner: Object) -> Json:
    meta = {"name": name, "labels": dict(labels), "ownerReferences": [dict(owner)]}
    return {"apiVersion": "v1", "kind": kind, "metadata": meta}


async def _last_status(gateway: GatewayClient, uid: str) -> dict[str, str]:
    """Return the last status of PrimeMaster as a file, for ledger and evidence; nothing if it gives none or too much.

    The logs are worth keeping without it.
    """
    try:
        status_text = json.dumps(await gateway.status(names.job_uid(uid)), ensure_ascii=False)
    except HeadError as error:
        log.info("the last status of job %s is not kept: %s", uid, error.message)
        return {}
    return {names.LAST_STATUS: status_text} if len(status_text.encode()) <= STATUS_BYTES else {}


def _files(tails: Tails) -> dict[str, str]:
    # Keys of a ConfigMap must not contain slashes.
    ranks = {f"{rank.replace('/', '-')}.log": text for rank, text in sorted(tails.logs.items())}
    return {**ranks, **({names.MASTER_LOG: tails.master} if tails.master else {})}
