"""Baselines made with Ray alone, against which dljob is measured.

python bare.py ADDRESS many N       # in another Ray: prints the seconds of `many(N)`
python bare.py ADDRESS reborn FILE  # those of `reborn(FILE)`
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ray
from bench_common import settle, until
from first_use import first_use
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

TOOK = "took "
"""Begins the line that a baseline in another Ray prints."""


@ray.remote(max_restarts=0)
class Bare:
    """An actor whose first method is its user code."""

    def enter(self, torch: bool = False) -> float:
        """Import torch if asked for; returns the time of entry."""
        if torch:
            import torch as imported

            imported.set_num_threads(1)
            assert (imported.ones(8) @ imported.ones(8)).item() == 8
        return time.time()

    def use_ray(self) -> tuple[float, float]:
        """Return the seconds of its first use of Ray."""
        return first_use()


@ray.remote(num_cpus=0, max_restarts=0)
class Maker:
    """A bare detached async actor that makes n bare actors in one placement group."""

    async def make(self, n: int, cpu: float, torch: bool) -> list[float]:
        """Create n bare actors; returns when each entered user code."""
        self.group = placement_group([{"CPU": cpu}] * n, lifetime="detached")
        await self.group.ready()
        options: dict[str, Any] = {"num_cpus": cpu, "lifetime": "detached", "namespace": "dljob"}
        self.actors = [
            Bare.options(
                name=f"bare-{i}",
                scheduling_strategy=PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=i),
                **options,
            ).remote()
            for i in range(n)
        ]
        return list(await asyncio.gather(*(actor.enter.remote(torch) for actor in self.actors)))

    async def clear(self) -> None:
        """End the actors and remove their placement group."""
        for actor in self.actors:
            ray.kill(actor)
        remove_placement_group(self.group)


@ray.remote(num_cpus=0, max_restarts=-1)
class Reborn:
    """A bare detached async actor that Ray restarts when it dies; it only records when it began."""

    def __init__(self, births: str) -> None:
        with Path(births).open("a") as file:
            file.write(f"{time.time()} {os.getpid()}\n")

    async def hello(self) -> int:
        """Return its pid."""
        return os.getpid()


def reborn(births: Path) -> float:
    """Return seconds from the actor's SIGKILL to its `__init__` in the next process; creates it when missing."""
    if not births.exists():
        Reborn.options(name="reborn", lifetime="detached", namespace="dljob").remote(str(births))
        until(births.exists)
    seen = until(births.read_text).splitlines()
    killed = time.time()
    os.kill(int(seen[-1].split()[1]), signal.SIGKILL)
    lines = until(lambda: (now := births.read_text().splitlines())[len(seen) :] and now)
    return float(lines[-1].split()[0]) - killed


def many(n: int, *, cpu: float = 0.25, torch: bool = False) -> float:
    """Return seconds from requesting the maker to the last of n entries; without runtime_env, as the jobs."""
    begin = time.time()
    maker = Maker.options(name="maker", lifetime="detached", namespace="dljob").remote()
    entered = ray.get(maker.make.remote(n, cpu, torch))
    ray.get(maker.clear.remote())
    ray.kill(maker)
    settle()
    return max(entered) - begin


def one() -> float:
    """Return seconds from requesting one more actor to its entry."""
    begin = time.time()
    actor = Bare.options(num_cpus=0).remote()
    entered = ray.get(actor.enter.remote())
    ray.kill(actor)
    return entered - begin


def uses() -> tuple[float, float]:
    """Return the seconds of the first use of Ray by one more actor: `first_use`."""
    actor = Bare.options(num_cpus=0).remote()
    took = ray.get(actor.use_ray.remote())
    ray.kill(actor)
    return took


def elsewhere(address: str, what: str, how: int | Path) -> float:
    """Return what a baseline of this file gives in the Ray of an address."""
    words = [sys.executable, "-W", "ignore", __file__, address, what, str(how)]
    said = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return float(next(line.removeprefix(TOOK) for line in said if line.startswith(TOOK)))  # Ray prints there too


if __name__ == "__main__":
    ray.init(address=sys.argv[1], namespace="dljob", log_to_driver=False)
    took = many(int(sys.argv[3])) if sys.argv[2] == "many" else reborn(Path(sys.argv[3]))
    print(f"{TOOK}{took}", flush=True)
