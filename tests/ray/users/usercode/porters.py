"""Ranks that put, get, publish and receive when they are told to."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

import dljob
from dljob import DataQueue, WeightChannel, rpc


class Porter(dljob.Worker):
    def __init__(self):
        self.queues = {}
        self.channels = {}
        self.held = {}

    @rpc
    def put(self, name, items):
        for item in items:
            self.queue(name).put(item, 60)

    @rpc
    def get(self, name):
        return self.queue(name).get(60)

    @rpc
    def publish(self, name, version, fill, size=1 << 16, transport="store"):
        state = {"w": np.full(size, fill, dtype=np.float32), "step": version}
        self.channel(name, transport).publish(version, state)

    @rpc
    def receive(self, name, timeout=60, transport="store"):
        version, state = self.channel(name, transport).receive(timeout)
        self.held[name] = state  # its memory stays mapped
        return version, float(state["w"].min()), float(state["w"].max()), state["w"].flags.writeable

    @rpc
    def came_by(self, name):
        return self.channel(name).came_by

    @rpc
    def mapped(self):
        """The anonymous files of weights that this process maps, by inode."""
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sorted({line.split()[4] for line in lines if "/memfd:dljob-weights" in line})

    @rpc
    def pid(self):
        return os.getpid()

    def queue(self, name):
        return self.queues.setdefault(name, DataQueue(name))

    def channel(self, name, transport="store"):
        if name not in self.channels:
            self.channels[name] = WeightChannel(name, transport=transport)
        return self.channels[name]

    @rpc
    def environ(self, values):
        os.environ.update(values)


def script() -> None:
    """What a rank without Ray does: an item and a version go through it."""
    DataQueue("forked-out").put([DataQueue("forked-in").get(60), "ray" in sys.modules], 60)
    version, state = WeightChannel("to-fork").receive(60)
    WeightChannel("from-fork").publish(version + 1, {"w": state["w"] * 2})


if __name__ == "__main__":
    script()
