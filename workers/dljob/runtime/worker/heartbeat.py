"""The beacon: PrimeMaster hears that this host lives and how far its ranks are, and its answer renews the lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import ray
from ray.exceptions import ActorDiedError

from dljob.runtime.process.guard import EndCode, Lease, boottime, end
from dljob.runtime.process.messages import BeaconReply, Heartbeat

if TYPE_CHECKING:
    from dljob.runtime.node.host_channel import AgentLine
    from dljob.runtime.node.reports import Reports
    from dljob.runtime.process.evidence import HostEvidence
    from dljob.runtime.process.messages import HostSpec
    from dljob.runtime.process.step_counters import StepCounters

ANSWER_S = 2.0
"""How long an answer is awaited before a new beacon is sent (the master may have been replaced meanwhile)."""


IDLE = 5
"""A host without news sends one beacon for so many of one with news: 16 idle hosts at 5 a second cost a master a tenth
of a core, most felt while it comes back."""


Steps = Mapping[int, tuple[int, int, Mapping[str, float]]]
"""Of each rank: its incarnation, its last step, and the metrics of that step."""


class HeartbeatSource(Protocol):
    """A worker host, as far as its heartbeat reads it."""

    spec: HostSpec
    reports: Reports
    actor_name: str
    counters: StepCounters
    evidence: HostEvidence

    def take_steps(self) -> Steps:
        """Steps since the last call, by rank."""
        ...

    def steps_lost(self) -> None:
        """The heartbeat with these steps was not heard: the next call of `take_steps` gives them again."""
        ...


class BeaconThread:
    """Sees to it that PrimeMaster hears of this host: by the agent of its node, or while that says nothing, by itself.

    Then a beacon goes every `job.beacon_s` while there is progress to tell, else every `IDLE` times that. While
    PrimeMaster is away it goes on trying, and the lease runs down.
    """

    def __init__(self, host: HeartbeatSource, lease: Lease, line: AgentLine) -> None:
        self._host = host
        self._lease = lease
        self._line = line
        self._master: Any = None
        self._next = 0.0
        threading.Thread(target=self._run, name="dljob-beacon", daemon=True).start()

    def _run(self) -> None:
        pause = self._host.spec.job.beacon_s
        while True:
            started = time.monotonic()
            self.turn()
            time.sleep(max(0.01, pause - (time.monotonic() - started)))

    def turn(self) -> None:
        """What is done every `job.beacon_s`."""
        with suppress(Exception):  # who cannot tell why somebody dies lives all the same
            self._host.evidence.sample()
        self._host.counters.beat()
        try:
            if not self._spoken_for():
                self._beat()
        except (ActorDiedError, ValueError):  # a master that is restarted keeps its handle; this one is gone
            self._master = None
            self._host.steps_lost()
        except Exception:  # noqa: BLE001 - whatever it is, the next beacon may be heard; else the lease ends us
            self._host.steps_lost()

    def _spoken_for(self) -> bool:
        """Whether the agent of this node speaks for this host; then PrimeMaster's last answer is in the counters."""
        renewal = self._line.renewal()
        if renewal is None or boottime() > renewal.sent_at + self._lease.seconds / 2:
            return False
        self._take(renewal.epoch, known=renewal.known)
        self._lease.renew(renewal.sent_at)
        return True

    def _take(self, epoch: int, *, known: bool) -> None:
        if not known:
            end(EndCode.NOT_KNOWN, f"PrimeMaster (epoch {epoch}) does not know {self._host.actor_name} any more")
        self._host.reports.heard(epoch)

    def _beat(self) -> None:
        host = self._host
        job = host.spec.job
        steps = host.take_steps()
        if not steps and boottime() < self._next:
            return
        if self._master is None:
            self._master = ray.get_actor(job.master, job.namespace)
        beacon = Heartbeat(host.spec.role.name, host.actor_name, host.reports.epoch, steps)
        sent = boottime()
        reply: BeaconReply = ray.get(self._master.beacon.remote(beacon), timeout=ANSWER_S)
        self._take(reply.epoch, known=reply.known)
        self._lease.renew(sent)
        self._next = sent + (IDLE - 0.5) * job.beacon_s
