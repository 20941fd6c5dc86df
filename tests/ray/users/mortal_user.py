"""User code that writes down all it does, for tests that ask whether it was done once."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from dljob import RoleGroup, Worker, current_worker, progress, rpc


def write(name: str, **what: Any) -> None:
    """A line in the job's folder; each is one write, so nobody's lines mix."""
    with (Path(current_worker().job_dir) / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\n")


def born() -> Path:
    """Say that a process is in user code; gives the job's folder."""
    me = current_worker()
    write("lives", rank=f"{me.role}/{me.rank}", incarnation=me.incarnation, pid=os.getpid())
    folder = Path(me.job_dir)
    (folder / f"{me.role}-{me.rank}-{me.incarnation}").write_text(str(os.getpid()))
    return folder


def asked(folder: Path, what: str) -> bool:
    """Whether a file of that name is there, which is taken away: what it asks is done once."""
    try:
        (folder / what).unlink()
    except FileNotFoundError:
        return False
    return True


def trains() -> dict[str, int]:
    """Steps, each of which has the counter count once; until `go`."""
    folder = born()
    step = 0
    while not (folder / "go").exists():
        step += 1
        write("steps", step=step)
        RoleGroup("counter").call("count", step).result(120)
        progress(step)
        time.sleep(0.05)
    result = {"steps": step, "counted": RoleGroup("counter").call_rank0("counted").result(120)}
    write("results", **result)
    return result


class Counts(Worker):
    """Counts what it is told to."""

    def __init__(self) -> None:
        self.total = 0

    def setup(self) -> None:
        born()

    @rpc
    def count(self, step: int) -> None:
        self.total += 1
        write("counted", step=step)

    @rpc
    def counted(self) -> int:
        return self.total


def works() -> None:
    """Steps until `go`; raises an error when there is a file that asks this rank to."""
    folder = born()
    me = current_worker()
    step = 0
    while not (folder / "go").exists():
        step += 1
        progress(step)
        if asked(folder, f"raise-{me.role}-{me.rank}"):
            raise OSError(f"at step {step}")
        time.sleep(0.02)


if __name__ == "__main__":
    works()
