"""User code that calls another rank all the time, and notes each answer: the proof that work goes on without a head."""

from __future__ import annotations

import time
from pathlib import Path

from dljob import RoleGroup, Worker, current_worker, progress, rpc


class Callee(Worker):
    """Answers until the file `go` is there."""

    @rpc
    def add(self, number: int) -> int:
        return number + 1

    def run(self) -> None:
        while not (Path(current_worker().job_dir) / "go").exists():
            time.sleep(0.05)


def caller() -> int:
    """Calls; the times of the answers are in the file that the config names."""
    me, made = current_worker(), 0
    with Path(me.config["calls"]).open("a", buffering=1) as calls:
        while not (Path(me.job_dir) / "go").exists():
            made = RoleGroup("callee").call_rank0("add", made).result(60)
            calls.write(f"{time.time()}\n")
            progress(made)
            time.sleep(0.02)
    return made
