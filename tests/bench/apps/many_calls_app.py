"""Eight callers of one callee, by `Rank.map` and by calls of a plain Ray actor; and a caller while others are busy."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dljob import RoleGroup, Worker, progress, rpc

BATCH, BLOCK_S = 64, 2.0
OBJECTS = 100_000
NAME = "plain-callee"
CODE = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
"""Of actors that Ray makes: they find this module as ranks do."""


class Plain:
    """What the callee does, as a plain Ray actor."""

    def add(self, a: int) -> int:
        """A call without work."""
        return a + 1


class Callee(Worker):
    """Answers, and has a plain actor beside it that does the same."""

    def setup(self) -> None:
        """Make the actor, and wait for it."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"num_cpus": 0, "runtime_env": CODE, "scheduling_strategy": here}
        self.plain = ray.remote(**options)(Plain).options(name=NAME, namespace=NAME).remote()
        ray.get(self.plain.add.remote(1))

    @rpc
    def add(self, a: int) -> int:
        """A call without work."""
        return a + 1


class Caller(Worker):
    """Calls as often as it can, in blocks in which all callers do the same."""

    def run(self) -> None:
        """Write the calls in a second of each block: ours and those of Ray, in turn."""
        one, actor = RoleGroup("callee")[0], ray.get_actor(NAME, NAME)
        ways: dict[str, Callable[[], Any]] = {
            "dljob": lambda: [call.result() for call in one.map("add", range(BATCH), batch_size=BATCH)],
            "plain": lambda: ray.get([actor.add.remote(n) for n in range(BATCH)]),
        }
        for way in ways.values():
            way()
        out = Path(self.config["out"])
        (out / f"ready-{self.rank}").touch()
        while len(list(out.glob("ready-*"))) < self.world_size:
            time.sleep(0.01)
        begin = max(file.stat().st_mtime for file in out.glob("ready-*")) + BLOCK_S
        found: dict[str, list[float]] = {name: [] for name in ways}
        for block in range(self.config["blocks"]):
            for number, (name, way) in enumerate(ways.items()):
                start = begin + (2 * block + number) * 2 * BLOCK_S
                time.sleep(max(0.0, start - time.time()))
                calls = 0
                while time.time() < start + BLOCK_S:
                    way()
                    calls += BATCH
                found[name].append(calls / (time.time() - start))
        (out / f"many-{self.rank}.json").write_text(json.dumps(found))


class Store(Worker):
    """Has many objects."""

    @rpc
    def objects(self, many: int) -> list[dict[str, int]]:
        """Return as many objects."""
        return [{"n": n} for n in range(many)]


class Collector(Worker):
    """Collects them."""

    @rpc
    def collect(self, many: int) -> int:
        """Return how many came."""
        return len(RoleGroup("store")[0].objects(many))

    @rpc
    def pid(self) -> int:
        """Return the process of this rank."""
        return os.getpid()


class Steady(Worker):
    """Calls a rank, then a plain actor: in quiet, while another role restarts, and while a rank collects objects.

    That is another one, or this one itself, in a thread.
    """

    def run(self) -> None:
        """Write the seconds of each call, by what went on beside it."""
        one, actor = RoleGroup("callee")[0], ray.get_actor(NAME, NAME)
        ways: dict[str, Callable[[], Any]] = {
            "dljob": lambda: one.add(1),
            "plain": lambda: ray.get(actor.add.remote(1)),
        }
        found = {way: {name: list[float]() for name in ("quiet", "restart", "collect", "itself")} for way in ways}
        for block in range(self.config["blocks"]):
            for number, (way, call) in enumerate(ways.items()):
                progress(len(ways) * block + number)  # else three short lives of a role would be a crash loop
                for name, seconds in found[way].items():
                    self.block(name, call, seconds)
        Path(self.config["out"], "steady.json").write_text(json.dumps(found))

    def setup(self) -> None:
        """Have a thread that collects."""
        self.thread = ThreadPoolExecutor(1)

    def block(self, name: str, call: Callable[[], Any], seconds: list[float]) -> None:
        """Call for a while, with that beside it."""
        beside, store = RoleGroup("collector")[0], RoleGroup("store")[0]
        collect = {
            "collect": lambda: beside.call("collect", OBJECTS),
            "itself": lambda: self.thread.submit(lambda: len(store.objects(OBJECTS))),
        }.get(name)
        if name == "restart":
            os.kill(beside.pid(), signal.SIGKILL)
        busy = collect() if collect else None
        end = time.perf_counter() + BLOCK_S
        while (begin := time.perf_counter()) < end:
            call()
            seconds.append(time.perf_counter() - begin)
            if collect and busy is not None and busy.done():
                busy = collect()
        if busy is not None:
            busy.result()
        beside.pid()  # it is back
