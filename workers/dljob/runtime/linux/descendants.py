"""The processes below this one: kept together, found, and ended.

Nobody sees a rank's end while a child that it forked holds its sockets open: children must end with their rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """Linux's prctl with one argument; where it is refused, life goes on without."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants whose own parent ended."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def below(root: int) -> list[int]:
    """The pids of all living descendants of a process, parents before children."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if (entry := folder.name).isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    children.setdefault(int(parent), []).append(int(entry))
    found: list[int] = []
    waiting = [root]
    while waiting:
        batch = children.get(waiting.pop(), [])
        found += batch
        waiting += batch
    return found


def childless() -> bool:
    """Whether this process has no child, dead or alive: so nothing is below it, without a look at all of /proc.

    Such a look takes 20 ms where a thousand processes run, in which user code that is to end goes on.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def kill_all(root: int | None = None, rounds: int = 3) -> int:
    """SIGKILL every descendant of a process (this one), again while new ones appear; how many signals were sent."""
    sent = 0
    for _ in range(rounds):
        if root is None and childless():
            break
        pids = below(root or os.getpid())
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                sent += 1
    return sent


def end_forks_with_me() -> None:
    """From now on, what `os.fork` makes below this process ends when this process does, however it ends.

    A forked child inherits Ray's sockets: while it lives, nobody hears that its parent was killed.
    """
    me = os.pidfd_open(os.getpid())

    def in_child() -> None:
        threading.Thread(target=_follow, args=(me,), name="dljob-follow", daemon=True).start()

    os.register_at_fork(after_in_child=in_child)


def _follow(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()
    os._exit(128 + signal.SIGKILL)
