"""User code of the tests of PrimeMaster."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from dljob import current_worker, progress


def quick() -> dict[str, int]:
    """Ends at once."""
    return {"pid": os.getpid()}


def until_told() -> dict[str, int]:
    """Runs until the file `go` is in the job's folder; says with a file that it runs."""
    return _until("go")


def until_told_alone() -> dict[str, int]:
    """Runs until the file `go-RANK` is in the job's folder, so that a test ends one rank at a time."""
    return _until(f"go-{current_worker().rank}")


def _until(name: str) -> dict[str, int]:
    me = current_worker()
    folder = Path(me.job_dir)
    (folder / f"{me.role}-{me.rank}-{me.incarnation}").write_text(str(os.getpid()))
    while not (folder / name).exists():
        progress(1)
        time.sleep(0.02)
    return {"incarnation": me.incarnation}


def counts() -> None:
    """Makes a step every 0.1 s, from the first one on in each life, until the file `go` is there."""
    me = current_worker()
    folder = Path(me.job_dir)
    (folder / f"{me.role}-{me.rank}-{me.incarnation}").write_text(str(os.getpid()))
    step = 0
    while not (folder / "go").exists():
        time.sleep(0.1)
        step += 1
        progress(step, reward=step / 10)


def fails() -> None:
    raise LookupError("nothing under that name")


def shows_devices() -> dict[str, str]:
    """Returns what it sees, once it may end."""
    me = current_worker()
    devices = os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "")
    (Path(me.job_dir) / f"devices-{me.rank}-{me.incarnation}").write_text(devices)
    until_told()
    return {"devices": devices}


def with_a_program() -> dict[str, int]:
    """Runs a program of a session of its own beside itself; says with a file which."""
    me = current_worker()
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as program:
        (Path(me.job_dir) / f"program-{me.incarnation}").write_text(str(program.pid))
        seen = until_told()
        program.kill()
    return seen
