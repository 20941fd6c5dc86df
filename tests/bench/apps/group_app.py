"""A torch group that trains in process: each rank writes down how far it is when it has met the others again."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from dljob import Worker, checkpoint, progress


class Stays(Worker):
    """Steps of a few milliseconds, each saved in memory."""

    def setup(self) -> None:
        """What a process keeps over a restart."""
        self.weights = torch.zeros(1 << 16)

    def on_restart(self, reason: str) -> None:
        """The group has met again."""
        del reason
        self.met = time.time()

    def run(self) -> None:
        """From the last step that all have; the first one of each life is written down."""
        begun = time.time()
        found = checkpoint.load()
        first = found[0] + 1 if found else 0
        loaded = time.time()
        for step in range(first, 1 << 30):
            grad = torch.ones_like(self.weights)
            dist.all_reduce(grad)
            self.weights += grad
            checkpoint.save(step, {"weights": self.weights}, persist=False)
            progress(step)
            if step == first:
                said = {"met": getattr(self, "met", begun), "begun": begun, "loaded": loaded, "step": step}
                line = {"t": time.time(), "pid": os.getpid(), "role": "t", "rank": self.rank, **said}
                with (Path(self.config["out"]) / f"t-{self.rank}.jsonl").open("a") as file:
                    file.write(json.dumps(line) + "\n")
            time.sleep(0.003)
