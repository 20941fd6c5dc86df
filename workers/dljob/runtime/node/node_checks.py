"""Checks of one node: devices, memory, disks, ports, speed, and an all-reduce with other nodes.

The steps are the same on CPUs (gloo), GPUs (nccl) and NPUs (hccl). Any of them may hang or crash, so they run in a
disposable process (`node_checker`). The findings are judged elsewhere (`dljob.master.state.pairing`).
"""

from __future__ import annotations

import importlib
import os
import platform
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dljob.linux import memory_limit
from dljob.master.state.pairing import Disk, NodeFacts
from dljob.runtime.process import environment

if TYPE_CHECKING:
    import torch

KINDS = {"GPU": "cuda", "NPU": "npu"}
"""Ray resource -> torch's device type. Other resources are known to Ray alone, and are not checked."""
SIZE = {"cpu": 256, "cuda": 4096, "npu": 4096}
"""Rows of the square matrices that are multiplied."""
FLOATS = {"cpu": 1 << 18, "cuda": 1 << 24, "npu": 1 << 24}
"""Numbers in the all-reduce."""
PRODUCT_S, REDUCE_S = 0.1, 0.1
"""Seconds for which each is repeated."""
LEAST = 5
"""Least number of repetitions. The best one counts, so that other load on the machine makes no node slow."""
STORE_S = 20.0
"""Seconds that members wait for the store of the first one."""
CHECKPOINT = "DLJOB_CHECKPOINT"
"""Environment variable with the folder of the checkpoints."""


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """All that the role has on this node, to be checked."""

    node: str
    backend: str
    memory: int
    """Bytes that the role asks for here."""
    paths: tuple[str, ...]
    """Folders that the role will write to."""
    devices: tuple[tuple[str, tuple[str, ...]], ...]
    """(Ray resource, ids of its devices) as Ray gave them to the role's hosts."""


@dataclass(frozen=True, slots=True)
class Meet:
    """An all-reduce to take part in. `address` is that of the store, which the first member serves."""

    backend: str
    kind: str
    rank: int
    size: int
    address: str
    timeout_s: float


class NotMadeError(Exception):
    """A check cannot be made here, which says nothing about the node."""


def look(order: CheckRequest, ip: str) -> NodeFacts:
    """Run the checks that need no other node."""
    # The checker holds no resources, so Ray hides all devices from it: show those of the role's hosts.
    for resource, ids in order.devices:
        os.environ |= environment.shown(resource, ids, {})
    shape, gflops, trouble, unmade = "", 0.0, ports(ip), ""
    if not trouble:
        try:
            shape, gflops, trouble = compute(order)
        except NotMadeError as error:
            unmade = str(error)
    return NodeFacts(
        node=order.node,
        shape=shape,
        gflops=round(gflops, 3),
        memory_free=memory_limit.free()[0] if order.memory else None,
        memory_wanted=order.memory,
        disks=tuple(disks((*order.paths, *filter(None, [os.environ.get(CHECKPOINT)])))),
        trouble=trouble,
        unmade=unmade,
    )


def ports(ip: str) -> str:
    """Return why a connection to this node's own address fails; empty when it works."""
    try:
        # By the node's own address, which other nodes use, too: the loopback would prove nothing.
        with listen(ip) as server, socket.create_connection(server.getsockname()[:2], 2.0) as client:
            server.settimeout(2.0)
            with server.accept()[0] as accepted:
                accepted.sendall(b".")
                client.settimeout(2.0)
                return "" if client.recv(1) == b"." else f"a connection to {ip} was closed without data"
    except OSError as error:
        return f"a process cannot listen on {ip} and connect to it: {error.strerror or error}"


def disks(paths: tuple[str, ...]) -> Iterator[Disk]:
    """Yield the free bytes and inodes of each folder, or of its nearest parent that exists."""
    for name in paths:
        path = Path(name)
        # A folder that does not exist yet will be made on the volume of its parent.
        while not path.is_dir() and path != path.parent:
            path = path.parent
        with suppress(OSError):
            volume = os.statvfs(path)
            yield Disk(name, volume.f_bavail * volume.f_frsize, volume.f_favail if volume.f_files else None)


# -- with torch


def kind_of(devices: tuple[tuple[str, tuple[str, ...]], ...]) -> str:
    """Return torch's device type for the devices of a node; cpu without any."""
    return next((KINDS[resource] for resource, ids in devices if ids and resource in KINDS), "cpu")


def _module(kind: str) -> Any:
    """Return `torch.cuda`, `torch.npu` or `torch.cpu`.

    Raises:
        NotMadeError: torch is not installed, or was built without support for such devices.
    """
    try:
        import torch

        if kind == "npu":
            importlib.import_module("torch_npu")  # it registers torch.npu
    except ImportError as error:
        raise NotMadeError(f"no check of devices and network: {error}") from error
    if kind == "cuda" and not (torch.version.cuda or torch.version.hip):
        raise NotMadeError("no check of devices and network: this torch was made without CUDA")
    return getattr(torch, kind)


