"""A script that imports torch, writes down that it did, and waits to be ended."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

torch.set_num_threads(1)
assert (torch.ones(8) @ torch.ones(8)).item() == 8
rank = int(os.environ["RANK"])
line = json.dumps({"t": time.time(), "pid": os.getpid(), "role": "script", "rank": rank})
(Path(sys.argv[1]) / f"script-{rank}.jsonl").write_text(line + "\n")
time.sleep(3600)
