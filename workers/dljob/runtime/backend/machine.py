"""Checks of this machine before an embedded Ray starts: devices, limits, shared memory, a folder."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from dljob import ray_private
from dljob.errors import PlacementError, UnreachableError, UsageError
from dljob.linux import memory_limit
from dljob.linux.process_limit import RAISE, process_limits
from dljob.plan.model import GRAIN, JobPlan, MachineGroup
from dljob.plan.one_machine import largest_sizes, with_room_to_grow
from dljob.runtime.process.environment import variable_of
from dljob.telemetry.wording import counted

MOST_NODES = 8
"""The most raylets of an embedded Ray, not counting its head."""
STORE_BYTES = 80 * 2**20
"""The smallest object store of a raylet; Ray accepts no less than 75 MiB."""
STORES_PART = 0.3
"""The part of the free memory that all object stores together may take, as in a Ray that starts by itself. They take it
only once there are objects; a store that is too small for a model's weights writes them to disk, at a disk's pace."""
SCRATCH_BYTES = 64 * 2**20
"""The free space needed for Ray's logs and sockets; without any its processes end in silence."""
START_ADDRESS_SPACE = 5 << 29
"""Bytes of address space without which no Ray starts, beside the object store that each process maps."""
START_THREADS, START_FILES = 200, 64
"""The threads of a Ray with one rank, and the open files of its GCS: with fewer it does not start."""
SOCKET_PATH_MAX = 107
"""The longest path of a unix socket on Linux."""
SHM = Path("/dev/shm")  # noqa: S108 - the machine's shared memory, where Ray keeps its objects

_DEVICE_FILES = {"GPU": "nvidia[0-9]*", "NPU": "davinci[0-9]*", "TPU": "accel[0-9]*", "HPU": "accel/accel[0-9]*"}
VISIBLE = {
    "GPU": "CUDA_VISIBLE_DEVICES",
    "NPU": "ASCEND_RT_VISIBLE_DEVICES",
    "TPU": "TPU_VISIBLE_CHIPS",
    "HPU": "HABANA_VISIBLE_MODULES",
}
"""Ray resource -> the variable that restricts a raylet to its own devices."""
_NOT_DEVICES = ("CPU", "memory")
_OTHER_DRIVERS = ("dxg", "kfd", "dri/render*")
"""Devices of GPUs without NVIDIA's driver: WSL 2, AMD, Intel. Ray counts those GPUs."""
_NONE = ("", "-1", "NoDevFiles")
"""The values that hide a device and all named after it; the last is Ray's own word for none."""


@dataclass(frozen=True, slots=True)
class EmbeddedNode:
    """A raylet to start. `resources` are in Ray's whole units (CPUs, bytes of memory, devices)."""

    name: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    visible: Mapping[str, str]
    """Environment that restricts the raylet to its own share of the real devices."""
    pretended: tuple[str, ...] = ()
    """Variables that restrict real devices, of kinds that are pretended; they would limit the declared number."""


def devices_here(root: Path = Path("/dev")) -> dict[str, tuple[str, ...]]:
    """Return this machine's devices by Ray resource, as ids; a *_VISIBLE_DEVICES that is set restricts them."""
    ids_by_kind: dict[str, tuple[str, ...]] = {}
    for kind, pattern in _DEVICE_FILES.items():
        count, variable = sum(f.name[-1].isdigit() for f in root.glob(pattern)), VISIBLE[kind]
        # Without NVIDIA's files there may be GPUs of other vendors, which Ray can count.
        if kind == "GPU" and not count and any(any(root.glob(driver)) for driver in _OTHER_DRIVERS):
            count, variable = ray_private.gpu_count(), variable_of(kind)
        ids = tuple(str(index) for index in range(count))
        visible_text = os.environ.get(variable)
        # The list ends at the first value that hides a device, as the vendors' runtimes read it.
        ids_by_kind[kind] = (
            ids
            if visible_text is None
            else tuple(takewhile(lambda device_id: device_id not in _NONE, visible_text.split(",")))
        )
    return ids_by_kind


def _visible(kind: str) -> str:
    """Return the variable that restricts a raylet to its own devices; Ray knows the vendor of this machine's GPUs."""
    return VISIBLE[kind] if kind in VISIBLE and kind != "GPU" else variable_of(kind)


