"""A job's recorded faults under another rule: the real core in a simulated world, at the pace of the job's own record.

The drivers' work is done while all ranks run and none repeats steps: the job ends once as much of it is done as in the
record. What the record does not tell is drawn, so several seeds give the uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import mean
from typing import Any, NamedTuple, TypeAlias

from dljob.master.failure import ending
from dljob.master.ledger import view
from dljob.master.start.assign import would_be_nodes
from dljob.master.state.actions import Reserve
from dljob.master.state.events import (
    Commanded,
    HangFound,
    HostLost,
    RankEnded,
    RankReady,
    RankServes,
    Stepped,
    WeightsLoaded,
)
from dljob.master.state.state import Phase
from dljob.master.state.views import HostId, Outcome
from dljob.testing.simulate.drive import Case, Driver, Durations
from dljob.testing.world import events, executor
from dljob.testing.world.fault_schedule import chance
from dljob.testing.world.model import (
    Arrive,
    Boot,
    Carry,
    Done,
    FaultMove,
    Item,
    Move,
    PollNodes,
    Process,
    SetUp,
    SpareKey,
    Up,
)
from dljob.testing.world.state import EPOCH_S
from dljob.testing.world.world import World

FOR_EVER_S = 1e9
PATIENCE_S = 24 * 3600.0
"""Seconds without a fault and without progress after which a job counts as stuck."""
GONE_S = 1.2
"""Seconds until a lost node is noticed, where the record has none."""
BOOT_S = 2.0
"""Seconds until a killed PrimeMaster is back: meanwhile the ranks go on."""
FIRST_BOOT_S = 0.01
USUAL_SPREAD = 0.25
"""Deviation of the logarithm of a start's duration where a record tells none (docs/adr/0078-what-if.md)."""
_SHORTEST_S = 0.01
_TAKES: Mapping[type, float] = {Arrive: 0.01, Carry: 0.01, PollNodes: 0.1}

