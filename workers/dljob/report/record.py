"""What a job's journal tells about its pace and its faults, as the simulator needs them."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from dljob.master.ledger import view
from dljob.master.persistence.migration import read_event
from dljob.master.state.events import (
    CheckpointCommitted,
    Commanded,
    Event,
    HangFound,
    HostLost,
    HostReady,
    MasterStarted,
    NodeFrozen,
    NodeThawed,
    PartSilent,
    RankEnded,
    RankReady,
    SpareReady,
    Stepped,
    UnitReserved,
)
from dljob.master.state.faults import FaultRecord
from dljob.master.state.state import JobState, Phase, UnitPhase
from dljob.master.state.views import HostId, Outcome, Reason
from dljob.report.replay import Past
from dljob.testing.simulate.forecast import JobPace, Strike

_COMMANDED = "Requested"


class Recorded(NamedTuple):
    """A job's record: its pace, its faults, and its measured goodput."""

    pace: JobPace
    strikes: tuple[Strike, ...]
    goodput: float
    seconds: float
    over: bool
    """Whether the job ended well, so that its whole work is known."""


class _RecordReader:
    """Reads durations and faults off the states behind a job's events."""

    def __init__(self) -> None:
        self.work = 0.0
        self.well_since: float | None = None
        self.first_up: dict[HostId, float] = {}
        self.first_set_up: dict[tuple[str, int], float] = {}
        self.up: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
        """Role -> time of the order -> spans."""
        self.set_up: dict[str, list[float]] = defaultdict(list)
        self.spared: dict[str, list[float]] = defaultdict(list)
        self.runs: dict[str, list[float]] = defaultdict(list)
        self.reserve: list[float] = []
        self.reserving: dict[str, float] = {}
        self.repeats: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.first_steps: dict[tuple[str, int], float] = {}
        self.stepping: set[str] = set()
        """Roles that reported steps."""
        self.repeating: set[str] = set()
        """Roles whose restarted ranks repeated steps."""
        self.restarted: set[str] = set()
        self.saves: list[float] = []
        self.spares: set[str] = set()
        self.strikes: list[Strike] = []
        self.known = 0
        """Number of the newest fault that is known."""

    def take(self, before: JobState, state: JobState, event: Event, at: float) -> None:
        """Read one event."""
        self._progress(state, at)
        if isinstance(event, SpareReady):
            self.spares.add(event.actor)
        if isinstance(event, CheckpointCommitted):
            self.saves.append(at)
        for name, unit in state.units.items():
            if unit.phase is UnitPhase.RESERVING and before.units[name].phase is not UnitPhase.RESERVING:
                self.reserving[name] = at
        self._durations(before, state, event, at)
        self._faults(before, state, event, at)

    def _progress(self, state: JobState, at: float) -> None:
        """Count the time in which all ranks run and no driver repeats steps."""
        drivers = state.job.drivers
        repeats = any(rank.goal is not None for (role, _), rank in state.ranks.items() if role in drivers)
        well = state.phase is Phase.RUNNING and not repeats
        if self.well_since is not None:
            self.work += at - self.well_since
        self.well_since = at if well else None

    def _durations(self, before: JobState, state: JobState, event: Event, at: float) -> None:
        match event:
            case UnitReserved() if event.unit in self.reserving:
                self.reserve.append(at - self.reserving.pop(event.unit))
            case HostReady() if (
                host := before.hosts.get(event.host)
            ) is not None and host.incarnation == event.incarnation:
                if event.incarnation == 1:
                    self.first_up[event.host] = at - host.process_ordered_at
                else:
                    self.up[event.host.role][host.process_ordered_at].append(at - host.process_ordered_at)
            case RankReady() if (event.role, event.rank) in before.ranks:
                self._ready(before, state, event, at)
            case Stepped():
                self._stepped(before, state, event, at)
            case RankEnded() if event.outcome.ok and (rank := before.ranks.get((event.role, event.rank))):
                if rank.ready_at and state.verdict is None:
                    self.runs[event.role].append(at - rank.ready_at)
            case _:
                pass
        if isinstance(event, RankEnded) and event.outcome.step is not None:
            self.stepping.add(event.role)

    def _ready(self, before: JobState, state: JobState, event: RankReady, at: float) -> None:
        span = at - before.ranks[event.role, event.rank].process_ordered_at
        host = before.hosts[before.job.roles[event.role].host_of(event.rank)]
        if host.actor in self.spares:
            self.spared[event.role].append(span)
        elif event.incarnation == 1:
            self.first_set_up[event.role, event.rank] = span
        else:
            self.set_up[event.role].append(span)
        if event.incarnation > 1:
            self.restarted.add(event.role)
        if state.ranks[event.role, event.rank].goal is not None:
            self.repeating.add(event.role)

    def _stepped(self, before: JobState, state: JobState, event: Stepped, at: float) -> None:
        key = (event.role, event.rank)
        old, new = before.ranks.get(key), state.ranks.get(key)
        if old is None or new is None or not old.ready_at or old is new:
            return
        first = self.first_steps.setdefault(key, at - old.ready_at)
        if new.goal is None:
            self.repeats[event.role].append((first, at - old.ready_at))
            del self.first_steps[key]

    # -- faults

    def _faults(self, before: JobState, state: JobState, event: Event, at: float) -> None:
        fresh = [fault for fault in state.faults if fault.id > self.known]
        self.known = max([self.known, *(fault.id for fault in fresh)])
        if isinstance(event, NodeThawed):
            self._thawed(event, at)
        for fault in fresh:
            # One fault of each event: what followed from it follows in the simulation as well.
            if not fault.reports_lost_peer and not fault.root_number:
                self._add(before, event, fault, at)
                break

    def _add(self, before: JobState, event: Event, fault: FaultRecord, at: float) -> None:
        begun = before.running_at
        since = at - (before.started_at if begun is None else begun)
        base = Strike(since, "lost", early=begun is None, outcome=fault.outcome or Outcome(ok=False))
        match event:
            case HostLost():
                rank = before.job.roles[event.host.role].ranks_of(event.host.index)
                detect = 0.0 if event.seen is None else max(0.0, at - event.seen)
                kind = "node" if event.outcome.reason is Reason.NODE_LOST else "lost"
                self.strikes.append(
                    base._replace(
                        kind=kind, role=event.host.role, rank=next(iter(rank), 0), outcome=event.outcome, detect=detect
                    )
                )
            case RankEnded():
                self.strikes.append(
                    base._replace(kind="ended", role=event.role, rank=event.rank, outcome=event.outcome)
                )
            case MasterStarted():
                self.strikes.append(base._replace(kind="master"))
            case HangFound() | Commanded():
                self.strikes.append(base._replace(kind="event", event=event))
            case _:
                self._of_node(before, event, fault, base, at)

    def _of_node(self, before: JobState, event: Event, fault: FaultRecord, base: Strike, at: float) -> None:
        """Add the loss or silence of a node, by a rank that was on it."""
        node = event.node if isinstance(event, NodeFrozen) else fault.node
        if isinstance(event, PartSilent):
            node = event.target.removeprefix("node/")
        lost = [key for key in before.ranks if before.hosts[before.job.roles[key[0]].host_of(key[1])].node == node]
        if not lost:
            return
        silent = event.silent_s if isinstance(event, NodeFrozen) else 0.0
        kind = "freeze" if isinstance(event, NodeFrozen) else "node"
        role, rank = min(lost)
        self.strikes.append(base._replace(kind=kind, role=role, rank=rank, detect=silent, seconds=1e6))
        if isinstance(event, NodeFrozen):
            self._frozen = (node, len(self.strikes) - 1, at - silent)

    _frozen: tuple[str, int, float] | None = None

    def _thawed(self, event: NodeThawed, at: float) -> None:
        if self._frozen is not None and self._frozen[0] == event.node:
            _, index, since = self._frozen
            self.strikes[index] = self.strikes[index]._replace(seconds=at - since)
            self._frozen = None

    def pace(self) -> JobPace:
        """Return the durations."""
        gaps = [later - earlier for earlier, later in zip(self.saves, self.saves[1:], strict=False)]
        return JobPace(
            self.work,
            self.first_up,
            self.first_set_up,
            {role: tuple(map(tuple, groups.values())) for role, groups in self.up.items()},
            _fixed(self.set_up),
            _fixed(self.spared),
            tuple(self.reserve),
            {role: tuple(spans) for role, spans in self.repeats.items()},
            # A role that reports steps and never repeated any after a restart would not do so after another one.
            frozenset(self.repeating | (self.stepping - self.restarted)),
            sum(gaps) / len(gaps) if gaps else None,
            _fixed(self.runs),
        )


def _fixed(durations: dict[str, list[float]]) -> dict[str, tuple[float, ...]]:
    return {name: tuple(spans) for name, spans in durations.items()}


def record_of(past: Past) -> Recorded:
    """Read a job's pace and faults off its journal.

    Raises:
        JournalError: The journal is damaged.
    """
    reading = _RecordReader()
    moments = past.states()
    last = next(moments)
    state, at = last.state, last.at
    reading.known = max((fault.id for fault in state.faults), default=0)
    for moment in moments:
        assert moment.event is not None  # noqa: S101 - only the first moment has none
        reading.take(state, moment.state, read_event(moment.event), moment.at)
        state, at = moment.state, moment.at
    shown = view.shown(state, at)
    over = state.phase is Phase.SUCCEEDED
    return Recorded(reading.pace(), tuple(reading.strikes), shown["goodput"] or 0.0, shown["seconds"], over)
