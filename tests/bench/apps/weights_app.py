"""One rank publishes 64 MiB to four; in turn, the same array by one `ray.put` and four gets of plain actors."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray

from dljob import RoleGroup, WeightChannel, Worker, rpc

SIZE = 64 << 20
READERS = 4
CODE = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
"""Of actors that Ray makes: they find this module as ranks do."""


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

    @rpc(stream=READERS)
    def read(self) -> Any:
        """Say that it waits, then when the state was there."""
        channel = self.channel = getattr(self, "channel", None) or WeightChannel("bench")
        yield 0.0
        _, state = channel.receive(60)
        self.state = state["w"]
        yield time.monotonic()

    @rpc
    def equal(self, number: int) -> bool:
        """Whether each byte is right."""
        return bool((self.state == number).all())


class Publisher(Worker):
    """Publishes, in turn with a plain put: what disturbs the machine disturbs both."""

    def run(self) -> None:
        """Write the seconds from the begin of each until the last of four has it, and whether all bytes were equal."""
        group, channel = RoleGroup("reader"), WeightChannel("bench")
        actors = [ray.remote(num_cpus=0, runtime_env=CODE)(Plain).remote() for _ in range(READERS)]
        found: dict[str, list[float]] = {"dljob": [], "plain": []}
        equal = True
        for number in range(1, self.config["blocks"] + 4):
            state = np.full(SIZE, number % 251, dtype=np.uint8)
            streams = [iter(rank.stream("read")) for rank in group]
            for stream in streams:
                next(stream)
            time.sleep(0.2)
            begin = time.monotonic()
            channel.publish(number, {"w": state})
            ours = max(next(stream) for stream in streams) - begin
            equal &= all(group.call("equal", number % 251).result(60))
            time.sleep(0.2)
            begin = time.monotonic()
            ref = ray.put(state)
            plain = max(ray.get([actor.read.remote([ref]) for actor in actors])) - begin
            equal &= all(ray.get([actor.equal.remote(number % 251) for actor in actors]))
            del ref
            if number > 3:  # the first ones find the store's memory new
                found["dljob"].append(ours)
                found["plain"].append(plain)
        where = Path(self.config["out"])
        (where / "weights.new").write_text(json.dumps({**found, "equal": equal}))
        (where / "weights.new").rename(where / "weights.json")
        for actor in actors:
            ray.kill(actor)
