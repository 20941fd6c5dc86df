"""What an embedded Ray needs of this machine, and whether the machine has it: checks before anything starts."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from dljob.errors import PlacementError, UnreachableError, UsageError
from dljob.plan.model import GRAIN, MachineGroup
from dljob.runtime import ray_private
from dljob.runtime.process.environment import variable_of

MOST_NODES = 8
"""An embedded Ray has at most so many raylets beside its head."""
STORE_BYTES = 80 * 2**20
"""Object store of each raylet; Ray takes no less than 75 MiB."""
SCRATCH_BYTES = 64 * 2**20
"""Free room for Ray's logs and sockets; with none its processes end without a word."""
SOCKET_PATH_MAX = 107
"""Linux takes no longer path for a unix socket."""
SHM = Path("/dev/shm")  # noqa: S108 - the machine's shared memory, where Ray keeps its objects

_DEVICE_FILES = {"GPU": "nvidia[0-9]*", "NPU": "davinci[0-9]*", "TPU": "accel[0-9]*", "HPU": "accel/accel[0-9]*"}
VISIBLE = {
    "GPU": "CUDA_VISIBLE_DEVICES",
    "NPU": "ASCEND_RT_VISIBLE_DEVICES",
    "TPU": "TPU_VISIBLE_CHIPS",
    "HPU": "HABANA_VISIBLE_MODULES",
}
"""Ray resource -> the variable by which a raylet is told which devices are its own."""
_NOT_DEVICES = ("CPU", "memory")
_OTHER_DRIVERS = ("dxg", "kfd", "dri/render*")
"""Of GPUs that have no file of NVIDIA's driver: WSL 2, AMD, Intel. Ray counts those."""
_NONE = ("", "-1", "NoDevFiles")
"""What hides all devices that are named after it; Ray's word for none is the last."""


@dataclass(frozen=True, slots=True)
class EmbeddedNode:
    """A raylet to start. `resources` in whole units of Ray (CPUs, bytes of memory, devices)."""

    name: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    visible: Mapping[str, str]
    """Environment that restricts the raylet to its own part of real devices."""
    pretended: tuple[str, ...] = ()
    """Variables that say how many real devices there are, of kinds of which more are declared."""


def devices_here(root: Path = Path("/dev")) -> dict[str, tuple[str, ...]]:
    """The devices of this machine by Ray resource, as ids; a *_VISIBLE_DEVICES that is set restricts them."""
    found: dict[str, tuple[str, ...]] = {}
    for kind, pattern in _DEVICE_FILES.items():
        count, variable = sum(f.name[-1].isdigit() for f in root.glob(pattern)), VISIBLE[kind]
        if kind == "GPU" and not count and any(any(root.glob(driver)) for driver in _OTHER_DRIVERS):
            count, variable = ray_private.gpu_count(), variable_of(kind)
        ids = tuple(str(index) for index in range(count))
        said = os.environ.get(variable)
        found[kind] = ids if said is None else tuple(takewhile(lambda each: each not in _NONE, said.split(",")))
    return found


def _visible(kind: str) -> str:
    """The variable by which a raylet is told which devices are its own; whose GPUs these are Ray knows."""
    return VISIBLE[kind] if kind in VISIBLE and kind != "GPU" else variable_of(kind)


def parse_pretend(values: Sequence[str]) -> dict[str, int]:
    """`--pretend NPU=8` as {"NPU": 8}.

    Raises:
        UsageError: for anything but NAME=WHOLE NUMBER.
    """
    made: dict[str, int] = {}
    for value in values:
        name, _, count = value.partition("=")
        if not name or name in _NOT_DEVICES or not count.isdigit() or int(count) < 1:
            raise UsageError(
                f"--pretend {value}: not a device and a number", hint="write --pretend NPU=8, once per kind of device"
            )
        made[name] = int(count)
    return made


def lay_out(
    groups: Sequence[MachineGroup], pretend: Mapping[str, int], here: Mapping[str, tuple[str, ...]]
) -> tuple[EmbeddedNode, ...]:
    """One raylet per planned node, each with devices of its own.

    CPUs and memory may be more than the machine has; devices may not, unless they are pretended.

    Raises:
        PlacementError: more nodes than MOST_NODES, or devices that are not there; with the numbers.
    """
    count = sum(g.replicas for g in groups)
    if count > MOST_NODES:
        raise PlacementError(
            f"the plan has {count} nodes; an embedded Ray starts at most {MOST_NODES} raylets",
            hint="lower nodeGroups[].replicas, or submit it to a Ray cluster: dljob submit FILE --address HOST:PORT",
        )
    _check_devices(groups, pretend, here)
    left = {kind: list(ids) for kind, ids in here.items()}
    nodes: list[EmbeddedNode] = []
    for group in groups:
        nodes.extend(_node(group, index, pretend, left) for index in range(group.replicas))
    return tuple(nodes)


