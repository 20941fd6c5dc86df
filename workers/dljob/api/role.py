"""One role of a job under construction: the setters that follow `.role(...)`, and the way back to the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic, Literal, Self, TypeVar

from dljob.api.job import DLJob, Workload
from dljob.api.not_here import NotHere
from dljob.api.values import (
    Number,
    config_of,
    cpus,
    entrypoint_of,
    env_of,
    exact,
    memory_of,
    one_of,
    refuse_unknown,
    share,
    span,
    suggestion,
    whole,
)
from dljob.errors import UsageError
from dljob.plan.devices import all_left_alone

if TYPE_CHECKING:
    from dljob.api.builder import DLJobBuilder

B_co = TypeVar("B_co", bound="DLJobBuilder", covariant=True)

DEVICES = {"gpu": "GPU", "npu": "NPU", "tpu": "TPU", "hpu": "HPU", "neuron": "Neuron"}
"""Keywords of `.resource()` that name a device kind -> the spec's type."""
_RESOURCES = ("accelerator", "acc", "cpu", "memory", "mem", "custom", *DEVICES)
LEVELS = ("InProcess", "Process", "RoleGroup", "Role", "Job", "Never")


class RoleBuilder(NotHere, Generic[B_co]):
    """A role: what it runs, how often, on what. `.end()`, `.role()` or `.build()` go on with the job."""

    def __init__(self, parent: B_co, workload: Workload) -> None:
        self._parent = parent
        self._workload = workload
        self._torch_shape: dict[str, int] = {}
        self._plain_shape: set[str] = set()
        self._fewest = 1  # torch nodes that are enough

    # --- what it runs

    def run(self, entrypoint: str) -> Self:
        """Run a class, a function or a script, each rank for itself.

        Raises:
            UsageError: when the role already runs something.
        """
        return self._enter("run", entrypoint)

    def train(self, entrypoint: str) -> Self:
        """Run it as torch ranks: one process group over all ranks of the role (`type: Elastic`).

        Raises:
            UsageError: when the role already runs something.
        """
        self._enter("train", entrypoint)
        self._workload.type = "Elastic"
        return self

    def module(self, name: str) -> Self:
        """Run a module as `python -m` would, or a `.py` file, in processes of its own."""
        return self._claim("module", {"module": name})

    def command(self, *argv: str) -> Self:
        """Run a command as it is, without a shell."""
        return self._claim("command", {"command": list(argv)})

    def args(self, *values: object) -> Self:
        """Append arguments: sys.argv[1:] of the entrypoint."""
        self._workload.args = [*self._workload.args, *(str(v) for v in values)]
        return self

    def quota(self) -> Self:
        """Hold nothing of what `resource` says: it is for the placement groups that the script itself makes in Ray."""
        self._workload.reserve = "Quota"
        return self

    # --- how often

    def total(self, count: int) -> Self:
        """How many ranks."""
        self._workload.replicas = whole(count, self._call("total"))
        return self._shaped("total")

    def per_group(self, count: int) -> Self:
        """How many consecutive ranks form a role group: one host, restarted together."""
        self._workload.replicas_per_group = whole(count, self._call("per_group"))
        return self._shaped("per_group")

    def nnodes(self, count: int | str) -> Self:
        """How many torch nodes: role groups of `nproc_per_node` ranks; "2:8": 8 where there is room, 2 at least."""
        if self._fewest < self._torch_shape.get("nnodes", 1):
            self._workload.min_replicas = self._workload.max_replicas = None  # an earlier call said them
        self._fewest, most = span(count, self._call("nnodes"))
        return self._torch("nnodes", most)

    def nproc_per_node(self, count: int) -> Self:
        """How many ranks a torch node has."""
        return self._torch("nproc_per_node", count)

    def elastic(self, fewest: int | None = None, most: int | None = None) -> Self:
        """How many ranks it may go on with when nodes are lost, and how many it may be given while it runs."""
        self._workload.type = "Elastic"
        if fewest is not None:
            self._workload.min_replicas = whole(fewest, self._call("elastic"))
        if most is not None:
            self._workload.max_replicas = whole(most, self._call("elastic"))
        return self

    # --- on what

    def resource(
        self,
        *,
        accelerator: Number | None = None,
        cpu: Number | None = None,
        memory: str | None = None,
        custom: Mapping[str, Number] | None = None,
        **more: Number,
    ) -> Self:
        """What one rank takes; what is not named stays as it was.

        Args:
            accelerator: devices: whole, or an exact share such as 0.4; also by its kind: gpu=, npu=, tpu=.
            cpu: CPUs, 2 or 0.5 or "500m".
            memory: with its unit, "64Gi".
            custom: further Ray resources by name.
            more: the aliases `acc`, `mem`, `gpu`, `npu`, `tpu`, `hpu`, `neuron`.

        Raises:
            UsageError: for an unknown keyword, or the same thing said twice.
        """
        call, role = self._call("resource"), self._workload
        refuse_unknown(call, {k: v for k, v in more.items() if k not in _RESOURCES}, _RESOURCES)
        counts = {"accelerator": accelerator, **{k: v for k, v in more.items() if k != "mem"}}
        said = {k: v for k, v in counts.items() if v is not None}
        if len(said) > 1:
            raise UsageError(f"{call} names devices twice: {', '.join(said)}", hint="keep one of them")
        for keyword, count in said.items():
            role.accelerator = share(count, f"{call}: {keyword}")
            role.accelerator_type = DEVICES.get(keyword, role.accelerator_type)
            self._parent.device_said(role.name)
        if cpu is not None:
            role.cpu = cpus(cpu, f"{call}: cpu")
        if (size := memory_of(memory, more.get("mem"), call)) is not None:
            role.memory = size
        if custom:
            given = {k: exact(v, f"{call}: custom {k}") for k, v in custom.items()}
            role.custom = {**role.custom, **given}
        return self

    def visibility(self, which: Literal["Isolated", "Shared"]) -> Self:
        """Which devices a rank sees: its own alone, or those of all ranks of the role on its host."""
        self._workload.visibility = one_of(which, ("Isolated", "Shared"), self._call("visibility"))
        return self

    def numa_binding(self, near: Literal["Node", "Socket", "Exclusive", "CoreComplex"]) -> Self:
        """Bind each rank to cores near its device, as torchrun's --numa-binding does."""
        known = ("Node", "Socket", "Exclusive", "CoreComplex")
        self._workload.numa_binding = one_of(near, known, self._call("numa_binding"))
        return self

    def rank_based_gpu_selection(self, enabled: bool = True) -> Self:  # noqa: FBT001, FBT002 - DLRover's
        """A rank takes the device that LOCAL_RANK counts, of those that all ranks of the role on its host see."""
        self._workload.rank_based_gpu_selection = enabled
        return self

    def disable_ray_auto_visible_device(self) -> Self:
        """Ranks see all devices of their machine, whatever they take: for code that hands them out itself."""
        return self.env(all_left_alone())

    def node_group(self, name: str) -> Self:
        """Live on the machines of this node group."""
        self._workload.node_group = name
        return self

    def annotation(self, key: str, value: str) -> Self:
        """Set an annotation of the role."""
        self._workload.annotations = {**self._workload.annotations, key: value}
        return self

    # --- how

    def env(self, values: Mapping[str, object] | None = None, **more: object) -> Self:
        """Environment of each rank, over the job's."""
        self._workload.env = {**self._workload.env, **env_of({**(values or {}), **more}, self._call("env"))}
        return self

    def config(self, value: object) -> Self:
        """Config of this role (dict, Namespace or OmegaConf), laid over the job's."""
        self._workload.config = {**self._workload.config, **config_of(value, self._call("config"))}
        return self

    def driver(self) -> Self:
        """The job ends when this role (with the other drivers) has ended."""
        return self._drives(value=True)

    def not_driver(self) -> Self:
        """Serve until the drivers have ended."""
        return self._drives(value=False)

    def depends_on(self, role: str, condition: Literal["Ready", "Complete"] = "Ready") -> Self:
        """Start only when another role is ready, or complete."""
        if condition not in ("Ready", "Complete"):
            raise UsageError(f"{self._call('depends_on')}: condition {condition!r}", hint="Ready or Complete")
        self._workload.depends_on = {**self._workload.depends_on, role.lower(): condition}
        return self

    def comm(
        self,
        *,
        backend: str | None = None,
        timeout_seconds: int | None = None,
        init_process_group: bool | None = None,
        pre_check: bool | None = None,
        sub_master: str | None = None,
        virtual_local_rank: bool | None = None,
    ) -> Self:
        """How torch ranks meet; what is left out stays as it was.

        Args:
            backend: Auto, nccl, hccl, gloo or None.
            timeout_seconds: how long a collective may wait.
            init_process_group: whether a class finds the group initialised.
            pre_check: whether nodes are checked first; left out: where the backend is nccl or hccl.
            sub_master: an entry point in `dljob.submasters` that serves where they meet, in the place of torch's store.
            virtual_local_rank: whether LOCAL_RANK is 0 in every rank, each seeing its own devices alone.
        """
        if pre_check is not None:
            self._workload.comm_pre_check = pre_check
        given = {"backend": backend, "timeoutSeconds": timeout_seconds, "initProcessGroup": init_process_group}
        given |= {"subMaster": sub_master, "virtualLocalRank": virtual_local_rank}
        self._workload.comm = {**self._workload.comm, **{k: v for k, v in given.items() if v is not None}}
        return self

    def restart(
        self,
        *,
        level: str | None = None,
        max_restarts: int | None = None,
        max_memory: str | None = None,
        memory_factor: str | None = None,
    ) -> Self:
        """What restarts when a rank fails, and with what; what is left out stays as it was.

        Args:
            level: InProcess, Process, RoleGroup, Role, Job or Never.
            max_restarts: how often in a window.
            max_memory: a rank that runs out of memory comes back with more, at most "64Gi".
            memory_factor: so many times what it had, "1.5".
        """
        if level is not None and level not in LEVELS:
            raise UsageError(f"{self._call('restart')}: level {level!r}", hint=suggestion(level, LEVELS))
        if max_restarts is not None:
            whole(max_restarts, self._call("restart"), least=0)
        more = {"maxMemory": max_memory, "memoryFactor": memory_factor}
        had = self._workload.restart_policy
        grown = {**had.get("outOfMemory", {}), **{k: v for k, v in more.items() if v is not None}}
        given = {"level": level, "maxRestarts": max_restarts, "outOfMemory": grown or None}
        self._workload.restart_policy = {**had, **{k: v for k, v in given.items() if v is not None}}
        return self

    # --- back to the job

    def end(self) -> B_co:
        """The job's builder again."""
        return self._parent

    def role(self, name: str) -> RoleBuilder[B_co]:
        """The next role of the job."""
        return self._parent.role(name)

    def workload(self, name: str, entrypoint: str) -> RoleBuilder[B_co]:
        """The next role of the job, in short."""
        return self._parent.workload(name, entrypoint)

    def with_collocation(self, *roles: str, level: str | None = None, name: str | None = None) -> B_co:
        """Collocate roles of the job."""
        return self._parent.with_collocation(*roles, level=level, name=name)

    def with_collocation_all(self, *exclude: str, level: str | None = None, name: str | None = None) -> B_co:
        """Collocate all roles of the job but those named."""
        return self._parent.with_collocation_all(*exclude, level=level, name=name)

    def build(self) -> DLJob:
        """The job as an editable draft."""
        return self._parent.build()

    # --- helpers

    @property
    def has_entrypoint(self) -> bool:
        """Whether it has been said what the role runs."""
        return bool(self._workload.entrypoint)

    def _call(self, method: str) -> str:
        return f".role({self._workload.name!r}).{method}()"

    def _enter(self, method: str, entrypoint: object) -> Self:
        made, args = entrypoint_of(entrypoint, self._call(method))
        self._claim(method, made)
        self._workload.args = [*args, *self._workload.args]
        return self

    def _claim(self, method: str, entrypoint: dict[str, object]) -> Self:
        if self._workload.entrypoint:
            runs = next(iter(self._workload.entrypoint.values()))
            raise UsageError(
                f".{method}() on role {self._workload.name!r}, which already runs {runs!r}",
                hint=f"begin the next role first: .role(name).{method}(...)",
            )
        self._workload.entrypoint = entrypoint
        return self

    def _drives(self, *, value: bool) -> Self:
        self._workload.driver = value
        return self

    def _torch(self, method: str, count: int) -> Self:
        self._torch_shape[method] = whole(count, self._call(method))
        if self._plain_shape:
            self._mixed(method)
        per, most = self._torch_shape.get("nproc_per_node", 1), self._torch_shape.get("nnodes", 1)
        self._workload.replicas_per_group, self._workload.replicas = per, most * per
        if self._fewest < most:
            self._workload.min_replicas, self._workload.max_replicas = self._fewest * per, most * per
        return self

    def _shaped(self, method: str) -> Self:
        self._plain_shape.add(method)
        if self._torch_shape:
            self._mixed(method)
        return self

    def _mixed(self, method: str) -> None:
        other = sorted(self._plain_shape - {method} or self._torch_shape)[0]
        raise UsageError(
            f"{self._call(method)} after .{other}(): two ways to count ranks",
            hint=".total(n).per_group(m) or .nnodes(n).nproc_per_node(m), not both",
        )
