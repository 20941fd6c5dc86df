"""NodeAgent: one actor per node of a job, whose answers prove that the node runs and carry all its hosts' heartbeats.

PrimeMaster has one connection to each node instead of one to each host: a call costs it about half a millisecond
(docs/adr/0030). The agent ends with its raylet, with the job (the last sweep kills all actors that bear the job's
name), and when PrimeMaster has not called for the time of a lease. It imports nothing heavy, since there is one on
every node.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import ray

from dljob.linux import reaping
from dljob.linux.priority import raise_priority
from dljob.logs import archive
from dljob.master.state.views import Clue
from dljob.runtime.node import stacks
from dljob.runtime.node.host_channel import address
from dljob.runtime.node.node_hosts import NodeHosts
from dljob.runtime.node.witnesses import NoReadingError, WitnessReader
from dljob.runtime.process import evidence, logfile
from dljob.runtime.process.guard import EndCode, Guard, Lease, boottime, end
from dljob.runtime.process.messages import AgentRequest, NodeHeartbeat

if TYPE_CHECKING:
    from dljob.plan.witnesses import WitnessPlan

KEEP_S = 30.0
"""Seconds between copies of new log bytes to the checkpoint volume: at most so much is lost with a machine."""
LOOK_S = 0.05
"""Seconds between looks at the hosts' counters while PrimeMaster's call waits for news."""


class NodeAgent:
    """The actor; PrimeMaster's side is `dljob.runtime.controller.node_watch`."""

    # Calls of one kind must not wait for those of another: `beat` sleeps by design, py-spy takes seconds.
    concurrency_groups: ClassVar[dict[str, int]] = {"beat": 4, "work": 2, "look": 2, "end": 2}

    def __init__(self, lease_s: float, uid: str, job_dir: str, witnesses: Sequence[WitnessPlan] = ()) -> None:
        raise_priority()
        self.hosts = NodeHosts(address(uid, ray.get_runtime_context().get_node_id()))
        self._lease = Lease(lease_s)
        self._logs = Path(job_dir) / "logs"
        self.witnesses = WitnessReader(witnesses, Path(job_dir) / "dumps")
        self._pause = threading.Event()
        self.evidence = evidence.HostEvidence()
        threading.Thread(target=self._count, name="dljob-evidence", daemon=True).start()
        threading.Thread(target=self._keep_logs, args=(self._logs,), name="dljob-logs", daemon=True).start()
        self._guard = Guard(self._lease, lambda: end(EndCode.SIGTERM, "SIGTERM from outside"))

    @ray.method(concurrency_group="beat")
    def beat(self, packed: bytes) -> bytes:
        """Answer an `AgentRequest` with the heartbeats of all hosts, after a pause or as soon as there are news.

        PrimeMaster calls again after each answer. An answer that fails means that this actor died; an answer that does
        not come means that the node is frozen.
        """
        ask = AgentRequest.unpacked(packed)
        # An earlier epoch, which does not know yet that it was replaced. It gets nothing and renews no lease; the pause
        # keeps it from calling in a tight loop.
        if not self.hosts.accept_request(ask):
            self._pause.wait(ask.pause_s)
            return NodeHeartbeat(os.getpid(), 0).packed()
        self._lease.renew(boottime())
        # The least pause bounds PrimeMaster's load with many nodes, even while every look brings news.
        self._pause.wait(ask.news_s)
        until = time.monotonic() + ask.pause_s - ask.news_s
        while (seconds_left := until - time.monotonic()) > 0 and not self.hosts.has_unreported():
            self._pause.wait(min(seconds_left, LOOK_S))
        heartbeat = replace(
            self.hosts.report(ask), sightings=self.witnesses.sightings(), troubles=self.witnesses.troubles()
        )
        return heartbeat.packed()

    def _count(self) -> None:
        """Sample evidence every second in its own thread: a silent PrimeMaster must leave no gap in it."""
        while True:
            time.sleep(evidence.SAMPLE_S)
            self.evidence.sample()

    def _keep_logs(self, folder: Path) -> None:
        """Copy new log bytes to the checkpoint volume; each node at its own rhythm."""
        last_problem = ""
        while True:
            time.sleep(KEEP_S * random.uniform(0.8, 1.2))  # noqa: S311 - spreads the writes of all nodes
            failed = archive.keep(folder)
            if failed != last_problem:  # a volume that is full stays so for hours: once per change is enough
                print(f"[dljob] {failed or 'logs are kept again'}", flush=True)  # noqa: T201 - into the actor's log
            last_problem = failed

    @ray.method(concurrency_group="work")
    def reap(self, uid: str, role: str, incarnations: Mapping[int, int]) -> int:
        """End processes that earlier incarnations of these ranks left here; `incarnations`: rank -> the present one."""
        return reaping.reap(uid, role, incarnations)

    @ray.method(concurrency_group="look")
    def look(self, targets: Sequence[stacks.DumpTarget], with_stacks: bool) -> tuple[stacks.ProcessStack, ...]:  # noqa: FBT001 - a call
        """Return what the kernel, and with `with_stacks` also py-spy, shows of processes on this node."""
        return stacks.sample_processes(targets, stacks=with_stacks)

    @ray.method(concurrency_group="work")
    def dump(self, witness: str) -> tuple[bytes, str]:
        """Return the dump of a witness, and why there is none."""
        try:
            return self.witnesses.dump(witness), ""
        except NoReadingError as error:
            return b"", str(error)

    @ray.method(concurrency_group="look")
    def clues(self, pid: int) -> tuple[Clue, ...]:
        """Return evidence on why a process vanished; `pid` must have been alone in its host."""
        return self.evidence.clues(pid, killed=True)

    @ray.method(concurrency_group="end")
    def exists(self, pid: int) -> bool:
        """Whether the process of a host that was lost or killed has not ended yet."""
        return self.hosts.exists(pid)

    @ray.method(concurrency_group="end")
    def end_of(self, pid: int, host: str) -> tuple[int, str] | None:
        """Return the wait status of a host that vanished and the end of its rank's log; None if the status is unknown.

        The log is empty for a host of several ranks.
        """
        host_end = self.hosts.end_of(pid)
        if host_end is None:
            return None
        tail = ""
        if len(host_end.incarnations) == 1:  # with several ranks, no single log explains the end of their process
            rank, incarnation = host_end.incarnations[0]
            tail = logfile.read_end_of_incarnation(self._logs, host_end.role, rank, incarnation)
        elif not host_end.role:  # its code may have held the GIL from its start, so that it could not introduce itself
            tail = logfile.last_words(self._logs, host, pid)
        return host_end.status, tail
