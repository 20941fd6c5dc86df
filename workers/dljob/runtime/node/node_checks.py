"""What a checker does on its node: looks at devices, memory, disks, ports and speed, and takes part in an all-reduce.

The same on CPUs (gloo), GPUs (nccl) and NPUs (hccl). It may hang or crash: it runs in a process that is thrown away.
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

from dljob.master.state.pairing import Disk, NodeFacts
from dljob.runtime.linux import memory_limit
from dljob.runtime.process import environment

if TYPE_CHECKING:
    import torch

KINDS = {"GPU": "cuda", "NPU": "npu"}
"""Ray resource -> torch's word for the device. Of other resources only Ray knows."""
SIZE = {"cpu": 256, "cuda": 4096, "npu": 4096}
"""Rows of the square matrices."""
FLOATS = {"cpu": 1 << 18, "cuda": 1 << 24, "npu": 1 << 24}
"""How many numbers are reduced."""
PRODUCT_S, REDUCE_S = 0.1, 0.1
LEAST = 5
"""How long each is repeated, and how often at least: the best counts, so that work of others counts for nothing."""
STORE_S = 20.0
CHECKPOINT = "DLJOB_CHECKPOINT"
"""The variable that says where checkpoints go."""


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What to look at: all that the role has on this node."""

    node: str
    backend: str
    memory: int
    """Bytes that the role wants here."""
    paths: tuple[str, ...]
    """Where something will be written."""
    devices: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Meet:
    """An all-reduce to take part in. `address` is its store's, with the first member."""

    backend: str
    kind: str
    rank: int
    size: int
    address: str
    timeout_s: float


class NotMadeError(Exception):
    """A check cannot be made here, which says nothing about the node."""


def look(order: CheckRequest, ip: str) -> NodeFacts:
    """Everything about this node by itself."""
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
    """Why nobody can listen on this node's address and be reached there; empty: somebody can."""
    try:
        with listen(ip) as server, socket.create_connection(server.getsockname()[:2], 2.0) as client:
            server.settimeout(2.0)
            with server.accept()[0] as other:
                other.sendall(b".")
                client.settimeout(2.0)
                return "" if client.recv(1) == b"." else f"a connection to {ip} brings nothing"
    except OSError as error:
        return f"nobody can listen on {ip} and connect to it: {error.strerror or error}"


def disks(paths: tuple[str, ...]) -> Iterator[Disk]:
    """What is free in each folder, or in the nearest one above it that is there."""
    for name in paths:
        path = Path(name)
        while not path.is_dir() and path != path.parent:
            path = path.parent
        with suppress(OSError):
            seen = os.statvfs(path)
            yield Disk(name, seen.f_bavail * seen.f_frsize, seen.f_favail if seen.f_files else None)


# -- with torch


def kind_of(devices: tuple[tuple[str, tuple[str, ...]], ...]) -> str:
    """Torch's word for the devices of a node; cpu without any."""
    return next((KINDS[resource] for resource, ids in devices if ids and resource in KINDS), "cpu")


def _module(kind: str) -> Any:
    """`torch.cuda`, or what stands for it.

    Raises:
        NotMadeError: torch is not there, or was not made for such devices.
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
    """(what there is to compute with, GFLOP/s of the slowest device, what does not work).

    Raises:
        NotMadeError: Nobody can tell.
    """
    kind = kind_of(order.devices)
    module = _module(kind)
    import torch

    if kind == "cpu":
        torch.set_num_threads(1)
        return _processor(), _product(torch.device("cpu"), module), ""
    wanted = sum(len(ids) for resource, ids in order.devices if KINDS.get(resource) == kind)
    seen = module.device_count()
    if seen < wanted:
        return "", 0.0, f"{wanted} {kind} devices are the role's, torch sees {seen}"
    speeds: list[float] = []
    for index in range(wanted):
        try:
            speeds.append(_product(torch.device(kind, index), module))
        except RuntimeError as error:
            return "", 0.0, f"{kind} device {index}: {_first_line(error)}"
    return f"{module.get_device_name(0)} x {wanted}", min(speeds), ""


def _processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.machine()


def _product(device: torch.device, module: Any) -> float:
    """GFLOP/s of the best of some matrix products; a wrong one is an error."""
    import torch

    size, cpu = SIZE[device.type], device.type == "cpu"
    one = torch.ones(size, size, device=device, dtype=torch.float32 if cpu else torch.bfloat16)
    if wrong := int((one @ one != size).sum()):
        raise RuntimeError(f"a product of ones has {wrong} wrong numbers of {size * size}")
    # A processor works in this thread, whose own time stands still while others have their turn.
    best = _best(lambda: one @ one, module, time.thread_time if cpu else time.perf_counter)
    return 2 * size**3 / best / 1e9


def _best(work: Callable[[], object], module: Any, clock: Callable[[], float]) -> float:
    """The least time that it took, in seconds, while it was repeated for PRODUCT_S."""
    best, end, count = float("inf"), time.perf_counter() + PRODUCT_S, 0
    while count < LEAST or time.perf_counter() < end:
        began = clock()
        work()
        module.synchronize()
        best = min(best, clock() - began)
        count += 1
    return best


def listen(ip: str) -> socket.socket:
    """Where the store of a team will serve."""
    return socket.create_server((ip, 0), family=socket.AF_INET6 if ":" in ip else socket.AF_INET)


def meet(order: Meet, listener: socket.socket | None) -> float:
    """Do an all-reduce with the others; its bandwidth in GB/s. A sum that is wrong is an error."""
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
            raise RuntimeError(f"an all-reduce of ones gave {float(numbers[0])}, not {order.size}")
        best = min(_timed(lambda: dist.all_reduce(numbers), module) for _ in range(_rounds(dist, module, numbers)))
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return 4 * count * 2 * (order.size - 1) / order.size / best / 1e9


def _rounds(dist: Any, module: Any, numbers: torch.Tensor) -> int:
    """How often it is repeated: the same for all, by the time that it took the slowest."""
    took = numbers.new_full((1,), _timed(lambda: dist.all_reduce(numbers), module))
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return max(LEAST, min(50, int(REDUCE_S / max(float(took), 1e-4))))


def _timed(work: Callable[[], object], module: Any) -> float:
    began = time.perf_counter()
    work()
    module.synchronize()
    return time.perf_counter() - began


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
