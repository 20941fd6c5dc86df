"""NodeChecker: the process that checks a node and is thrown away. It sits in the role's reservation and holds nothing.

PrimeMaster's side of it is `dljob.runtime.controller.checking`, which kills it when it hangs. Nothing heavy is
imported here.
"""

from __future__ import annotations

import os
import socket
import time
from typing import ClassVar

import ray

from dljob.master.state.pairing import NodeFacts
from dljob.runtime.node.node_checks import CheckRequest, Meet, listen, look, meet
from dljob.runtime.process.guard import EndCode, Guard, Lease, end


class NodeChecker:
    """The actor. It ends with its raylet, and after its time."""

    concurrency_groups: ClassVar[dict[str, int]] = {"ctl": 2, "work": 1}

    def __init__(self, life_s: float) -> None:
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # a hang is ours to end, and no crash
        self._ip: str = ray.util.get_node_ip_address()
        self._listener: socket.socket | None = None
        self._guard = Guard(Lease(life_s), lambda: end(EndCode.SIGTERM, "SIGTERM from outside"))

    @ray.method(concurrency_group="ctl")
    def clock(self) -> float:
        """Unix seconds."""
        return time.time()

    @ray.method(concurrency_group="work")
    def look(self, order: CheckRequest) -> NodeFacts:
        """What is found on this node by itself."""
        return look(order, self._ip)

    @ray.method(concurrency_group="ctl")
    def open(self) -> str:
        """Where the store of a team serves whose first member this is."""
        self._listener = listen(self._ip)
        return f"{self._ip}:{self._listener.getsockname()[1]}"

    @ray.method(concurrency_group="work")
    def meet(self, order: Meet) -> float:
        """An all-reduce with others; GB/s."""
        return meet(order, self._listener if order.rank == 0 else None)
