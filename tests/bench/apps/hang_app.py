"""Ranks that step, evenly or as unevenly as honest ones do: steps of every length, checkpoints, compilations, calls."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from random import Random
from typing import Any

from dljob import DataQueue, RoleGroup, WeightChannel, Worker, checkpoint, progress, rpc

EVEN_S = 0.2
PUBLISH_EVERY, RECEIVE_EVERY = 20, 50
TAIL, TAILS = 100, 0.005
"""An item takes so many times as long as usual, and how often."""
SAVE_EVERY, COMPILE_EVERY, EVAL_EVERY = 40, 150, 110


def entered(worker: Worker) -> Path:
    """Write down that a rank came into user code; the folder of what it writes."""
    out = Path(worker.config["out"])
    line = {"t": time.time(), "pid": os.getpid(), "role": worker.context.role, "rank": worker.rank}
    with (out / f"{worker.context.role}-{worker.rank}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    return out


def burn(seconds: float) -> None:
    """Compile something, as it were."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


class Trainer(Worker):
    """A rank of a torch group; `uneven` in its config: with all that makes honest steps uneven."""

    def run(self) -> None:
        """Steps until it is ended; when it did the last one is the time of a file."""
        import torch
        import torch.distributed as dist

        out = entered(self)
        last = out / f"last-{self.rank}"
        state = {"weights": torch.zeros(1 << 20)}
        step = 0
        while not self.context.stopping:
            dist.all_reduce(torch.ones(1))
            if self.config.get("uneven"):
                self._pause(step, out, state)
            else:
                time.sleep(EVEN_S)
            progress(step := step + 1)
            last.touch()

    def _pause(self, step: int, out: Path, state: dict[str, Any]) -> None:
        """What one rank does in a step while the others wait; all draw the same."""
        chance = Random(step)  # noqa: S311 - it keeps no secret
        chosen = chance.randrange(self.world_size)
        time.sleep(chance.uniform(0.01, 0.3) if chosen == self.rank else 0.02)
        if step % SAVE_EVERY == SAVE_EVERY - 1:
            checkpoint.save(step, state)
            if self.rank == 0:  # a slow disk
                (out / "saved").write_bytes(bytes(1 << 22))
                time.sleep(chance.uniform(1, 6))
        if step % PUBLISH_EVERY == 0 and self.rank == 0:
            WeightChannel("policy").publish(step, {"version": step})
        if step % EVAL_EVERY == EVAL_EVERY - 1 and chosen == self.rank:
            time.sleep(8)
        if step % COMPILE_EVERY in (0, COMPILE_EVERY - 1) and chosen == self.rank:
            burn(15)


class Rollout(Worker):
    """Each rank for itself; every step needs an answer of another role, which takes its time."""

    def run(self) -> None:
        """Steps of very different lengths."""
        entered(self)
        chance = Random(self.rank)  # noqa: S311
        judges, samples, weights = RoleGroup("judge"), DataQueue("samples", max_items=4), WeightChannel("policy")
        step = 0
        while not self.context.stopping:
            samples.get()
            if step % RECEIVE_EVERY == RECEIVE_EVERY - 1:
                weights.receive()
            time.sleep(chance.choice((0.05, 0.1, 0.1, 0.2, 0.2, 0.4)))
            if chance.random() < 0.02:
                judges.call_rank0("judge", chance.uniform(1, 10)).result()
            if chance.random() < 0.01:
                burn(5)
            progress(step := step + 1)


class Feeder(Worker):
    """Makes items for a queue that is mostly full, and at times empty."""

    def run(self) -> None:
        """Make items; some take very long."""
        entered(self)
        chance, samples = Random(0), DataQueue("samples", max_items=4)  # noqa: S311
        while not self.context.stopping:
            time.sleep(0.05 * (TAIL if chance.random() < TAILS else 1))
            samples.put(0)


class Judge(Worker):
    """Answers, and tells one step in its life."""

    def run(self) -> None:
        """Wait to be asked."""
        entered(self)
        progress(1)
        self.context.stopping.wait()

    @rpc
    def judge(self, seconds: float) -> float:
        """Think for so long."""
        time.sleep(seconds)
        return seconds
