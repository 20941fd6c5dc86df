"""Injection of a faults file into a running job, by the job's status and events.

The decisions (what is due, which incident belongs to which fault) are pure functions of `dljob.plan.incidents`, shared
with the simulator, so that both give one report.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from dljob.master.state.views import Clue
from dljob.plan import incidents
from dljob.plan.incidents import InjectedFault, Key, Moment, ObservedFault
from dljob.plan.model import JobPlan
from dljob.plan.targets import MASTER, NODE, QUEUE, Target, chosen, ranked, target_of
from dljob.runtime.faults.signals import Signals, processes_of_node
from dljob.spec.loading.faults import FaultTime, FileFault
from dljob.telemetry import reasons
from dljob.telemetry.evidence import Source

TOLD_S = 60.0
"""Seconds without an incident after which a fault is taken to have had no effect."""
ENDED = ("Succeeded", "Failed", "Stopped")
CLOCK_S = 0.002
"""Resolution of the times in a status, which are cut off to the millisecond."""


class FaultTarget(Protocol):
    """The job under test; `dljob.runtime.job.launch.JobConnection` is one."""

    def pids(self) -> dict[str, int]:
        """Return the processes as `master` and `<role>/<rank>` -> pid."""
        ...

    def learned(self, target: str, incarnation: int, clue: Clue) -> None:
        """Report evidence for an end, before or after it."""
        ...


@dataclass(slots=True)
class _Since:
    """The processes at the last healthy moment, and the ranks whose process may have changed since."""

    pids: Mapping[str, int] | None = None
    excused: set[str] = field(default_factory=set[str])
    why: list[str] = field(default_factory=list[str])


class FaultInjector:
    """Injects the faults of a file, each once.

    Attributes:
        strikes: The faults that were injected so far.
        moved: Ranks that got another process although no fault hit them or their group, each with the faults before it.
    """

    def __init__(
        self,
        faults: Sequence[FileFault],
        plan: JobPlan,
        job: FaultTarget,
        *,
        begin: float | None = None,
        hand: Signals | None = None,
        raylets: Callable[[], Mapping[str, int]],
    ) -> None:
        """`raylets` returns node id -> pid of its raylet. `begin` is time 0; None for the moment when the job runs."""
        self._faults = tuple(faults)
        self._waiting = dict(enumerate(self._faults))
        self._plan = plan
        self._job = job
        self._begin = begin
        self._from = (begin or 0.0) - CLOCK_S
        """Incidents that were detected earlier have another cause than this file."""
        self._signals = hand or Signals()
        self._raylets = raylets
        self._events: Counter[str] = Counter()
        self._incidents: dict[Key, ObservedFault] = {}
        self._since = _Since()
        self.strikes: list[InjectedFault] = []
        self.moved: list[str] = []

    # -- observing the job

    def patience(self, now: float) -> float:
        """Return the seconds until the next fault that is due by time; infinite without one."""
        times = [fault.when.time for fault in self._waiting.values() if fault.when.time is not None]
        if not times or self._begin is None:
            return float("inf")
        return max(0.0, self._begin + min(times) - now)

    def observe(self, status: Mapping[str, Any], notes: Iterable[Mapping[str, Any]]) -> list[str]:
        """Take in status and events, inject what is due, and return a line for each injected fault."""
        now = time.time()
        for note in notes:
            self._events[note["reason"]] += 1
            # Times in a file count from the moment when the job runs: how long its start takes differs.
            if note["reason"] == reasons.JOB_RUNNING and self._begin is None:
                self._begin = note["time"]
        self._hear(status)
        # Compare before the next fault is injected: it excuses other ranks.
        self._compare(status, now)
        seconds = None if self._begin is None else now - self._begin
        moment = Moment(seconds, (status.get("progress") or {}).get("step"), self._events)
        due = [number for number, fault in self._waiting.items() if incidents.is_due(fault.when, moment)]
        return self._strike(due, status) if due else []

    def _hear(self, status: Mapping[str, Any]) -> None:
        self._incidents |= {
            incident.key: incident for incident in incidents_of(status) if incident.detected >= self._from
        }

    def settled(self, status: Mapping[str, Any], now: float) -> bool:
        """Return whether all injected faults have had their effect, and the job is healthy again."""
        found, _ = incidents.shares(self.strikes, self._incidents.values())
        for strike in self.strikes:
            # A fault that lasts has not had its whole effect yet.
            if strike.at + (strike.fault.seconds or 0) > now:
                return False
            # A short stop, or a slow rank, may pass without an incident.
            no_incident = strike.fault.fault in ("stop", "slow") or strike.fault.target.startswith(f"{QUEUE}/")
            quiet = no_incident or now - strike.at > TOLD_S
            if not found[strike.number] and not quiet:
                return False
        return healthy(status) and all(incident.recovered is not None for incident in self._incidents.values())

    @property
    def done(self) -> bool:
        """Whether every fault of the file was injected."""
        return not self._waiting

    def close(self) -> None:
        """Resume processes that were stopped for a time."""
        self._signals.close()

    def finish(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """Return the report of `incidents.report` with `pids_kept`, at the end of the job or of the watch."""
        self._hear(status)
        pids = {f"{r['role']}/{r['rank']}": r["pid"] for r in status.get("ranks", ()) if r.get("pid")}
        self._look_for_moved(pids)
        made = incidents.report(self._faults, self.strikes, self._incidents.values(), self._begin)
        return {**made, "pids_kept": not self.moved}

    # -- injecting

    def _strike(self, due: Sequence[int], status: Mapping[str, Any]) -> list[str]:
        """Inject the faults that are due together; one whose target has no process yet waits."""
        pids = self._job.pids()
        said: list[str] = []
        for number in due:
            fault = self._waiting[number]
            victims = self._victims(target_of(fault.target, self._plan), pids, status)
            if not victims:
                continue
            # The job was healthy until this fault: all ranks that it does not excuse must keep these processes.
            if self._since.pids is None:
                self._since.pids = pids
            # A fault hits all that restarts with its victim: only other ranks must keep their processes.
            own = {n for n in victims if n == MASTER or n.startswith(f"{QUEUE}/")}
            self._since.excused |= excused(victims.keys() - own, self._plan) | own
            self._since.why.append(fault.target)
            del self._waiting[number]
            if fault.fault == "oom":
                self._announce(victims, status)
            # Before the act: an incident may be detected while the signals are still being sent.
            strike = InjectedFault(number, fault, time.time() - CLOCK_S)
            self.strikes.append(strike)
            self._do(fault, victims)
            said.append(f"{describe(fault)} {when_in_words(fault.when)}")
        return said

    def _victims(self, target: Target, pids: Mapping[str, int], status: Mapping[str, Any]) -> dict[str, int]:
        """Return name -> pid of the processes to hit; of a node its ranks, and its raylet as `node`.

        Empty while a target has no process, or is on another machine.
        """
        if target.role == MASTER:
            return {MASTER: pids[MASTER]} if MASTER in pids else {}
        if target.queue:
            name = f"{QUEUE}/{target.queue}"
            return {name: pids[name]} if name in pids else {}
        if target.role != NODE:
            ended = {f"{r['role']}/{r['rank']}" for r in status["ranks"] if r["phase"] in ENDED}
            names = [name for rank in target.ranks if (name := f"{target.role}/{rank}") not in ended]
            here = self._local_ranks(status) & pids.keys()
            # All or nothing: a fault on a part of its target would be another fault.
            return {name: pids[name] for name in names} if here.issuperset(names) else {}
        # Raylets are read anew for each fault: nodes come and go while a file is at work.
        raylets = self._raylets()
        node = chosen(target.node, ranked([unit["node"] for unit in status["units"]], tuple(raylets)))
        # The node is on another machine, or gone: the fault waits for one that it can hit.
        if node is None or node not in raylets:
            return {}
        ranks = [f"{r['role']}/{r['rank']}" for r in status["ranks"] if r["node"] == node]
        return {NODE: raylets[node], **{name: pids[name] for name in ranks if name in pids}}

    def _local_ranks(self, status: Mapping[str, Any]) -> set[str]:
        """Return the ranks of this machine: pids of other machines may belong to unrelated processes here."""
        raylets = self._raylets()
        return {f"{r['role']}/{r['rank']}" for r in status["ranks"] if r["node"] in raylets}

    def _announce(self, victims: Mapping[str, int], status: Mapping[str, Any]) -> None:
        """Report the line that the kernel would write for an OOM kill.

        Without it a rank would have been `killed, cause unknown`: the SIGKILL is real, the line is not (docs/adr/0026).
        """
        incarnations = {f"{r['role']}/{r['rank']}": r["incarnation"] for r in status["ranks"]}
        for name, pid in victims.items():
            line = f"Out of memory: Killed process {pid} ({name}), inflicted by a faults file"
            self._job.learned(name, incarnations[name], Clue(Source.KERNEL, line))

    def _do(self, fault: FileFault, victims: Mapping[str, int]) -> None:
        node = victims.get(NODE)
        pids = list(victims.values())
        if node is not None:
            # Killing the raylet ends its processes, as with a lost machine. A freeze must stop each of them.
            pids = [node] if fault.fault == "kill" else processes_of_node(node)
        if fault.fault == "leave" and node is not None:
            self._signals.leave(self._node_of(node), node, fault.seconds or 1)
        elif fault.fault == "stop":
            self._signals.stop(pids, fault.seconds)
        elif fault.fault == "slow":
            self._signals.slow(pids, fault.factor or 2, fault.seconds or 1)
        elif fault.fault in ("kill", "oom"):
            self._signals.kill(pids)
        else:
            # Not a kill by default: a fault added to the schema alone would end processes that it should not.
            raise ValueError(f"unknown fault {fault.fault!r}")

    def _node_of(self, raylet: int) -> str:
        return next(node for node, pid in self._raylets().items() if pid == raylet)

    # -- ranks that moved without a fault

    def _compare(self, status: Mapping[str, Any], now: float) -> None:
        if self._since.pids is not None and self.settled(status, now):
            self._look_for_moved(self._job.pids())

    def _look_for_moved(self, after: Mapping[str, int]) -> None:
        """Compare processes with the last healthy moment; a rank that has ended since does not count."""
        since, self._since = self._since, _Since()
        for name, pid in sorted((since.pids or {}).items()):
            if name not in since.excused and after.get(name, pid) != pid:
                self.moved.append(f"{name} after {', '.join(since.why)}")


def incidents_of(status: Mapping[str, Any]) -> list[ObservedFault]:
    """Return the incidents in a status."""
    return [
        ObservedFault(
            row["reason"], row["target"], row["level"], _unix(row["detectedAt"]), _unix_or_none(row["recoveredAt"])
        )
        for row in status.get("recentFaults") or ()
    ]


def _unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _unix_or_none(text: str | None) -> float | None:
    return None if text is None else _unix(text)


def excused(names: Iterable[str], plan: JobPlan) -> set[str]:
    """Return the ranks whose process may change when these are hit: they, and all that restart with them by level."""
    found: set[str] = set()
    for name in names:
        role, slash, rank = name.partition("/")
        if not slash:
            continue
        facts = plan.roles[role]
        if facts.restart_level == "Job":
            return {f"{r}/{n}" for r, own in plan.roles.items() for n in range(own.replicas)}
        size = facts.replicas if facts.restart_level == "Role" else facts.group_size
        first = int(rank) // size * size
        found |= {f"{role}/{n}" for n in range(first, first + size)}
    return found


def healthy(status: Mapping[str, Any]) -> bool:
    """Return whether the job runs, and each rank is ready or has succeeded."""
    roles = status.get("roles") or ()
    return status.get("phase") == "Running" and all(r["ready"] + r["succeeded"] >= r["desired"] for r in roles)


def when_in_words(when: FaultTime) -> str:
    """Return the condition of a fault as text."""
    if when.step is not None:
        return f"at step {when.step}"
    return f"after {when.time} s" if when.time is not None else f"at {when.event}"


def describe(fault: FileFault) -> str:
    """Return the effect of a fault as text."""
    factor = f" {fault.factor} times" if fault.factor else ""
    length = f" for {fault.seconds} s" if fault.seconds else ""
    return f"{fault.fault} {fault.target}{factor}{length}"
