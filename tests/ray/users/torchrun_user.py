"""A script for torchrun, with nothing of dljob in it: what a rank sees, a sum over all ranks, a fault if asked for."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

NAMES = [
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
    *("ROLE_WORLD_SIZE", "ROLE_NAME", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "OMP_NUM_THREADS"),
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "OURS",
]


def main() -> None:
    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    faulty, life = os.environ.get("FAULT") == os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    if faulty and life == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    seen = {
        "env": {name: os.environ.get(name) for name in NAMES},
        "argv": sys.argv,
        "main": __name__,
        "cwd": str(Path.cwd()),
        "path": sys.path[0],
        "sum": total.item(),
    }
    print(json.dumps(seen), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