def compute(order: CheckRequest) -> tuple[str, float, str]:
    """Return (name of the devices, GFLOP/s of the slowest one, failure in words or empty).

    Raises:
        NotMadeError: torch cannot use such devices here.
    """
    kind = kind_of(order.devices)
    module = _module(kind)
    import torch

    if kind == "cpu":
        torch.set_num_threads(1)  # `_product` measures thread time, which counts this thread alone
        return _processor(), _product(torch.device("cpu"), module), ""
    declared_count = sum(len(ids) for resource, ids in order.devices if KINDS.get(resource) == kind)
    visible_count = module.device_count()
    if visible_count < declared_count:
        return "", 0.0, f"the role has {declared_count} {kind} devices here, torch sees {visible_count}"
    speeds: list[float] = []
    for index in range(declared_count):
        try:
            speeds.append(_product(torch.device(kind, index), module))
        except RuntimeError as error:
            return "", 0.0, f"{kind} device {index}: {_first_line(error)}"
    return f"{module.get_device_name(0)} x {declared_count}", min(speeds), ""


def _processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.machine()


def _product(device: torch.device, module: Any) -> float:
    """Return the GFLOP/s of the best of several matrix products. Raises RuntimeError for a wrong product."""
    import torch

    size, cpu = SIZE[device.type], device.type == "cpu"
    ones = torch.ones(size, size, device=device, dtype=torch.float32 if cpu else torch.bfloat16)
    # Sums of ones are exact here, so any difference is an error of the device.
    if wrong := int((ones @ ones != size).sum()):
        raise RuntimeError(f"a product of two matrices of ones has {wrong} wrong numbers of {size * size}")
    # A CPU product runs in this thread: thread time leaves out the turns of other processes.
    best = _best(lambda: ones @ ones, module, time.thread_time if cpu else time.perf_counter)
    return 2 * size**3 / best / 1e9


def _best(work: Callable[[], object], module: Any, clock: Callable[[], float]) -> float:
    """Return the shortest run in seconds of `work`, repeated for PRODUCT_S and at least LEAST times."""
    best, end, count = float("inf"), time.perf_counter() + PRODUCT_S, 0
    while count < LEAST or time.perf_counter() < end:
        began = clock()
        work()
        module.synchronize()
        best = min(best, clock() - began)
        count += 1
    return best


def listen(ip: str) -> socket.socket:
    """Listen on a free port of an address, for the store of a team."""
    return socket.create_server((ip, 0), family=socket.AF_INET6 if ":" in ip else socket.AF_INET)


def meet(order: Meet, listener: socket.socket | None) -> float:
    """Do an all-reduce with the other members; return its bandwidth in GB/s.

    Raises:
        RuntimeError: The sum is wrong, or a member is missing.
        NotMadeError: torch cannot use the devices of this node.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - torch's own documents use it

    module, device = _module(order.kind), torch.device(order.kind, 0) if order.kind != "cpu" else torch.device("cpu")
    if order.kind != "cpu":
        module.set_device(device)
    host, _, port = order.address.rpartition(":")
    served: Mapping[str, Any] = {} if listener is None else {"master_listen_fd": listener.detach()}
    store = TCPStore(
        host, int(port), order.size, listener is not None, timedelta(seconds=STORE_S), wait_for_workers=False, **served
    )
    timeout = timedelta(seconds=order.timeout_s)
    dist.init_process_group(order.backend, store=store, rank=order.rank, world_size=order.size, timeout=timeout)
    try:
        count = FLOATS[order.kind]
        dist.all_reduce(numbers := torch.ones(count, device=device))
        if float(numbers[0]) != order.size or float(numbers[-1]) != order.size:
            ends = f"{float(numbers[0])} first and {float(numbers[-1])} last"
            raise RuntimeError(f"an all-reduce of ones gave {ends}, not {order.size}")
        # The first all-reduce made the connections; only later ones are timed.
        best = min(_timed(lambda: dist.all_reduce(numbers), module) for _ in range(_rounds(dist, module, numbers)))
        # The store lives in the first member: it must not leave while another one still uses it.
        dist.barrier()
    finally:
        dist.destroy_process_group()
    # Bus bandwidth as nccl-tests defines it: bytes of 32-bit floats * 2 (n - 1) / n / seconds.
    return 4 * count * 2 * (order.size - 1) / order.size / best / 1e9


def _rounds(dist: Any, module: Any, numbers: torch.Tensor) -> int:
    """Return the number of repetitions, the same for all members: it follows from the slowest member's time."""
    took = numbers.new_full((1,), _timed(lambda: dist.all_reduce(numbers), module))
    # The maximum: members that repeat a different number of times would wait for each other for ever.
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return max(LEAST, min(50, int(REDUCE_S / max(float(took), 1e-4))))


def _timed(work: Callable[[], object], module: Any) -> float:
    began = time.perf_counter()
    work()
    module.synchronize()
    return time.perf_counter() - began


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
