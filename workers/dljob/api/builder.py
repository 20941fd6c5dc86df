"""DLJobBuilder: a job in DLRover's names, on the same spec as YAML.

DLJobBuilder().role("worker").train("train.Model").nnodes(2).nproc_per_node(8).resource(accelerator=1).build()
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Self

from dljob.api.collocate import Collocation, resolve
from dljob.api.job import DLJob, Workload, pruned
from dljob.api.machines import machines
from dljob.api.role import RoleBuilder
from dljob.api.values import Number, config_of, cpus, env_of, memory, suggestion, whole
from dljob.errors import UsageError

DEVICE_TYPES = ("CPU", "GPU", "NPU", "TPU", "HPU", "Neuron")
COLLOCATION_LEVELS = ("Device", "Host", "Separate")


class DLJobBuilder:
    """Say machines, roles and who shares a device; `build()` gives a draft that can still be changed."""

    def __init__(self) -> None:
        self._spec: dict[str, Any] = {}
        self._metadata: dict[str, Any] = {}
        self._env: dict[str, str] = {}
        self._roles: dict[str, Workload] = {}
        self._open: RoleBuilder[Self] | None = None
        self._devices_said: set[str] = set()
        self._collocations: list[Collocation] = []
        self._machines: dict[str, Any] = {}

    # --- machines

    def node_num(self, count: int) -> Self:
        """How many machines."""
        self._machines["nodes"] = whole(count, ".node_num()")
        return self

    def device_per_node(self, count: int) -> Self:
        """How many devices each machine has; left out: 8 where roles use devices."""
        self._machines["devices"] = whole(count, ".device_per_node()", least=0)
        return self

    def device_type(self, kind: str) -> Self:
        """Kind of the devices: CPU (none), GPU, NPU, TPU, HPU, Neuron, in any case."""
        found = {name.lower(): name for name in DEVICE_TYPES}.get(str(kind).lower())
        if found is None:
            raise UsageError(f".device_type({kind!r}): no such kind", hint=suggestion(str(kind), DEVICE_TYPES))
        self._machines["type"] = found
        return self

    def cpu_per_node(self, count: Number) -> Self:
        """CPUs of each machine; left out: what the roles need there."""
        self._machines["cpu"] = cpus(count, ".cpu_per_node()")
        return self

    def memory_per_node(self, size: str) -> Self:
        """Memory of each machine, "512Gi"; left out: what the roles ask for."""
        self._machines["memory"] = memory(size, ".memory_per_node()")
        return self

    def node_group(
        self,
        name: str,
        *,
        replicas: int = 1,
        cpu: Number = 1,
        memory: str | None = None,
        shared_memory: str | None = None,
        accelerator: Mapping[str, object] | None = None,
        labels: Mapping[str, str] | None = None,
        template: Mapping[str, object] | None = None,
    ) -> Self:
        """Machines of one kind; `accelerator` as the spec has it: {"type": "NPU", "count": 8}; so `template`."""
        group = {
            "name": name,
            "replicas": whole(replicas, f".node_group({name!r})"),
            "cpu": cpus(cpu, f".node_group({name!r})"),
            "memory": memory,
            "sharedMemory": shared_memory,
            "accelerator": dict(accelerator or {}),
            "labels": dict(labels or {}),
            "template": dict(template or {}),
        }
        self._spec.setdefault("nodeGroups", []).append(pruned(group))
        return self

    # --- what all roles get

    def config(self, value: object) -> Self:
        """Config of all roles: dict, Namespace or OmegaConf; a later call is laid over an earlier one."""
        self._spec["config"] = {**self._spec.get("config", {}), **config_of(value, ".config()")}
        return self

    def global_env(self, values: Mapping[str, object]) -> Self:
        """Environment of all roles; a later call is laid over an earlier one."""
        self._env.update(env_of(values, ".global_env()"))
        return self

    # --- roles

    def role(self, name: str) -> RoleBuilder[Self]:
        """Begin a role; its name is lower-cased.

        Raises:
            UsageError: when there is one of that name.
        """
        name = str(name).lower()
        if name in self._roles:
            raise UsageError(f".role({name!r}): there is such a role already", hint="give this one another name")
        self._roles[name] = Workload(name=name)
        self._open = self._role_builder(self._roles[name])
        return self._open

    def workload(self, name: str, entrypoint: str) -> RoleBuilder[Self]:
        """`.role(name).run(entrypoint)` in one."""
        return self.role(name).run(entrypoint)

    def run(self, entrypoint: str) -> RoleBuilder[Self]:
        """What the role begun last runs.

        Raises:
            UsageError: without a role that waits for its entrypoint.
        """
        return self._waiting("run", entrypoint).run(entrypoint)

    def train(self, entrypoint: str) -> RoleBuilder[Self]:
        """What the role begun last runs as torch ranks.

        Raises:
            UsageError: without a role that waits for its entrypoint.
        """
        return self._waiting("train", entrypoint).train(entrypoint)

    def with_collocation(self, *roles: str, level: str | None = None, name: str | None = None) -> Self:
        """Let roles share: one device by fractions (Device), a machine (Host), or never one (Separate).

        Left out, the level is Device when a role has a share below one or the machines have devices that no role
        asked for, else Host. CPU, memory and shares stay as they were; on level Device, roles without a share get
        equal parts of what the others leave, exact to four digits (three of three: 0.3334, 0.3333, 0.3333).
        """
        if len(roles) < 2:
            raise UsageError(f".with_collocation{roles!r} names fewer than two roles", hint="name at least two")
        return self._collocate(Collocation(tuple(r.lower() for r in roles), (), _level(level), name))

    def with_collocation_all(self, *exclude: str, level: str | None = None, name: str | None = None) -> Self:
        """Collocate all roles but those named, whenever they are declared."""
        return self._collocate(Collocation(None, tuple(r.lower() for r in exclude), _level(level), name))

    # --- the rest of the spec

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

    def checkpoint(self, path: str, *, claim: str | None = None) -> Self:
        """Where user code saves, and the PersistentVolumeClaim that is mounted there."""
        return self._put("checkpoint", pruned({"path": path, "claimName": claim}))

    def scheduling(
        self, *, queue: str | None = None, priority_class: str | None = None, labels: Mapping[str, str] | None = None
    ) -> Self:
        """The queue of the RayCluster, its priority there, and further labels that its scheduler reads."""
        return self._merge(
            "scheduling", queueName=queue, priorityClassName=priority_class, labels=labels and dict(labels)
        )

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
    ) -> Self:
        """PrimeMaster's size, budget, patience, and where its journal lives, be it on a PersistentVolumeClaim."""
        journal = {k: v for k, v in {"path": journal_path, "claimName": journal_claim}.items() if v is not None}
        return self._merge(
            "master",
            cpu=None if cpu is None else cpus(cpu, ".master()"),
            memory=memory,
            maxRestarts=max_restarts,
            createTimeoutSeconds=create_timeout_seconds,
            journal=journal or None,
        )

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

    # --- the end

    def build(self) -> DLJob:
        """The job as an editable draft; the builder can go on and build again.

        Raises:
            UsageError: no role, a role without an entrypoint, a collocation that cannot be.
        """
        if not self._roles:
            raise UsageError(".build() without a role", hint='begin with .role("name").run("module.Class")')
        roles = copy.deepcopy(self._roles)
        for role in roles.values():
            if not role.entrypoint:
                raise UsageError(
                    f"role {role.name!r} runs nothing", hint=f".role({role.name!r}) needs .run(...) or .train(...)"
                )
        spec = copy.deepcopy(self._spec)
        if self._env:
            spec["env"] = [{"name": k, "value": v} for k, v in self._env.items()]
        has_devices = self._machines.get("type", "CPU") != "CPU" or bool(self._machines.get("devices"))
        made = resolve(self._collocations, roles, self._exempt(), has_devices=has_devices)
        if made:
            spec["collocations"] = made
        machines(self._machines, roles, spec)
        return DLJob(workloads=roles, spec=spec, metadata=copy.deepcopy(self._metadata))

    # --- for the role builders

    def device_said(self, role: str) -> None:
        """A role said how many devices it takes, be it none."""
        self._devices_said.add(role)

    def _exempt(self) -> frozenset[str]:
        """Roles that `with_collocation_all` leaves out: they said that they take no device."""
        return frozenset(r for r in self._devices_said if Decimal(self._roles[r].accelerator or "0") == 0)

    def _role_builder(self, workload: Workload) -> RoleBuilder[Self]:
        return RoleBuilder(self, workload)

    def _waiting(self, method: str, entrypoint: str) -> RoleBuilder[Self]:
        if self._open is None or self._open.has_entrypoint:
            raise UsageError(
                f".{method}({entrypoint!r}) without a role", hint=f".role(name).{method}({entrypoint!r}) names it"
            )
        return self._open

    def _collocate(self, collocation: Collocation) -> Self:
        self._collocations.append(collocation)
        return self

    def _put(self, key: str, value: object) -> Self:
        self._spec[key] = value
        return self

    def _merge(self, key: str, **values: object) -> Self:
        self._spec.setdefault(key, {}).update({k: v for k, v in values.items() if v is not None})
        return self


def _level(level: str | None) -> str | None:
    """A collocation level in any case."""
    if level is None:
        return None
    found = {name.lower(): name for name in COLLOCATION_LEVELS}.get(level.lower())
    if found is None:
        raise UsageError(f"collocation level {level!r}", hint=suggestion(level, COLLOCATION_LEVELS))
    return found
