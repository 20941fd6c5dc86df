"""User code of the benchmarked jobs. Every rank writes down when it came into user code, then waits to be ended."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from dljob import RoleGroup, Worker, current_worker, progress, rpc


def enter(folder: str, role: str, rank: int) -> None:
    """Append a line about this process to the rank's file."""
    line = json.dumps({"t": time.time(), "pid": os.getpid(), "role": role, "rank": rank})
    with (Path(folder) / f"{role}-{rank}.jsonl").open("a") as file:
        file.write(line + "\n")


def stay() -> None:
    """Enter and wait for the end."""
    me = current_worker()
    enter(me.config["out"], me.role, me.rank)
    progress(int(time.time() * 1000))  # a higher step in each life: kills without progress between are a crash loop
    me.stopping.wait()


def use_ray() -> None:
    """Write the seconds of a first use of Ray in this life, then stay."""
    from first_use import first_use

    me = current_worker()
    with (Path(me.config["out"]) / "uses.txt").open("a") as file:
        file.write(json.dumps(first_use()) + "\n")
    stay()


def leave_last() -> None:
    """Return once all eight ranks of the job have entered, so that it ends well."""
    me = current_worker()
    out = Path(me.config["out"])
    while len(list(out.glob("server-*.jsonl"))) < 4 or len(list(out.glob("ready-*"))) < 3 * (me.rank == 0):
        time.sleep(0.01)
    enter(str(out), me.role, me.rank)
    (out / f"ready-{me.rank}").touch()


def fail_last() -> None:
    """The same, but rank 0, the last, raises, so that the job ends badly."""
    leave_last()
    if current_worker().rank == 0:
        raise ValueError("meant to fail")


class Trainer(Worker):
    """A rank of a torch world that enters once the world is there."""

    def run(self) -> None:
        """Enter after an all-reduce over all ranks."""
        import torch
        import torch.distributed as dist

        one = torch.ones(1)
        dist.all_reduce(one)
        assert one.item() == dist.get_world_size()
        stay()


class Echo(Worker):
    """Answers calls."""

    def setup(self) -> None:
        """Enter."""
        me = current_worker()
        enter(me.config["out"], me.role, me.rank)

    @rpc
    def echo(self, value: int) -> int:
        """What it was given."""
        return value


class Caller(Worker):
    """Calls all ranks of `echo` up to 20 times a second and writes down how often, and how often in vain."""

    def run(self) -> dict[str, Any]:
        """Call until the file `stop` appears; its counts are the job's result."""
        out = Path(self.config["out"])
        done = lost = 0
        longest = 0.0
        enter(str(out), "caller", 0)
        while not (out / "stop").exists():
            begin = time.monotonic()
            try:
                answers = RoleGroup("echo").call("echo", done).result(30)
                assert answers == [done] * len(answers)
            except Exception as error:  # noqa: BLE001 - whatever is lost is counted
                lost += 1
                (out / "lost.txt").write_text(repr(error))
            longest = max(longest, time.monotonic() - begin)
            done += 1
            progress(done)
            time.sleep(0.2)
        return {"calls": done, "lost": lost, "longest": longest}


class Rollout(Worker):
    """Asks a rank of `echo` at a fixed rate, and writes down when each answer came."""

    def run(self) -> None:
        """Until it is ended; a question that is late is asked at once."""
        out, rate = Path(self.config["out"]), float(self.config["rate"])
        enter(str(out), self.context.role, self.rank)
        echo, begin, asked = RoleGroup("echo"), time.monotonic(), 0
        with (out / f"answers-{self.rank}.txt").open("a", buffering=1) as answers:
            while not self.context.stopping:
                time.sleep(max(0.0, begin + asked / rate - time.monotonic()))
                assert echo.call_rank0("echo", asked).result(60) == asked
                asked += 1
                answers.write(f"{time.time()}\n")
