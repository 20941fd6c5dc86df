"""Driver of a world through a case under virtual time; the seed determines all delays and faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import islice
from typing import Any

from dljob.master.start.assign import would_be_nodes
from dljob.master.state.actions import Reserve
from dljob.plan.plan import plan
from dljob.spec.model import DLJobManifest
from dljob.testing.simulate.shrink import fewest
from dljob.testing.world import (
    checks,
    elastic,
    fault_schedule,
    fleets,
    invariants,
    jobs,
    leaving,
    server_invariants,
    servers,
    spare_invariants,
)
from dljob.testing.world.fault_schedule import Timed
from dljob.testing.world.model import (
    Arrive,
    AskIfKnown,
    Boot,
    Carry,
    Depart,
    Done,
    Drained,
    FaultMove,
    Happen,
    Item,
    Move,
    PollNodes,
    SetUp,
    Silence,
    Up,
    Wake,
)
from dljob.testing.world.state import EPOCH_S
from dljob.testing.world.world import World

HORIZON_S = 400.0
"""Seconds from the beginning within which faults occur."""
PATIENCE_S = 6 * 3600.0
"""Seconds after the last fault within which a job must end."""
SWEEP_EVERY = 1000
"""Fewest events between two checks of all invariants."""
RANKS_AN_EVENT = 4
"""A check looks at every rank: in larger jobs there is an event between two of them for so many ranks."""
KEPT_EVENTS = 25_000
"""Events of the journal that are kept: then they are replayed, and dropped."""
FEW_RANKS = 64
"""Up to this number of ranks the invariants of spares and servers are checked after every move."""
MOST_EVENTS = 200_000
_SECONDS: Mapping[type, tuple[float, float]] = {
    Arrive: (0.001, 0.05),
    Carry: (0.001, 0.05),
    Up: (0.05, 2.0),
    SetUp: (0.01, 3.0),
    PollNodes: (0.05, 1.0),
    Boot: (0.2, 5.0),
    AskIfKnown: (0.0, 1.0),
}
"""Kind of item -> shortest and longest delay in seconds."""
BATCHED = 0.3
"""Probability that events pending at the same time arrive in one batch."""
LATE = 0.04
"""Probability that an event or an action is late, by up to 8 seconds."""


@dataclass(frozen=True, slots=True)
class Case:
    """A job, its faults, and the seed of all random choices."""

    seed: int
    manifest: Mapping[str, Any]
    faults: tuple[Timed, ...]
    own_nodes: bool = False


@dataclass(frozen=True, slots=True)
class Durations:
    """Shortest and longest run of user code in seconds, and the earliest end of the phase with faults (`total`)."""

    work: tuple[float, float] = (20.0, 800.0)
    total: float = 0.0
    resumes: bool = False
    """Whether user code that starts again goes on where it was: it ends with the job, not as long after it."""


@dataclass(slots=True)
class Result:
    """Result of a case. `problems` are the broken invariants; `trace` has one line for each move."""

    seed: int
    problems: tuple[str, ...]
    phase: str
    reason: str
    events: int
    seconds: float
    """Virtual seconds to the end of the job."""
    restarts: Mapping[str, int]
    trace: list[str] = field(default_factory=list[str])
    world: World | None = None


def case_of(seed: int, manifest: Mapping[str, Any] | None = None) -> Case:
    """Return the case of a seed: its faults, and a small random job where no manifest is given."""
    rng = fault_schedule.chance(f"case {seed}")
    case_manifest = manifest
    if case_manifest is None:
        # Each feature draws from a random source of its own, so that older choices of a seed stay as they were.
        case_manifest = jobs.with_spares(seed, checks.asked_for(seed, jobs.with_coupling(seed, jobs.small(rng))))
        case_manifest = servers.with_servers(seed, elastic.with_bounds(seed, case_manifest))
    return Case(
        seed,
        case_manifest,
        (
            *fault_schedule.draw(rng, rng.choice((3, 8, 20, 40)), rng.choice((30.0, HORIZON_S))),
            *checks.bad_nodes(seed, case_manifest),
            *leaving.notices(seed),
            *elastic.orders(seed),
            *(servers.troubles(seed, case_manifest) if manifest is None else ()),
            *fleets.loads(seed),
        ),
        own_nodes=rng.random() < 0.3,
    )


def simulate(case: Case, *, trace: bool = False) -> Result:
    """Drive a case to its end."""
    return Driver(case, trace=trace).run()


class Driver:
    """Driver of one case. `world` is its current state."""

    def __init__(self, case: Case, *, trace: bool = False, pace: Durations | None = None) -> None:
        manifest = DLJobManifest.model_validate(case.manifest)
        job_plan = plan(manifest)
        self.world = World(job_plan, manifest.spec, would_be_nodes(job_plan), own_nodes=case.own_nodes)
        self.case = case
        self.pace = pace or Durations()
        self.rng = fault_schedule.chance(f"delays {case.seed}")
        self.agenda: list[tuple[float, int, Move]] = []
        self.given = 0
        self.order = 0
        self.trace: list[str] | None = [] if trace else None
        self.swept = 0
        self.sweep_every = max(SWEEP_EVERY, len(self.world.begin.ranks) // RANKS_AN_EVENT)
        # A case with more events than that is in a loop.
        self.most = MOST_EVENTS + 100 * len(self.world.begin.ranks)
        for timed in case.faults:
            self._at(EPOCH_S + timed.at, timed.fault)

    def run(self) -> Result:
        """Run the phase with faults, then one without, until the job has ended."""
        w = self.world
        self._schedule()
        calm = max((t.at for t in self.case.faults), default=0.0)
        self._until(EPOCH_S + max(calm, self.pace.total) + 1.0)
        # Without faults every job must end, which shows that no decision is stuck.
        self._mend()
        # Jumps of the clock move PrimeMaster's timers, so the time limit grows with them.
        jumps = sum(abs(t.fault.value) for t in self.case.faults if t.fault.kind == "clock")
        self._until(w.now + PATIENCE_S + 2 * jumps)
        problems = [*w.problems, *invariants.sweep(w), *invariants.replayed(w, written=not self.pace.total)]
        # Another broken invariant would explain why the job does not end.
        if w.finished is None and not w.problems:
            problems.append(f"no end: {w.known.phase} after {w.now - EPOCH_S:.0f} s; {w.known.search.no_room_reason}")
        elif w.finished is not None:
            problems += invariants.left_behind(w)
        verdict = w.known.verdict
        return Result(
            seed=self.case.seed,
            problems=tuple(dict.fromkeys(problems)),
            phase=w.known.phase.value,
            reason=verdict.reason if verdict else "",
            events=w.events,
            seconds=self._ended_at() - EPOCH_S,
            restarts=dict(sorted(w.known.restarts.items())),
            trace=self.trace or [],
            world=w,
        )

    def _ended_at(self) -> float:
        """Return the virtual time of the job's end; PrimeMaster's own may be of a clock that was set back."""
        w = self.world
        at = w.now if w.known.ended_at is None else w.known.ended_at - w.ahead
        return at if EPOCH_S <= at <= w.now else w.now

    def _until(self, end: float) -> None:
        """Make moves in the order of their times until a time, the end of the job, or a broken invariant."""
        w = self.world
        while w.finished is None and not w.problems and w.events < self.most:
            wake = w.wake_at()
            next_due = self.agenda[0][0] if self.agenda else None
            # At the same moment pending items come before the timer.
            if wake is not None and (next_due is None or wake < next_due):
                if wake > end:
                    break
                self._make(Wake())
                continue
            if next_due is None or next_due > end:
                break
            at, _, move = heappop(self.agenda)
            # Cancelled meanwhile, lost with PrimeMaster, or taken into an earlier batch.
            if isinstance(move, Happen) and move.number not in w.pending:
                continue
            # Time never goes back: the item may have been due before the last move.
            w.now = max(w.now, at)
            self._make(self._together(move))
        w.now = max(w.now, min(end, w.now) if w.finished or w.problems else end)

    def _together(self, move: Move) -> Move:
        """Join some arrivals that are due at the same time to one batch, as the master loop does."""
        w = self.world
        if not isinstance(move, Happen) or move.number not in w.arriving or self.rng.random() > BATCHED:
            return move
        due_numbers = (number for number in w.arriving if number != move.number and w.pending[number].least <= w.now)
        return Happen(move.number, tuple(islice(due_numbers, self.rng.randint(0, 3))))

    def _make(self, move: Move) -> None:
        w = self.world
        if self.trace is not None:
            self.trace.append(_line(w, move))
        w.apply(move)
        self._schedule()
        # A check of everything costs as much as hundreds of moves.
        if w.events - self.swept >= self.sweep_every:
            self.swept = w.events
            w.problems.extend(invariants.sweep(w))
            if len(w.journal) - w.base_at >= KEPT_EVENTS:
                self._snapshot()
        elif not w.arriving and len(w.begin.ranks) <= FEW_RANKS:
            w.problems.extend(spare_invariants.at_rest(w))
            if w.serving and w.state is not None:
                w.problems.extend(server_invariants.at_rest(w, w.state))

    def _snapshot(self) -> None:
        """Replay the journal, and drop it: the next replay begins at the present state.

        Each snapshot of the nodes is an event, so that the journal of weeks on thousands of them would fill the memory.
        """
        w = self.world
        w.problems.extend(invariants.replayed(w, written=not self.pace.total))
        w.base, w.base_at = w.known, 0
        w.journal.clear()

    def _schedule(self) -> None:
        """Assign a time to each new pending item."""
        w = self.world
        while self.given < w.serial:
            self.given += 1
            # Items that took effect or were cancelled within the same move need no time.
            pending = w.pending.get(self.given)
            if pending is not None:
                self._at(max(w.now, pending.least) + self._delay(pending.item), Happen(self.given))

    def _at(self, when: float, move: Move) -> None:
        self.order += 1
        heappush(self.agenda, (when, self.order, move))

    def _delay(self, item: Item) -> float:
        span = self._work() if isinstance(item, Done) else _SECONDS.get(type(item))
        if isinstance(item, Drained):
            span = (0.0, self.world.job.roles[item.running.role].plan.drain_s)
        if span is None:
            # All other kinds are punctual.
            return 0.0
        rng = self.rng
        low, high = span
        # Squared: short delays are more likely, long ones possible.
        wait = low + (high - low) * rng.random() ** 2
        # Ray may take long to find room for a reservation.
        if isinstance(item, Carry) and isinstance(item.action, Reserve):
            wait += rng.random() * (10.0 if rng.random() < 0.1 else 0.5)
        elif isinstance(item, Arrive | Carry) and rng.random() < LATE:
            wait += rng.random() * 8.0
        return wait

    def _work(self) -> tuple[float, float]:
        """Return the shortest and longest time that user code takes from now on."""
        elapsed = min(self.world.now - EPOCH_S, self.pace.total) if self.pace.resumes else 0.0
        return self.pace.work[0] - elapsed, self.pace.work[1] - elapsed

    def _mend(self) -> None:
        """End the faults: correct the clocks, and add machines up to the number in the plan.

        Machines that are announced to go do not count: KubeRay replaces a pod that was evicted or deleted
        (`reconcilePods` of its RayCluster controller).
        """
        w = self.world
        w.offset, w.refusing, w.doomed = 0.0, 0, None
        lacking = {group.name: group.replicas for group in w.job.plan.node_groups.values()}
        going = {p.item.node for p in w.pending.values() if isinstance(p.item, Depart)}
        # Only machines that stay count.
        for node in w.nodes.values():
            group = dict(node.view.labels).get("dljob.io/node-group", "")
            stays = node.silence is Silence.NONE and node.view.leaving is None and node.view.id not in going
            if stays and group in lacking:
                lacking[group] -= 1
        for pick, name in enumerate(sorted(lacking)):
            for _ in range(max(0, lacking[name])):
                self._make(FaultMove("join", pick))


def _line(w: World, move: Move) -> str:
    described: object = move
    if isinstance(move, Happen):
        described = "; ".join(str(w.pending[number].item) for number in (move.number, *move.more))
    return f"{w.now - EPOCH_S:12.3f} {described}"


def without(case: Case, removed: frozenset[int]) -> Case:
    """Return a case without some of its faults."""
    return replace(case, faults=tuple(t for i, t in enumerate(case.faults) if i not in removed))


def shrink(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Return the case with a minimal set of faults that still fails."""
    return replace(case, faults=fewest(case.faults, lambda tried: fails(replace(case, faults=tried))))
