"""Events per second through the core, and what an event costs at 10,000 ranks against 16.

Two mixes, both without journal and without Ray. `life`: a job from its first held unit to its end, with one failure per
ten ranks. `failures`: nothing but failures, each HostLost, HostReady, RankReady: the dearest events there are. Medians
of several runs, the sizes in alternation, so that a busy machine hurts both alike.
"""

from __future__ import annotations

import statistics
import time

from bench_common import Row, runs

from dljob.master.actions import Reserve
from dljob.master.assign import would_be_nodes
from dljob.master.events import Event, HostLost, HostReady, NodesSeen, RankEnded, RankReady, Released, UnitReserved
from dljob.master.state import JobState, Phase
from dljob.master.transition import initial, next_wake, transition
from dljob.master.views import HostId, Outcome, Reason
from dljob.plan.plan import plan
from dljob.spec.model import DLJobManifest

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
    if end.restarts["Process"] != rounds or end.roles["w"].ready != len(state.ranks):
        raise SystemExit("the benchmark did not do what it says")
    return seconds


def rate(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Events per second at both sizes, medians."""
    small, large = (statistics.median(values) for values in zip(*pairs, strict=True))
    return 1 / small, 1 / large


def ratio(pairs: list[tuple[float, float]]) -> float:
    """What an event costs at the large size against the small one: the median of the ratios."""
    return statistics.median(large / small for small, large in pairs)


def main() -> None:
    """Two rows of the table."""
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
        note=f"failures only, the dearest events there are: {worst} events/s",
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
