"""One rank publishes 1 GiB in 8 buckets, four of its node receive it; in turn, a memcpy and `ray.put` of the same."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray

from dljob import RoleGroup, WeightChannel, Worker, rpc

BUCKETS = 8
WAYS = ("checked", "unchecked")
WARM = 5
"""Versions before the measured ones: the store finds memory new until two versions and their copies are there."""


def private() -> int:
    """Bytes of memory that this process has for itself: what it maps of the store does not count."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * sum(int(kb) for kb in re.findall(r"Private_\w+: *(\d+) kB", text))


def mapped(address: int) -> str:
    """The file whose mapping in this process has that address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= address < end:
            return line.split(maxsplit=5)[5] if len(line.split()) > 5 else "private memory"
    return "nothing"


class Reader(Worker):
    """Receives, and looks where what it received lies."""

    def setup(self) -> None:
        """Open its channels."""
        self.channels = {way: WeightChannel(way) for way in WAYS}
        self.own = private()

    @rpc
    def receive(self, way: str) -> dict[str, Any]:
        """Receive a version, once it is there."""
        version, state = self.channels[way].receive(60)
        self.state = state
        return {
            "right": all(bool((each == version % 251).all()) for each in state),
            "writeable": any(each.flags.writeable for each in state),
            "files": sorted({mapped(each.ctypes.data) for each in state}),
            "grown": private() - self.own,
        }


class Publisher(Worker):
    """Publishes, in turn with the copies: what disturbs the machine disturbs all."""

    def run(self) -> None:
        """Write the seconds of each `publish` and of each copy, and what the readers found."""
        size = self.config["size"] // BUCKETS
        group = RoleGroup("reader")
        channels = {way: WeightChannel(way, verify=way == "checked") for way in WAYS}
        state = [np.zeros(size, dtype=np.uint8) for _ in range(BUCKETS)]
        place = [np.ones_like(each) for each in state]  # touched: its pages are there
        took: dict[str, list[float]] = {name: [] for name in (*WAYS, "memcpy", "put")}
        seen: list[dict[str, Any]] = []
        for number in range(1, self.config["blocks"] + WARM + 1):
            for each in state:
                each[:] = number % 251
            begin = time.monotonic()
            for source, to in zip(state, place, strict=True):
                np.copyto(to, source)
            one = {"memcpy": time.monotonic() - begin}
            begin = time.monotonic()
            refs = [ray.put(each) for each in state]
            one["put"] = time.monotonic() - begin
            del refs
            time.sleep(self.config["settle"])  # Ray frees them
            for way, channel in channels.items():
                begin = time.monotonic()
                channel.publish(number, state)
                one[way] = time.monotonic() - begin
                seen += group.call("receive", way).result(60)
                time.sleep(self.config["settle"])  # the keeper's own copy, which is not in the figure
            if number > WARM:
                for name, seconds in one.items():
                    took[name].append(seconds)
        where = Path(self.config["out"])
        (where / "large.new").write_text(json.dumps({"took": took, "seen": seen}))
        (where / "large.new").rename(where / "large.json")
