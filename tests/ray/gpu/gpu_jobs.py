"""User code of jobs that compute on a real GPU."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dljob import WeightChannel, Worker, checkpoint, current_worker, progress
from dljob.runtime.worker import torch_group

STEPS = 12
WIDTH = 1024
MOST = 0.7
"""Part of the GPU's memory that `grows` takes: two processes that hold it at once do not fit."""
FREE = 0.9
"""Part of the GPU's memory that is free where only a process without tensors is on it."""
OVER = 0.6
"""More than a half, and together with all else of its job less than the whole."""
VERSIONS = 3
STEPS_OF_A_PACE = 200
"""Steps of 0.02 s. PrimeMaster hears of them once in 0.2 s at most, and knows a pace after six reports."""
ENDLESS = 12 * 10**10
"""Cycles of a kernel: a minute, if the process is not ended before. `busySeconds` allows a silence of six seconds."""


def leaves(name: str, text: str) -> None:
    """Write a file in the job's folder, whole at the moment it is there."""
    part = Path(current_worker().job_dir, f".{name}")
    part.write_text(text)
    part.rename(part.with_name(name))


def awaits(name: str, before: str = "") -> str:
    """Return what another rank left in a file of that name; `before`: once that is something else."""
    file = Path(current_worker().job_dir, name)
    while not file.exists() or file.read_text() == before:
        time.sleep(0.02)
    return file.read_text()


def takes(part: float) -> torch.Tensor:
    """Allocate a part of the GPU's whole memory."""
    return torch.zeros(int(part * torch.cuda.mem_get_info()[1]), dtype=torch.uint8, device="cuda")


def sees() -> dict[str, Any]:
    """Return what a rank with a GPU sees of it; a callee without one leaves what it sees in a file."""
    return {
        "visible": os.environ["CUDA_VISIBLE_DEVICES"],
        "count": torch.cuda.device_count(),
        "name": torch.cuda.get_device_name(),
        "blind": awaits("blind"),
    }


def sees_none() -> None:
    leaves("blind", f"{os.environ['CUDA_VISIBLE_DEVICES']!r} {torch.cuda.is_available()}")
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
    return {"sum": float(weights["w"].double().sum()), "received": float(awaits("received"))}


def receives() -> None:
    _, weights = WeightChannel("policy").receive()
    leaves("received", repr(weights["w"].to("cuda").double().sum().item()))
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


def needs_much() -> dict[str, Any]:
    """Take more than a half of the GPU's memory, and in a later process less, beside a rank that goes on meanwhile."""
    before = awaits("steady")
    for other in os.environ.get("AWAITS", "").split():
        awaits(other)
    held = takes(OVER if current_worker().incarnation == 1 else MOST / 2)
    steady = json.loads(awaits("steady", before))
    return {
        "first": current_worker().incarnation,
        "part": held.numel() / torch.cuda.mem_get_info()[1],
        "steady": steady,
    }


def is_steady() -> None:
    """Compute on a tenth of the GPU's memory until the job ends."""
    me, held, round_ = current_worker(), takes(0.1), 0
    while not me.stopping:
        held.fill_((round_ := round_ + 1) % 100)
        assert int(held[-1].item()) == round_ % 100
        leaves("steady", json.dumps({"incarnation": me.incarnation, "round": round_}))
        me.stopping.wait(0.1)


def script_needs_much() -> None:
    """As a script with a quarter of a GPU: report how too much of it is refused."""
    try:
        takes(0.3)
        said = "nothing was refused"
    except torch.OutOfMemoryError as error:
        said = str(error)
    leaves("script", said)


def numbers() -> list[list[Any]]:
    """Return of each of two ranks on one GPU: LOCAL_RANK, its index, its device as torch has it, what it sees."""
    me = current_worker()
    torch.cuda.set_device(me.device_index)
    there = torch.zeros(1, device="cuda").device
    mine = [os.environ["LOCAL_RANK"], me.device_index, str(there), os.environ["CUDA_VISIBLE_DEVICES"]]
    found: list[list[Any]] = [[]] * me.world_size
    dist.all_gather_object(found, mine)
    return found


