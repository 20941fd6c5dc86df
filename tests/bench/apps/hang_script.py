"""A torchrun script whose ranks step evenly; the time of a file is when its rank did the last one."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from dljob import current_worker, progress

me = current_worker()
out = Path(me.config["out"])
dist.init_process_group("gloo")
line = {"t": time.time(), "pid": os.getpid(), "role": me.role, "rank": me.rank}
with (out / f"{me.role}-{me.rank}.jsonl").open("a") as file:
    file.write(json.dumps(line) + "\n")
step = 0
while not me.stopping:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.2)
    progress(step := step + 1)
    (out / f"last-{me.rank}").touch()