Spans: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class JobPace:
    """Durations from a job's record, in seconds. Of a role's first processes by rank, of later ones as a sample."""

    work: float
    """Time of progress that the drivers needed to the end."""
    first_up: Mapping[HostId, float] = field(default_factory=dict[HostId, float])
    """Host -> from the order of its first process to its answer."""
    first_set_up: Mapping[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    """Rank -> from its first start to its readiness: import, `setup()`, rendezvous."""
    up: Mapping[str, tuple[Spans, ...]] = field(default_factory=dict[str, tuple[Spans, ...]])
    """Role -> the same of later processes, those that were ordered together together: they share the machine."""
    set_up: Mapping[str, Spans] = field(default_factory=dict[str, Spans])
    spared: Mapping[str, Spans] = field(default_factory=dict[str, Spans])
    """Role -> from a start in a spare to readiness."""
    reserve: Spans = ()
    repeats: Mapping[str, tuple[tuple[float, float], ...]] = field(
        default_factory=dict[str, tuple[tuple[float, float], ...]]
    )
    """Role -> after each restart, seconds to its first step and to the step that it had reached before."""
    stepping: frozenset[str] = frozenset()
    """Roles whose ranks report steps."""
    saves_every: float | None = None
    """Seconds between two checkpoints; None: the job saved none."""
    runs: Mapping[str, Spans] = field(default_factory=dict[str, Spans])
    """Role that ends by itself -> from readiness to the end of its ranks."""

    @property
    def start_spread(self) -> float:
        """Deviation of the logarithm of a start's duration, from one run of a job to another.

        A record has one first start, so that its restarts tell: by role, the mean of each group that was ordered
        together. A record with few of them tells little; `USUAL_SPREAD` counts as two restarts more.
        """
        squares, freedom = 2 * USUAL_SPREAD**2, 2
        for groups in self.up.values():
            logs = [math.log(max(mean(group), _SHORTEST_S)) for group in groups if group]
            squares += sum((log_span - mean(logs)) ** 2 for log_span in logs)
            freedom += max(0, len(logs) - 1)
        return math.sqrt(squares / freedom)

    def with_starts(self, factor: float) -> JobPace:
        """Return the pace on a machine whose starts take `factor` times as long."""

        def times(spans: Spans) -> Spans:
            return tuple(factor * span for span in spans)

        return replace(
            self,
            first_up={key: factor * span for key, span in self.first_up.items()},
            first_set_up={key: factor * span for key, span in self.first_set_up.items()},
            up={role: tuple(times(group) for group in groups) for role, groups in self.up.items()},
            set_up={role: times(spans) for role, spans in self.set_up.items()},
            spared={role: times(spans) for role, spans in self.spared.items()},
        )


class Strike(NamedTuple):
    """A fault of the record."""

    at: float
    """Seconds after the job began to run; of an earlier fault, seconds after its start."""
    kind: str
    """lost | ended | master | node | freeze | hang | command"""
    role: str = ""
    rank: int = 0
    outcome: Outcome = Outcome(ok=False)
    detect: float = 0.0
    """Seconds from the fault to the event that reported it."""
    seconds: float = 0.0
    """Duration of a freeze."""
    early: bool = False
    """Whether it came before the job began to run."""
    event: Commanded | HangFound | None = None


class End(NamedTuple):
    """The end of a simulated job."""

    goodput: float
    seconds: float
    phase: str
    restarts: Mapping[str, int]


class PacedWorld(World):
    """A world whose reports carry what a real job's heartbeats tell."""

    pace: JobPace
    rng: Random
    detect: dict[HostId, float]
    worked: float
    """Seconds of the drivers' work done so far."""

    def tell(self, batch: Sequence[Arrive]) -> None:
        """Add the last sign of life to the loss of a host."""
        super().tell([replace(arrival, event=self._with_sign(arrival.event)) for arrival in batch])

    def _with_sign(self, event: Any) -> Any:  # noqa: ANN401 - any event
        if isinstance(event, HostLost) and (late := self.detect.pop(event.host, 0.0)):
            return replace(event, seen=self.clock() - late)
        return event

    def report(self, process: Process, event: RankReady | RankEnded | RankServes | WeightsLoaded) -> Process:
        """Have a restarted rank that reports steps repeat those that were lost."""
        if not isinstance(event, RankReady) or event.incarnation == 1 or event.role not in self.pace.stepping:
            return super().report(process, event)
        first, whole_step = self._repeat(event.role)
        for step, wait in ((0, first), (1, max(first, whole_step))):
            self.later(Arrive(Stepped(event.role, event.rank, event.incarnation, step)), wait + 0.02)
        return super().report(process, replace(event, goal=1))

    def _repeat(self, role: str) -> tuple[float, float]:
        """Return the seconds until a restarted rank makes its first step, and until it is where it had been."""
        if known := self.pace.repeats.get(role):
            return self.rng.choice(known)
        # No restart of this role is in the record: it goes back to the last checkpoint, or to the beginning.
        every = self.pace.saves_every
        return 0.0, self.worked if every is None else min(self.worked, self.rng.random() * every)


class Forecast(Driver):
    """One run of the recorded faults under a rule."""

    def __init__(self, manifest: Mapping[str, Any], pace: JobPace, strikes: Iterable[Strike], seed: int) -> None:
        super().__init__(Case(seed, manifest, ()), pace=Durations(work=(FOR_EVER_S, FOR_EVER_S)))
        job_plan = self.world.job.plan
        self.paced = PacedWorld(job_plan, self.world.job.spec, would_be_nodes(job_plan))
        self.world = self.paced
        self.record = pace
        self.rng = chance(f"forecast {seed}")
        self.left_of_import = self.rng.random()
        """Share of a set-up that a spare still has to do, as long as no record tells: it has imported the code."""
        self.paced.pace, self.paced.rng, self.paced.detect, self.paced.worked = pace, self.rng, {}, 0.0
        self.waiting = list(strikes)
        self._last, self._was_well, self._calm = EPOCH_S, False, EPOCH_S
        self._ordered: dict[tuple[str, float], list[float]] = {}
        """(role, time) -> spans for processes that are ordered at that time."""

    def play(self) -> End:
        """Run until the work is done, or the job has failed or is stuck."""
        w = self.paced
        self._schedule()
        while w.finished is None and not w.problems and w.now < self._calm + PATIENCE_S:
            if w.worked >= self.record.work - 1e-6:
                self._drivers_end()
                self._until(w.now + 60.0)
                break
            strike_times = [
                when for strike in self.waiting if (when := self._when(strike)) is not None and when > w.now
            ]
            seconds_left = self.record.work - w.worked if self._well() else 1.0
            self._until(min([w.now + seconds_left, *strike_times]))
            self._account()
            self._strike_due()
        shown = view.shown(w.known, w.now)
        return End(shown["goodput"] or 0.0, shown["seconds"], w.known.phase.value, dict(w.known.restarts))

    def _well(self) -> bool:
        known = self.paced.known
        if known.phase is not Phase.RUNNING:
            return False
        driving = (rank_state for (role, _), rank_state in known.ranks.items() if known.job.plan.roles[role].driver)
        return all(rank_state.goal is None for rank_state in driving)

    def _account(self) -> None:
        w = self.paced
        if self._was_well:
            w.worked += w.now - self._last
            self._calm = w.now
        self._last, self._was_well = w.now, self._well()

    def _make(self, move: Move) -> None:
        self._account()
        super()._make(move)
        self._account()

    def _drivers_end(self) -> None:
        w = self.paced
        for role, plan in w.job.plan.roles.items():
            for rank in range(plan.replicas if plan.driver else 0):
                self._end(role, rank, events.DONE)

    def _end(self, role: str, rank: int, outcome: Outcome) -> None:
        """Let the newest process of a rank end the rank by itself."""
        w = self.paced
        incarnation, actor = w.running[role, rank][-1]
        process = w.processes[actor]
        running = next(r for r in process.ranks if (r.role, r.rank, r.incarnation) == (role, rank, incarnation))
        w.ended.add((role, rank))
        executor.leave(w, process, running, outcome)
        self._schedule()

    # -- durations

    def _delay(self, item: Item) -> float:
        match item:
            case Up():
                return self._up(item.actor)
            case SetUp():
                return self._set_up(item)
            case Boot():
                return BOOT_S if self.world.epoch else FIRST_BOOT_S
            case Carry(Reserve()):
                return self._draw(self.record.reserve, 0.1)
            case Done() if item.running.role in self.record.runs and not self._drives(item.running.role):
                return self._draw(self.record.runs[item.running.role], FOR_EVER_S)
            case _:
                return _TAKES.get(type(item), super()._delay(item))

    def _drives(self, role: str) -> bool:
        return self.world.job.plan.roles[role].driver

    def _draw(self, known: Spans, default: float) -> float:
        return self.rng.choice(known) if known else default

    def _up(self, actor: str) -> float:
        process = self.world.processes[actor]
        occupant = process.occupant
        if isinstance(occupant, SpareKey):
            # A spare imports the code before it reports.
            fresh = self._draw(
                self.record.set_up.get(occupant.role, ()), self._usual(self.record.first_set_up, occupant.role)
            )
            return self._later_up(occupant.role) + fresh * (1 - self.left_of_import)
        if process.incarnation == 1 and occupant in self.record.first_up:
            return self.record.first_up[occupant]
        return self._later_up(occupant.role)

    def _later_up(self, role: str) -> float:
        known = self.record.up.get(role)
        if not known:
            firsts = [span for host, span in self.record.first_up.items() if host.role == role]
            return sum(firsts) / len(firsts) if firsts else 0.5
        spans_left = self._ordered.setdefault((role, round(self.world.now, 2)), [])
        if not spans_left:
            # The shortest first: fewer processes than in the record share the machine with fewer others.
            spans_left.extend(sorted(self.rng.choice(known)))
        return spans_left.pop(0)

    @staticmethod
    def _usual(firsts: Mapping[tuple[str, int], float], role: str) -> float:
        role_spans = [span for (name, _), span in firsts.items() if name == role]
        return sum(role_spans) / len(role_spans) if role_spans else 0.3

    def _set_up(self, item: SetUp) -> float:
        key, record = (item.running.role, item.running.rank), self.record
        if item.running.incarnation == 1 and key in record.first_set_up:
            return record.first_set_up[key]
        usual = self._draw(record.set_up.get(key[0], ()), self._usual(record.first_set_up, key[0]))
        if "/spare-" not in item.actor:
            return usual
        return self._draw(record.spared.get(key[0], ()), usual * self.left_of_import)

    # -- faults

    def _when(self, strike: Strike) -> float | None:
        """Return when a fault is due; None: not before the job runs."""
        begun = EPOCH_S if strike.early else self.paced.known.running_at
        return None if begun is None else begun + strike.at - strike.detect

    def _strike_due(self) -> None:
        for strike in list(self.waiting):
            when = self._when(strike)
            if when is not None and when <= self.paced.now and self._strike(strike):
                self.waiting.remove(strike)
                self._calm = self.paced.now
                self._schedule()

    def _strike(self, strike: Strike) -> bool:
        """Let a fault happen; False: its target has no process yet."""
        w, key = self.paced, (strike.role, strike.rank)
        if w.known.verdict is not None or w.state is None:
            return w.known.verdict is not None
        if strike.kind == "master":
            self._make(FaultMove("crash"))
            return True
        if strike.event is not None:
            w.later(Arrive(self._now(strike.event)))
            return True
        if key in w.known.ranks and not ending.is_unfinished(w.known.ranks[key]):
            return True  # it has done its work: nothing is left to fail
        if key not in w.running or w.running[key][-1][1] not in w.processes:
            return False
        process = w.processes[w.running[key][-1][1]]
        if strike.kind in ("node", "freeze"):
            kind, value = ("node lost", GONE_S) if strike.kind == "node" else ("freeze", strike.seconds)
            self._make(FaultMove(kind, value=value, text=process.node))
        elif strike.kind == "ended":
            self._end(strike.role, strike.rank, strike.outcome)
        else:
            if isinstance(process.occupant, HostId):
                w.detect[process.occupant] = strike.detect
            w.die(process.actor, strike.outcome)
            # The loss is reported as late as in the record.
            if strike.detect and w.arriving:
                number = max(w.arriving)
                w.pending[number] = replace(w.pending[number], least=w.now + strike.detect)
        return True

    def _now(self, event: Commanded | HangFound) -> Commanded | HangFound:
        """Return an event of the record for the process that the rank has now."""
        if isinstance(event, Commanded):
            return event
        rank_state = self.paced.known.ranks.get((event.role, event.rank))
        return event if rank_state is None else replace(event, incarnation=rank_state.incarnation)
