"""User code of the tests of restarts in process: a regression whose survivors keep the model that they have."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from plain_optim import Momentum

from dljob import Worker, checkpoint, current_worker, progress


def write(name: str, **said: Any) -> None:
    """A line into a file of this rank."""
    me = current_worker()
    with (Path(me.job_dir) / f"{name}-{me.rank}.jsonl").open("a") as out:
        out.write(json.dumps({"pid": os.getpid(), "incarnation": me.incarnation, "at": time.time(), **said}) + "\n")


class Trainer(Worker):
    """Builds the model once per process; each run begins where the last checkpoint was."""

    def setup(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        self.optimizer = Momentum(self.model.parameters(), lr=0.01)
        self.data = torch.Generator().manual_seed(self.rank)
        write("setup")

    def on_restart(self, reason: str) -> None:
        write("restart", reason=reason)

    def run(self) -> list[str]:
        wanted: Any = self.config
        found = checkpoint.load()
        begin = 0
        if found is not None:
            begin, state = found[0] + 1, found[1]
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.data.set_state(state["data"])
        write("begin", step=begin)
        for step in range(begin, wanted["steps"]):
            self.one(step)
            time.sleep(wanted["slow_s"])
        return [weight.detach().flatten().tolist()[0].hex() for weight in self.model.parameters()]

    def one(self, step: int) -> None:
        """One step of all ranks together."""
        x = torch.randn(16, 8, generator=self.data)
        loss = ((self.model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        for weight in self.model.parameters():
            dist.all_reduce(weight.grad)
            weight.grad /= self.world_size
        self.optimizer.step()
        write("loss", step=step, loss=loss.item().hex())
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "data": self.data.get_state(),
        }
        checkpoint.save(step, state, persist=False)
        progress(step)
