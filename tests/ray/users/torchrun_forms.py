"""A script for torchrun as such scripts are written: record, env://, a SIGTERM handler, DDP, FSDP, resume.

    torchrun ... torchrun_forms.py FOLDER

Two ranks train two models for a few steps, one under DDP, one under FSDP, and save both after each. In its first life
rank 1 is killed in the middle. What is printed at the end are the losses, by step, and how often the script was begun.
"""

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS, KILLED_AT = 6, 3


def terminated(_number: int, _frame: FrameType | None) -> None:
    """Ends as scripts do that save in their handler."""
    sys.exit(143)


def network() -> torch.nn.Module:
    """The same in every rank and life."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


@record
def main() -> None:
    """One life."""
    out, signals = Path(sys.argv[1]), (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        signal.signal(number, terminated)  # in the main thread, or Python refuses
    dist.init_process_group("gloo", init_method="env://")
    rank, life = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if os.environ.get("FAULT") == "record" and rank == 1:
        raise ValueError("the data set is empty")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    models = {"ddp": DistributedDataParallel(network()), "fsdp": fully_shard(network(), mesh=mesh)}
    optimizers = {name: torch.optim.Adam(model.parameters(), lr=0.01) for name, model in models.items()}
    first = resumed(out, models, optimizers)
    losses = {name: [] for name in models}
    for step in range(first, STEPS):
        if (life, rank, step) == (0, 1, KILLED_AT):
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step * 2 + rank))
        for name, model in models.items():
            loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
            optimizers[name].zero_grad()
            loss.backward()
            optimizers[name].step()
            losses[name].append(round(loss.item(), 5))
        save(out, step, models, optimizers)
    print(json.dumps({"rank": rank, "life": life, "first": first, **losses}), flush=True)
    dist.destroy_process_group()


def parts(models: dict, optimizers: dict) -> dict:
    """What is saved of the models, the parts of this rank where a model is sharded."""
    return {name: dict(zip(("model", "optimizer"), get_state_dict(models[name], optimizers[name]), strict=True))
            for name in models}  # fmt: skip


def save(out: Path, step: int, models: dict, optimizers: dict) -> None:
    """Each step in a folder of its own; rank 0 says which is whole."""
    dcp.save(parts(models, optimizers), checkpoint_id=out / f"step-{step}")
    if dist.get_rank() == 0:
        (out / "new").write_text(str(step))
        (out / "new").replace(out / "last")


def resumed(out: Path, models: dict, optimizers: dict) -> int:
    """The step to begin with."""
    if not (out / "last").exists():
        return 0
    step = int((out / "last").read_text())
    state = parts(models, optimizers)
    dcp.load(state, checkpoint_id=out / f"step-{step}")
    for name, own in state.items():
        set_state_dict(models[name], optimizers[name], model_state_dict=own["model"], optim_state_dict=own["optimizer"])
    return step + 1


if __name__ == "__main__":
    main()