def parse_pretend(values: Sequence[str]) -> dict[str, int]:
    """Parse `--pretend NPU=8` into {"NPU": 8}.

    Raises:
        UsageError: A value is not NAME=WHOLE NUMBER.
    """
    counts: dict[str, int] = {}
    for value in values:
        name, _, count = value.partition("=")
        if not name or name in _NOT_DEVICES or not count.isdigit() or int(count) < 1:
            raise UsageError(
                f"--pretend {value}: not a device and a number", hint="write --pretend NPU=8, once per kind of device"
            )
        counts[name] = int(count)
    return counts


def cpus_here() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def machines_here(
    plan: JobPlan, pretend: Mapping[str, int], real_devices: Mapping[str, tuple[str, ...]]
) -> list[MachineGroup]:
    """Return the machines of a plan for an embedded Ray, larger where this machine has room for roles that may grow."""
    spare = {"CPU": cpus_here() * GRAIN, "memory": (memory_limit.free()[0] or 0) * GRAIN}
    groups = plan.node_groups.values()
    for kind in {kind for group in groups for kind, _ in group.resources} - spare.keys():
        planned = [(dict(group.resources).get(kind, 0), group.replicas) for group in groups]
        # What is pretended is declared for each raylet, what is real is dealt out among them.
        rest = (
            pretend[kind] * GRAIN - max(amount for amount, _ in planned)
            if kind in pretend
            else (
                len(real_devices.get(kind, ())) * GRAIN
                - sum(-(-amount // GRAIN) * GRAIN * count for amount, count in planned)
            )
        )
        spare[kind] = max(0, rest)
    return with_room_to_grow(plan, tuple(sorted(spare.items())))


def size_notes(plan: JobPlan, groups: Sequence[MachineGroup]) -> list[str]:
    """Return a line for each elastic role whose largest size finds no room on these machines of an embedded Ray."""
    sizes = largest_sizes(plan, groups)
    too_small = {name: size for name, size in sizes.items() if size < plan.roles[name].max_replicas}
    if sizes and not too_small:
        return [
            f"on this machine {', '.join(sizes)} fit in their largest sizes (maxReplicas) one at a time, not together"
        ]
    # Groups are derived from the roles where the spec declares none.
    limit = "" if any(group.derived for group in groups) else ", with the machines of nodeGroups[].replicas"
    return [
        f"on this machine{limit} {name} may grow to {counted(size, 'rank')}, not to its maxReplicas "
        f"{plan.roles[name].max_replicas}"
        for name, size in too_small.items()
    ]


def lay_out(
    groups: Sequence[MachineGroup], pretend: Mapping[str, int], real_devices: Mapping[str, tuple[str, ...]]
) -> tuple[EmbeddedNode, ...]:
    """Lay out one raylet per planned node, each with devices of its own.

    CPUs and memory may exceed those of the machine, which ranks then share. Devices may not, unless they are pretended.

    Raises:
        PlacementError: There are more nodes than MOST_NODES, or devices are missing; the message has the numbers.
    """
    count = sum(g.replicas for g in groups)
    if count > MOST_NODES:
        raise PlacementError(
            f"the plan has {count} nodes; an embedded Ray starts at most {MOST_NODES} raylets",
            hint="lower nodeGroups[].replicas, or submit it to a Ray cluster: dljob submit FILE --address HOST:PORT",
        )
    _check_devices(groups, pretend, real_devices)
    free_devices = {kind: list(ids) for kind, ids in real_devices.items()}
    nodes: list[EmbeddedNode] = []
    for group in groups:
        nodes.extend(_node(group, index, pretend, free_devices) for index in range(group.replicas))
    return tuple(nodes)


def lay_out_beside(
    groups: Sequence[MachineGroup],
    pretend: Mapping[str, int],
    real_devices: Mapping[str, tuple[str, ...]],
    *,
    idle: Sequence[EmbeddedNode],
    busy: Sequence[EmbeddedNode],
) -> tuple[list[EmbeddedNode], list[EmbeddedNode]]:
    """Lay out the nodes of another job on a running embedded Ray: (idle nodes of the same shape, new nodes).

    Args:
        groups: The job's node groups.
        pretend: Declared devices.
        real_devices: The devices of this machine.
        idle: Nodes without a job.
        busy: Nodes of other jobs.

    Raises:
        PlacementError: There would be more nodes than MOST_NODES in all, or devices are missing or held.
    """
    # Idle nodes first: a new raylet takes seconds to start.
    idle_left, reused, missing = list(idle), list[EmbeddedNode](), list[MachineGroup]()
    for group in (replace(item, replicas=1) for item in groups for _ in range(item.replicas)):
        shape = (_resources(group, pretend), dict(group.labels))
        same = next((node for node in idle_left if (node.resources, node.labels) == shape), None)
        if same is None:
            missing.append(group)
        else:
            idle_left.remove(same)
            reused.append(same)
    present_nodes = (*idle, *busy)
    if missing and len(missing) + len(present_nodes) > MOST_NODES:
        raise PlacementError(
            f"the plan wants {len(missing)} more nodes, this embedded Ray has {len(present_nodes)}"
            f" of at most {MOST_NODES}",
            hint="run the job outside of this `with dljob.local()`: it gets a Ray of its own",
        )
    free = dict(real_devices)
    for kind in real_devices:
        # Idle nodes keep their devices, too: they are restricted to these for as long as they run.
        used = {item for node in present_nodes for item in node.visible.get(_visible(kind), "").split(",")}
        free[kind] = tuple(item for item in real_devices[kind] if item not in used)
    return reused, list(lay_out(missing, pretend, free))


def _how_to_pretend(kind: str, per_raylet: int) -> str:
    # Jobs of programs have no command line.
    in_python = f'with dljob.local(pretend={{"{kind}": {per_raylet}}})'
    return f"dljob run FILE --pretend {kind}={per_raylet}, or in Python: {in_python}"


def _check_devices(
    groups: Sequence[MachineGroup], pretend: Mapping[str, int], real_devices: Mapping[str, tuple[str, ...]]
) -> None:
    """Check that there are as many devices as the nodes need."""
    needed: dict[str, int] = {}
    for group in groups:
        for kind, amount in group.resources:
            if kind in _NOT_DEVICES:
                continue
            # Rounded up: a raylet holds whole devices.
            per_node = -(-amount // GRAIN)
            if kind in pretend and per_node > pretend[kind]:
                raise PlacementError(
                    f"a node of group {group.name!r} has {per_node} {kind},"
                    f" --pretend declares {pretend[kind]} per raylet",
                    hint=_how_to_pretend(kind, per_node),
                )
            if kind not in pretend:
                needed[kind] = needed.get(kind, 0) + per_node * group.replicas
    for kind, total in sorted(needed.items()):
        have = len(real_devices.get(kind, ()))
        if total > have:
            per_node = max(-(-dict(g.resources).get(kind, 0) // GRAIN) for g in groups)
            raise PlacementError(
                f"the plan's nodes have {total} {kind} in all, this machine has {have}: {total - have} are missing",
                hint=f"to try it without the devices, declare them per raylet: {_how_to_pretend(kind, per_node)}",
            )


def _node(
    group: MachineGroup, index: int, pretend: Mapping[str, int], free_devices: dict[str, list[str]]
) -> EmbeddedNode:
    """Lay out one node of a group, and take its real devices out of `free_devices`."""
    resources = _resources(group, pretend)
    visible: dict[str, str] = {}
    pretended: list[str] = []
    for kind in resources:
        if kind in pretend:
            pretended += filter(None, [_visible(kind)])
        elif kind in VISIBLE:
            node_devices, free_devices[kind] = (
                free_devices[kind][: int(resources[kind])],
                free_devices[kind][int(resources[kind]) :],
            )
            visible[_visible(kind)] = ",".join(node_devices)
    return EmbeddedNode(f"{group.name}-{index}", resources, dict(group.labels), visible, tuple(pretended))


def _resources(group: MachineGroup, pretend: Mapping[str, int]) -> dict[str, float]:
    """Return the resources that a raylet of the group declares."""
    planned = {kind: amount / GRAIN for kind, amount in group.resources}
    return {**planned, **{kind: float(pretend[kind]) for kind in planned if kind in pretend}}


def oversubscribed(groups: Iterable[MachineGroup], cpus: int) -> str:
    """Return a line about CPUs that are planned but missing; empty if there are enough."""
    planned = sum(dict(group.resources).get("CPU", 0) * group.replicas for group in groups) / GRAIN
    return f"{planned:g} CPUs are planned, this machine has {cpus}: ranks share them" if planned > cpus else ""


def store_bytes(nodes: int, memory: int | None, folder: Path = SHM) -> int:
    """Return the limit of the object store of the head and of each of `nodes` raylets, in bytes.

    Args:
        nodes: Number of raylets beside the head.
        memory: Bytes of memory that can still be allocated; None: unknown.
        folder: Where the stores lie.
    """
    free = shutil.disk_usage(folder).free
    most = free if memory is None else min(free, memory)
    return max(STORE_BYTES, int(STORES_PART * most) // (nodes + 1))


def lack_of_shared_memory(nodes: int, shm: Path = SHM) -> str:
    """Return why the object stores of the head and `nodes` raylets find no room in shared memory; empty: they do."""
    need = (nodes + 1) * STORE_BYTES
    try:
        free = shutil.disk_usage(shm).free
    except OSError as error:
        return f"{shm} cannot be used: {error.strerror}"
    if free >= need:
        return ""
    return (
        f"{shm} is small: {counted(nodes + 1, 'object store')} of Ray may need {need >> 20} MiB, {free >> 20} are free"
    )


def limit_trouble(nodes: int) -> tuple[str, str] | None:
    """Return which limit is too low for a Ray of so many raylets, and a command against it; None: none is."""
    store = STORE_BYTES if lack_of_shared_memory(nodes) else store_bytes(nodes, memory_limit.free()[0])
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY and address_space < store + START_ADDRESS_SPACE:
        cause = f"RLIMIT_AS (ulimit -v) allows a process {address_space >> 20} MiB of address space; those of Ray map"
        fix = "ulimit -v unlimited; where that is refused, start a new shell or batch job without this limit"
        return f"{cause} {store + START_ADDRESS_SPACE >> 20}, most of which takes no memory", fix
    file_size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if file_size != resource.RLIM_INFINITY and file_size < store:
        cause = f"RLIMIT_FSIZE (ulimit -f) allows a file of {file_size >> 20} MiB; an object store of Ray is one of"
        return f"{cause} {store >> 20}", "ulimit -f unlimited; where that is refused, start a new shell or batch job"
    for limit in process_limits():
        if limit.most - limit.used < START_THREADS:
            return f"{limit}; Ray and one rank start {START_THREADS} or more", RAISE
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Ray raises the soft limit to the hard one, which root may exceed.
    if files != resource.RLIM_INFINITY and files < START_FILES and os.geteuid() != 0:
        return (
            f"RLIMIT_NOFILE (ulimit -Hn) allows a process {files} open files; Ray opens {START_FILES} or more",
            "sudo prlimit --pid $$ --nofile=65536:65536; a container: --ulimit nofile=65536",
        )
    return None


def check_limits(nodes: int) -> None:
    """Refuse to start a Ray under a limit that ends its processes, some without a word.

    Raises:
        UnreachableError: A limit is too low; the message has the numbers.
    """
    if trouble := limit_trouble(nodes):
        cause, fix = trouble
        raise UnreachableError(f"Ray cannot start: {cause}", hint=fix)


def scratch_places() -> tuple[Path, ...]:
    """Return the folders in which Ray's folder may be created, the best first."""
    try:
        best = tempfile.gettempdir()
    # No folder can be written to, as on a full disk; `scratch_folder` says why for each.
    except FileNotFoundError:
        best = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - as below
    return tuple(map(Path, dict.fromkeys((best, "/tmp"))))  # noqa: S108 - mkdtemp makes it private


def scratch_folder() -> Path:
    """Create a folder for Ray's files and sockets, private to this user and short enough for socket paths.

    Raises:
        UnreachableError: No folder can be created.
    """
    # The longest path of a socket that Ray makes in the folder.
    longest = len(os.fsencode("/dlj-xxxxxxxx/n99/plasma"))
    problems: list[str] = []
    for parent in map(str, scratch_places()):
        if len(os.fsencode(parent)) + longest > SOCKET_PATH_MAX:
            problems.append(f"{parent}: too long for the path of a socket")
            continue
        try:
            if (free := shutil.disk_usage(parent).free) < SCRATCH_BYTES:
                problems.append(f"{parent}: {free >> 20} MiB are free, {SCRATCH_BYTES >> 20} are needed")
                continue
            return Path(tempfile.mkdtemp(prefix="dlj-", dir=parent))
        except OSError as error:
            problems.append(f"{parent}: {error.strerror}")
    raise UnreachableError(
        f"no folder for Ray's files: {'; '.join(problems)}", hint="set TMPDIR to a short path that you may write to"
    )
