"""Joins the process group of a worker by gloo alone, when verl imports it in a process that has a rank.

verl itself would ask for `cpu:gloo,<device>:<backend>`, and torch refuses a string that names the CPU twice. It asks
only where no group is there yet.
"""

import os

import torch.distributed

if os.environ.get("WG_BACKEND") == "ray" and not torch.distributed.is_initialized():
    torch.distributed.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
