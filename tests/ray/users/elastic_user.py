"""User code of the tests of elastic roles: it counts steps, saves them, and goes on with whoever is there."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from dljob import Worker, checkpoint, current_worker, progress


class Counter(Worker):
    """Each step is an all-reduce over the ranks that there are; what it began with is told in a file."""

    def run(self) -> None:
        me = current_worker()
        folder = Path(me.job_dir)
        found = checkpoint.load()
        step = 0 if found is None else found[0] + 1
        assert dist.get_world_size() == me.world_size == int(os.environ["WORLD_SIZE"])
        assert dist.get_rank() == me.rank == int(os.environ["RANK"])
        ready = {"world": me.world_size, "from": step, "reason": me.restart_reason, "incarnation": me.incarnation}
        with (folder / f"world-{me.rank}.jsonl").open("a") as file:
            file.write(json.dumps(ready) + "\n")
        (folder / f"{me.role}-{me.rank}-{me.incarnation}").write_text(str(os.getpid()))
        while True:
            go = torch.tensor([float((folder / "go").exists())])
            dist.all_reduce(go)
            checkpoint.save(step, {"step": step}, persist=step % 10 == 0)
            progress(step)
            if go.item() == me.world_size:
                return
            step += 1
            time.sleep(0.05)
