"""User code of the tests of checkpoints: a regression whose ranks share gradients, as a class and as a script."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from plain_optim import Momentum

from dljob import Worker, checkpoint, current_worker, progress


def train(folder: Path, rank: int, world: int, incarnation: int, *, steps: int, slow_s: float, save: bool) -> str:
    """Train and write each step's loss; from where the last life was saved."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = Momentum(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(rank)
    begin = 0
    found = checkpoint.load() if save else None
    if found is not None:
        begin, state = found[0] + 1, found[1]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        data.set_state(state["data"])
    curve = (folder / f"loss-{rank}.jsonl").open("a")
    for step in range(begin, steps):
        x = torch.randn(16, 8, generator=data)
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
            weight.grad /= world
        optimizer.step()
        curve.write(json.dumps({"step": step, "loss": loss.item().hex(), "incarnation": incarnation}) + "\n")
        curve.flush()
        if save:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": data.get_state()}
            checkpoint.save(step, state, persist=step % 5 == 0)
        progress(step)
        time.sleep(slow_s)
    weights = b"".join(bytes(w.detach().contiguous().flatten().view(torch.uint8).tolist()) for w in model.parameters())
    return hashlib.sha256(weights).hexdigest()


class Trainer(Worker):
    """The ranks of an Elastic role, the process group made for them."""

    def run(self) -> str:
        me = current_worker()
        (Path(me.job_dir) / f"{me.role}-{me.rank}-{me.incarnation}").write_text(str(os.getpid()))
        wanted: Any = me.config
        return train(Path(me.job_dir), me.rank, me.world_size, me.incarnation, **wanted)


def script() -> None:
    """As torchrun starts it."""
    dist.init_process_group("gloo")
    me = current_worker()
    wanted: Any = me.config
    said = train(Path(me.job_dir), dist.get_rank(), dist.get_world_size(), me.incarnation, **wanted)
    (Path(me.job_dir) / f"weights-{dist.get_rank()}").write_text(said)
    dist.destroy_process_group()


def saves_and_waits() -> int:
    """One rank: says from where it comes, saves, and runs until it is told."""
    me = current_worker()
    found = checkpoint.load()
    begin = 0 if found is None else found[0]
    sizes = me.config
    for step in range(begin + 1, begin + 4):
        state = {"w": torch.full((int(sizes["numbers"]),), float(step)), "who": me.incarnation}
        checkpoint.save(step, state, persist=bool(sizes["persist"]))
    (Path(me.job_dir) / f"from-{me.incarnation}").write_text(json.dumps([begin, found and found[1]["who"]]))
    (Path(me.job_dir) / f"{me.role}-{me.rank}-{me.incarnation}").write_text(str(os.getpid()))
    while not (Path(me.job_dir) / "go").exists():
        time.sleep(0.02)
    return begin


if __name__ == "__main__":
    script()
