"""User code of the test and the benchmark of resizing: a regression at constant global batch size."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from plain_optim import Momentum

from dljob import Worker, checkpoint, current_worker, global_batches, progress

SAMPLES, BATCH, MICRO, SEED = 96, 12, 2, 7
DTYPE = torch.float64
"""With 32 bits the order in which ranks add up losses (about 8 at first) alone changes the result by 1e-6."""
STEPS_PER_EPOCH = SAMPLES // BATCH


def write(name: str, **said: Any) -> None:
    """Append a JSON line to a file of this rank."""
    me = current_worker()
    with (Path(me.job_dir) / f"{name}-{me.rank}.jsonl").open("a") as out:
        out.write(
            json.dumps({"pid": os.getpid(), "incarnation": me.incarnation, "world": me.world_size, **said}) + "\n"
        )


def made() -> tuple[torch.nn.Module, Momentum, torch.Tensor]:
    """Return the model, its optimizer, and the data set."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(DTYPE)
    data = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(1)).to(DTYPE)
    return model, Momentum(model.parameters(), lr=0.01), data


def _worlds() -> int:
    """Return how many worlds have begun."""
    path = Path(current_worker().job_dir) / "begin-0.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


class Trainer(Worker):
    """A trainer whose optimizer step is one global batch: with fewer ranks each takes more micro-batches."""

    def setup(self) -> None:
        self.model, self.optimizer, self.data = made()
        write("setup")

    def on_restart(self, reason: str) -> None:
        write("restart", reason=reason)

    def shutdown(self) -> None:
        write("shutdown", reason=current_worker().stopping.reason)

    def run(self) -> None:
        wanted: Any = self.config
        found = checkpoint.load()
        first = 0
        if found is not None:
            first, state = found[0] + 1, found[1]
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        write("begin", step=first)
        batches = global_batches(SAMPLES, BATCH, micro=MICRO, epochs=wanted["epochs"], seed=SEED, first=first)
        for batch in batches:
            self._wait_for_the_next_world(batch.step, wanted["until"])
            self._one(batch)
            time.sleep(wanted["slow_s"])

    def _wait_for_the_next_world(self, step: int, until: dict[str, int]) -> None:
        """Wait at a step for the resize, so that a world does not finish its epochs before it is resized."""
        while step >= until.get(str(_worlds()), step + 1):
            time.sleep(0.01)

    def _one(self, batch: Any) -> None:
        self.optimizer.zero_grad()
        total = torch.zeros((), dtype=DTYPE)
        for part in batch.parts:
            x = self.data[list(part)]
            loss = ((self.model(x) - x.sum(1, keepdim=True)) ** 2).sum() / batch.size
            loss.backward()
            total += loss.detach()
        dist.all_reduce(total)
        for weight in self.model.parameters():
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            dist.all_reduce(weight.grad)
        self.optimizer.step()
        write("step", step=batch.step, epoch=batch.epoch, loss=total.item(), samples=batch.samples)
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        checkpoint.save(batch.step, state, persist=False)
        progress(batch.step)


# -- files that it leaves in the job's folder


def lines(folder: Path, name: str, rank: int) -> list[dict[str, Any]]:
    """Return the lines that a rank wrote under a name."""
    path = folder / f"{name}-{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def processes(folder: Path) -> list[int]:
    """Return for each rank how many of its processes made steps."""
    return [len({line["pid"] for line in lines(folder, "step", rank)}) for rank in range(4)]


def losses(folder: Path) -> dict[int, float]:
    """Return step -> loss summed over the ranks; a repeated step counts with its last loss."""
    return {line["step"]: line["loss"] for line in lines(folder, "step", 0)}


def samples(folder: Path, epoch: int) -> list[int]:
    """Return the samples of an epoch that the final model has seen; a repeated step counts with its last samples."""
    last = [{line["step"]: line for line in lines(folder, "step", rank)} for rank in range(4)]
    mine = {step: line["world"] for step, line in last[0].items() if line["epoch"] == epoch}
    return sorted(each for step, ranks in mine.items() for own in last[:ranks] for each in own[step]["samples"])
