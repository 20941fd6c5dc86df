"""NodeAgent: one small actor per node of a job, holding nothing of it. That it answers means its node is not frozen.

It ends with its raylet, with the job (PrimeMaster kills what bears the job's name), and when PrimeMaster has not asked
for a lease's time. Nothing heavy is imported here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import ray

from dljob.runtime import reaping
from dljob.runtime.guard import EndCode, Guard, Lease, boottime, end

NICENESS = -5
"""Above what computes: a node on which everybody computes is not frozen."""


class NodeAgent:
    """The actor; PrimeMaster's side of it is `dljob.runtime.node_watch`."""

    concurrency_groups: ClassVar[dict[str, int]] = {"beat": 4, "work": 2}

    def __init__(self, lease_s: float) -> None:
        hurry()
        self._lease = Lease(lease_s)
        self._pause = threading.Event()
        self._guard = Guard(self._lease, lambda: end(EndCode.SIGTERM, "SIGTERM from outside"))

    @ray.method(concurrency_group="beat")
    def beat(self, pause_s: float) -> int:
        """Its pid, after a pause: asked again and again, the answers are the node's pulse, and end with it."""
        self._lease.renew(boottime())
        self._pause.wait(pause_s)
        return os.getpid()

    @ray.method(concurrency_group="work")
    def reap(self, uid: str, role: str, incarnations: Mapping[int, int]) -> int:
        """End what earlier processes of these ranks left here: rank -> present incarnation."""
        return reaping.reap(uid, role, incarnations)


def hurry() -> None:
    """Let this process run before others that compute, where the system allows it; Ray's workers come last otherwise.

    Linux keeps a niceness per thread.
    """
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), NICENESS)
