"""Drives a world through a case under virtual time: who is how late, and what goes wrong when, is the seed's choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import islice
from typing import Any

from dljob.master.actions import Reserve
from dljob.master.assign import would_be_nodes
from dljob.plan.plan import plan
from dljob.sim import checks, elastic, faults, jobs, laws, leaving, spare_laws
from dljob.sim.faults import Timed
from dljob.sim.shrink import fewest
from dljob.sim.things import (
    Arrive,
    Beacon,
    Boot,
    Carry,
    Done,
    Fault,
    Happen,
    Item,
    Look,
    Move,
    SetUp,
    Silence,
    Up,
    Wake,
)
from dljob.sim.world import EPOCH_S, World
from dljob.spec.model import DLJobManifest

HORIZON_S = 400.0
"""Faults come within this time from the beginning."""
PATIENCE_S = 6 * 3600.0
"""So long after the last fault a job must have ended."""
SWEEP_EVERY = 1000
"""Events between two sweeps."""
FEW_RANKS = 64
"""In a job of so many ranks the laws of spares are looked at after every move."""
MOST_EVENTS = 200_000
_SECONDS: Mapping[type, tuple[float, float]] = {
    Arrive: (0.001, 0.05),
    Carry: (0.001, 0.05),
    Up: (0.05, 2.0),
    SetUp: (0.01, 3.0),
    Look: (0.05, 1.0),
    Boot: (0.2, 5.0),
    Beacon: (0.0, 1.0),
}
"""How long things take, from and to."""
BATCHED = 0.3
"""So often events that are on their way together arrive in one batch."""
LATE = 0.04
"""So often an event or an order is late, by up to a few seconds."""


@dataclass(frozen=True, slots=True)
class Case:
    """A job, what goes wrong, and the seed of all that is left to chance."""

    seed: int
    manifest: Mapping[str, Any]
    faults: tuple[Timed, ...]
    own_nodes: bool = False


@dataclass(frozen=True, slots=True)
class Pace:
    """How long user code works, from and to, in seconds; and until when, at least, nothing is mended."""

    work: tuple[float, float] = (20.0, 800.0)
    whole: float = 0.0


@dataclass(slots=True)
class Result:
    """How a case went. `problems` are the laws that were broken; `trace` what happened, one line a move."""

    seed: int
    problems: tuple[str, ...]
    phase: str
    reason: str
    events: int
    seconds: float
    """Virtual, to the end of the job."""
    restarts: Mapping[str, int]
    trace: list[str] = field(default_factory=list[str])
    world: World | None = None


def case_of(seed: int, manifest: Mapping[str, Any] | None = None) -> Case:
    """The case of a seed: a small job of its own where none is given, and up to a dozen faults."""
    rng = faults.chance(f"case {seed}")
    made = manifest
    if made is None:
        made = elastic.with_bounds(seed, jobs.with_spares(seed, checks.asked_for(seed, jobs.small(rng))))
    return Case(
        seed,
        made,
        (
            *faults.draw(rng, rng.choice((3, 8, 20, 40)), rng.choice((30.0, HORIZON_S))),
            *checks.bad_nodes(seed, made),
            *leaving.notices(seed),
            *elastic.orders(seed),
        ),
        own_nodes=rng.random() < 0.3,
    )


def simulate(case: Case, *, trace: bool = False) -> Result:
    """Drive a case to its end."""
    return Driver(case, trace=trace).run()


class Driver:
    """Drives one case. `world` is where it stands."""

    def __init__(self, case: Case, *, trace: bool = False, pace: Pace | None = None) -> None:
        manifest = DLJobManifest.model_validate(case.manifest)
        made = plan(manifest)
        self.world = World(made, manifest.spec, would_be_nodes(made), own_nodes=case.own_nodes)
        self.case = case
        self.pace = pace or Pace()
        self.rng = faults.chance(f"delays {case.seed}")
        self.agenda: list[tuple[float, int, Move]] = []
        self.given = 0
        self.order = 0
        self.trace: list[str] | None = [] if trace else None
        self.swept = 0
        self.most = MOST_EVENTS + 100 * len(self.world.begin.ranks)
        for timed in case.faults:
            self._at(EPOCH_S + timed.at, timed.fault)

    def run(self) -> Result:
        """Everything that goes wrong, then peace, until the job is over."""
        w = self.world
        self._schedule()
        calm = max((t.at for t in self.case.faults), default=0.0)
        self._until(EPOCH_S + max(calm, self.pace.whole) + 1.0)
        self._mend()
        jumps = sum(abs(t.fault.value) for t in self.case.faults if t.fault.kind == "clock")
        self._until(w.now + PATIENCE_S + 2 * jumps)
        problems = [*w.problems, *laws.sweep(w), *laws.replayed(w, written=not self.pace.whole)]
        if w.finished is None and not w.problems:
            problems.append(f"no end: {w.known.phase} after {w.now - EPOCH_S:.0f} s; {w.known.search.why}")
        elif w.finished is not None:
            problems += laws.left_behind(w)
        verdict = w.known.verdict
        return Result(
            seed=self.case.seed,
            problems=tuple(dict.fromkeys(problems)),
            phase=w.known.phase.value,
            reason=verdict.reason if verdict else "",
            events=w.events,
            seconds=(w.known.ended_at or w.now) - EPOCH_S,
            restarts=dict(sorted(w.known.restarts.items())),
            trace=self.trace or [],
            world=w,
        )

    def _until(self, end: float) -> None:
        """Make the next move, again and again, until a time, the end of the job, or a broken law."""
        w = self.world
        while w.finished is None and not w.problems and w.events < self.most:
            wake = w.wake_at()
            due = self.agenda[0][0] if self.agenda else None
            if wake is not None and (due is None or wake < due):
                if wake > end:
                    break
                self._make(Wake())
                continue
            if due is None or due > end:
                break
            at, _, move = heappop(self.agenda)
            if isinstance(move, Happen) and move.number not in w.pending:
                continue
            w.now = max(w.now, at)
            self._make(self._together(move))
        w.now = max(w.now, min(end, w.now) if w.finished or w.problems else end)

    def _together(self, move: Move) -> Move:
        """Events that arrive shortly after one another may be one batch."""
        w = self.world
        if not isinstance(move, Happen) or move.number not in w.arriving or self.rng.random() > BATCHED:
            return move
        there = (number for number in w.arriving if number != move.number and w.pending[number].least <= w.now)
        return Happen(move.number, tuple(islice(there, self.rng.randint(0, 3))))

    def _make(self, move: Move) -> None:
        w = self.world
        if self.trace is not None:
            self.trace.append(_line(w, move))
        w.apply(move)
        self._schedule()
        if w.events - self.swept >= SWEEP_EVERY:
            self.swept = w.events
            w.problems.extend(laws.sweep(w))
        elif not w.arriving and len(w.begin.ranks) <= FEW_RANKS:
            w.problems.extend(spare_laws.at_rest(w))

    def _schedule(self) -> None:
        """Say when what is newly on its way happens."""
        w = self.world
        while self.given < w.serial:
            self.given += 1
            pending = w.pending.get(self.given)
            if pending is not None:
                self._at(max(w.now, pending.least) + self._delay(pending.item), Happen(self.given))

    def _at(self, when: float, move: Move) -> None:
        self.order += 1
        heappush(self.agenda, (when, self.order, move))

    def _delay(self, item: Item) -> float:
        span = self.pace.work if isinstance(item, Done) else _SECONDS.get(type(item))
        if span is None:
            return 0.0
        rng = self.rng
        low, high = span
        wait = low + (high - low) * rng.random() ** 2
        if isinstance(item, Carry) and isinstance(item.action, Reserve):
            wait += rng.random() * (10.0 if rng.random() < 0.1 else 0.5)
        elif isinstance(item, Arrive | Carry) and rng.random() < LATE:
            wait += rng.random() * 8.0
        return wait

    def _mend(self) -> None:
        """Nothing goes wrong any more: clocks are right, and there are as many machines as the plan has."""
        w = self.world
        w.offset, w.refusing, w.doomed = 0.0, 0, None
        lacking = {group.name: group.replicas for group in w.job.plan.node_groups.values()}
        for node in w.nodes.values():
            group = dict(node.view.labels).get("dljob.io/node-group", "")
            if node.silence is Silence.NONE and node.view.leaving is None and group in lacking:
                lacking[group] -= 1
        for pick, name in enumerate(sorted(lacking)):
            for _ in range(max(0, lacking[name])):
                self._make(Fault("join", pick))


def _line(w: World, move: Move) -> str:
    what: object = move
    if isinstance(move, Happen):
        what = "; ".join(str(w.pending[number].item) for number in (move.number, *move.more))
    return f"{w.now - EPOCH_S:12.3f} {what}"


def without(case: Case, gone: frozenset[int]) -> Case:
    """A case without some of its faults."""
    return replace(case, faults=tuple(t for i, t in enumerate(case.faults) if i not in gone))


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The fewest faults with which a case still fails."""
    return replace(case, faults=fewest(case.faults, lambda tried: fails(replace(case, faults=tried))))
