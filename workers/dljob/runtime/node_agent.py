"""NodeAgent: one small actor per node of a job. That it answers means that its node is not frozen.

The answer brings what the hosts of the node have to say: it is the one connection of a node that reports.

It ends with its raylet, with the job (PrimeMaster kills what bears the job's name), and when PrimeMaster has not asked
for a lease's time. Nothing heavy is imported here.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import ray

from dljob.master.views import Clue
from dljob.runtime import evidence, kept_logs, reaping, stacks
from dljob.runtime.agent_line import address
from dljob.runtime.guard import EndCode, Guard, Lease, boottime, end
from dljob.runtime.messages import Ask, Pulse
from dljob.runtime.node_hosts import NodeHosts

KEEP_S = 30.0
"""How often the volume of the checkpoints is given what ranks wrote since."""
LOOK_S = 0.05
"""How often the hosts' counters are looked at while PrimeMaster waits for news."""
NICENESS = -5
"""Above what computes: a node on which everybody computes is not frozen."""


class NodeAgent:
    """The actor; PrimeMaster's side of it is `dljob.runtime.node_watch`."""

    concurrency_groups: ClassVar[dict[str, int]] = {"beat": 4, "work": 2, "look": 2}

    def __init__(self, lease_s: float, uid: str, job_dir: str) -> None:
        hurry()
        self.hosts = NodeHosts(address(uid, ray.get_runtime_context().get_node_id()))
        self._lease = Lease(lease_s)
        self._pause = threading.Event()
        self.evidence = evidence.Watch()
        threading.Thread(target=self._count, name="dljob-evidence", daemon=True).start()
        threading.Thread(target=self._keep_logs, args=(Path(job_dir) / "logs",), name="dljob-logs", daemon=True).start()
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

    def _count(self) -> None:
        """Look every second, not with a beat: what was counted while PrimeMaster was away is of the past."""
        while True:
            time.sleep(evidence.SAMPLE_S)
            self.evidence.sample()

    def _keep_logs(self, folder: Path) -> None:
        """Bring what ranks wrote to the volume, each node in its own time."""
        told = ""
        while True:
            time.sleep(KEEP_S * random.uniform(0.8, 1.2))  # noqa: S311 - so that not all nodes write at once
            failed = kept_logs.keep(folder)
            if failed != told:
                print(f"[dljob] {failed or 'logs are kept again'}", flush=True)  # noqa: T201 - into the actor's log
            told = failed

    @ray.method(concurrency_group="work")
    def reap(self, uid: str, role: str, incarnations: Mapping[int, int]) -> int:
        """End what earlier processes of these ranks left here: rank -> present incarnation."""
        return reaping.reap(uid, role, incarnations)

    @ray.method(concurrency_group="look")
    def look(self, targets: Sequence[stacks.Target], whole: bool) -> tuple[stacks.Seen, ...]:  # noqa: FBT001 - a call
        """What can be seen of processes here; `whole`: their stacks as well."""
        return stacks.look(targets, stacks=whole)

    @ray.method(concurrency_group="look")
    def clues(self, pid: int) -> tuple[Clue, ...]:
        """What can be known here of the end of a process that went without a word; for one that was alone here."""
        return self.evidence.clues(pid, killed=True)


def hurry() -> None:
    """Let this process run before others that compute, where the system allows it; Ray's workers come last otherwise.

    Linux keeps a niceness per thread.
    """
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), NICENESS)
