"""NodeAgent: one small actor per node of a job. That it answers means that its node is not frozen.

The answer brings what the hosts of the node have to say: it is the one connection of a node that reports.

It ends with its raylet, with the job (PrimeMaster kills what bears the job's name), and when PrimeMaster has not asked
for a lease's time. Nothing heavy is imported here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import ray

from dljob.runtime import reaping, stacks
from dljob.runtime.agent_line import address
from dljob.runtime.guard import EndCode, Guard, Lease, boottime, end
from dljob.runtime.messages import Ask, Pulse
from dljob.runtime.node_hosts import NodeHosts

LOOK_S = 0.05
"""How often the hosts' counters are looked at while PrimeMaster waits for news."""
NICENESS = -5
"""Above what computes: a node on which everybody computes is not frozen."""


class NodeAgent:
    """The actor; PrimeMaster's side of it is `dljob.runtime.node_watch`."""

    concurrency_groups: ClassVar[dict[str, int]] = {"beat": 4, "work": 2, "look": 2}

    def __init__(self, lease_s: float, uid: str) -> None:
        hurry()
        self.hosts = NodeHosts(address(uid, ray.get_runtime_context().get_node_id()))
        self._lease = Lease(lease_s)
        self._pause = threading.Event()
        self._guard = Guard(self._lease, lambda: end(EndCode.SIGTERM, "SIGTERM from outside"))

    @ray.method(concurrency_group="beat")
    def beat(self, packed: bytes) -> bytes:
        """What the hosts have to say, after a pause: asked again and again, the answers are the node's pulse."""
        ask = Ask.unpacked(packed)
        if not self.hosts.heard(ask):  # a master that is over, and does not know it yet
            self._pause.wait(ask.pause_s)
            return Pulse(os.getpid(), 0).packed()
        self._lease.renew(boottime())
        self._pause.wait(ask.news_s)
        until = time.monotonic() + ask.pause_s - ask.news_s
        while (left := until - time.monotonic()) > 0 and not self.hosts.news():
            self._pause.wait(min(left, LOOK_S))
        return self.hosts.report(ask).packed()

    @ray.method(concurrency_group="work")
    def reap(self, uid: str, role: str, incarnations: Mapping[int, int]) -> int:
        """End what earlier processes of these ranks left here: rank -> present incarnation."""
        return reaping.reap(uid, role, incarnations)

    @ray.method(concurrency_group="look")
    def look(self, targets: Sequence[stacks.Target], whole: bool) -> tuple[stacks.Seen, ...]:  # noqa: FBT001 - a call
        """What can be seen of processes here; `whole`: their stacks as well."""
        return stacks.look(targets, stacks=whole)


def hurry() -> None:
    """Let this process run before others that compute, where the system allows it; Ray's workers come last otherwise.

    Linux keeps a niceness per thread.
    """
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), NICENESS)
