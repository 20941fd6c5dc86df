"""The sweeper of an embedded Ray: when its parent closes a pipe or dies, it kills Ray's processes and removes a folder.

Run as `python -I -S sweeper.py MARK FOLDER`, with the read end of the pipe as stdin. It imports only the standard
library, and runs in a session of its own so that Ctrl-C cannot end it first. It is needed because only a raylet ends
with its parent (PDEATHSIG): its agents do not, and a worker may outlive its raylet.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

MARK = "DLJOB_EMBEDDED"
"""An environment variable that every process of an embedded Ray inherits; its value identifies the Ray."""
# 200 rounds of 10 ms: what cannot be killed in 2 s (a process in uninterruptible sleep) is given up.
_ROUNDS = 200
_PAUSE_S = 0.01


def marked(mark: str) -> list[int]:
    """Return the living processes of a Ray: those with its mark in their environment, and Ray workers by an open file.

    Ray's workers and agents overwrite their environment with their title, "ray::...", but keep a log in the folder
    open. Other processes with an open file there are clients, such as `dljob status`: they are spared.
    """
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and int(entry.name) not in (os.getpid(), os.getppid()) and _is_ours(entry, mark)
    ]


def _is_ours(entry: Path, mark: str) -> bool:
    """Whether a process belongs to this Ray. One that may not be read does not; a zombie cannot be read either."""
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
    """Kill marked processes until there are none: one that was being forked may appear after its parent's death."""
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
    # An empty read is the end of the pipe: the runner closed it, or died.
    while os.read(0, 4096):
        pass
    sweep(mark)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    # It ends by the pipe alone, after Ray's processes are gone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    main(*sys.argv[1:3])
