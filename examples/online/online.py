"""A trainer that learns from clicks as they come, and a scorer of a fixed data set beside it."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

from dljob import WeightChannel, Worker, checkpoint, current_worker, progress, shards, source

ITEMS = 32


class Trainer(Worker):
    """Learns the rate of clicks on each item. Each checkpoint has each event once, which its counts show."""

    def run(self) -> int:
        wanted: Any = current_worker().config
        step, state = checkpoint.load() or (0, {"shown": np.zeros(ITEMS), "clicked": np.zeros(ITEMS)})
        channel, published = WeightChannel("model"), float("-inf")
        batches = source("clicks", wanted["uri"], batch=wanted["batch"], linger=0.1)
        while state["shown"].sum() < wanted.get("events", float("inf")) and (batch := batches.take()) is not None:
            for event in batch:
                click = json.loads(event.value)
                state["shown"][click["item"]] += 1
                state["clicked"][click["item"]] += click["clicked"]
            step += 1
            checkpoint.save(step, state, persist=step % 10 == 0)
            # A channel keeps the last versions only: a server must have the time to load one before it is dropped.
            if time.monotonic() - published >= wanted["publishSeconds"]:
                channel.publish(step, {"rate": (state["clicked"] + 1) / (state["shown"] + 2)})
                published = time.monotonic()
            progress(step, events=float(state["shown"].sum()), unread=float(batches.lag))
        return int(state["shown"].sum())


class Scorer(Worker):
    """Batches of a data set with an end."""

    def run(self) -> float:
        total = 0.0
        for shard in shards("catalogue", 10_000, shard=500):
            total += float(sum(index % ITEMS for index in shard))
            if current_worker().stopping.wait(0.2):
                break
        return total
