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
from typing import Any

from dljob.plan import incidents
from dljob.plan.incidents import InjectedFault, Key, Moment, ObservedFault
from dljob.plan.model import JobPlan
from dljob.plan.targets import MASTER, OPERATOR, QUEUE, target_of
from dljob.runtime.faults.means import FaultMeans, FaultTarget, LocalMeans
from dljob.runtime.faults.signals import Signals
from dljob.spec.loading.faults import FaultTime, FileFault
from dljob.telemetry import reasons

TOLD_S = 60.0
"""Seconds without an incident after which a fault is taken to have had no effect."""
OVERDUE_S = 30.0
"""Seconds that a due fault waits for its target until that is told."""
STEP_S = 0.25
"""Seconds between looks for the step of a fault: progress alone ends a wait for a status only once a second."""
CLOCK_S = 0.002
"""Resolution of the times in a status, which are cut off to the millisecond."""


@dataclass(slots=True)
class _Since:
    """The processes at the last healthy moment, and the ranks whose process may have changed since."""

    pids: Mapping[str, int] | None = None
    excused: set[str] = field(default_factory=set[str])
    targets: list[str] = field(default_factory=list[str])


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
        raylets: Callable[[], Mapping[str, int]] = dict[str, int],
        means: FaultMeans | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`raylets` returns node id -> pid of its raylet. `begin` is time 0; None for the moment when the job runs.

        `means` reach another place than this machine; `clock` is that of the job's times.
        """
        self._faults = tuple(faults)
        self._waiting = dict(enumerate(self._faults))
        self._plan = plan
        self._job = job
        self._begin = begin
        self._from = (begin or 0.0) - CLOCK_S
        """Incidents that were detected earlier have another cause than this file."""
        self._means = means or LocalMeans(job, plan, hand, raylets)
        self._clock = clock
        self._overdue: dict[int, float] = {}
        """Number of a fault that is due without a target -> since when; once told, infinite."""
        self._events: Counter[str] = Counter()
        self._incidents: dict[Key, ObservedFault] = {}
        self._since = _Since()
        self.strikes: list[InjectedFault] = []
        self.moved: list[str] = []

    # -- observing the job

    def patience(self, now: float) -> float:
        """Return the seconds until the next fault that is due by time, or a look for a step; else infinite."""
        waiting = [fault.when for fault in self._waiting.values()]
        look = STEP_S if any(when.step is not None for when in waiting) else float("inf")
        times = [when.time for when in waiting if when.time is not None]
        if not times or self._begin is None:
            return look
        return min(look, max(0.0, self._begin + min(times) - now))

    def observe(self, status: Mapping[str, Any], notes: Iterable[Mapping[str, Any]]) -> list[str]:
        """Take in status and events, inject what is due, and return a line for each injected fault."""
        now = self._clock()
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
        due_numbers = [number for number, fault in self._waiting.items() if incidents.is_due(fault.when, moment)]
        return self._strike(due_numbers, status) if due_numbers else []

    def _hear(self, status: Mapping[str, Any]) -> None:
        self._incidents |= {
            incident.key: incident for incident in incidents_of(status) if incident.detected >= self._from
        }

    def settled(self, status: Mapping[str, Any], now: float) -> bool:
        """Return whether all injected faults have had their effect, and the job is healthy again."""
        incidents_by_strike, _ = incidents.shares(self.strikes, self._incidents.values())
        for strike in self.strikes:
            # A fault that lasts has not had its whole effect yet.
            if strike.at + (strike.fault.seconds or 0) > now:
                return False
            # A short stop, or a slow rank, may pass without an incident.
            no_incident = strike.fault.fault in ("stop", "slow", "cut") or self._is_apart(strike.fault)
            quiet = no_incident or now - strike.at > TOLD_S
            if not incidents_by_strike[strike.number] and not quiet:
                return False
        return healthy(status) and all(incident.recovered is not None for incident in self._incidents.values())

    def _is_apart(self, fault: FileFault) -> bool:
        """Return whether no rank depends on a fault's target: the keeper of a queue, the operator."""
        target = target_of(fault.target, self._plan)
        return bool(target.queue) or (target.role == OPERATOR and not target.ranks)

    @property
    def done(self) -> bool:
        """Whether every fault of the file was injected."""
        return not self._waiting

    def close(self) -> None:
        """Resume processes that were stopped for a time."""
        self._means.close()

    def finish(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """Return the report of `incidents.report` with `pids_kept`, at the end of the job or of the watch."""
        self._hear(status)
        pids = {f"{r['role']}/{r['rank']}": r["pid"] for r in status.get("ranks", ()) if r.get("pid")}
        self._look_for_moved(pids)
        report = incidents.report(self._faults, self.strikes, self._incidents.values(), self._begin)
        return {**report, "pids_kept": not self.moved}

    # -- injecting

    def _strike(self, due_numbers: Sequence[int], status: Mapping[str, Any]) -> list[str]:
        """Inject the faults that are due together; one whose target has no process yet waits."""
        pids = self._job.pids()
        lines: list[str] = []
        for number in due_numbers:
            fault = self._waiting[number]
            target = target_of(fault.target, self._plan)
            victims = self._means.victims(target, pids, status)
            if not victims:
                lines += self._waits(number, fault)
                continue
            # The job was healthy until this fault: all ranks that it does not excuse must keep these processes.
            if self._since.pids is None:
                self._since.pids = pids
            # A fault hits all that restarts with its victim: only other ranks must keep their processes.
            hit_services = {n for n in victims if n == MASTER or n.startswith(f"{QUEUE}/")}
            self._since.excused |= excused(victims.keys() - hit_services, self._plan) | hit_services
            self._since.targets.append(fault.target)
            del self._waiting[number]
            # Before the act: an incident may be detected while the signals are still being sent.
            strike = InjectedFault(number, fault, self._clock() - CLOCK_S)
            self.strikes.append(strike)
            self._means.strike(fault, target, victims, status)
            lines.append(f"{describe(fault)} {when_in_words(fault.when)}")
        return lines

    def _waits(self, number: int, fault: FileFault) -> list[str]:
        """Tell once of a fault that is due for long without a target: it may never get one."""
        now = self._clock()
        if now - self._overdue.setdefault(number, now) < OVERDUE_S:
            return []
        self._overdue[number] = float("inf")
        return [f"{describe(fault)} waits: it is due since {OVERDUE_S:g} s, and {fault.target} has no process"]

    # -- ranks that moved without a fault

    def _compare(self, status: Mapping[str, Any], now: float) -> None:
        if self._since.pids is not None and self.settled(status, now):
            self._look_for_moved(self._job.pids())

    def _look_for_moved(self, after: Mapping[str, int]) -> None:
        """Compare processes with the last healthy moment; a rank that has ended since does not count."""
        since, self._since = self._since, _Since()
        for name, pid in sorted((since.pids or {}).items()):
            if name not in since.excused and after.get(name, pid) != pid:
                self.moved.append(f"{name} after {', '.join(since.targets)}")


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
    ranks: set[str] = set()
    for name in names:
        role, slash, rank = name.partition("/")
        if not slash:
            continue
        facts = plan.roles[role]
        if facts.restart_level == "Job":
            return {f"{r}/{n}" for r, role_plan in plan.roles.items() for n in range(role_plan.replicas)}
        size = facts.replicas if facts.restart_level == "Role" else facts.group_size
        first = int(rank) // size * size
        ranks |= {f"{role}/{n}" for n in range(first, first + size)}
    return ranks


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
