"""Events per second through the core, and what an event costs at 10,000 ranks against 16.

Two mixes, both without journal and without Ray. `life`: a job from its first held unit to its end, with one failure per
ten ranks. `failures`: nothing but failures, each HostLost, HostReady, RankReady: the most expensive events. Medians
of several runs, the sizes in alternation, so that a busy machine hurts both alike.

`transition.py gang [RANKS]`: the death of one rank of one torch world, after which all its ranks start again, as
PrimeMaster takes it: folded in batches, each written as the journal has it.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, runs

from dljob.master.start.assign import would_be_nodes
from dljob.master.state.actions import Action, Reserve, SpawnHost, StartRanks
from dljob.master.state.events import (
    Event,
    HostLost,
    HostReady,
    NodesSeen,
    RankEnded,
    RankReady,
    Released,
    Tick,
    UnitReserved,
)
from dljob.master.state.state import JobState, Phase
from dljob.master.state.views import HostId, Outcome, Reason
from dljob.master.transition import initial, next_wake, transition
from dljob.plan.plan import plan
from dljob.runtime.controller.decisions import fold as fold_batch
from dljob.runtime.controller.master_loop import BATCH, BATCHES
from dljob.runtime.controller.prime_actor import COLLECT
from dljob.spec.model import DLJobManifest
from dljob.telemetry.records import encode_line

GANG = 80_000
LARGE = 10_000
ROUNDS = 1000
"""Failures of a run that has nothing else."""
DONE = Outcome(ok=True)
KILLED = Outcome(ok=False, reason=Reason.UNKNOWN)


def admitted(ranks: int) -> tuple[JobState, list[Event]]:
    """A job of so many actor ranks whose units are being reserved, and the answers to that."""
    role = {"name": "w", "replicas": ranks, "entrypoint": {"class": "a.B"}, "restartPolicy": {"maxRestarts": 100000}}
    tolerance = {"windowSeconds": 1, "maxRestarts": 100000}
    spec = {"roles": [role], "faultTolerance": tolerance}
    manifest = DLJobManifest.model_validate({"metadata": {"name": "bench"}, "spec": spec})
    made = plan(manifest)
    state = initial(made, manifest.spec, "b" * 32, 0.0)
    step = transition(state, NodesSeen(would_be_nodes(made)), 0.0)
    answers = [UnitReserved(a.unit, a.token, a.node) for a in step.actions if isinstance(a, Reserve)]
    return step.state, list[Event](answers)


def life(ranks: int) -> tuple[JobState, list[tuple[Event, float]]]:
    """A job from its first held unit to its end."""
    state, out = admitted(ranks)
    for rank in range(ranks):
        out.append(HostReady(HostId("w", rank), 1, "n", 1, f"w/{rank}/1"))
    out.extend(RankReady("w", rank, 1, 1) for rank in range(ranks))
    failing = range(0, ranks, 10)
    for rank in failing:
        out.append(HostLost(HostId("w", rank), 1, KILLED))
        out.append(HostReady(HostId("w", rank), 2, "n", 2, f"w/{rank}/2"))
        out.append(RankReady("w", rank, 2, 2))
    out.extend(RankEnded("w", rank, 2 if rank in failing else 1, DONE) for rank in range(ranks))
    return state, [(event, 10.0 * i) for i, event in enumerate([*out, Released()])]


def running(ranks: int) -> JobState:
    """A job of so many actor ranks, all ready."""
    state, todo = life(ranks)
    for event, _ in todo[: 3 * ranks]:
        state = transition(state, event, 0.0).state
    return state


def events(state: JobState, rounds: int) -> list[tuple[Event, float]]:
    """Failures of ranks all over the role, one every ten seconds, and their recoveries."""
    ranks = len(state.ranks)
    lives: dict[int, int] = {}
    out: list[tuple[Event, float]] = []
    for i in range(rounds):
        rank, now = i * 7919 % ranks, 100.0 + 10 * i
        life = lives.get(rank, 1)
        lives[rank] = life + 1
        host = HostId("w", rank)
        out.append((HostLost(host, life, KILLED), now))
        out.append((HostReady(host, life + 1, "n", 2, f"w/{rank}/{life + 1}"), now + 1))
        out.append((RankReady("w", rank, life + 1, 2), now + 2))
    return out


def fold(state: JobState, todo: list[tuple[Event, float]]) -> tuple[float, JobState]:
    """Seconds per event, and where it led."""
    begin = time.perf_counter()
    for event, now in todo:
        state = transition(state, event, now).state
        next_wake(state)
    return (time.perf_counter() - begin) / len(todo), state


def of_life(ranks: int) -> float:
    """Seconds per event of a job's life; small jobs live several times."""
    state, todo = life(ranks)
    times = [fold(state, todo) for _ in range(max(1, 2000 // ranks))]
    if any(end.phase is not Phase.SUCCEEDED or end.restarts["Process"] < ranks // 10 for _, end in times):
        raise SystemExit("the benchmark did not do what it says")
    return statistics.median(seconds for seconds, _ in times)


def of_failures(state: JobState, rounds: int) -> float:
    """Seconds per event when there are only failures."""
    seconds, end = fold(state, events(state, rounds))
    if end.restarts["Process"] != rounds or end.roles["w"].ready_count != len(state.ranks):
        raise SystemExit("the benchmark did not do what it says")
    return seconds


def rate(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Events per second at both sizes, medians."""
    small, large = (statistics.median(values) for values in zip(*pairs, strict=True))
    return 1 / small, 1 / large


def ratio(pairs: list[tuple[float, float]]) -> float:
    """What an event costs at the large size against the small one: the median of the ratios."""
    return statistics.median(large / small for small, large in pairs)


def answers(actions: Iterable[Action]) -> list[Event]:
    """What units, hosts and ranks say to what is ordered of them."""
    out: list[Event] = []
    for action in actions:
        match action:
            case Reserve():
                out.append(UnitReserved(action.unit, action.token, action.node))
            case SpawnHost():
                actor = f"{action.host}/{action.incarnation}"
                out.append(HostReady(action.host, action.incarnation, "n", 1, actor, address="a"))
            case StartRanks():
                out.extend(RankReady(action.host.role, own.rank, own.incarnation, 1) for own in action.ranks)
            case _:
                pass
    return out


def world(ranks: int) -> JobState:
    """A job of one torch world of so many ranks, all ready."""
    role = {"name": "w", "type": "Elastic", "replicas": ranks, "entrypoint": {"class": "a.B"}}
    spec = {"roles": [{**role, "restartPolicy": {"maxRestarts": 100000}}]}
    manifest = DLJobManifest.model_validate({"metadata": {"name": "bench"}, "spec": spec})
    made = plan(manifest)
    state = initial(made, manifest.spec, "b" * 32, 0.0)
    todo: list[Event] = [NodesSeen(would_be_nodes(made))]
    while todo:
        actions: list[Action] = []
        for event in todo:
            step = transition(state, event, 0.0)
            state = step.state
            actions.extend(step.actions)
        todo = answers(actions)
    if state.phase is not Phase.RUNNING:
        raise SystemExit("the world did not start")
    return state


def incident(state: JobState) -> tuple[JobState, float]:
    """The world after a rank of it died and all have started again, and the CPU seconds of the longest batch."""
    first = HostId("w", 1)
    todo: list[Event] = [HostLost(first, state.hosts[first].incarnation, KILLED)]
    now, most, longest = state.started_at + 1000.0, max(BATCH, len(state.ranks) // BATCHES), 0.0
    while todo:
        actions: list[Action] = []
        for start in range(0, len(todo), most):
            begin = time.process_time()
            done = fold_batch(state, todo[start : start + most], now)
            for number, record in enumerate(done.records):
                encode_line(number, record)
            longest = max(longest, time.process_time() - begin)
            state = done.state
            actions.extend(done.actions)
        todo = answers(actions)
        wake = next_wake(state)
        if not todo and state.phase is Phase.RECOVERING and wake is not None:
            todo.append(Tick())
            now = max(now, wake)
    return state, longest


def gang(ranks: int) -> None:
    """The row of one world of so many ranks."""
    gc.set_threshold(*COLLECT)
    state = world(ranks)
    begin = time.process_time()
    after, longest = incident(state)
    took = time.process_time() - begin
    if after.phase is not Phase.RUNNING or after.roles["w"].generation != 2:
        raise SystemExit("the benchmark did not do what it says")
    Row(
        f"gang-{ranks}",
        f"one rank of a torch world of {ranks:,} dies: PrimeMaster's CPU until all are ready, records included",
        "<= 400 us a rank",
        took,
        4e-4 * ranks,
        note=f"{1e6 * took / ranks:.0f} us a rank; the longest batch takes {longest:.2f} s, in a thread",
    ).emit()


def main() -> None:
    """Two rows of the table."""
    if "gang" in sys.argv:
        gang(int(sys.argv[2]) if sys.argv[2:] else GANG)
        return
    small, large = running(16), running(LARGE)
    lives = [(of_life(16), of_life(LARGE)) for _ in range(runs())]
    failures = [(of_failures(small, ROUNDS), of_failures(large, ROUNDS)) for _ in range(runs())]
    at_16, at_large = rate(lives)
    worst = " and ".join(f"{value:,.0f}" for value in rate(failures))
    Row(
        "transition-rate",
        f"transition: events of a job's life, at 16 and at {LARGE:,} ranks (the slower counts)",
        ">= 20,000 events/s without journal",
        min(at_16, at_large),
        20_000,
        unit="events/s",
        at_least=True,
        samples={"16": [1 / s for s, _ in lives], f"{LARGE}": [1 / s for _, s in lives]},
        note=f"failures only, the most expensive events: {worst} events/s",
    ).emit()
    Row(
        "transition-growth",
        f"cost per event at {LARGE:,} ranks against 16",
        "<= 2 x",
        max(ratio(lives), ratio(failures)),
        2.0,
        unit="x",
        samples={"life": [b / a for a, b in lives], "failures": [b / a for a, b in failures]},
    ).emit()


if __name__ == "__main__":
    main()
