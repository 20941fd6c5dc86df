"""How forked workers ended, as their servers wrote it down.

Ray 2.60 reads no exit status of its workers. Linux before 6.15 tells it to the parent alone, a later one also to the
node's agent, if the job has one there yet (docs/adr/0019-first-cause-attribution.md).
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from dljob.runtime.forked_workers import clean_process
from dljob.runtime.forked_workers.server import ENDS

FRESH_S = 60.0
"""Age in seconds up to which a note counts: pids are used again."""
WITHIN_S, PAUSE_S = 0.1, 0.005
"""Seconds to wait for a note, as others hear of an end at the same moment; and between two looks."""


def wait_status(pid: int) -> int | None:
    """Return the wait status of a worker of this node that has just ended; None where no server notes it."""
    folder, raylet = clean_process.sockets()
    if not folder:
        return None
    until = time.monotonic() + WITHIN_S
    while (found := _noted(Path(folder), raylet, pid)) is None and time.monotonic() < until:
        time.sleep(PAUSE_S)
    return found


def _noted(folder: Path, raylet: int, pid: int) -> int | None:
    for file in folder.glob(f"{raylet}-*{ENDS}"):
        with suppress(OSError, ValueError):
            for line in reversed(file.read_text().splitlines()):
                number, status, at = line.split()
                if int(number) == pid and time.monotonic() - float(at) <= FRESH_S:
                    return int(status)
    return None
