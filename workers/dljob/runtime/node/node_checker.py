"""NodeChecker: a disposable process that checks one node, in the role's reservation but without resources of its own.

A check may hang or crash in a driver, which must not harm a host. PrimeMaster's side is
`dljob.runtime.controller.checking`, which kills a checker that hangs. Nothing heavy is imported here: torch comes with
the first check.
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
    """The actor. It ends with its raylet, and after `life_s` seconds."""

    concurrency_groups: ClassVar[dict[str, int]] = {"ctl": 2, "work": 1}

    def __init__(self, lifetime_s: float) -> None:
        # PrimeMaster ends a hang. NCCL's watchdog would abort the process, and a crash counts as "not checked".
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
        self._ip: str = ray.util.get_node_ip_address()
        self._listener: socket.socket | None = None
        self._guard = Guard(Lease(lifetime_s), lambda: end(EndCode.SIGTERM, "SIGTERM from outside"))

    @ray.method(concurrency_group="ctl")
    def clock(self) -> float:
        """Return the node's clock in unix seconds, which PrimeMaster compares with its own."""
        return time.time()

    @ray.method(concurrency_group="work")
    def look(self, order: CheckRequest) -> NodeFacts:
        """Return the findings of the checks that need no other node."""
        return look(order, self._ip)

    @ray.method(concurrency_group="ctl")
    def open(self) -> str:
        """Listen for the store of a team whose first member this is; return `ip:port`."""
        self._listener = listen(self._ip)
        return f"{self._ip}:{self._listener.getsockname()[1]}"

    @ray.method(concurrency_group="work")
    def meet(self, order: Meet) -> float:
        """Take part in the all-reduce of a team; return its bandwidth in GB/s."""
        return meet(order, self._listener if order.rank == 0 else None)
