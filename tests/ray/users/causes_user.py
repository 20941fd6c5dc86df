"""User code that ends in many ways: rank 1 does what the file `do` in the job's folder says, the others go on."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

from dljob import current_worker

ME = current_worker()
FOLDER = Path(ME.job_dir)


def ends(what: str) -> None:
    """End in a certain way."""
    if what == "exit":
        sys.exit(3)
    if what == "raise":
        raise LookupError("nothing under that name")
    if what == "segfault":
        ctypes.string_at(0)
    if what == "kill":
        os.kill(os.getpid(), 9)
    if what == "hog":
        Path(os.environ["SMALL_GROUP"], "cgroup.procs").write_text(str(os.getpid()))
        held = []
        while True:
            held.append(bytearray(8 << 20))
    if what == "limit":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        bytearray(8 << 30)


def mark() -> None:
    (FOLDER / f"{ME.role}-{ME.rank}-{ME.incarnation}").write_text(str(os.getpid()))


def alone() -> None:
    """Wait for the word; only the first process of rank 1 heeds it."""
    mark()
    while not (FOLDER / "go").exists():
        if ME.rank == 1 and ME.incarnation == 1 and (FOLDER / "do").exists():
            ends((FOLDER / "do").read_text())
        time.sleep(0.02)


if __name__ == "__main__":
    alone()
