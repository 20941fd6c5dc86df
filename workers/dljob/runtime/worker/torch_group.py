"""The role's torch process group: formed on ElasticMaster's store, destroyed when the rank ends with success."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dljob.master.state.actions import RankStart
from dljob.plan.role import RolePlan
from dljob.runtime.collectives.group_sockets import GroupSockets
from dljob.runtime.process.messages import StartOrder
from dljob.runtime.process.worker_context import WorkerContext

if TYPE_CHECKING:
    import torch

# Keys of the store: the generation that it serves, and the one that ranks ask for next.
GENERATION_KEY = "dljob/generation"
NEXT_KEY = "dljob/next"
FORMED_KEY = "dljob/formed"
"""A counter of a generation's ranks that have formed their group; with "/all" after it, the key set by the last one."""
_MAKER = "_new_process_group_helper"
"""The private function of torch that makes every group. Without it the sockets of groups stay unknown, and ranks that
wait for a dead peer are ended by the deadline for leaving."""
STORE_S = 60.0
"""Seconds for which a rank tries to reach the store."""


sockets = GroupSockets()
"""The sockets of this process's gloo groups, known so that they can be shut."""
_all_formed: list[Callable[[], None]] = []
"""Waits until all ranks of the group joined last have formed it; empty before the first one."""


class StaleGenerationError(Exception):
    """This rank belongs to a generation that a later one has replaced."""


def join(role: RolePlan, order: StartOrder, start: RankStart) -> None:
    """Form the default process group of this generation, of all ranks of the role, under a key prefix of its own."""
    import torch.distributed as dist
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - torch's own documents use it
    from torch.distributed.distributed_c10d import PrefixStore

    if role.comm_backend == "hccl":
        importlib.import_module("torch_npu")  # it registers the backend
    if role.rejoins:
        _notice_groups()
    host, _, port = order.store.rpartition(":")
    store = TCPStore(host, int(port), None, is_master=False, timeout=timedelta(seconds=STORE_S))
    group = PrefixStore(f"dljob/{role.name}/{order.generation}", store)
    dist.init_process_group(
        role.comm_backend,
        store=group,
        rank=start.rank,
        world_size=order.world_size,
        timeout=timedelta(seconds=role.comm_timeout_s),
    )
    if group.add(FORMED_KEY, 1) == order.world_size:
        group.set(f"{FORMED_KEY}/all", "")
    _all_formed[:] = [lambda: group.wait([f"{FORMED_KEY}/all"], timedelta(seconds=STORE_S))]


def _notice_groups() -> None:
    """Track the sockets of every group made from now on, those of user code included."""
    from torch.distributed import distributed_c10d

    c10d: Any = distributed_c10d
    helper = getattr(c10d, _MAKER, None)
    if helper is None or hasattr(helper, "__wrapped__"):
        return

    @functools.wraps(helper)
    def noticing(*args: Any, **kwargs: Any) -> Any:
        with sockets.noticed():
            return helper(*args, **kwargs)

    setattr(c10d, _MAKER, noticing)


def abort(address: str) -> None:
    """Break off all process groups of this process, while another thread is inside a collective.

    NCCL and HCCL groups are aborted. gloo cannot be: its connections are shut, before anything else, because the steps
    after may wait for the thread that is in them. `address` is the store's: connections to it are shut as well, so
    that ranks which still wait there for others return.
    """
    sockets.shut()
    dist = sys.modules.get("torch.distributed")
    with contextlib.suppress(Exception):  # whatever a backend raises: a rank that does not leave is replaced in the end
        if dist is not None and dist.is_available() and dist.is_initialized():
            from torch.distributed import distributed_c10d

            c10d: Any = distributed_c10d
            # torch's abort coalesces: what another thread asks of the default group meanwhile is deferred to the end,
            # where it may fail and leave the groups behind (torch 2.15). gloo has nothing to abort, so it is destroyed.
            aborts = getattr(c10d, "_abort_process_group", None)
            gloo = {dist.get_backend(group) for group in tuple(c10d._world.pg_map)} == {"gloo"}
            (dist.destroy_process_group if gloo or aborts is None else aborts)()
    sockets.shut(address)


def renew(address: str, generation: int, timeout_s: float = STORE_S) -> None:
    """Wait until the store serves this generation; the first rank of a generation asks for an empty store.

    Scripts form their group under fixed keys (`env://`), so they need an empty store in each generation.

    Raises:
        StaleGenerationError: The store serves a later generation.
        TimeoutError: It does not serve this one within `timeout_s`.
    """
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    host, _, port = address.rpartition(":")
    end = time.monotonic() + timeout_s
    while (seconds_left := end - time.monotonic()) > 0:
        with contextlib.suppress(RuntimeError):  # connections break while the store is replaced
            store = TCPStore(host, int(port), None, is_master=False, timeout=timedelta(seconds=seconds_left))
            served = int(store.get(GENERATION_KEY))
            if served == generation:
                return
            if served > generation:
                raise StaleGenerationError(f"the store serves generation {served}; this rank is of {generation}")
            store.set(NEXT_KEY, str(generation))
        time.sleep(0.005)
    raise TimeoutError(f"the store at {address} did not serve generation {generation} within {timeout_s:g} s")


def leave() -> None:
    """Destroy the process group once all its ranks have formed it, unless user code has done so.

    gloo returns on one rank while another still connects. If the first one left then, the other would fail with
    "connectFullMesh failed: Connection closed by peer": 26 of 600 groups of two ranks that did nothing else, on a
    loaded machine (torch 2.15).
    """
    for wait in _all_formed:
        with contextlib.suppress(RuntimeError):  # the store is gone, or a rank never came: its own failure is told
            wait()
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def own_device(context: WorkerContext) -> torch.device:
    """Return the device of a rank, as an index into its visible devices; the CPU for a role without devices."""
    import torch

    for resource, kind in (("GPU", "cuda"), ("NPU", "npu")):
        if context.devices.get(resource):
            if kind == "npu":
                importlib.import_module("torch_npu")
            return torch.device(kind, context.device_index)
    return torch.device("cpu")
