"""How forked workers ended, as their servers wrote it down.

Ray 2.60 reads no exit status of its workers. Linux before 6.15 tells it to the parent alone, a later one also to the
node's agent, if the job has one there yet (docs/adr/0019-first-cause-attribution.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
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
    return _awaited_note(Path(folder), pid, lambda server: server.startswith(f"{raylet}-")) if folder else None


def end_of(pid: int, read_log: Callable[[], str]) -> tuple[int, str] | None:
    """Return the wait status of a worker of this node and the end of its log, which no other machine may have.

    None where no server notes the status.
    """
    status = wait_status(pid)
    return None if status is None else (status, read_log())


def wait_status_beside(pid: int) -> int | None:
    """Return the wait status of a worker of another raylet of this machine; None where no server notes it.

    Only raylets of one machine share a folder of sockets, as those of `dljob run` do: there a pid means one process.
    """
    folder, raylet = clean_process.sockets()
    return _awaited_note(Path(folder), pid, lambda server: not server.startswith(f"{raylet}-")) if folder else None


def _awaited_note(folder: Path, pid: int, is_asked: Callable[[str], bool]) -> int | None:
    """Wait for the note of a worker's end by one of the servers in a folder; None where it does not come."""
    until = time.monotonic() + WITHIN_S
    while servers := [file for file in folder.glob("*.sock*") if is_asked(file.name)]:
        status = _noted([file for file in servers if file.suffix == ENDS], pid)
        if status is not None or time.monotonic() >= until:
            return status
        time.sleep(PAUSE_S)
    return None


def _noted(files: Iterable[Path], pid: int) -> int | None:
    for file in files:
        with suppress(OSError, ValueError):
            for line in reversed(file.read_text().splitlines()):
                number, status, at = line.split()
                if int(number) == pid and time.monotonic() - float(at) <= FRESH_S:
                    return int(status)
    return None
