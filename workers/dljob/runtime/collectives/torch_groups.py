"""Our own backends: torch's process groups, each apart from the default one and from all others of its process.

Ray's GLOO takes the process's default group where there is one: a group across roles then fails, or meets the wrong
ranks (ray 2.60.0, `torch_gloo_collective_group.py`). These have a store and connections of their own.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import (
    RecvOptions,
    ReduceOp,
    SendOptions,
)
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - torch's own documents use it
from torch.distributed.distributed_c10d import PrefixStore

from dljob.errors import CollectiveError, UsageError
from dljob.runtime.collectives.group_sockets import GroupSockets

_OPS = {
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.PRODUCT: dist.ReduceOp.PRODUCT,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
}
_device_lock = threading.Lock()
"""One gloo device at a time, so that each group knows its own epoll."""


@dataclass(slots=True)
class Meeting:
    """Where the members of a group meet: the store of its first member, and how long they may take (seconds)."""

    address: str
    timeout_s: float
    made: Isolated | None = None
    """The group that is being made there."""


meetings: dict[str, Meeting] = {}
"""Of groups that are being made, by the name that Ray is given: Ray hands a backend nothing else."""


def open_store() -> tuple[str, Any]:
    """A store for one group in this process: its address for the others, and what keeps it open."""
    ip = ray.util.get_node_ip_address()
    store = TCPStore(ip, 0, None, is_master=True, wait_for_workers=False)
    return f"{ip}:{store.port}", store


class Isolated(BaseGroup):
    """A process group of torch's that nothing else of the process knows. `abort` ends its operations from outside."""

    has_store = True
    """It meets by a Meeting."""

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        meeting = meetings.get(group_name)
        if meeting is None:
            raise CollectiveError(
                f"{type(self).__name__}: group {group_name} was not made by dljob.CollectiveGroup",
                hint="declare it in spec.collectives.groups, and make it by CollectiveGroup(name)",
            )
        host, _, port = meeting.address.rpartition(":")
        self._timeout = timedelta(seconds=meeting.timeout_s)
        self._address = meeting.address
        self._aborted = False
        meeting.made = self
        self._store: Any = TCPStore(host, int(port), None, is_master=False, timeout=self._timeout)
        self._pg: Any = self._make(PrefixStore(group_name, self._store))

    def _make(self, store: Any) -> Any:
        raise NotImplementedError

    def _settle(self) -> None:
        """Wait until what was ordered is done."""

    def _copies(self, tensor: Any) -> Any:
        """A torch tensor over the memory of `tensor`, or a copy where the backend cannot work there."""
        raise NotImplementedError

    def abort(self) -> None:
        """End the operations that are under way, by an error in the threads that wait for them."""
        self._aborted = True
        with contextlib.suppress(Exception):  # whatever torch says to it, the sockets or the process end it
            self._pg.abort()

    def destroy_group(self) -> None:
        """Break off the connections; nobody may be in an operation."""
        self.abort()
        self._pg = self._store = None

    @contextlib.contextmanager
    def _lent(self, tensors: Sequence[Any], *, into: str = "") -> Generator[list[Any]]:
        """The tensors where torch's group can work on them; what it wrote comes back into them.

        `into`: the operation that writes into them; none where they are only read.

        Raises:
            UsageError: One that is to be written into cannot be.
        """
        for tensor in tensors if into else ():
            self._may_be_written(tensor, into)
        lent = [self._copies(tensor) for tensor in tensors]
        yield lent
        if self._aborted:
            raise RuntimeError("the group was aborted: the connection to a peer was given up")
        for tensor, own in zip(tensors, lent, strict=True):
            if into and not _same(tensor, own):
                # Detached: torch writes into no parameter otherwise.
                torch.as_tensor(tensor).detach().copy_(own)

    def _may_be_written(self, tensor: Any, what: str) -> None:
        """Refuse what torch would make a tensor of its own of, and memory that is shared to be read."""
        if isinstance(tensor, torch.Tensor):
            return
        array = isinstance(tensor, np.ndarray)
        if array and tensor.flags.writeable:
            return
        given = "a NumPy array that is read-only" if array else f"a {type(tensor).__name__}"
        raise UsageError(
            f"{what}: member {self.rank} of group {self.group_name} gave {given}, which cannot be written into",
            hint="give it a torch tensor or a NumPy array of your own: array.copy() of what others have too, as "
            "WeightChannel.receive() gives it; np.array(value) of a number or a list",
        )

    def _done(self, work: Any) -> None:
        work.wait()
        self._settle()

    def allreduce(self, tensor: Any, allreduce_options: Any = None) -> None:
        """Make each member's tensor the sum of all."""
        options = dist.AllreduceOptions()
        options.reduceOp = _op(allreduce_options)
        with self._lent(tensor, into="allreduce") as own:
            self._done(self._pg.allreduce(own, options))

    def barrier(self, barrier_options: Any = None) -> None:  # noqa: ARG002 - Ray's signature
        """Wait for all members."""
        self._done(self._pg.barrier())
        if self._aborted:
            raise RuntimeError("the group was aborted: the connection to a peer was given up")

    def reduce(self, tensor: Any, reduce_options: Any = None) -> None:
        """Make the root's tensor the sum of all."""
        options = dist.ReduceOptions()
        options.reduceOp, options.rootRank = _op(reduce_options), _root(reduce_options)
        root = self.rank == _root(reduce_options)
        with self._lent(tensor, into="reduce" if root else "") as own:
            # Torch may leave parts of the sum in those of the others.
            self._done(self._pg.reduce(own if root else [each.clone() for each in own], options))

    def allgather(self, tensor_list: Any, tensor: Any, allgather_options: Any = None) -> None:  # noqa: ARG002 - Ray's signature
        """Give each member the tensors of all."""
        with self._lent(tensor_list[0], into="allgather") as outputs, self._lent(tensor) as own:
            self._done(self._pg.allgather([outputs], own))

    def broadcast(self, tensor: Any, broadcast_options: Any = None) -> None:
        """Make each member's tensor the root's."""
        options = dist.BroadcastOptions()
        options.rootRank = _root(broadcast_options)
        root = self.rank == _root(broadcast_options)
        with self._lent(tensor, into="" if root else "broadcast") as own:
            self._done(self._pg.broadcast(own, options))

    def reducescatter(self, tensor: Any, tensor_list: Any, reducescatter_options: Any = None) -> None:
        """Give each member the sum of the parts that are for it."""
        options = dist.ReduceScatterOptions()
        options.reduceOp = _op(reducescatter_options)
        with self._lent(tensor, into="reducescatter") as own, self._lent(tensor_list[0]) as inputs:
            self._done(self._pg.reduce_scatter(own, [inputs], options))

    def send(self, tensor: Any, send_options: SendOptions) -> None:
        """Send a tensor to a member."""
        with self._lent(tensor) as own:
            self._done(self._pg.send(own, send_options.dst_rank, 0))

    def recv(self, tensor: Any, recv_options: RecvOptions) -> None:
        """Take a tensor from a member."""
        with self._lent(tensor, into="recv") as own:
            self._done(self._pg.recv(own, recv_options.src_rank, 0))


