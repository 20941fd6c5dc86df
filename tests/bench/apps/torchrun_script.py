"""A torchrun script with nothing of dljob in it: each life writes down its first step, and all end together when told.

    torchrun ... torchrun_script.py FOLDER

`FOLDER/go` ends it.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

out = Path(sys.argv[1])
dist.init_process_group("gloo")
rank, told = dist.get_rank(), False
while True:
    total = torch.tensor([float((out / "go").exists())])
    dist.all_reduce(total)
    if not told:
        told = True
        line = {"t": time.time(), "pid": os.getpid(), "role": "w", "rank": rank}
        with (out / f"w-{rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
    if total.item():
        break
    time.sleep(0.02)
dist.destroy_process_group()
