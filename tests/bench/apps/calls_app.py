"""Calls of a role, and of plain Ray actors from the same process, in turn."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dljob import RoleGroup, Worker, rpc

WARM = 50
CODE = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
"""Of actors that Ray makes: they find this module as ranks do."""


class Plain:
    """What the callee does, as a plain Ray actor."""

    def add(self, a: int, b: int = 0) -> int:
        """A call without work."""
        return a + b


class Callee(Worker):
    """Answers."""

    @rpc
    def add(self, a: int, b: int = 0) -> int:
        """A call without work."""
        return a + b


class Caller(Worker):
    """Calls one rank, then all, in turn with plain actors: what disturbs the machine disturbs both."""

    def run(self) -> None:
        """Write (ours, plain) of each call in seconds."""
        group = RoleGroup("callee")
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actors = [ray.remote(num_cpus=0, runtime_env=CODE, scheduling_strategy=here)(Plain).remote() for _ in group]
        ray.get([actor.add.remote(1) for actor in actors])
        one = self.pairs(lambda: group[0].call("add", 1).result(), lambda: ray.get(actors[0].add.remote(1)), 100)
        every = self.pairs(
            lambda: group.call("add", 1).result(), lambda: ray.get([a.add.remote(1) for a in actors]), 20
        )
        where = Path(self.config["out"])
        (where / "calls.new").write_text(json.dumps({"one": one, "all": every}))
        (where / "calls.new").rename(where / "calls.json")
        for actor in actors:
            ray.kill(actor)

    def pairs(self, ours: Callable[[], Any], plain: Callable[[], Any], block: int) -> dict[str, list[float]]:
        """Seconds of each call."""
        found: dict[str, list[float]] = {"dljob": [], "plain": []}
        for _ in range(WARM):
            ours(), plain()
        for _ in range(self.config["blocks"]):
            for name, call in (("dljob", ours), ("plain", plain)):
                for _ in range(block):
                    begin = time.perf_counter()
                    call()
                    found[name].append(time.perf_counter() - begin)
        return found