class IsolatedGloo(Isolated):
    """Gloo over TCP, for NumPy arrays and torch tensors; those of devices are copied through the host's memory."""

    @classmethod
    def backend(cls) -> str:
        """Its name with Ray."""
        return "DLJ_GLOO"

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Whether torch was built with it."""
        return dist.is_gloo_available()

    def _make(self, store: Any) -> Any:
        made: Any = dist.ProcessGroupGloo
        options = made._Options()
        options._timeout = self._timeout
        with _device_lock, self._sockets.noticed():
            interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
            device = made.create_device(interface=interface) if interface else made.create_default_device()
        options._devices = [device]
        return made(store, self.rank, self.world_size, options)

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        self._sockets = GroupSockets()
        super().__init__(world_size, rank, group_name)

    def _copies(self, tensor: Any) -> Any:
        return torch.as_tensor(tensor).detach().cpu().contiguous()

    def abort(self) -> None:
        """Shut the connections: gloo has no other way to end a wait."""
        self._aborted = True
        self._sockets.shut(self._address)

    def reducescatter(self, tensor: Any, tensor_list: Any, reducescatter_options: Any = None) -> None:
        """By an allreduce of all parts: gloo has no reduce_scatter of lists."""
        options = dist.AllreduceOptions()
        options.reduceOp = _op(reducescatter_options)
        with self._lent(tensor_list[0]) as inputs, self._lent(tensor, into="reducescatter") as own:
            parts = torch.stack(inputs)
            self._done(self._pg.allreduce([parts], options))
            own[0].copy_(parts[self.rank])


class _OnDevices(Isolated):
    """Between devices: tensors stay where they are."""

    KIND: str

    def _copies(self, tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != self.KIND:
            where = tensor.device if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise CollectiveError(f"{self.backend()} works on tensors of a {self.KIND} device, and this is on {where}")
        return tensor.detach().contiguous()

    def _settle(self) -> None:
        getattr(torch, self.KIND).current_stream().synchronize()


class IsolatedNccl(_OnDevices):
    """NCCL between GPUs."""

    KIND = "cuda"

    @classmethod
    def backend(cls) -> str:
        """Its name with Ray."""
        return "DLJ_NCCL"

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Whether torch was built with it and there is a GPU."""
        return dist.is_nccl_available() and torch.cuda.is_available()

    def _make(self, store: Any) -> Any:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        return dist.ProcessGroupNCCL(store, self.rank, self.world_size, options)


class IsolatedHccl(_OnDevices):
    """HCCL between NPUs, by torch_npu."""

    KIND = "npu"

    @classmethod
    def backend(cls) -> str:
        """Its name with Ray."""
        return "DLJ_HCCL"

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Whether torch_npu is installed and there is an NPU."""
        try:
            importlib.import_module("torch_npu")
        except ImportError:
            return False
        return bool(torch.npu.is_available())  # type: ignore[attr-defined]

    def _make(self, store: Any) -> Any:
        made = importlib.import_module("torch_npu._C._distributed_c10d").ProcessGroupHCCL
        options = made.Options()
        options._timeout = self._timeout
        return made(store, self.rank, self.world_size, options)


def _op(options: Any) -> Any:
    """Torch's word for the operation of Ray's options; None: the default ones."""
    return _OPS[getattr(options, "reduceOp", ReduceOp.SUM)]


def _root(options: Any) -> int:
    return getattr(options, "root_rank", 0)


def _same(tensor: Any, own: Any) -> bool:
    """Whether a lent tensor is the memory of the given one."""
    return torch.as_tensor(tensor).data_ptr() == own.data_ptr()
