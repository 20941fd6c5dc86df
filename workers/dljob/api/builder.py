"""DLJobBuilder: a job in DLRover's vocabulary, with the same spec as YAML.

DLJobBuilder().role("worker").train("train.Model").nnodes(2).nproc_per_node(8).resource(accelerator=1).build()
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Generic, Self, TypeVar

from dljob.api.collocate import CollocationRequest, resolve
from dljob.api.job import DLJob
from dljob.api.machines import machines
from dljob.api.role_options import RoleOptionSetters
from dljob.api.setters import SpecSetters
from dljob.api.values import Number, check_count, config_of, cpus, env_of, memory, suggestion
from dljob.api.workload import Workload, choices, pruned
from dljob.errors import UsageError
from dljob.spec.devices import KUBERNETES

DEVICE_TYPES = ("CPU", *KUBERNETES)

B_co = TypeVar("B_co", bound="DLJobBuilder", covariant=True)


class RoleBuilder(RoleOptionSetters, Generic[B_co]):
    """A role under construction. `.end()`, `.role()` or `.build()` go back to the job."""

    def __init__(self, parent: B_co, workload: Workload) -> None:
        super().__init__(workload, parent.device_said)
        self._parent = parent

    def end(self) -> B_co:
        """Return the job's builder."""
        return self._parent

    def role(self, name: str) -> RoleBuilder[B_co]:
        """Begin the next role of the job."""
        return self._parent.role(name)

    def workload(self, name: str, entrypoint: str) -> RoleBuilder[B_co]:
        """Begin the next role of the job with its entrypoint."""
        return self._parent.workload(name, entrypoint)

    def with_collocation(self, *roles: str, level: str | None = None, name: str | None = None) -> B_co:
        """Collocate the named roles of the job."""
        return self._parent.with_collocation(*roles, level=level, name=name)

    def with_collocation_all(self, *exclude: str, level: str | None = None, name: str | None = None) -> B_co:
        """Collocate all roles of the job except those named."""
        return self._parent.with_collocation_all(*exclude, level=level, name=name)

    def build(self) -> DLJob:
        """Return the job as an editable draft."""
        return self._parent.build()


