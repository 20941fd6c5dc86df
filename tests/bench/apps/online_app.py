"""User code of data/online.py: the trainer of examples/online with a clock, and a count of each event."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import online

from dljob import WeightChannel, checkpoint, current_worker, source


class TrainerClock:
    """Times of the trainer's stages, what its state has of each event, and what a restore brought back of them."""

    def __init__(self) -> None:
        me = current_worker()
        self.out, self.life, self.events = Path(me.config["out"]), me.incarnation, int(me.config["events"])
        self.seen = np.zeros(self.events, dtype=np.uint8)
        self.times: dict[str, list[float]] = {"fill": [], "step": [], "publish": []}
        self.handed_out = 0.0

    def load(self) -> Any:
        found = checkpoint.load()
        if found is not None:
            self.seen = found[1].setdefault("seen", self.seen)
            self.write(f"restored-{self.life}", {"at": time.time(), **self.exact()})
        return found

    def save(self, step: int, state: dict[str, Any], **more: Any) -> None:
        checkpoint.save(step, {**state, "seen": self.seen}, **more)
        self.times["step"].append(time.perf_counter() - self.handed_out)

    def exact(self) -> dict[str, int]:
        """How many events the state has, and which of the earlier ones it lacks or has twice."""
        known = np.flatnonzero(self.seen)
        newest = int(known[-1]) + 1 if len(known) else 0
        return {
            "events": len(known),
            "lost": newest - len(known),
            "twice": int((self.seen > 1).sum()),
        }

    def write(self, name: str, found: Any) -> None:
        made = self.out / name
        made.write_text(json.dumps(found))
        made.rename(made.with_suffix(".json"))


class TimedSource:
    """A source that notes how long each batch took to fill, and the events in it."""

    def __init__(self, clock: TrainerClock, *arguments: Any, **options: Any) -> None:
        self._clock, self._source = clock, source(*arguments, **options)

    @property
    def lag(self) -> int:
        return self._source.lag

    def take(self) -> Any:
        begin = time.perf_counter()
        batch = self._source.take()
        clock = self._clock
        clock.handed_out = time.perf_counter()
        if batch is not None:
            clock.times["fill"].append(clock.handed_out - begin)
            for event in batch.events:
                clock.seen[json.loads(event.value)["n"]] += 1
        return batch


class TimedChannel:
    """A channel that notes how many events each version knows."""

    def __init__(self, clock: TrainerClock, name: str) -> None:
        self._clock, self._channel = clock, WeightChannel(name)

    def publish(self, version: int, state: Any) -> None:
        known, begin = self._clock.exact()["events"], time.perf_counter()
        # Before it is published: a server may have loaded it at once.
        with (self._clock.out / f"versions-{self._clock.life}.jsonl").open("a") as file:
            file.write(json.dumps([version, known]) + "\n")
        self._channel.publish(version, state)
        self._clock.times["publish"].append(time.perf_counter() - begin)


class TimedTrainer(online.Trainer):
    def run(self) -> int:
        clock = TrainerClock()
        online.checkpoint = clock
        online.source = lambda *arguments, **options: TimedSource(clock, *arguments, **options)
        online.WeightChannel = lambda name: TimedChannel(clock, name)
        total = super().run()
        clock.write("trainer", {**clock.times, **clock.exact()})
        return total