def lay_out_beside(
    groups: Sequence[MachineGroup],
    pretend: Mapping[str, int],
    here: Mapping[str, tuple[str, ...]],
    *,
    idle: Sequence[EmbeddedNode],
    held: Sequence[EmbeddedNode],
) -> tuple[list[EmbeddedNode], list[EmbeddedNode]]:
    """The nodes of one more job on an embedded Ray: (idle ones of the same shape, new ones).

    Args:
        groups: the job's node groups.
        pretend: devices that are declared.
        here: the devices of this machine.
        idle: nodes without a job.
        held: nodes of other jobs.

    Raises:
        PlacementError: more nodes than MOST_NODES with those that run, or devices that are not there or held.
    """
    left, taken, missing = list(idle), list[EmbeddedNode](), list[MachineGroup]()
    for group in (replace(each, replicas=1) for each in groups for _ in range(each.replicas)):
        wanted = (_resources(group, pretend), dict(group.labels))
        same = next((node for node in left if (node.resources, node.labels) == wanted), None)
        if same is None:
            missing.append(group)
        else:
            left.remove(same)
            taken.append(same)
    there = (*idle, *held)
    if missing and len(missing) + len(there) > MOST_NODES:
        raise PlacementError(
            f"the plan wants {len(missing)} more nodes, this embedded Ray has {len(there)} of at most {MOST_NODES}",
            hint="run the job outside of this `with dljob.local()`: it gets a Ray of its own",
        )
    free = dict(here)
    for kind in here:
        used = {each for node in there for each in node.visible.get(_visible(kind), "").split(",")}
        free[kind] = tuple(each for each in here[kind] if each not in used)
    return taken, list(lay_out(missing, pretend, free))


def _check_devices(
    groups: Sequence[MachineGroup], pretend: Mapping[str, int], here: Mapping[str, tuple[str, ...]]
) -> None:
    """Whether there are as many devices as the nodes are planned with."""
    wanted: dict[str, int] = {}
    for group in groups:
        for kind, amount in group.resources:
            if kind in _NOT_DEVICES:
                continue
            each = -(-amount // GRAIN)
            if kind in pretend and each > pretend[kind]:
                raise PlacementError(
                    f"a node of group {group.name!r} has {each} {kind}, --pretend declares {pretend[kind]} per raylet",
                    hint=f"--pretend {kind}={each}",
                )
            if kind not in pretend:
                wanted[kind] = wanted.get(kind, 0) + each * group.replicas
    for kind, total in sorted(wanted.items()):
        have = len(here.get(kind, ()))
        if total > have:
            each = max(-(-dict(g.resources).get(kind, 0) // GRAIN) for g in groups)
            raise PlacementError(
                f"the plan's nodes have {total} {kind} in all, this machine has {have}: {total - have} are missing",
                hint=f"to try it without the devices, declare them per raylet: --pretend {kind}={each}",
            )


def _node(group: MachineGroup, index: int, pretend: Mapping[str, int], left: dict[str, list[str]]) -> EmbeddedNode:
    """One node of a group; takes its real devices out of `left`."""
    resources = _resources(group, pretend)
    visible: dict[str, str] = {}
    pretended: list[str] = []
    for kind in resources:
        if kind in pretend:
            pretended += filter(None, [_visible(kind)])
        elif kind in VISIBLE:
            own, left[kind] = left[kind][: int(resources[kind])], left[kind][int(resources[kind]) :]
            visible[_visible(kind)] = ",".join(own)
    return EmbeddedNode(f"{group.name}-{index}", resources, dict(group.labels), visible, tuple(pretended))


def _resources(group: MachineGroup, pretend: Mapping[str, int]) -> dict[str, float]:
    """What a raylet of the group declares."""
    planned = {kind: amount / GRAIN for kind, amount in group.resources}
    return {**planned, **{kind: float(pretend[kind]) for kind in planned if kind in pretend}}


def oversubscribed(nodes: Sequence[EmbeddedNode], cpus: int) -> str:
    """One line about CPUs that are planned and not there; empty when there are enough."""
    planned = sum(n.resources.get("CPU", 0) for n in nodes)
    return f"{planned:g} CPUs are planned, this machine has {cpus}: ranks share them" if planned > cpus else ""


def check_shared_memory(nodes: int, shm: Path = SHM) -> None:
    """Whether the object stores of the head and `nodes` raylets fit into shared memory.

    Raises:
        UnreachableError: with what is needed and what is free.
    """
    need = (nodes + 1) * STORE_BYTES
    try:
        free = shutil.disk_usage(shm).free
    except OSError as error:
        raise UnreachableError(f"{shm} cannot be used: {error.strerror}", hint="Ray needs shared memory") from error
    if free < need:
        raise UnreachableError(
            f"{shm} is too small: Ray needs {need >> 20} MiB for {nodes + 1} object stores, {free >> 20} MiB are free",
            hint="in a container, start it with --shm-size=1g",
        )


def scratch_places() -> tuple[Path, ...]:
    """The folders in which Ray's own may be made, the best first."""
    return tuple(map(Path, dict.fromkeys((tempfile.gettempdir(), "/tmp"))))  # noqa: S108 - mkdtemp makes it private


def scratch_folder() -> Path:
    """A new folder for Ray's files and sockets, readable by nobody else and short enough for sockets.

    Raises:
        UnreachableError: when none can be made.
    """
    longest = len(os.fsencode("/dlj-xxxxxxxx/plasma-99"))
    why: list[str] = []
    for parent in map(str, scratch_places()):
        if len(os.fsencode(parent)) + longest > SOCKET_PATH_MAX:
            why.append(f"{parent}: too long for the path of a socket")
            continue
        try:
            if (free := shutil.disk_usage(parent).free) < SCRATCH_BYTES:
                why.append(f"{parent}: {free >> 20} MiB are free, {SCRATCH_BYTES >> 20} are needed")
                continue
            return Path(tempfile.mkdtemp(prefix="dlj-", dir=parent))
        except OSError as error:
            why.append(f"{parent}: {error.strerror}")
    raise UnreachableError(
        f"no folder for Ray's files: {'; '.join(why)}", hint="set TMPDIR to a short path that you may write to"
    )
