"""A large job through weeks of failures: `dljob sim --nodes N --days D`.

The failures follow 54 days of pre-training on 16,384 GPUs: 419 unplanned interruptions, by cause. Source: "The Llama 3
Herd of Models" (arXiv:2407.21783), section 3.3.4, table 5. They come at random at that rate per GPU.
"""

from __future__ import annotations

import gc
import resource
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from dljob.master.state.actions import Note
from dljob.telemetry import reasons
from dljob.testing.simulate.drive import Case, Driver, Durations
from dljob.testing.world import fault_schedule
from dljob.testing.world.fault_schedule import Timed
from dljob.testing.world.model import FaultMove

GPUS, DAYS = 16_384, 54
CAUSES: tuple[tuple[str, int, str], ...] = (
    ("faulty GPU", 148, "kill"),
    ("GPU HBM3 memory", 72, "kill"),
    ("software bug", 54, "error"),
    ("network switch or cable", 35, "cut"),
    ("unplanned host maintenance", 32, "node lost"),
    ("GPU SRAM memory", 19, "kill"),
    ("GPU system processor", 17, "kill"),
    ("NIC", 7, "cut"),
    ("NCCL watchdog timeouts", 7, "error"),
    ("silent data corruption", 6, "kill"),
    ("GPU thermal interface and sensor", 6, "kill"),
    ("SSD", 3, "node lost"),
    ("power supply", 3, "node lost"),
    ("server chassis", 2, "node lost"),
    ("IO expansion board", 2, "node lost"),
    ("dependency", 2, "error"),
    ("CPU", 2, "node lost"),
    ("system memory", 2, "node lost"),
)
"""(cause, its number among the 419, the fault that stands for it)."""
# 8 GPUs in a server, as in the source.
PER_NODE, DAY_S = 8, 86400.0
REPAIR_S = 4 * 3600.0
"""The longest time until a lost machine is replaced."""
ROLES = ("rollout", "trainer")


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the job and its duration. `world` of its nodes train together, as one torch world."""

    nodes: int
    days: float
    world: int
    seed: int = 0


def manifest(size: Size) -> dict[str, Any]:
    """Return a job with one trainer world, rollouts of one node each, and a spare node for every hundred."""
    module = {"module": "train"}
    node_of_ranks = {
        "replicasPerGroup": PER_NODE,
        "driver": False,
        "resources": {"cpu": "1"},
        "accelerator": {"count": 1},
        "entrypoint": module,
    }
    roles: list[dict[str, Any]] = [
        {"name": "coordinator", "entrypoint": {"class": "pkg.Class"}, "resources": {"cpu": "1"}}
    ]
    # Far above the number of failures, since budgets are not the subject here.
    limit = {"maxRestarts": 1000}
    if size.world:
        roles.append(
            {
                "name": "trainer",
                "type": "Elastic",
                "replicas": size.world * PER_NODE,
                "restartPolicy": limit,
                **node_of_ranks,
            }
        )
    if size.nodes > size.world:
        ranks = (size.nodes - size.world) * PER_NODE
        roles.append(
            {"name": "rollout", "replicas": ranks, "restartPolicy": {**limit, "level": "RoleGroup"}, **node_of_ranks}
        )
    spare = max(1, size.nodes // 100)
    group = {
        "name": "h100",
        "replicas": size.nodes + spare,
        "cpu": "64",
        "accelerator": {"type": "GPU", "count": PER_NODE},
    }
    policy = {"maxRestarts": 1000, "spares": {"nodes": spare}}
    return {"metadata": {"name": "large"}, "spec": {"roles": roles, "nodeGroups": [group], "faultTolerance": policy}}


def mix(size: Size, rng: Random) -> Iterator[tuple[str, Timed]]:
    """Yield (cause, fault) over the days, at the published rate per GPU."""
    # Interruptions per second of this job: the published rate per GPU, times its GPUs.
    rate = sum(count for _, count, _ in CAUSES) * size.nodes * PER_NODE / GPUS / (DAYS * DAY_S)
    # Independent failures have exponential times between them.
    at, end = rng.expovariate(rate), size.days * DAY_S
    while at < end:
        cause, _, kind = rng.choices(CAUSES, [count for _, count, _ in CAUSES])[0]
        yield cause, Timed(at, _fault(size, rng, kind))
        # Without repairs the job would run out of nodes within days.
        if kind == "node lost":
            yield "repaired", Timed(at + rng.random() * REPAIR_S, FaultMove("join"))
        at += rng.expovariate(rate)


def _fault(size: Size, rng: Random, kind: str) -> FaultMove:
    node = rng.randrange(size.nodes)
    role, first = ("trainer", 0) if node < size.world else ("rollout", size.world)
    rank = f"{role}/{(node - first) * PER_NODE + rng.randrange(PER_NODE)}"
    match kind:
        case "error":
            return FaultMove(kind, 0, 0, rank)
        case "kill":
            return FaultMove(kind, 0, 0, rank)
        case "cut":
            return FaultMove(kind, rng.randrange(1 << 16), 1.0 + 60 * rng.random())
        case _:
            return FaultMove(kind, rng.randrange(1 << 16))


def run(size: Size) -> dict[str, Any]:
    """Simulate the job; return its end, faults and restarts, and the CPU time and memory that the simulation took."""
    drawn = mix(size, fault_schedule.chance(f"mix {size.seed}"))
    return {"nodes": size.nodes, **simulated(size.seed, manifest(size), drawn, size.days)}


def simulated(seed: int, job: Mapping[str, Any], drawn: Iterable[tuple[str, Timed]], days: float) -> dict[str, Any]:
    """Simulate a job under (cause, fault) over the days; return what became of it, and what that took."""
    began = time.process_time()
    # A repair comes hours after its failure, so times are not in order yet.
    faults = sorted(drawn, key=lambda drawn_fault: drawn_fault[1].at)
    end = days * DAY_S
    case = Case(seed, job, tuple(timed for _, timed in faults))
    # User code runs until the last fault is over.
    driver = Driver(case, pace=Durations(work=(end, end + 1.0), total=end, resumes=True))
    with _uncollected():
        result = driver.run()
    restarted = [note for _, note in driver.world.notes if note.reason == reasons.RECOVERED]
    causes = Counter(cause for cause, timed in faults if timed.fault.kind != "join")
    return {
        "ranks": len(driver.world.begin.ranks),
        "days": days,
        "phase": result.phase,
        "reason": result.reason,
        "problems": list(result.problems),
        "events": result.events,
        "faults": dict(sorted(causes.items())),
        "restarts": dict(result.restarts),
        "recoverySeconds": _quantiles(restarted),
        "simulatedDays": round(result.seconds / DAY_S, 2),
        "seconds": round(time.process_time() - began, 1),
        "maxResidentBytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


@contextmanager
def _uncollected() -> Generator[None]:
    """Leave cycles uncollected: the values of a world are frozen and make none, and a collector visits them all.

    It took a quarter of the time of 52,000 processes.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _quantiles(notes: list[Note]) -> dict[str, float]:
    spans = sorted(note.seconds for note in notes if note.seconds is not None)
    if not spans:
        return {}
    return {
        name: round(spans[min(len(spans) - 1, int(len(spans) * q))], 2) for name, q in (("p50", 0.5), ("p99", 0.99))
    }
