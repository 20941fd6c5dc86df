"""User code for the test and the bench of resizing: a regression at equal global batch."""

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
"""In 32 bits the order in which ranks add up their losses, some 8 at first, is worth 1e-6 alone."""
STEPS_PER_EPOCH = SAMPLES // BATCH


def write(name: str, **said: Any) -> None:
    """A line into a file of this rank."""
    me = current_worker()
    with (Path(me.job_dir) / f"{name}-{me.rank}.jsonl").open("a") as out:
        out.write(
            json.dumps({"pid": os.getpid(), "incarnation": me.incarnation, "world": me.world_size, **said}) + "\n"
        )


def made() -> tuple[torch.nn.Module, Momentum, torch.Tensor]:
    """The model, its optimizer, and the data set."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(DTYPE)
    data = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(1)).to(DTYPE)
    return model, Momentum(model.parameters(), lr=0.01), data


def _worlds() -> int:
    """How many worlds have begun."""
    path = Path(current_worker().job_dir) / "begin-0.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


class Trainer(Worker):
    """One optimizer step is one global batch: fewer ranks take more micro-batches each."""

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
        """Worlds that are to be resized do not come to the end before they are: they wait at a step."""
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


# -- what is left of it in the job's folder


def lines(folder: Path, name: str, rank: int) -> list[dict[str, Any]]:
    """What a rank wrote, of one name."""
    path = folder / f"{name}-{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def processes(folder: Path) -> list[int]:
    """How many processes made steps, by rank."""
    return [len({line["pid"] for line in lines(folder, "step", rank)}) for rank in range(4)]


def losses(folder: Path) -> dict[int, float]:
    """Step -> loss of all ranks together; of a step that was made again, that of the last time."""
    return {line["step"]: line["loss"] for line in lines(folder, "step", 0)}


def samples(folder: Path, epoch: int) -> list[int]:
    """The samples of an epoch that are in the model at the end: of a step made again, those of the last time."""
    last = [{line["step"]: line for line in lines(folder, "step", rank)} for rank in range(4)]
    mine = {step: line["world"] for step, line in last[0].items() if line["epoch"] == epoch}
    return sorted(each for step, ranks in mine.items() for own in last[:ranks] for each in own[step]["samples"])
