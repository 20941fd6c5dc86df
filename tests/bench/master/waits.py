"""What the wait graph costs: PrimeMaster's share of a core at 1,000 ranks, a wait's begin and end, and its memory.

Three jobs of 1,000 ranks, without Ray: all wait for one call; all but one are in a collective; each makes calls of some
seconds, so that each report is a new one at each look. The share is the CPU time of taking the reports and looking at
the graph, by the pause between two looks; rows have the dearest of the three.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
import transition as states
from bench_common import Row, runs

from dljob.master.state import events as ev
from dljob.master.state.evolve import evolve
from dljob.master.state.state import JobState
from dljob.runtime.controller.heartbeat_log import HeartbeatLog
from dljob.runtime.controller.prime_actor import COLLECT
from dljob.runtime.controller.stall_watch import EVERY_S, StallWatch
from dljob.runtime.process.activities import Waiting
from dljob.runtime.process.messages import Heartbeat
from dljob.tasks import TaskOwner

RANKS, LOOKS = 1000, 10
PAIRS, OPEN = 1_000_000, 20_000
AGE_S = 100.0
NONE = [0, 0.0, 0.0]
Reports = Callable[[int, int], "list[Any]"]
"""(rank, number of the look) -> the activities that it reports."""


def for_one_call(rank: int, _look: int) -> list[Any]:
    """Return a wait for rank 0, which runs the calls of all."""
    if rank:
        wait = ["call", "w/0", "score", -AGE_S, [9, 0.1, 0.5], [["w", 0, f"w/{rank}:1:7"]]]
        return [["main", "main", "", "", 0.0, -AGE_S, "t.py:9 in run", [wait], [*NONE, 0.0]]]
    calls = [f"w/{caller}:1:7" for caller in range(1, 33)]
    return [[call, "call", "score", "", -AGE_S, -AGE_S, "h.py:9 in score", [], [*NONE, 0.0]] for call in calls]


def for_a_collective(rank: int, _look: int) -> list[Any]:
    """Return a wait in all_reduce, of all but rank 0."""
    wait = ["group", "default_pg", "all_reduce", -AGE_S, [9, 0.1, 0.5], [], [[0, RANKS, 1]]]
    return [["main", "main", "", "", 0.0, -AGE_S, "t.py:9 in run", [wait] if rank else [], [*NONE, 0.0]]]


def with_each_other(rank: int, look: int) -> list[Any]:
    """Return a wait for the next rank, and a call that runs: other ones at each look."""
    now = EVERY_S * look
    target, own = (rank + 1) % RANKS, f"w/{(rank - 1) % RANKS}:1:{look}"
    wait = ["call", f"w/{target}", "score", now - 4, [look, 4.0, 5.0], [["w", target, f"w/{rank}:1:{look}"]]]
    return [
        ["main", "main", "", "", 0.0, now - 4, "t.py:9 in run", [wait], [*NONE, 0.0]],
        [own, "call", "score", "", now - 4, now - 4, "h.py:9 in score", [], [*NONE, 0.0]],
    ]


async def share(reports: Reports) -> tuple[float, float]:
    """Return the percentage of a core that the reports of a job and the looks at them take, and the pause (s)."""
    state, heartbeats, clock = states.running(RANKS), HeartbeatLog(), 1000.0

    async def offer(event: Any) -> None:
        nonlocal state
        if isinstance(event, ev.StallsFound):
            state = evolve(state, stalls=event.stalls)

    def present() -> JobState:
        return state

    setup: Any = type("Folder", (), {"folder": Path()})
    owner = TaskOwner(lambda _: None)
    watch = StallWatch(setup, None, offer, present, heartbeats, owner=owner, now=lambda: clock)  # pyright: ignore[reportArgumentType]
    hosts = [(rank, state.hosts[state.job.roles["w"].host_of(rank)].actor) for rank in range(RANKS)]
    written: dict[int, str] = {}
    shares, pauses = list[float](), list[float]()
    for look in range(LOOKS):
        beats: list[Heartbeat] = []
        for rank, actor in hosts:
            text = json.dumps({"rows": reports(rank, look), "more": 0, "finished": 7, "idle": -AGE_S})
            news = {rank: (1, EVERY_S * look, text)} if written.get(rank) != text else {}
            written[rank] = text
            beats.append(Heartbeat("w", actor, 1, activities=news))
        begin = time.process_time()
        for beat in beats:
            tuple(heartbeats.record(state, beat, clock))
        await watch.turn()
        shares.append(100 * (time.process_time() - begin) / watch.pause_s)
        pauses.append(watch.pause_s)
        clock += EVERY_S
    # The first look parses all reports at once, which a job's start spreads.
    return statistics.mean(shares[1:]), statistics.mean(pauses[1:])


def pair_us() -> float:
    """Return the microseconds of CPU of a wait's begin and end."""
    begin = time.process_time()
    for _ in range(PAIRS):
        with Waiting("call", "reward", "score", tuple):
            pass
    spent = time.process_time() - begin
    begin = time.process_time()
    for _ in range(PAIRS):
        pass
    return (spent - (time.process_time() - begin)) / PAIRS * 1e6


def bytes_of_a_wait() -> float:
    """Return the bytes that a call takes while it is waited for."""
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    begun = [Waiting("call", "reward", "score", tuple) for _ in range(OPEN)]
    for wait in begun:
        wait.__enter__()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    for wait in begun:
        wait.__exit__(None, None, None)
    return used / OPEN


def main() -> None:
    """Three rows."""
    gc.set_threshold(*COLLECT)
    jobs = {"one call": for_one_call, "a collective": for_a_collective, "calls of 4 s": with_each_other}
    found = {name: [asyncio.run(share(reports)) for _ in range(runs(5))] for name, reports in jobs.items()}
    shares = {name: [percent for percent, _ in pairs] for name, pairs in found.items()}
    dearest = max(statistics.median(percents) for percents in shares.values())
    pause = max(statistics.median([pause for _, pause in pairs]) for pairs in found.values())
    what = f"wait graph of {RANKS:,} ranks that all wait: PrimeMaster's share"
    facts = {"s between two looks": round(pause, 1)}
    Row("waits-share", what, "<= 2 % of a core", dearest, 2.0, unit="% of a core", samples=shares, facts=facts).emit()
    pairs = [pair_us() for _ in range(runs(5))]
    what = f"begin and end of a wait, over {PAIRS:,} pairs"
    Row("waits-pair", what, "<= 1 us of CPU", statistics.median(pairs), 1.0, unit="us", samples={"pair": pairs}).emit()
    Row("waits-bytes", "a waiting call", "<= 200 bytes", bytes_of_a_wait(), 200.0, unit="bytes").emit()


if __name__ == "__main__":
    main()
