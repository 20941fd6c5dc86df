"""The heartbeat of a host: it carries the ranks' steps to PrimeMaster, whose answer renews the host's lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import ray
from ray.exceptions import ActorDiedError

from dljob.runtime.backend.masters import find_master
from dljob.runtime.process.guard import EndCode, Lease, boottime, end
from dljob.runtime.process.messages import BeaconReply, Heartbeat

if TYPE_CHECKING:
    from dljob.runtime.node.host_channel import AgentLine
    from dljob.runtime.process.evidence import HostEvidence
    from dljob.runtime.process.messages import HostSpec
    from dljob.runtime.process.step_counters import StepCounters
    from dljob.runtime.worker.reports import Reports
    from dljob.runtime.worker.usage import Usage

ANSWER_S = 2.0
"""Seconds to wait for an answer before sending the next heartbeat: the master may have been replaced meanwhile."""


IDLE = 5
"""A host without new steps sends a heartbeat only every fifth time: 16 idle hosts at 5 a second cost PrimeMaster a
tenth of a core, which hurts most while it recovers."""


Steps = Mapping[int, tuple[int, int, Mapping[str, float]]]
"""Rank -> (incarnation, last step, metrics of that step)."""


class HeartbeatSource(Protocol):
    """The part of a worker host that its heartbeat reads."""

    spec: HostSpec
    reports: Reports
    actor_name: str
    counters: StepCounters
    evidence: HostEvidence

    @property
    def usage(self) -> Usage:
        """What its ranks use, for the job's samples."""
        ...

    def take_steps(self) -> Steps:
        """Return the steps since the last call, by rank."""
        ...

    def restore_steps(self) -> None:
        """Return the last steps again at the next `take_steps`: their heartbeat was not acknowledged."""
        ...


class HeartbeatThread:
    """Keeps PrimeMaster informed of this host: through the agent of its node or, while that is silent, directly.

    A direct heartbeat goes out every `job.beacon_s` while there are new steps, else every `IDLE` times that. While
    PrimeMaster does not answer, the thread goes on trying and the lease runs down.
    """

    def __init__(self, host: HeartbeatSource, lease: Lease, line: AgentLine) -> None:
        self._host = host
        self._lease = lease
        self._line = line
        self._master: Any = None
        self._next = 0.0
        self._activities: dict[int, int] = {}
        """Slot -> number of the last report of a rank's activities that PrimeMaster has acknowledged."""
        threading.Thread(target=self._run, name="dljob-beacon", daemon=True).start()

    def _run(self) -> None:
        pause = self._host.spec.job.beacon_s
        while True:
            started = time.monotonic()
            self.turn()
            time.sleep(max(0.01, pause - (time.monotonic() - started)))

    def turn(self) -> None:
        """Do one round: sample evidence, count the heartbeat in shared memory, and send one unless the agent does."""
        with suppress(Exception):  # evidence only explains a death: without it the host works all the same
            self._host.evidence.sample()
        self._host.counters.count_heartbeat()
        with suppress(Exception):  # as above: samples are for people, and must not cost a host its lease
            self._host.usage.sample(self._host.counters)
        try:
            if not self._agent_reports():
                self._send()
        except (ActorDiedError, ValueError):  # a restarted master keeps its handle; this master is gone for good
            self._master = None
            self._host.restore_steps()
        except Exception:  # noqa: BLE001 - the next heartbeat may get through; if none does, the lease ends this host
            # With a standby another master may command by now; else the handle stays good over the restarts of one.
            self._master = None if self._host.spec.job.standby else self._master
            self._host.restore_steps()

    def _agent_reports(self) -> bool:
        """Whether the node's agent speaks for this host. It writes PrimeMaster's last answer into the counters."""
        renewal = self._line.renewal()
        # A host whose lease is half over does not rely on its agent any longer.
        if renewal is None or boottime() > renewal.sent_at + self._lease.seconds / 2:
            return False
        if not self._take(renewal.epoch, known=renewal.known):
            return False
        self._lease.renew(renewal.sent_at)
        return True

    def _take(self, epoch: int, *, known: bool) -> bool:
        """Take an answer; False for that of a master that was replaced, which knows nothing of this host any more."""
        before = self._host.reports.epoch
        if not self._host.reports.accept_epoch(epoch):
            return False
        if epoch != before:  # a new master has heard nothing yet
            self._activities.clear()
        if not known:
            end(EndCode.NOT_KNOWN, f"PrimeMaster (epoch {epoch}) does not know {self._host.actor_name} any more")
        return True

    def _send(self) -> None:
        host = self._host
        job = host.spec.job
        steps = host.take_steps()
        if not steps and boottime() < self._next:
            return
        if self._master is None:
            self._master = find_master(job)
        number, usage = host.usage.unsent
        changed = [
            (index, report)
            for index, slot in enumerate(host.counters.slots)
            if slot.activities_number() != self._activities.get(index, 0) and (report := slot.activities()) is not None
        ]
        activities = {report.rank: (report.incarnation, boottime(), report.text) for _, report in changed}
        sender = host.spec.role.name, host.actor_name, host.reports.epoch
        heartbeat = Heartbeat(*sender, steps, usage=usage, activities=activities)
        # The lease counts from here, when PrimeMaster was still to hear of this host, and not from its answer.
        sent = boottime()
        reply: BeaconReply = ray.get(self._master.beacon.remote(heartbeat), timeout=ANSWER_S)
        if not self._take(reply.epoch, known=reply.known):
            self._master = None
            host.restore_steps()
            return
        self._lease.renew(sent)
        host.usage.mark_sent(number)
        self._activities |= {index: report.number for index, report in changed}
        self._next = sent + (IDLE - 0.5) * job.beacon_s
