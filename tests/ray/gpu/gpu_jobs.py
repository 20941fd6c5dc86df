"""User code of jobs that compute on a real GPU."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dljob import WeightChannel, Worker, checkpoint, current_worker, progress

STEPS = 12
WIDTH = 1024
MOST = 0.7
"""Part of the GPU's memory that `grows` takes: two processes that hold it at once do not fit."""


def sees() -> dict[str, Any]:
    """Return what a rank with a GPU sees of it; a callee without one leaves what it sees in a file."""
    other = Path(current_worker().job_dir, "blind")
    while not other.exists():
        time.sleep(0.02)
    return {
        "visible": os.environ["CUDA_VISIBLE_DEVICES"],
        "count": torch.cuda.device_count(),
        "name": torch.cuda.get_device_name(),
        "blind": other.read_text(),
    }


def sees_none() -> None:
    seen = f"{os.environ['CUDA_VISIBLE_DEVICES']!r} {torch.cuda.is_available()}"
    part = Path(current_worker().job_dir, ".blind")
    part.write_text(seen)
    part.rename(part.with_name("blind"))
    current_worker().stopping.wait()


def grows() -> dict[str, Any]:
    """Train on most of the GPU's memory until there is a file `seen`; the first process dies by SIGKILL at step 6."""
    me = current_worker()
    total = torch.cuda.mem_get_info()[1]
    held = torch.zeros(int(MOST * total), dtype=torch.uint8, device="cuda")
    model = torch.nn.Linear(WIDTH, WIDTH, device="cuda")
    state = {"model": model.state_dict()}
    found = checkpoint.load(into=state)
    step = found[0] if found else 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = Path(me.job_dir, "seen")
    while step < STEPS or not seen.exists():
        optimizer.zero_grad()
        loss = model(torch.ones(8, WIDTH, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        step += 1
        checkpoint.save(step, {"model": model.state_dict()})
        progress(step, loss=float(loss))
        if step == STEPS // 2 and me.incarnation == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return {"loss": float(loss), "first": found[0] if found else 0, "held": held.numel(), "total": total}


def asks_too_much() -> None:
    torch.zeros(2 * torch.cuda.mem_get_info()[1], dtype=torch.uint8, device="cuda")


def breaks_its_context() -> int:
    """Fail an assertion on the device in the first process, after which its context is of no use."""
    table = torch.ones(4, device="cuda")
    at = torch.tensor([7 if current_worker().incarnation == 1 else 3], device="cuda")
    return int(table[at].sum().item())


def publishes() -> dict[str, Any]:
    """Publish weights from the GPU, for a rank that shares it, and wait for its answer."""
    weights = {"w": torch.arange(1 << 20, device="cuda", dtype=torch.float32)}
    WeightChannel("policy").publish(1, weights)
    answer = Path(current_worker().job_dir, "received")
    while not answer.exists():
        time.sleep(0.02)
    return {"sum": float(weights["w"].double().sum()), "received": float(answer.read_text())}


def receives() -> None:
    _, weights = WeightChannel("policy").receive()
    total = weights["w"].to("cuda").double().sum().item()
    part = Path(current_worker().job_dir, ".received")
    part.write_text(repr(total))
    part.rename(part.with_name("received"))
    current_worker().stopping.wait()


class Survives(Worker):
    """Two ranks on one GPU; rank 1 dies at step 3, and rank 0 keeps its process and what it holds on the GPU."""

    def setup(self) -> None:
        self.kept = torch.full((1 << 20,), os.getpid() % 1000, device=self.device)

    def run(self) -> dict[str, Any]:
        me = current_worker()
        for step in range(1, STEPS):
            sums = torch.full((4,), float(me.rank + 1), device=self.device)
            dist.all_reduce(sums)
            progress(step)
            if step == 3 and me.rank == 1 and me.incarnation == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        whole = bool((self.kept == os.getpid() % 1000).all().item())
        return {"pid": os.getpid(), "sum": sums[0].item(), "kept": whole, "device": str(self.device)}


def reduces_by_nccl() -> dict[str, Any]:
    """Form a group of one by NCCL, after the checks of the node; the first process raises an error at step 3."""
    me = current_worker()
    for step in range(1, STEPS):
        ones = torch.ones(4, device=f"cuda:{me.device_index}")
        dist.all_reduce(ones)
        progress(step)
        if step == 3 and me.incarnation == 1:
            raise RuntimeError("planned")
    return {"backend": dist.get_backend(), "sum": ones.sum().item(), "incarnation": me.incarnation}
