"""One rank publishes 64 MiB to four; in turn, the same array by one `ray.put` and four gets of plain actors."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dljob import RoleGroup, WeightChannel, Worker, rpc

SIZE = 64 << 20
READERS = 4
WARM = 3
CODE = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
"""Of actors that Ray makes: they find this module as ranks do."""


def opened(way: str) -> WeightChannel:
    """A channel for each transport, by its name; of `store-unchecked` its readers check nothing."""
    return WeightChannel(way, transport=way.partition("-")[0], verify="-" not in way)


class Plain:
    """A reader without DLJob."""

    def read(self, refs: list[Any]) -> float:
        """When the array was there, by this machine's clock."""
        self.state = ray.get(refs[0])
        return time.monotonic()

    def equal(self, number: int) -> bool:
        """Whether each byte is right."""
        return bool((self.state == number).all())


class Reader(Worker):
    """Receives."""

    def setup(self) -> None:
        """Open its channels."""
        self.channels = {way: opened(way) for way in self.config["ways"]}

    @rpc(stream=READERS)
    def read(self, way: str) -> Any:
        """Say that it waits, then when the state was there."""
        yield 0.0
        _, state = self.channels[way].receive(60)
        self.state = state["w"]
        yield time.monotonic()

    @rpc
    def equal(self, number: int, way: str) -> bool:
        """Whether each byte is right, and came by that transport."""
        return bool((self.state == number).all()) and way.startswith(self.channels[way].came_by)


class Publisher(Worker):
    """Publishes, in turn with a plain put: what disturbs the machine disturbs both."""

    def run(self) -> None:
        """Write the seconds from the begin of each until the last of four has it, and whether all bytes were equal."""
        self.group = RoleGroup("reader")
        channels = {way: opened(way) for way in self.config["ways"]}
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        plain = ray.remote(num_cpus=0, runtime_env=CODE, scheduling_strategy=here)(Plain)
        actors = [plain.remote() for _ in range(READERS)]
        while not all(channel.ready for channel in channels.values()):
            time.sleep(0.1)
        found: dict[str, list[float]] = {name: [] for name in (*channels, "plain")}
        self.equal = True
        for number in range(1, self.config["blocks"] + WARM + 1):
            state = np.full(SIZE, number % 251, dtype=np.uint8)
            took = {way: self.published(channel, number, state) for way, channel in channels.items()}
            begin = time.monotonic()
            ref = ray.put(state)
            took["plain"] = max(ray.get([actor.read.remote([ref]) for actor in actors])) - begin
            self.equal &= all(ray.get([actor.equal.remote(number % 251) for actor in actors]))
            del ref
            if number > WARM:  # the first ones find the store's memory new
                for name, seconds in took.items():
                    found[name].append(seconds)
        where = Path(self.config["out"])
        (where / "weights.new").write_text(json.dumps({**found, "equal": self.equal}))
        (where / "weights.new").rename(where / "weights.json")
        for actor in actors:
            ray.kill(actor)

    def published(self, channel: WeightChannel, number: int, state: Any) -> float:
        """Seconds from the begin of `publish` until the last reader has it."""
        streams = [iter(rank.stream("read", channel.name)) for rank in self.group]
        for stream in streams:
            next(stream)
        time.sleep(0.2)
        begin = time.monotonic()
        channel.publish(number, {"w": state})
        took = max(next(stream) for stream in streams) - begin
        self.equal &= all(self.group.call("equal", number % 251, channel.name).result(60))
        time.sleep(0.2)
        return took
