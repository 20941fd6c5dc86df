"""One rank publishes to a rank on each of several nodes; each says when it had the version, and by which transport."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray

from dljob import RoleGroup, WeightChannel, Worker, current_worker, rpc

BUCKET = 64 << 20
CPU_TICKS = 100


def cpu_seconds() -> float:
    """Seconds that all cores of this machine have worked."""
    user, nice, system, _, _, irq, soft, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + soft) / CPU_TICKS


class Reader(Worker):
    """Receives."""

    def setup(self) -> None:
        """Open its channel."""
        self.channel = WeightChannel("far")

    @rpc
    def node(self) -> str:
        """The node that it is on."""
        return ray.get_runtime_context().get_node_id()

    @rpc
    def receive(self) -> tuple[float, str]:
        """When the version was there, by this machine's clock, and what it came by."""
        _, self.state = self.channel.receive(300)
        return time.monotonic(), self.channel.came_by

    @rpc
    def right(self, number: int) -> bool:
        """Whether each byte is right."""
        return all(bool((each == number).all()) for each in self.state)


class Publisher(Worker):
    """Publishes to all."""

    def run(self) -> None:
        """Write, for each version, the seconds from the begin of `publish` until the last reader had it, and more."""
        group, channel = RoleGroup("reader"), WeightChannel("far")
        channel.latest()  # the keeper begins on this node
        assert len(set(group.call("node").result(60))) == len(group)
        found: list[dict[str, Any]] = []
        waiting = group.call("receive")
        channel.publish(0, [])  # from here on the keeper knows the readers' nodes
        waiting.result(300)
        log = current_worker().log
        for number in range(1, self.config["blocks"] + 2):
            state = [np.full(BUCKET, number, dtype=np.uint8) for _ in range(self.config["size"] // BUCKET)]
            waiting = group.call("receive")
            time.sleep(1.0)  # until all wait
            log.info("publishing %d", number)
            worked, begin = cpu_seconds(), time.monotonic()
            channel.publish(number, state)
            published = time.monotonic()
            there = waiting.result(300)
            worked = cpu_seconds() - worked
            found.append(
                {
                    "seconds": max(at for at, _ in there) - begin,
                    "published": published - begin,
                    "first": min(at for at, _ in there) - begin,
                    "by": sorted({by for _, by in there}),
                    "cores": worked / (max(at for at, _ in there) - begin),
                    "right": all(group.call("right", number).result(60)),
                }
            )
        where = Path(self.config["out"])
        (where / "chain.new").write_text(json.dumps(found))
        (where / "chain.new").rename(where / "chain.json")