def has_a_uuid() -> dict[str, Any]:
    ones = torch.ones(4, device=f"cuda:{current_worker().device_index}")
    return {"visible": os.environ["CUDA_VISIBLE_DEVICES"], "sum": ones.sum().item(), "count": torch.cuda.device_count()}


def finds_memory() -> dict[str, float]:
    """Die by SIGKILL with most of the GPU's memory, and much page-locked, which the driver frees slowly.

    The next process returns the part that is free when it starts, and after how many seconds (2 at most) most is.
    """
    begin, (first, total) = time.monotonic(), torch.cuda.mem_get_info()
    if current_worker().incarnation == 1:
        locked, held = torch.ones(1 << 30, dtype=torch.uint8, pin_memory=True), takes(MOST)
        held[: locked.numel()].copy_(locked)
        torch.cuda.synchronize()
        os.kill(os.getpid(), signal.SIGKILL)
    while torch.cuda.mem_get_info()[0] < FREE * total and time.monotonic() - begin < 2:
        time.sleep(0.01)
    return {"free": first / total, "seconds": time.monotonic() - begin}


def hangs_in_a_kernel() -> int:
    """Step by NCCL, until a kernel of the first process does not end; torch's own server offers the Flight Recorder."""
    from torch._C._distributed_c10d import _WorkerServer  # pyright: ignore[reportPrivateUsage] - torch's own

    me = current_worker()
    torch.cuda.set_device(me.device_index)
    server = _WorkerServer("127.0.0.1", int(os.environ["RECORDER"]))
    ones = torch.ones(4, device="cuda")
    dist.all_reduce(ones)  # the first one forms the communicator, which is no step
    torch.cuda.synchronize()
    for step in range(1, STEPS_OF_A_PACE):
        dist.all_reduce(ones)
        torch.cuda.synchronize()
        time.sleep(0.02)
        progress(step)
    if me.incarnation == 1:
        torch.cuda._sleep(ENDLESS)
        dist.all_reduce(ones)
        torch.cuda.synchronize()
    server.shutdown()
    return me.incarnation


def breaks_off_its_group() -> dict[str, Any]:
    """Abort NCCL's group from another thread, with a collective behind a kernel of seconds; then form it again."""
    me = current_worker()
    torch.cuda.set_device(me.device_index)
    kept, ones = torch.full((1 << 20,), 7.0, device="cuda"), torch.ones(4, device="cuda")
    dist.all_reduce(ones)
    torch.cuda.synchronize()
    torch.cuda._sleep(4 * 10**9)
    dist.all_reduce(ones)
    begin = time.monotonic()
    aborting = threading.Thread(target=torch_group.abort, args=("",))
    aborting.start()
    aborting.join(60)
    told = {"ended": not aborting.is_alive(), "seconds": round(time.monotonic() - begin, 2)}
    told["gone"] = not dist.is_initialized()
    torch.cuda.synchronize()
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    again = torch.full((4,), 2.0, device="cuda")
    dist.all_reduce(again)
    return {**told, "sum": again.sum().item(), "kept": bool((kept == 7.0).all().item())}


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 8)).to("cuda")


def total(of: torch.nn.Module) -> float:
    return sum(float(one.double().sum().item()) for one in of.state_dict().values())


def publishes_versions() -> list[list[Any]]:
    """Publish versions of a model on the GPU, each once the one before is loaded; return (own sum, reader's sum)."""
    mine, channel, found = model(), WeightChannel("policy"), list[list[Any]]()
    for version in range(1, VERSIONS + 1):
        with torch.no_grad():
            for one in mine.parameters():
                one.add_(version)
        channel.publish(version, mine.state_dict())
        found.append([total(mine), *json.loads(awaits(f"loaded-{version}"))])
    return found


def loads_versions() -> None:
    """Load each version into a model on the GPU; leave its sum, and where it is."""
    mine, channel, version = model(), WeightChannel("policy"), 0
    while version < VERSIONS:
        version, state = channel.receive()
        mine.load_state_dict(state)
        leaves(f"loaded-{version}", json.dumps([total(mine), next(mine.parameters()).device.type]))
    current_worker().stopping.wait()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
