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
from pathlib import Path
from typing import ClassVar

import ray

from dljob.master.state.views import Clue
from dljob.runtime.linux import reaping
from dljob.runtime.linux.priority import raise_priority
from dljob.runtime.logs import archive
from dljob.runtime.node import stacks
from dljob.runtime.node.host_channel import address
from dljob.runtime.node.node_hosts import NodeHosts
from dljob.runtime.process import evidence, logfile
from dljob.runtime.process.guard import EndCode, Guard, Lease, boottime, end
from dljob.runtime.process.messages import AgentRequest, Pulse

KEEP_S = 30.0
"""How often the volume of the checkpoints is given what ranks wrote since."""
LOOK_S = 0.05
"""How often the hosts' counters are looked at while PrimeMaster waits for news."""


class NodeAgent:
    """The actor; PrimeMaster's side of it is `dljob.runtime.controller.node_watch`."""

    concurrency_groups: ClassVar[dict[str, int]] = {"beat": 4, "work": 2, "look": 2, "end": 2}

    def __init__(self, lease_s: float, uid: str, job_dir: str) -> None:
        raise_priority()
        self.hosts = NodeHosts(address(uid, ray.get_runtime_context().get_node_id()))
        self._lease = Lease(lease_s)
        self._logs = Path(job_dir) / "logs"
        self._pause = threading.Event()
        self.evidence = evidence.HostEvidence()
        threading.Thread(target=self._count, name="dljob-evidence", daemon=True).start()
        threading.Thread(target=self._keep_logs, args=(self._logs,), name="dljob-logs", daemon=True).start()
        self._guard = Guard(self._lease, lambda: end(EndCode.SIGTERM, "SIGTERM from outside"))

    @ray.method(concurrency_group="beat")
    def beat(self, packed: bytes) -> bytes:
        """What the hosts have to say, after a pause: asked again and again, the answers are the node's pulse."""
        ask = AgentRequest.unpacked(packed)
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
            failed = archive.keep(folder)
            if failed != told:
                print(f"[dljob] {failed or 'logs are kept again'}", flush=True)  # noqa: T201 - into the actor's log
            told = failed

    @ray.method(concurrency_group="work")
    def reap(self, uid: str, role: str, incarnations: Mapping[int, int]) -> int:
        """End what earlier processes of these ranks left here: rank -> present incarnation."""
        return reaping.reap(uid, role, incarnations)

    @ray.method(concurrency_group="look")
    def look(self, targets: Sequence[stacks.DumpTarget], whole: bool) -> tuple[stacks.ProcessStack, ...]:  # noqa: FBT001 - a call
        """What can be seen of processes here; `whole`: their stacks as well."""
        return stacks.look(targets, stacks=whole)

    @ray.method(concurrency_group="look")
    def clues(self, pid: int) -> tuple[Clue, ...]:
        """What can be known here of the end of a process that went without a word; for one that was alone here."""
        return self.evidence.clues(pid, killed=True)

    @ray.method(concurrency_group="end")
    def end_of(self, pid: int) -> tuple[int, str] | None:
        """The wait status of a host that went without a word, and the end of its rank's log; None: nobody can tell."""
        found = self.hosts.end_of(pid)
        if found is None:
            return None
        tail = ""
        if len(found.lives) == 1:  # of several ranks in one process none has a log that tells of the process
            rank, incarnation = found.lives[0]
            tail = logfile.end_of_life(self._logs, found.role, rank, incarnation)
        return found.status, tail
