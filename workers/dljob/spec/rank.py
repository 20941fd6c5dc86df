"""The models of a rank: its entrypoint, environment, devices, resources and process group."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from dljob.spec import cel, scalars
from dljob.spec.capabilities import Capability, Needs
from dljob.spec.cluster import AcceleratorType
from dljob.spec.scalars import Amount, Cpu, Devices, Memory, Model, Option, RayName, Text


class EnvVar(Model):
    """An environment variable."""

    name: Annotated[str, Field(max_length=256, pattern=scalars.ENV_PATTERN)]
    """Name of the variable: letters, digits and '_', no digit first."""
    value: Text = ""
    """Value of the variable, taken literally: nothing is expanded."""


class Entrypoint(Model):
    """The program of a rank: exactly one of class, module and command."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.ENTRYPOINT))

    # `class` is a keyword of Python, so the field has another name there.
    class_: Annotated[
        str | None,
        Field(alias="class", max_length=512, pattern=scalars.CLASS_PATTERN),
        Needs(Capability.CLASSES, "ranks that are actors", hint="use module, or command"),
    ] = None
    """Dotted path to a class (a `dljob.Worker` or any class with `run`) or to a function, such as "pkg.mod.Trainer".
    Each rank runs it in its own Ray actor."""
    module: Annotated[str | None, Field(min_length=1, max_length=512, pattern=scalars.TEXT_PATTERN)] = None
    """A module as `python -m` takes it, or a path ending in `.py`, relative to the working directory.
    Each rank is its own process, started with the environment that torchrun gives."""
    command: Annotated[tuple[Text, ...] | None, Field(min_length=1, max_length=256)] = None
    """Program and arguments (argv), executed without a shell."""


class RoleAccelerator(Model):
    """The devices of one rank."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.COUNT))

    type: AcceleratorType | None = None
    """Kind of device; left out: that of the node group, else GPU."""
    count: Devices = "1"
    """Devices of one rank: a whole number such as 2, or a share below one of at most four digits such as "0.4"."""
    visibility: Annotated[Literal["Isolated", "Shared"] | None, Option("which")] = None
    """Isolated: a rank sees only its own devices. Shared: a rank sees the devices of all ranks of its role on its host,
    and finds its own at LOCAL_RANK (or `device_index`); for GPU, NPU and HPU. Left out: Shared for Elastic on GPU and
    NPU, else Isolated."""
    numa_binding: Annotated[Literal["Node", "Socket", "Exclusive", "CoreComplex"] | None, Option("near")] = None
    """Binds each rank to cores near its first device, as torchrun's --numa-binding does. Node: all cores of the NUMA
    node. Socket: all cores of the socket. Exclusive: a share of the node's cores of its own. CoreComplex: the cores of
    one cache. Needs torch 2.9 or newer; for GPU, NPU and HPU. Left out: no binding."""
    memory_limit: Annotated[Literal["Share", "None"] | None, Option("to", "device_memory_limit")] = None
    """Share: torch holds a rank with a count below one to that share of its GPU's memory, by
    `torch.cuda.set_per_process_memory_fraction`; more is CUDA out of memory in that rank alone. For GPU, and
    entrypoints of a class or module. None: a rank may take all memory that is free. Left out: Share."""


class CpuBounds(Model):
    """The least and the most CPUs that are chosen for one rank."""

    min: Cpu
    """The least CPUs, such as "500m"; one rank has them where there are too few records and no resources.cpu."""
    max: Cpu
    """The most CPUs, such as "8"."""


class MemoryBounds(Model):
    """The least and the most memory that is chosen for one rank."""

    min: Memory
    """The least memory, such as "1Gi"; one rank has it where there are too few records and no resources.memory."""
    max: Memory
    """The most memory, such as "64Gi"; below restartPolicy.outOfMemory.maxMemory."""


class AutoResources(Model):
    """CPUs and memory of one rank, chosen when the job starts, from the records of earlier jobs of its name."""

    cpu: CpuBounds | None = None
    """Choose resources.cpu: a fifth above the CPUs that ranks used in 95 % of the measurements, within the bounds."""
    memory: MemoryBounds | None = None
    """Choose resources.memory: a fifth above the highest peak of any rank, within the bounds."""


class RoleResources(Model):
    """Resources of one rank besides devices."""

    cpu: Cpu | None = None
    """CPUs of one rank, "500m", "0.5" or "2"; left out: 1."""
    memory: Memory | None = None
    """Memory of one rank, "8Gi"; left out: not counted."""
    custom: Annotated[
        dict[RayName, Amount],
        Field(max_length=16),
        Needs(Capability.DEVICES, "resources other than CPU and memory"),
    ] = Field(default_factory=dict)
    """Amounts of other resources that one rank takes, by Ray's name; none of CPU, memory or a device."""
    auto: AutoResources | None = None
    """Resources that are chosen before an attempt starts, from what earlier jobs of the name used; the event
    ResourcesChosen tells which. On Kubernetes the operator chooses, from the jobs of the namespace; elsewhere
    `dljob run` and `dljob submit --address` do, from the records on this machine."""


class TensorFlow(Model):
    """The task of a role in a cluster of TensorFlow's parameter servers."""

    task: Literal["chief", "ps", "worker", "evaluator"]
    """Each rank is that task, with its number as index: TF_CONFIG says so, and has the addresses of all tasks of the
    job. A port `tf` is added to the role unless it has one of that name; an evaluator needs none. A restart of a ps
    restarts the chief too, and so does another address of a ps or worker."""


class Comm(Model):
    """Rendezvous of the ranks of an Elastic role: a torch process group, or a user's SubMaster."""

    backend: Literal["Auto", "nccl", "hccl", "gloo", "None"] = "Auto"
    """Auto: nccl on GPU, hccl on NPU, else gloo. None: no process group and no store."""
    timeout_seconds: Annotated[int, Field(ge=1, le=86400)] = 1800
    """Seconds that a collective may wait for its peers."""
    pre_check: bool | None = None
    """Whether nodes are checked (devices, memory, disk, clock, network, speed) before ranks start on them; left out:
    true where the backend is nccl or hccl."""
    init_process_group: bool = True
    """Whether dljob initialises the process group for a `class` entrypoint; scripts call `init_process_group()`
    themselves."""
    virtual_local_rank: bool = False
    """Whether LOCAL_RANK is 0 in every rank and each rank sees only its own devices, as with torchrun's
    --virtual-local-rank."""
    sub_master: Annotated[str | None, Field(min_length=1, max_length=63, pattern=scalars.NAME_PATTERN)] = None
    """Name of an entry point in `dljob.submasters` that serves the rendezvous in place of torch's store; then dljob
    makes no process group."""
