"""A large job of CPU workers and parameter servers on machines that are taken away: `dljob sim --workers N --ps M`.

A quarter of the machines is preempted and comes back at the rates of a published trace (`spot.ZONES`), which was taken
from GPU machines: of CPU machines none with times is published that anybody may fetch. Which machine it is does not
matter to a trace, so any machine may be the one, a parameter server's too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from dljob.testing.simulate.large import simulated
from dljob.testing.simulate.spot import ZONES
from dljob.testing.world.fault_schedule import Timed, chance
from dljob.testing.world.model import FaultMove

CPUS, PER_NODE, DAY_S = 4, 16, 86400.0
"""CPUs of a process, processes on a machine of 64 CPUs, and the seconds of a day."""
ZONE = "us-east-2a"
SHARE = 0.25
"""The share of the machines that is preempted."""
GONE_S = 1.2
"""Seconds until a lost machine is noticed."""


@dataclass(frozen=True, slots=True)
class Servers:
    """The size of the job and its duration."""

    workers: int
    ps: int
    days: float
    seed: int = 0

    @property
    def machines(self) -> int:
        """The machines that hold all processes."""
        return math.ceil(self.workers / PER_NODE) + math.ceil(self.ps / PER_NODE) + 1

    @property
    def away(self) -> float:
        """The mean number of machines that are away."""
        count, there_s, away_s = ZONES[ZONE]
        return self.machines * SHARE * count / there_s * away_s / count


def manifest(size: Servers) -> dict[str, Any]:
    """Return a job with a chief, parameter servers and workers, and room for what is away."""
    limit = {"maxRestarts": 100_000}  # budgets are not the subject here
    restart_policy = {**limit, "level": "Process"}
    common_fields = {
        "entrypoint": {"module": "train"},
        "resources": {"cpu": str(CPUS)},
        "restartPolicy": restart_policy,
    }
    # Six deviations of the number of machines that are away above its mean.
    room = math.ceil(size.away + 6 * math.sqrt(size.away)) + 1
    group = {"name": "cpu", "replicas": size.machines + room, "cpu": str(CPUS * PER_NODE)}
    roles = [
        {"name": "chief", **common_fields},
        {"name": "ps", **common_fields, **_grouped(size.ps)},
        {"name": "worker", **common_fields, **_grouped(size.workers)},
    ]
    # A machine that is taken away is no fault of the job that would be less likely after a wait.
    policy = {**limit, "backoff": {"initialSeconds": 0}, "node": {"pendingTimeoutSeconds": 86400}}
    spec = {"roles": roles, "nodeGroups": [group], "faultTolerance": policy}
    return {"metadata": {"name": "parameter-servers"}, "spec": spec}


def _grouped(replicas: int) -> dict[str, Any]:
    """Return the size of a role, whose processes are reserved a machine at a time, and restart one by one."""
    return {"replicas": replicas, "replicasPerGroup": math.gcd(replicas, PER_NODE), "driver": False}


def mix(size: Servers, rng: Random) -> Iterator[tuple[str, Timed]]:
    """Yield (cause, fault) over the days: machines that are preempted, and others that come later."""
    count, there_s, away_s = ZONES[ZONE]
    rate = size.machines * SHARE * count / there_s
    at, end = rng.expovariate(rate), size.days * DAY_S
    while at < end:
        yield "preempted", Timed(at, FaultMove("node lost", rng.randrange(1 << 16), GONE_S))
        yield "back", Timed(at + rng.expovariate(count / away_s), FaultMove("join"))
        at += rng.expovariate(rate)


def run(size: Servers) -> dict[str, Any]:
    """Simulate the job; return its end, faults and restarts, and the CPU time and memory that the simulation took."""
    drawn = mix(size, chance(f"preemptions {size.seed}"))
    return {"machines": size.machines, **simulated(size.seed, manifest(size), drawn, size.days)}
