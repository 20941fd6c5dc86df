"""The builder's setters of the spec beside roles and machines: one for each field, in the spec's own words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from dljob.api.job import pruned
from dljob.api.not_here import NotHere
from dljob.api.values import Number, cpus, whole


class SpecSetters(NotHere):
    """Says what a job is called, where its code and images come from, what is done when it fails, and when it ends."""

    def __init__(self) -> None:
        self._spec: dict[str, Any] = {}
        self._metadata: dict[str, Any] = {}

    def name(self, name: str) -> Self:
        """Name of the job; `submit(name)` may give another."""
        self._metadata["name"] = name
        return self

    def namespace(self, namespace: str) -> Self:
        """Kubernetes namespace."""
        self._metadata["namespace"] = namespace
        return self

    def label(self, key: str, value: str) -> Self:
        """Set a label of the job."""
        self._metadata.setdefault("labels", {})[key] = value
        return self

    def annotation(self, key: str, value: str) -> Self:
        """Set an annotation of the job."""
        self._metadata.setdefault("annotations", {})[key] = value
        return self

    def image(self, image: str) -> Self:
        """The runtime image."""
        return self._put("image", image)

    def image_pull(self, policy: str | None = None, *, secrets: Sequence[str] = ()) -> Self:
        """When Kubernetes pulls images (Always, IfNotPresent, Never), and with which Secrets."""
        if policy is not None:
            self._put("imagePullPolicy", policy)
        return self._put("imagePullSecrets", [{"name": name} for name in secrets]) if secrets else self

    def env_from(self, *, config_map: str = "", secret: str = "", prefix: str = "", optional: bool = False) -> Self:
        """Environment of every role from a ConfigMap or a Secret of the job's namespace; may be called again."""
        source = {"name": config_map or secret, "optional": optional or None}
        entry = {"prefix": prefix or None, "configMapRef" if config_map else "secretRef": pruned(source)}
        self._spec.setdefault("envFrom", []).append(pruned(entry))
        return self

    def runtime_env(self, environment: Mapping[str, object]) -> Self:
        """Ray's runtime environment of the job on Kubernetes."""
        return self._put("runtimeEnv", dict(environment))

    def checkpoint(
        self,
        path: str,
        *,
        claim: str | None = None,
        save_on_exit: bool | None = None,
        peer_copy: bool | None = None,
        grace_seconds: int | None = None,
    ) -> Self:
        """Where user code saves, the claim mounted there, what is saved at the end and for how long, what is copied."""
        more = {"saveOnExit": save_on_exit, "peerCopy": peer_copy, "gracePeriodSeconds": grace_seconds}
        return self._put("checkpoint", pruned({"path": path, "claimName": claim, **more}))

    def scheduling(
        self, *, queue: str | None = None, priority_class: str | None = None, labels: Mapping[str, str] | None = None
    ) -> Self:
        """The queue of the RayCluster, its priority there, and further labels that its scheduler reads."""
        return self._merge(
            "scheduling", queueName=queue, priorityClassName=priority_class, labels=labels and dict(labels)
        )

    def network_policy(self, enabled: bool = True) -> Self:  # noqa: FBT001, FBT002 - a switch, as the field is
        """Close the job's pods on Kubernetes to all but each other, the operator's ports and the metrics."""
        return self._merge("networkPolicy", enabled=enabled)

    def suspend(self, on: bool = True) -> Self:  # noqa: FBT001, FBT002 - a switch, as the field is
        """Hold the job back on Kubernetes: it begins, or goes on, when it is resumed."""
        return self._put("suspend", on)

    def managed_by(self, controller: str) -> Self:
        """Whose job it is on Kubernetes: dljob.io/operator or kueue.x-k8s.io/multikueue."""
        return self._put("managedBy", controller)

    def ray_version(self, version: str) -> Self:
        """Ray's version in the image."""
        return self._put("rayVersion", version)

    def working_dir(self, folder: str) -> Self:
        """The folder that workers import from, relative to the script."""
        return self._merge("code", workingDir=folder)

    def code_config_map(self, name: str) -> Self:
        """The ConfigMap with the user code on Kubernetes, when it is not the folder's."""
        return self._merge("code", configMap=name)

    def backend(self, name: str, **options: object) -> Self:
        """The distributed backend."""
        return self._put("backend", {"name": name, "options": dict(options)})

    def collective_backend(self, name: str, path: str) -> Self:
        """A backend of collectives by the dotted path of its class; may be called again."""
        return self._collective("backends", {"name": name, "class": path})

    def collective_group(
        self,
        name: str,
        *roles: str,
        backend: str | None = None,
        timeout_seconds: int | None = None,
        on_restart: str | None = None,
    ) -> Self:
        """A group of collectives across these roles; on_restart: Recreate or Fail. May be called again."""
        more = {"backend": backend, "timeoutSeconds": timeout_seconds, "onRestart": on_restart}
        return self._collective("groups", pruned({"name": name, "roles": list(roles), **more}))

    def _collective(self, kind: str, item: dict[str, object]) -> Self:
        before = self._spec.get("collectives", {})
        return self._put("collectives", {**before, kind: [*before.get(kind, []), item]})

    def head(
        self,
        *,
        cpu: Number | None = None,
        memory: str | None = None,
        template: Mapping[str, object] | None = None,
    ) -> Self:
        """Size of the RayCluster's head, and what is laid over its pod."""
        size = None if cpu is None else cpus(cpu, ".head()")
        return self._merge("head", cpu=size, memory=memory, template=None if template is None else dict(template))

    def ray_cluster(self, name: str) -> Self:
        """A RayCluster of the job's namespace on Kubernetes that is there already, to run on."""
        return self._put("rayClusterRef", {"name": name})

    def ray_cluster_template(self, template: Mapping[str, object]) -> Self:
        """What is laid over the RayCluster on Kubernetes: metadata and spec, in KubeRay's spelling."""
        return self._put("rayClusterTemplate", dict(template))

    def master(
        self,
        *,
        cpu: Number | None = None,
        memory: str | None = None,
        max_restarts: int | None = None,
        create_timeout_seconds: int | None = None,
        journal_path: str | None = None,
        journal_claim: str | None = None,
        placement: str | None = None,
    ) -> Self:
        """PrimeMaster's size, budget, patience, where it lives, and its journal, be it on a PersistentVolumeClaim."""
        journal = {k: v for k, v in {"path": journal_path, "claimName": journal_claim}.items() if v is not None}
        return self._merge(
            "master",
            cpu=None if cpu is None else cpus(cpu, ".master()"),
            memory=memory,
            maxRestarts=max_restarts,
            createTimeoutSeconds=create_timeout_seconds,
            journal=journal or None,
            placement=placement,
        )

    def gcs_fault_tolerance(
        self,
        *,
        claim: str | None = None,
        redis: str | None = None,
        redis_password: tuple[str, str] | None = None,
    ) -> Self:
        """Keep what Ray's head knows: in RocksDB on a claim, or in Redis at host:port, password in (Secret, key)."""
        secret = None if redis_password is None else dict(zip(("name", "key"), redis_password, strict=True))
        kept = {"redisAddress": redis, "redisPasswordSecret": secret, "claimName": claim}
        return self._put("gcsFaultTolerance", pruned({"backend": "Redis" if redis else "RocksDB", **kept}))

    def fault_tolerance(
        self,
        *,
        max_restarts: int | None = None,
        max_cluster_restarts: int | None = None,
        window_seconds: int | None = None,
        lease_seconds: int | None = None,
    ) -> Self:
        """Restarts of the whole job within a window, new RayClusters, and how long a process may go on unheard."""
        return self._merge(
            "faultTolerance",
            maxRestarts=max_restarts,
            maxClusterRestarts=max_cluster_restarts,
            windowSeconds=window_seconds,
            leaseSeconds=lease_seconds,
        )

    def backoff(
        self, *, initial_seconds: int | None = None, multiplier: int | None = None, max_seconds: int | None = None
    ) -> Self:
        """Waits between restarts, from the second failure in a window on."""
        wait = {"initialSeconds": initial_seconds, "multiplier": multiplier, "maxSeconds": max_seconds}
        return self._merge("faultTolerance", backoff={k: v for k, v in wait.items() if v is not None})

    def spares(self, *, processes_per_node: int | None = None, nodes: int | None = None) -> Self:
        """Processes per node and role, and machines per node group, that are kept ready."""
        kept = {"processesPerNode": processes_per_node, "nodes": nodes}
        return self._merge("faultTolerance", spares={k: v for k, v in kept.items() if v is not None})

    def lost_nodes(
        self,
        *,
        action: str | None = None,
        freeze_seconds: int | None = None,
        unreachable_seconds: int | None = None,
        exclude_seconds: int | None = None,
        pending_timeout_seconds: int | None = None,
        relauncher: str | None = None,
    ) -> Self:
        """What becomes of a node that stops answering, how long its ranks wait for another one, who replaces it."""
        policy = {
            "action": action,
            "freezeSeconds": freeze_seconds,
            "unreachableSeconds": unreachable_seconds,
            "excludeSeconds": exclude_seconds,
            "pendingTimeoutSeconds": pending_timeout_seconds,
            "relauncher": relauncher,
        }
        return self._merge("faultTolerance", node=pruned(policy))

    def resizing(self, *, shrink_after_seconds: int | None = None, grow_after_seconds: int | None = None) -> Self:
        """How long elastic roles wait before they go on with fewer ranks, and before they grow back."""
        policy = {"shrinkAfterSeconds": shrink_after_seconds, "growAfterSeconds": grow_after_seconds}
        return self._merge("faultTolerance", elastic=pruned(policy))

    def hung_ranks(
        self, *, action: str | None = None, idle_seconds: int | None = None, busy_seconds: int | None = None
    ) -> Self:
        """What becomes of ranks that stand still, and how long their silence may be at least."""
        policy = {"action": action, "idleSeconds": idle_seconds, "busySeconds": busy_seconds}
        return self._merge("faultTolerance", hang=pruned(policy))

    def rule(
        self,
        name: str,
        *,
        action: str,
        roles: tuple[str, ...] = (),
        on_reasons: tuple[str, ...] = (),
        on_exit_codes: tuple[int, ...] = (),
        max_attempts: int | None = None,
        escalate_to: str | None = None,
        counts_towards_limit: bool | None = None,
    ) -> Self:
        """What to do about a failure; rules are tried in the order they are declared."""
        rule = {
            "name": name,
            "roles": [r.lower() for r in roles],
            "onReasons": list(on_reasons),
            "onExitCodes": list(on_exit_codes),
            "action": action,
            "maxAttempts": max_attempts,
            "escalateTo": escalate_to,
            "countsTowardsLimit": counts_towards_limit,
        }
        self._spec.setdefault("faultTolerance", {}).setdefault("rules", []).append(pruned(rule))
        return self

    def known_cause(self, name: str, *, on_log: str, reason: str) -> Self:
        """What a text in an error or a log means; asked before the causes that dljob knows itself."""
        cause = {"name": name, "onLog": on_log, "reason": reason}
        self._spec.setdefault("faultTolerance", {}).setdefault("causes", []).append(cause)
        return self

    def cleanup_policy(self, policy: str) -> Self:
        """What becomes of the RayCluster at the end: DeleteCluster or Retain."""
        return self._put("cleanupPolicy", policy)

    def ttl_after_finished(self, seconds: int) -> Self:
        """The DLJob leaves Kubernetes so long after its end."""
        return self._put("ttlSecondsAfterFinished", whole(seconds, ".ttl_after_finished()", least=0))

    def active_deadline(self, seconds: int) -> Self:
        """The job fails when it has run so long."""
        return self._put("activeDeadlineSeconds", whole(seconds, ".active_deadline()"))

    def pre_running_deadline(self, seconds: int) -> Self:
        """The job fails when it is not running after so long."""
        return self._put("preRunningDeadlineSeconds", whole(seconds, ".pre_running_deadline()"))

    def _put(self, key: str, value: object) -> Self:
        self._spec[key] = value
        return self

    def _merge(self, key: str, **values: object) -> Self:
        self._spec.setdefault(key, {}).update({k: v for k, v in values.items() if v is not None})
        return self
