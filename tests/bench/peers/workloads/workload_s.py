"""Workload S: a script of n gloo ranks. Each life of a rank writes down its first step; PEER_OUT/go ends all."""

import json
import os
import time
from pathlib import Path

import gloo_group


def work() -> None:
    """Do an all-reduce every 50 ms; the first of a life is written down once all ranks have done it."""
    import torch
    import torch.distributed as dist

    out = Path(os.environ["PEER_OUT"])
    torch.set_num_threads(1)
    own = gloo_group.join()
    rank, said = dist.get_rank(), False
    while True:
        total = torch.tensor([float((out / "go").exists())])
        dist.all_reduce(total)
        if not said:
            said = True
            with (out / f"rank-{rank}.jsonl").open("a") as file:
                file.write(json.dumps({"t": time.time(), "pid": os.getpid(), "rank": rank}) + "\n")
        if total.item():
            break
        time.sleep(0.05)
    gloo_group.leave(own=own)


if __name__ == "__main__":
    work()
