"""Guard the deterministic costs: fail when one is more than 25 % over its accepted value in guard.json.

    python tests/bench/guard.py [row ...]

CPU time is measured as a ratio to a calibration loop that alternates with it, so that neither the machine's speed nor
its load matters; bytes and modules are counted as they are. A value in guard.json changes only in a commit that names
the row and the cause. `make bench` measures the same paths in seconds; the guard takes 10 s, which `make test` affords.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent / "master"))
import transition as bench

from dljob.master.start.assign import would_be_nodes
from dljob.master.state.actions import Reserve
from dljob.master.state.events import HostLost, NodesSeen, UnitReserved
from dljob.master.state.state import JobState
from dljob.master.state.views import HostId
from dljob.master.transition import initial, transition
from dljob.plan.plan import plan
from dljob.runtime.controller.heartbeat_log import HeartbeatLog
from dljob.runtime.controller.prime_actor import COLLECT
from dljob.runtime.process.activities import Waiting
from dljob.runtime.process.messages import Heartbeat, NodeHeartbeat
from dljob.spec.model import DLJobManifest

ACCEPTED = Path(__file__).with_suffix(".json")
SLACK = 1.25
"""A cost above this multiple of its accepted value fails."""
TURNS = 21
"""How many times work and calibration alternate; the median of their ratios counts."""
AGAIN = 4
"""How many times a row above its limit is measured again."""
SMALL, LARGE = 16, 2_000
DEATHS = 8
FEW, GANG = 100, 500
"""Ranks of one torch world, small and large."""
WAITS = 20_000
HOSTS, BEATS = 64, 8
"""Hosts in one node's heartbeat, and how many heartbeats are timed as one."""
ROOTS = {
    "modules of PrimeMaster": "dljob.runtime.controller.prime",
    "modules of a thread host": "dljob.runtime.worker.thread_host",
    "modules of the command": "dljob.cli.main",
    "modules of the operator": "dljob_operator.main",
}


def calibration() -> int:
    """Do work without any code of the product: tuples, text and a dict, which the core's work consists of, too."""
    table: dict[int, tuple[int, str]] = {}
    for number in range(20_000):
        table[number % 997] = (number, f"w/{number}")
    return len(table)


def cpu(work: Callable[[], object]) -> float:
    """Return the median ratio of the work's CPU time to that of the calibration loop."""
    ratios: list[float] = []
    for _ in range(TURNS):
        begin = time.process_time()
        calibration()
        between = time.process_time()
        work()
        ratios.append((time.process_time() - between) / (between - begin))
    return median(ratios)


def growth(small: Callable[[], object], large: Callable[[], object]) -> float:
    """Return the median ratio of the work's CPU time in a large job to that in a small one."""
    ratios: list[float] = []
    for _ in range(TURNS):
        begin = time.process_time()
        small()
        between = time.process_time()
        large()
        ratios.append((time.process_time() - between) / (between - begin))
    return median(ratios)


def allocated(work: Callable[[], object]) -> int:
    """Return the peak of bytes allocated by the work."""
    work()  # Fill the caches first.
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = work()
        _, peak = tracemalloc.get_traced_memory()
        del kept
        return peak - before
    finally:
        tracemalloc.stop()


def deaths(state: JobState) -> Callable[[], JobState]:
    """Return work that folds the deaths of a few ranks at once."""
    todo = [HostLost(HostId("w", rank), 1, bench.KILLED) for rank in range(DEATHS)]

    def work() -> JobState:
        now = state
        for event in todo:
            now = transition(now, event, 100.0).state
        return now

    return work


def lost_node(nodes: int) -> Callable[[], JobState]:
    """Return work that folds the loss of one of the nodes of a job that has a rank on each."""
    room = {"name": "g", "replicas": nodes + 1, "cpu": "1"}
    role = {"name": "w", "replicas": nodes, "entrypoint": {"class": "a.B"}, "resources": {"cpu": "1"}}
    spec = {"roles": [role], "nodeGroups": [room]}
    manifest = DLJobManifest.model_validate({"metadata": {"name": "bench"}, "spec": spec})
    made = plan(manifest)
    step = transition(initial(made, manifest.spec, "b" * 32, 0.0), NodesSeen(would_be_nodes(made)), 0.0)
    state = step.state
    for order in step.actions:
        if isinstance(order, Reserve):
            state = transition(state, UnitReserved(order.unit, order.token, order.node), 0.0).state
    # As Ray tells it: what holds a rank has nothing free.
    there = tuple(replace(node, free=()) if node.id in state.housed else node for node in state.nodes)
    state = transition(state, NodesSeen(there), 1.0).state
    gone = next(iter(state.housed))
    lost = NodesSeen(tuple(node for node in there if node.id != gone))
    return lambda: transition(state, lost, 100.0).state


