"""dljob's collective backends: torch process groups apart from the default one and from all others of the process.

Ray's GLOO uses the process's default group if there is one: a group across roles then fails, or connects the wrong
ranks (ray 2.60.0, `torch_gloo_collective_group.py`). These groups have a store and connections of their own.
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
"""Gloo devices are created one at a time, so that each group knows its own epoll."""


@dataclass(slots=True)
class Meeting:
    """The rendezvous of a group: the store at its first member, and the time to form the group (seconds)."""

    address: str
    timeout_s: float
    isolated_group: Isolated | None = None
    """The group being created on it; known before its constructor returns, so that it can be aborted."""


meetings: dict[str, Meeting] = {}
"""The rendezvous of groups being created, by their name in Ray: Ray passes nothing but the name to a backend."""


def open_store() -> tuple[str, Any]:
    """Open a store for one group in this process. Returns its address, and the object that keeps it open."""
    # Ray's address of the node, which all members can reach; port 0: the kernel chooses a free one.
    ip = ray.util.get_node_ip_address()
    store = TCPStore(ip, 0, None, is_master=True, wait_for_workers=False)
    return f"{ip}:{store.port}", store


class Isolated(BaseGroup):
    """A torch process group that nothing else in the process knows. `abort` ends its operations from outside."""

    has_store = True
    """Whether the group needs a Meeting."""

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
        # Before connecting to the store, which waits for others and may have to be aborted.
        meeting.isolated_group = self
        self._store: Any = TCPStore(host, int(port), None, is_master=False, timeout=self._timeout)
        self._pg: Any = self._make(PrefixStore(group_name, self._store))

    def _make(self, store: Any) -> Any:
        raise NotImplementedError

    def _settle(self) -> None:
        """Wait until the operations issued so far are complete."""

    def _copies(self, tensor: Any) -> Any:
        """Return a torch tensor over the memory of `tensor`, or a copy if the backend cannot work there."""
        raise NotImplementedError

    def abort(self) -> None:
        """End operations in progress by an error in the threads that wait for them."""
        self._aborted = True
        with contextlib.suppress(Exception):  # whatever torch raises: closed sockets or the process's end do the rest
            self._pg.abort()

    def destroy_group(self) -> None:
        """Break the connections. No thread may be in an operation."""
        self.abort()
        self._pg = self._store = None

    @contextlib.contextmanager
    def _lent(self, tensors: Sequence[Any], *, into: str = "") -> Generator[list[Any]]:
        """Lend the tensors to torch's group, and copy back what it wrote if it worked on copies.

        `into` names the operation that writes into them; empty if they are only read.

        Raises:
            UsageError: The operation writes into a tensor that cannot be written.
        """
        for tensor in tensors if into else ():
            self._may_be_written(tensor, into)
        lent = [self._copies(tensor) for tensor in tensors]
        yield lent
        # What an abort cut off must not pass as complete, even where torch raised nothing.
        if self._aborted:
            raise RuntimeError("the group was aborted: the connection to a peer was given up")
        for tensor, lent_tensor in zip(tensors, lent, strict=True):
            if into and not _same(tensor, lent_tensor):
                # Detached: torch refuses to write into a parameter otherwise.
                torch.as_tensor(tensor).detach().copy_(lent_tensor)

    def _may_be_written(self, tensor: Any, operation: str) -> None:
        """Refuse values of which torch would make its own tensor, and memory that is shared for reading."""
        if isinstance(tensor, torch.Tensor):
            return
        array = isinstance(tensor, np.ndarray)
        # A read-only array is memory shared with others, such as an object of Ray's store.
        if array and tensor.flags.writeable:
            return
        given_kind = "a NumPy array that is read-only" if array else f"a {type(tensor).__name__}"
        raise UsageError(
            f"{operation}: member {self.rank} of group {self.group_name} gave {given_kind},"
            " which cannot be written into",
            hint="give it a torch tensor or a NumPy array of your own: array.copy() of what others have too, as "
            "WeightChannel.receive() gives it; np.array(value) of a number or a list",
        )

    def _done(self, work: Any) -> None:
        work.wait()
        self._settle()

    def allreduce(self, tensor: Any, allreduce_options: Any = None) -> None:
        """Reduce the tensors of all members, into each of them."""
        options = dist.AllreduceOptions()
        options.reduceOp = _op(allreduce_options)
        with self._lent(tensor, into="allreduce") as lent_tensors:
            self._done(self._pg.allreduce(lent_tensors, options))

    def barrier(self, barrier_options: Any = None) -> None:  # noqa: ARG002 - Ray's signature
        """Wait for all members."""
        self._done(self._pg.barrier())
        if self._aborted:
            raise RuntimeError("the group was aborted: the connection to a peer was given up")

    def reduce(self, tensor: Any, reduce_options: Any = None) -> None:
        """Reduce the tensors of all members, into the root's."""
        options = dist.ReduceOptions()
        options.reduceOp, options.rootRank = _op(reduce_options), _root(reduce_options)
        # Only the root's tensor is written, so only there must it be writable.
        root = self.rank == _root(reduce_options)
        with self._lent(tensor, into="reduce" if root else "") as lent_tensors:
            # On clones: torch may leave partial results in the tensors of members that are not the root.
            self._done(
                self._pg.reduce(
                    lent_tensors if root else [lent_tensor.clone() for lent_tensor in lent_tensors], options
                )
            )

    def allgather(self, tensor_list: Any, tensor: Any, allgather_options: Any = None) -> None:  # noqa: ARG002 - Ray's signature
        """Collect the tensors of all members at each of them."""
        with self._lent(tensor_list[0], into="allgather") as outputs, self._lent(tensor) as lent_tensors:
            self._done(self._pg.allgather([outputs], lent_tensors))

    def broadcast(self, tensor: Any, broadcast_options: Any = None) -> None:
        """Copy the root's tensor into those of all members."""
        options = dist.BroadcastOptions()
        options.rootRank = _root(broadcast_options)
        root = self.rank == _root(broadcast_options)
        with self._lent(tensor, into="" if root else "broadcast") as lent_tensors:
            self._done(self._pg.broadcast(lent_tensors, options))

    def reducescatter(self, tensor: Any, tensor_list: Any, reducescatter_options: Any = None) -> None:
        """Reduce the parts of all members that are for this one."""
        options = dist.ReduceScatterOptions()
        options.reduceOp = _op(reducescatter_options)
        with self._lent(tensor, into="reducescatter") as lent_tensors, self._lent(tensor_list[0]) as inputs:
            self._done(self._pg.reduce_scatter(lent_tensors, [inputs], options))

    def send(self, tensor: Any, send_options: SendOptions) -> None:
        """Send a tensor to a member."""
        with self._lent(tensor) as lent_tensors:
            self._done(self._pg.send(lent_tensors, send_options.dst_rank, 0))

    def recv(self, tensor: Any, recv_options: RecvOptions) -> None:
        """Receive a tensor from a member."""
        with self._lent(tensor, into="recv") as lent_tensors:
            self._done(self._pg.recv(lent_tensors, recv_options.src_rank, 0))


