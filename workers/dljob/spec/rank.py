"""The parts of a role that speak of each of its ranks: what it runs, on what, and how it meets its peers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from dljob.spec import cel, scalars
from dljob.spec.cluster import AcceleratorType
from dljob.spec.scalars import Amount, Cpu, Devices, Memory, Model, RayName, Text


class EnvVar(Model):
    """An environment variable."""

    name: Annotated[str, Field(max_length=256, pattern=scalars.ENV_PATTERN)]
    """Name of the variable: letters, digits and '_', no digit first."""
    value: Text = ""
    """Its value, taken as it is: nothing is expanded."""


class Entrypoint(Model):
    """What a rank runs: exactly one of class, module, command."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.ENTRYPOINT))

    class_: Annotated[str | None, Field(alias="class", max_length=512, pattern=scalars.CLASS_PATTERN)] = None
    """Dotted path to a class (a `dljob.Worker` or any class with `run`) or to a function, such as "pkg.mod.Trainer".
    Each rank runs it in an actor of its own."""
    module: Annotated[str | None, Field(min_length=1, max_length=512, pattern=scalars.TEXT_PATTERN)] = None
    """A module as `python -m` takes it, or a path ending in `.py`, relative to the working directory.
    Each rank is a process of its own, started as torchrun would start it."""
    command: Annotated[tuple[Text, ...] | None, Field(min_length=1, max_length=256)] = None
    """argv, run as it is, without a shell; the first item is the program."""


class RoleAccelerator(Model):
    """The devices of one rank."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.COUNT))

    type: AcceleratorType | None = None
    """Kind of device; left out: that of the node group, else GPU."""
    count: Devices = "1"
    """Devices of one rank: a whole number such as 2, or a share below one of at most four digits such as "0.4"."""
    visibility: Literal["Isolated", "Shared"] | None = None
    """Isolated: a rank sees its own devices alone. Shared: those of all ranks of its role on its host, its own at
    LOCAL_RANK (or `device_index`); GPU, NPU, HPU. Left out: Shared for Elastic on GPU and NPU, else Isolated."""
    numa_binding: Literal["Node", "Socket", "Exclusive", "CoreComplex"] | None = None
    """Binds each rank to cores near its first device, as torchrun's --numa-binding: all of its NUMA node, or of its
    socket; its own part of the node's; or those of one cache. By torch 2.9 or newer; GPU, NPU, HPU. Left out: none."""


class RoleResources(Model):
    """What one rank takes beside devices."""

    cpu: Cpu | None = None
    """CPUs of one rank, "500m", "0.5" or "2"; left out: 1."""
    memory: Memory | None = None
    """Memory of one rank, "8Gi"; left out: not counted."""
    custom: Annotated[dict[RayName, Amount], Field(max_length=16)] = Field(default_factory=dict)
    """Any other resource by Ray's name: how much of it one rank takes."""


class Comm(Model):
    """How the ranks of an Elastic role meet: in a torch process group, or by a SubMaster of one's own."""

    backend: Literal["Auto", "nccl", "hccl", "gloo", "None"] = "Auto"
    """Auto: nccl on GPU, hccl on NPU, else gloo. None: no process group and no store."""
    timeout_seconds: Annotated[int, Field(ge=1, le=86400)] = 1800
    """How many seconds a collective may wait for its peers."""
    pre_check: bool | None = None
    """Whether nodes are checked (devices, memory, disk, clock, network, speed) before ranks start on them; left out:
    where the backend is nccl or hccl."""
    init_process_group: bool = True
    """Whether a `class` entrypoint finds the group initialised; scripts call `init_process_group()` themselves."""
    virtual_local_rank: bool = False
    """Whether LOCAL_RANK is 0 in every rank, each seeing its own devices alone, as torchrun's --virtual-local-rank."""
    sub_master: Annotated[str | None, Field(min_length=1, max_length=63, pattern=scalars.NAME_PATTERN)] = None
    """Name of an entry point in `dljob.submasters` that serves where the ranks meet, in the place of torch's store;
    there is no process group then."""
