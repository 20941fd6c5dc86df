"""The role's torch process group: joined through the store that ElasticMaster serves, left at a good end."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dljob.master.state.actions import RankStart
from dljob.plan.role import RolePlan
from dljob.runtime.collectives.group_sockets import GroupSockets
from dljob.runtime.process.messages import StartOrder
from dljob.runtime.process.worker_context import WorkerContext

if TYPE_CHECKING:
    import torch

GENERATION_KEY = "dljob/generation"
NEXT_KEY = "dljob/next"
_MAKER = "_new_process_group_helper"
"""What all ways to make a group go through; torch keeps it to itself, and without it only the deadline helps."""
STORE_S = 60.0
"""How long a rank tries to reach the store."""


sockets = GroupSockets()
"""Those of this process's groups."""


class StaleGenerationError(Exception):
    """This rank belongs to a world that has been replaced."""


def join(role: RolePlan, order: StartOrder, start: RankStart) -> None:
    """Form the default process group of this generation: all ranks of the role, each in its own prefix."""
    import torch.distributed as dist
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - torch's own documents use it
    from torch.distributed.distributed_c10d import PrefixStore

    if role.comm_backend == "hccl":
        importlib.import_module("torch_npu")  # it registers the backend
    if role.rejoins:
        _notice_groups()
    host, _, port = order.store.rpartition(":")
    store = TCPStore(host, int(port), None, is_master=False, timeout=timedelta(seconds=STORE_S))
    dist.init_process_group(
        role.comm_backend,
        store=PrefixStore(f"dljob/{role.name}/{order.generation}", store),
        rank=start.rank,
        world_size=order.world_size,
        timeout=timedelta(seconds=role.comm_timeout_s),
    )


def _notice_groups() -> None:
    """From now on the sockets of every group that is made are known, those that user code makes as well."""
    from torch.distributed import distributed_c10d

    made: Any = distributed_c10d
    helper = getattr(made, _MAKER, None)
    if helper is None or hasattr(helper, "__wrapped__"):
        return

    @functools.wraps(helper)
    def noticing(*args: Any, **kwargs: Any) -> Any:
        with sockets.noticed():
            return helper(*args, **kwargs)

    setattr(made, _MAKER, noticing)


def abort(address: str) -> None:
    """Break off all process groups of this process, from another thread than the one that is in a collective.

    NCCL and HCCL are aborted; gloo's connections are shut, first of all: what follows may wait for who is in them.
    `address` is that of the store: who waits there for others is let go too.
    """
    sockets.shut()
    dist = sys.modules.get("torch.distributed")
    with contextlib.suppress(Exception):  # whatever a backend says to it: what goes on after is replaced in the end
        if dist is not None and dist.is_available() and dist.is_initialized():
            from torch.distributed import distributed_c10d

            made: Any = distributed_c10d
            # It coalesces: what another thread asks of the default group meanwhile is put off, as if it were done, and
            # done at the end, or fails there and leaves the groups (torch 2.15). Gloo has nothing that it aborts.
            aborts = getattr(made, "_abort_process_group", None)
            gloo = {dist.get_backend(group) for group in tuple(made._world.pg_map)} == {"gloo"}
            (dist.destroy_process_group if gloo or aborts is None else aborts)()
    sockets.shut(address)


def renew(address: str, generation: int, timeout_s: float = STORE_S) -> None:
    """Wait until the store serves this generation: the first rank of a new one makes ElasticMaster empty it.

    Scripts form their group under names of their own (`env://`), so each generation needs an empty store.
    """
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    host, _, port = address.rpartition(":")
    end = time.monotonic() + timeout_s
    while (left := end - time.monotonic()) > 0:
        with contextlib.suppress(RuntimeError):  # the store is just being replaced
            store = TCPStore(host, int(port), None, is_master=False, timeout=timedelta(seconds=left))
            served = int(store.get(GENERATION_KEY))
            if served == generation:
                return
            if served > generation:
                raise StaleGenerationError(f"the store serves generation {served}; this rank is of {generation}")
            store.set(NEXT_KEY, str(generation))
        time.sleep(0.005)
    raise TimeoutError(f"the store at {address} did not serve generation {generation} within {timeout_s:g} s")


def leave() -> None:
    """Destroy the process group, if user code has not done so."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def own_device(context: WorkerContext) -> torch.device:
    """The device of a rank, counted among those that it may see; the CPU for a role without devices."""
    import torch

    for resource, kind in (("GPU", "cuda"), ("NPU", "npu")):
        if context.devices.get(resource):
            if kind == "npu":
                importlib.import_module("torch_npu")
            return torch.device(kind, context.device_index)
    return torch.device("cpu")