class IsolatedGloo(Isolated):
    """Gloo over TCP, for NumPy arrays and torch tensors; tensors on devices are copied through host memory."""

    @classmethod
    def backend(cls) -> str:
        """Return the backend's name in Ray."""
        return "DLJ_GLOO"

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Whether torch was built with gloo."""
        return dist.is_gloo_available()

    def _make(self, store: Any) -> Any:
        group_class: Any = dist.ProcessGroupGloo
        options = group_class._Options()
        options._timeout = self._timeout
        # A device of its own, so that its epoll and sockets can be told from those of other groups.
        with _device_lock, self._sockets.noticed():
            # torch's own default group obeys this variable; a device made here has to be given the interface.
            interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
            device = (
                group_class.create_device(interface=interface) if interface else group_class.create_default_device()
            )
        options._devices = [device]
        return group_class(store, self.rank, self.world_size, options)

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        # Before the base class, whose constructor already connects, and may have to be aborted.
        self._sockets = GroupSockets()
        super().__init__(world_size, rank, group_name)

    def _copies(self, tensor: Any) -> Any:
        # No copy for a tensor that is on the CPU and contiguous already: `_same` tells by its memory.
        return torch.as_tensor(tensor).detach().cpu().contiguous()

    def abort(self) -> None:
        """Shut the connections: gloo has no other way to end a wait."""
        self._aborted = True
        self._sockets.shut(self._address)

    def reducescatter(self, tensor: Any, tensor_list: Any, reducescatter_options: Any = None) -> None:
        """Use an allreduce of all parts: gloo has no reduce_scatter of lists."""
        options = dist.AllreduceOptions()
        options.reduceOp = _op(reducescatter_options)
        with self._lent(tensor_list[0]) as inputs, self._lent(tensor, into="reducescatter") as lent_tensors:
            # A copy: an allreduce in place would overwrite the caller's own parts.
            parts = torch.stack(inputs)
            self._done(self._pg.allreduce([parts], options))
            lent_tensors[0].copy_(parts[self.rank])


class _OnDevices(Isolated):
    """A backend between devices: tensors stay where they are."""

    KIND: str

    def _copies(self, tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != self.KIND:
            device = tensor.device if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise CollectiveError(f"{self.backend()} works on tensors of a {self.KIND} device, and this is on {device}")
        return tensor.detach().contiguous()

    def _settle(self) -> None:
        # Operations only enqueue work on the device's stream; callers expect them to be complete.
        getattr(torch, self.KIND).current_stream().synchronize()


class IsolatedNccl(_OnDevices):
    """NCCL between GPUs."""

    KIND = "cuda"

    @classmethod
    def backend(cls) -> str:
        """Return the backend's name in Ray."""
        return "DLJ_NCCL"

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Whether torch was built with NCCL and there is a GPU."""
        return dist.is_nccl_available() and torch.cuda.is_available()

    def _make(self, store: Any) -> Any:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = self._timeout
        return dist.ProcessGroupNCCL(store, self.rank, self.world_size, options)


class IsolatedHccl(_OnDevices):
    """HCCL between NPUs, from torch_npu."""

    KIND = "npu"

    @classmethod
    def backend(cls) -> str:
        """Return the backend's name in Ray."""
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
        group_class = importlib.import_module("torch_npu._C._distributed_c10d").ProcessGroupHCCL
        options = group_class.Options()
        options._timeout = self._timeout
        return group_class(store, self.rank, self.world_size, options)


def _op(options: Any) -> Any:
    """Return torch's operation for Ray's options; None means the default ones."""
    return _OPS[getattr(options, "reduceOp", ReduceOp.SUM)]


def _root(options: Any) -> int:
    return getattr(options, "root_rank", 0)


def _same(tensor: Any, lent_tensor: Any) -> bool:
    """Whether a lent tensor shares the memory of the given one."""
    return torch.as_tensor(tensor).data_ptr() == lent_tensor.data_ptr()