def heartbeats(state: JobState) -> Callable[[], NodeHeartbeat]:
    """Return work that decodes and takes the heartbeat of one node, in which each host reports a step."""
    hosts = tuple(Heartbeat("w", f"w/{rank}/1", 1, {rank: (1, 7, {"loss": 0.5})}) for rank in range(HOSTS))
    data, evidence = NodeHeartbeat(1, 1, hosts).packed(), HeartbeatLog()

    def work() -> NodeHeartbeat:
        pulse = NodeHeartbeat.unpacked(data)
        for beacon in pulse.hosts:
            tuple(evidence.record(state, beacon, 1.0))
        return pulse

    return work


def waits() -> None:
    """Begin and end waits for another role's answer, as a rank does it."""
    for _ in range(WAITS):
        with Waiting("call", "reward", "score", tuple):
            pass


def open_waits() -> list[Waiting]:
    """Return waits that have begun; the caller ends them by dropping this process."""
    begun = [Waiting("call", "reward", "score", tuple) for _ in range(WAITS)]
    for wait in begun:
        wait.__enter__()
    return begun


def incidents(world: JobState, times: int = 1) -> Callable[[], None]:
    """Return work that folds a death in a world, with PrimeMaster's own thresholds of garbage collection.

    With those of Python a collection walks over whatever else this process holds, which is no cost of the death.
    """

    def work() -> None:
        before = gc.get_threshold()
        gc.set_threshold(*COLLECT)
        try:
            for _ in range(times):
                bench.incident(world)
        finally:
            gc.set_threshold(*before)

    return work


def modules(root: str) -> float:
    """Return how many modules a fresh interpreter has after one import."""
    code = f"import sys, {root}; print(len(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def measured(wanted: Sequence[str] = ()) -> dict[str, float]:
    """Return the value of each row, or of the wanted rows if any are named."""
    small, large = bench.running(SMALL), bench.running(LARGE)
    heard = heartbeats(large)
    few, gang = bench.world(FEW), bench.world(GANG)
    rows: dict[str, Callable[[], float]] = {
        "CPU of 8 deaths at 16 ranks": lambda: cpu(deaths(small)),
        "CPU of 8 deaths at 2,000 ranks": lambda: cpu(deaths(large)),
        "growth of a death from 16 to 2,000 ranks": lambda: growth(deaths(small), deaths(large)),
        "CPU of a death in a world of 500 ranks": lambda: cpu(incidents(gang)),
        "growth of a rank's share of it from 100 to 500": lambda: growth(incidents(few, GANG // FEW), incidents(gang)),
        "CPU of the loss of one of 2,000 nodes": lambda: cpu(lost_node(LARGE)),
        "CPU of 8 heartbeats of 64 hosts": lambda: cpu(lambda: [heard() for _ in range(BEATS)]),
        "CPU of 20,000 waits": lambda: cpu(waits),
        "bytes of a wait": lambda: allocated(open_waits) / WAITS,
        "bytes of 8 deaths at 2,000 ranks": lambda: float(allocated(deaths(large))),
        "bytes of a heartbeat of 64 hosts": lambda: float(allocated(heard)),
        "bytes of a rank at 2,000 ranks": lambda: allocated(lambda: bench.admitted(LARGE)) / LARGE,
        **{name: lambda root=root: modules(root) for name, root in ROOTS.items()},
    }
    return {name: row() for name, row in rows.items() if not wanted or name in wanted}


def settled(wanted: Sequence[str], accepted: dict[str, float]) -> dict[str, float]:
    """Measure rows as `measured`; a row above its limit is measured again, and its least value counts.

    Other processes take caches as well as time, so a ratio may be too high while they run. A permanent rise of a cost
    shows in each measurement.
    """
    found = measured(wanted)
    for _ in range(AGAIN):
        late = [name for name, value in found.items() if value > SLACK * accepted.get(name, float("inf"))]
        if not late:
            break
        found |= {name: min(found[name], value) for name, value in measured(late).items()}
    return found


def over(found: dict[str, float], accepted: dict[str, float]) -> list[str]:
    """Return a line for each row above its limit, or without an accepted value."""
    lines = [f"{name}: no value is accepted yet; {value:.3g} was measured" for name, value in found.items()]
    lines = [line for name, line in zip(found, lines, strict=True) if name not in accepted]
    for name, value in found.items():
        if name in accepted and value > SLACK * accepted[name]:
            times = value / accepted[name]
            lines.append(
                f"{name}: {value:.3g} is {times:.2f} x the accepted {accepted[name]:.3g}; {SLACK} x is allowed"
            )
    return lines


def main(argv: Sequence[str]) -> int:
    """Print each row beside its accepted value; returns 1 when one is above its limit."""
    accepted: dict[str, float] = json.loads(ACCEPTED.read_text())
    if unknown := set(argv) - set(accepted):
        print(f"no row {', '.join(sorted(unknown))}; there are: {'; '.join(accepted)}", file=sys.stderr)
        return 2
    found = settled(argv, accepted)
    for name, value in found.items():
        print(f"{name:46} {value:10.3f}  accepted {accepted.get(name, float('nan')):10.3f}")
    failed = over(found, accepted)
    print("\n".join(failed) if failed else f"no cost is over {SLACK} x its accepted value")
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(main(sys.argv[1:]))