class DLJobBuilder(SpecSetters):
    """Builder of machines, roles and collocations; `build()` returns a draft that can still be edited."""

    def __init__(self) -> None:
        super().__init__()
        self._env: dict[str, str] = {}
        self._roles: dict[str, Workload] = {}
        self._open: RoleBuilder[Self] | None = None
        self._devices_said: set[str] = set()
        self._collocations: list[CollocationRequest] = []
        self._machines: dict[str, Any] = {}
        self._comm: dict[str, Any] = {}

    # --- machines

    def node_num(self, count: int) -> Self:
        """Set the number of machines."""
        self._machines["nodes"] = check_count(count, ".node_num()")
        return self

    def device_per_node(self, count: int) -> Self:
        """Set the number of devices on each machine; by default 8 when roles use devices."""
        self._machines["devices"] = check_count(count, ".device_per_node()", least=0)
        return self

    def device_type(self, kind: str) -> Self:
        """Set the kind of the devices: CPU (none), GPU, NPU, TPU, HPU or Neuron; case is ignored."""
        device_type = {name.lower(): name for name in DEVICE_TYPES}.get(str(kind).lower())
        if device_type is None:
            raise UsageError(f".device_type({kind!r}): no such kind", hint=suggestion(str(kind), DEVICE_TYPES))
        self._machines["type"] = device_type
        return self

    def cpu_per_node(self, count: Number) -> Self:
        """Set the CPUs of each machine; by default the total of its roles."""
        self._machines["cpu"] = cpus(count, ".cpu_per_node()")
        return self

    def memory_per_node(self, size: str) -> Self:
        """Set the memory of each machine, such as "512Gi"; by default the total of its roles."""
        self._machines["memory"] = memory(size, ".memory_per_node()")
        return self

    def node_group(
        self,
        name: str,
        *,
        replicas: int = 1,
        min_replicas: int | None = None,
        max_replicas: int | None = None,
        cpu: Number = 1,
        memory: str | None = None,
        shared_memory: str | None = None,
        accelerator: Mapping[str, object] | None = None,
        image: str | None = None,
        labels: Mapping[str, str] | None = None,
        template: Mapping[str, object] | None = None,
    ) -> Self:
        """Add a group of equal machines; `accelerator` and `template` as in the spec: {"type": "NPU", "count": 8}."""
        group = {
            "name": name,
            "replicas": check_count(replicas, f".node_group({name!r})"),
            "minReplicas": min_replicas,
            "maxReplicas": max_replicas,
            "cpu": cpus(cpu, f".node_group({name!r})"),
            "memory": memory,
            "sharedMemory": shared_memory,
            "accelerator": dict(accelerator or {}),
            "image": image,
            "labels": dict(labels or {}),
            "template": dict(template or {}),
        }
        self._spec.setdefault("nodeGroups", []).append(pruned(group))
        return self

    # --- what all roles get

    def config(self, value: object) -> Self:
        """Merge a config (dict, Namespace or OmegaConf) into that of all roles; a later call takes precedence."""
        self._spec["config"] = {**self._spec.get("config", {}), **config_of(value, ".config()")}
        return self

    def global_env(self, values: Mapping[str, object]) -> Self:
        """Add environment variables of all roles; a later call takes precedence."""
        self._env.update(env_of(values, ".global_env()"))
        return self

    # --- roles

    def role(self, name: str) -> RoleBuilder[Self]:
        """Begin a role; its name is converted to lower case.

        Raises:
            UsageError: a role has this name already.
        """
        # DLRover's role names are upper-case members of an enum; names in the spec are DNS labels.
        name = str(name).lower()
        if name in self._roles:
            raise UsageError(f".role({name!r}): there is such a role already", hint="give this one another name")
        self._roles[name] = Workload(name=name)
        self._open = self._role_builder(self._roles[name])
        return self._open

    def workload(self, name: str, entrypoint: str) -> RoleBuilder[Self]:
        """Begin a role with its entrypoint: `.role(name).run(entrypoint)`."""
        return self.role(name).run(entrypoint)

    def run(self, entrypoint: str) -> RoleBuilder[Self]:
        """Set the entrypoint of the role begun last.

        Raises:
            UsageError: no role waits for its entrypoint.
        """
        return self._waiting("run", entrypoint).run(entrypoint)

    def train(self, entrypoint: str) -> RoleBuilder[Self]:
        """Set the entrypoint of the role begun last, and run it as torch ranks.

        Raises:
            UsageError: no role waits for its entrypoint.
        """
        return self._waiting("train", entrypoint).train(entrypoint)

    def with_collocation(self, *roles: str, level: str | None = None, name: str | None = None) -> Self:
        """Let roles share one device by fractions (Device) or a machine (Host), or keep them apart (Separate).

        The default level is Device when a role has a share below one, or when the machines have devices that no role
        asked for; else Host. CPU, memory and shares stay as they were. On level Device, roles without a share get
        equal parts of the rest, exact to four digits (three of three: 0.3334, 0.3333, 0.3333).
        """
        if len(roles) < 2:
            raise UsageError(f".with_collocation{roles!r} names fewer than two roles", hint="name at least two")
        # Role names are lower case in the builder, as `.role()` makes them.
        return self._collocate(CollocationRequest(tuple(r.lower() for r in roles), (), _level(level), name))

    def with_collocation_all(self, *exclude: str, level: str | None = None, name: str | None = None) -> Self:
        """Collocate all roles except those named, also roles that are declared later."""
        return self._collocate(CollocationRequest(None, tuple(r.lower() for r in exclude), _level(level), name))

    def skip_node_check(self) -> Self:
        """Skip the node check before torch ranks start, in every role."""
        self._comm["preCheck"] = False
        return self

    def no_setup_process_group(self) -> Self:
        """Leave it to the user code of torch ranks to initialise the process group."""
        self._comm["initProcessGroup"] = False
        return self

    # --- the end

    def build(self) -> DLJob:
        """Return the job as an editable draft; the builder stays usable and can build again.

        Raises:
            UsageError: there is no role, a role has no entrypoint, or a collocation is impossible.
        """
        if not self._roles:
            raise UsageError(".build() without a role", hint='begin with .role("name").run("module.Class")')
        # Copies throughout: patches of the draft must not reach the builder, and `build()` may be called again.
        roles = copy.deepcopy(self._roles)
        for role in roles.values():
            if not role.entrypoint:
                raise UsageError(
                    f"role {role.name!r} runs nothing", hint=f".role({role.name!r}) needs .run(...) or .train(...)"
                )
            # The settings are about the process group, which only torch ranks have.
            if role.type == "Elastic":
                role.comm = {**role.comm, **self._comm}
        spec = copy.deepcopy(self._spec)
        if self._env:
            spec["env"] = [{"name": k, "value": v} for k, v in self._env.items()]
        # A device type alone is enough: the number of devices has a default.
        has_devices = self._machines.get("type", "CPU") != "CPU" or bool(self._machines.get("devices"))
        collocations = resolve(self._collocations, roles, self._exempt(), has_devices=has_devices)
        if collocations:
            spec["collocations"] = collocations
        # Last, because the default size of machines follows from roles and collocations.
        machines(self._machines, roles, spec)
        return DLJob(workloads=roles, spec=spec, metadata=copy.deepcopy(self._metadata))

    # --- for the role builders

    def device_said(self, role: str) -> None:
        """Note that a role gave its number of devices, even if it is 0."""
        self._devices_said.add(role)

    def _exempt(self) -> frozenset[str]:
        """Return the roles that `with_collocation_all` leaves out: they explicitly take no device."""
        return frozenset(r for r in self._devices_said if Decimal(self._roles[r].accelerator or "0") == 0)

    def _role_builder(self, workload: Workload) -> RoleBuilder[Self]:
        return RoleBuilder(self, workload)

    def _waiting(self, method: str, entrypoint: str) -> RoleBuilder[Self]:
        if self._open is None or self._open.has_entrypoint:
            raise UsageError(
                f".{method}({entrypoint!r}) without a role", hint=f".role(name).{method}({entrypoint!r}) names it"
            )
        return self._open

    def _collocate(self, collocation: CollocationRequest) -> Self:
        self._collocations.append(collocation)
        return self


def _level(level: str | None) -> str | None:
    """Return a collocation level in the spec's case."""
    if level is None:
        return None
    known = choices("Collocation", "level")
    spelled_level = {name.lower(): name for name in known}.get(level.lower())
    if spelled_level is None:
        raise UsageError(f"collocation level {level!r}", hint=suggestion(level, known))
    return spelled_level
