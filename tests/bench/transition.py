"""Events per second through the core, and what an event costs at 10,000 ranks against 16. Prints one line of JSON.

Two mixes, both without journal and without Ray. `life`: a job from its first held unit to its end, with one failure per
ten ranks. `failures`: nothing but failures, each HostLost, HostReady, RankReady: the dearest events there are. Medians
of several runs, the sizes in alternation, so that a busy machine hurts both alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

from dljob.master.actions import Reserve
from dljob.master.assign import would_be_nodes
from dljob.master.events import Event, HostLost, HostReady, NodesSeen, RankEnded, RankReady, Released, UnitReserved
from dljob.master.state import JobState, Phase
from dljob.master.transition import initial, next_wake, transition
from dljob.master.views import HostId, Outcome, Reason
from dljob.plan.plan import plan
from dljob.spec.model import DLJobManifest

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


def figures(pairs: list[tuple[float, float]], large: int) -> dict[str, float]:
    """Medians of both sizes, and the median of their ratios."""
    small_s, large_s = (statistics.median(values) for values in zip(*pairs, strict=True))
    return {
        "events_per_second_at_16": round(1 / small_s),
        f"events_per_second_at_{large}": round(1 / large_s),
        "us_per_event_at_16": round(small_s * 1e6, 2),
        f"us_per_event_at_{large}": round(large_s * 1e6, 2),
        "ratio": round(statistics.median(big / little for little, big in pairs), 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    small, large = running(16), running(args.large)
    lives = [(of_life(16), of_life(args.large)) for _ in range(args.repeat)]
    failures = [(of_failures(small, args.rounds), of_failures(large, args.rounds)) for _ in range(args.repeat)]
    result = {
        "what": "transition",
        "life": figures(lives, args.large),
        "failures": figures(failures, args.large),
        "repeat": args.repeat,
        "target": {"events_per_second": 20000, "ratio": 2.0},
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
