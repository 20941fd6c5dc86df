"""How a process ended that is nobody's child here: the kernel's word, through a descriptor opened while it lived.

Ray 2.60 cannot say: its raylet ignores SIGCHLD, so that no exit status of a worker is ever read, and "connection error
code 2" stands for SIGKILL, a crash and `os._exit` alike (measured). Linux 6.15 keeps the status for whoever holds a
pidfd (PIDFD_GET_INFO); an older kernel tells it to the parent alone, and then nothing is guessed here.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import time
from contextlib import suppress
from dataclasses import replace

from dljob.master.state.views import Clue, Outcome
from dljob.runtime.process.guard import EndCode
from dljob.runtime.process.outcome import from_status, status_code
from dljob.telemetry.evidence import Source

PIDFD_GET_INFO = 0xC040FF0B
"""For the first 64 bytes of `struct pidfd_info`. Source: linux/pidfd.h."""
_INFO = struct.Struct("=Q52xi")
"""What is asked for, or was given, and the wait status."""
_EXIT = 1 << 3
WITHIN_S = 0.1
"""A process closes its sockets, by which its death is heard, a moment before it has a status."""
_PAUSE_S = 0.002


def opened(pid: int) -> int:
    """A descriptor of a process that lives; -1 where there is none."""
    with suppress(OSError):
        return os.pidfd_open(pid)
    return -1


def wait_status(pidfd: int, within_s: float = WITHIN_S) -> int | None:
    """The wait status of a process that ends in this time; None where it lives on, or the kernel does not tell."""
    deadline = time.monotonic() + within_s
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    if not poll.poll(within_s * 1000):
        return None
    while True:  # its parent may yet have to take its end in
        info = bytearray(_INFO.pack(_EXIT, 0))
        try:
            fcntl.ioctl(pidfd, PIDFD_GET_INFO, info)
        except OSError:
            return None
        given, status = _INFO.unpack(info)
        if given & _EXIT:
            return status
        if time.monotonic() >= deadline:
            return None
        time.sleep(_PAUSE_S)


def with_status(vanished: Outcome, status: int, tail: str) -> Outcome:
    """The outcome of a host that vanished, by its wait status and the end of its rank's log.

    What Ray said of it becomes a clue. A host that ended itself, and an exit with code 0, say nothing of a cause.
    """
    ended = from_status(status, detail=tail)
    if ended.ok:
        return replace(vanished, message="its process exited with code 0")
    if status_code(status) in set(EndCode):
        return replace(vanished, message=f"its host ended itself: {EndCode(status_code(status)).name}")
    clue = Clue(Source.BACKEND.value, vanished.detail)
    return replace(ended, clues=(*vanished.clues, clue) if vanished.detail else vanished.clues)
