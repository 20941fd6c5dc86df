"""Ends everything that carries a mark when its parent closes a pipe or dies, and removes a folder.

Run as `python -I -S sweeper.py MARK FOLDER` with the pipe's read end as stdin. It imports nothing but the standard
library, and lives in a session of its own so that Ctrl-C cannot end it first. A raylet ends with its parent by itself
(PDEATHSIG); its agents do not, and a worker may outlive its raylet.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

MARK = "DLJOB_EMBEDDED"
"""Environment variable that every process of an embedded Ray inherits; its value names the Ray."""
_ROUNDS = 200
_PAUSE_S = 0.01


def marked(mark: str) -> list[int]:
    """Living processes with the mark in their first environment, and Ray's with a file in the folder of that name.

    Ray's workers and agents write their title, "ray::...", over their environment, but keep their log open. Others with
    a file there are clients, `dljob status` for one: they are let be.
    """
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and int(entry.name) not in (os.getpid(), os.getppid()) and _is_ours(entry, mark)
    ]


def _is_ours(entry: Path, mark: str) -> bool:
    """Whether a process belongs to this Ray; one that cannot be looked at does not, a zombie has nothing to look at."""
    with suppress(OSError):
        if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
            return True
    with suppress(OSError):
        if not (entry / "cmdline").read_bytes().startswith(b"ray::"):
            return False
        for descriptor in (entry / "fd").iterdir():
            with suppress(OSError):
                if str(descriptor.readlink()).startswith(f"{mark}/"):
                    return True
    return False


def sweep(mark: str) -> None:
    """Kill what is marked until nothing is; children of the killed may appear once more."""
    for _ in range(_ROUNDS):
        pids = marked(mark)
        if not pids:
            return
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        signal.sigtimedwait((), _PAUSE_S)


def main(mark: str, folder: str) -> None:
    """Wait for the end of stdin, then sweep and remove the folder."""
    while os.read(0, 4096):
        pass
    sweep(mark)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    main(*sys.argv[1:3])
