"""The exit status of a process that is not a child of this one, through a pidfd that was opened while it lived.

Ray 2.60 does not report it: its raylet ignores SIGCHLD, so no exit status of a worker is ever read, and "connection
error code 2" stands for SIGKILL, a crash and `os._exit` alike (measured). Linux 6.15 keeps the status for holders of a
pidfd (PIDFD_GET_INFO). Older kernels tell it to the parent alone; then nothing is guessed here.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import time
from contextlib import suppress
from dataclasses import replace

from dljob.master.state.views import Clue, Outcome, Reason
from dljob.runtime.process.guard import EndCode
from dljob.runtime.process.outcome import from_status, status_code, with_log
from dljob.telemetry.evidence import UNEXPLAINED_END, Source

PIDFD_GET_INFO = 0xC040FF0B
"""The ioctl, for the first 64 bytes of `struct pidfd_info`. Source: linux/pidfd.h."""
_INFO = struct.Struct("=Q52xi")
"""The mask of what is requested, or was returned, and the wait status."""
_EXIT = 1 << 3
WITHIN_S = 0.1
"""Seconds to wait for the status: a process closes its sockets, which shows its death, a moment before it has one."""
_LAST_WORDS = re.compile(r"pid \d+ ends with code \d+: (.+)")
"""The line that `guard.end` writes, in which a process says why it ends itself."""
_PAUSE_S = 0.002


def opened(pid: int) -> int:
    """Open a pidfd of a living process; -1 if there is none."""
    with suppress(OSError):
        return os.pidfd_open(pid)
    return -1


def has_ended(pidfd: int, within_s: float = 0.0) -> bool:
    """Whether a process ends within this time: it has closed all files, and drivers have what it held on devices."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def wait_status(pidfd: int, within_s: float = WITHIN_S) -> int | None:
    """Return the wait status of a process that ends within this time; None if it lives or the kernel does not tell."""
    deadline = time.monotonic() + within_s
    if not has_ended(pidfd, within_s):
        return None
    while True:  # the status is there only once its parent has reaped the process, a moment later
        info = bytearray(_INFO.pack(_EXIT, 0))
        try:
            fcntl.ioctl(pidfd, PIDFD_GET_INFO, info)
        except OSError:
            return None
        # The kernel says in the mask what it filled in: without that bit the status is not there yet.
        filled_mask, status = _INFO.unpack(info)
        if filled_mask & _EXIT:
            return status
        if time.monotonic() >= deadline:
            return None
        time.sleep(_PAUSE_S)


def with_status(vanished: Outcome, status: int, tail: str, code_dir: str = "") -> Outcome:
    """Return the outcome of a host that vanished, by its wait status and the tail of its rank's log.

    Ray's own words about it become a clue, if they tell anything. A host that ended itself tells nothing of a cause.
    """
    if vanished.detail == UNEXPLAINED_END:
        vanished = replace(vanished, detail="")
    ended = with_log(from_status(status), tail, code_dir)
    if status_code(status) in set(EndCode):
        words = next(reversed(_LAST_WORDS.findall(tail)), EndCode(status_code(status)).name)
        return replace(vanished, message=f"its host ended itself: {words}")
    if ended.ok:
        cause = "its process ended itself with code 0 (os._exit or sys.exit in user code) before its function returned"
        ended = replace(ended, ok=False, reason=Reason.USER_ERROR, message=cause)
    clue = Clue(Source.BACKEND.value, vanished.detail)
    return replace(ended, clues=(*vanished.clues, clue) if vanished.detail else vanished.clues)
