"""The CPU priority of ranks, and of processes that others wait for.

Ray gives all its workers niceness 15 (`worker_niceness`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

NICENESS = -5
"""Above computation: a node that computes on all cores must not appear frozen, and its PrimeMaster must answer."""
LOWEST, HIGHEST = -20, 19


class PriorityError(Exception):
    """The system refuses the priority that a role has for its ranks."""


class RankNiceness:
    """What a role adds to the niceness of this process."""

    def __init__(self) -> None:
        self._before: int | None = None

    def add(self, amount: int) -> None:
        """Add to the niceness of this thread and of those that have the same; a repetition changes nothing.

        Threads of Ray that began before it set the niceness of its worker keep theirs.

        Raises:
            PriorityError: The system refuses it; the message says why and what to do.
        """
        if not amount:
            return
        if self._before is None:
            self._before = os.getpriority(os.PRIO_PROCESS, 0)
        niceness = min(HIGHEST, max(LOWEST, self._before + amount))
        try:
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
        except OSError as error:
            raise PriorityError(
                f"nice: {amount} asks for niceness {niceness} instead of {self._before}: {error.strerror}. Give the "
                f"process CAP_SYS_NICE (on Kubernetes: securityContext.capabilities.add of ray-worker in the template "
                f"of its node group) or RLIMIT_NICE {HIGHEST + 1 - niceness} (ulimit -e), or set nice to 0 or more"
            ) from error
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it ended meanwhile
                if os.getpriority(os.PRIO_PROCESS, int(thread.name)) == self._before:
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)


rank_niceness = RankNiceness()


def raise_priority() -> None:
    """Raise this process's priority above computation, where the system allows it; Ray's workers come last otherwise.

    Linux keeps the niceness per thread.
    """
    for thread in Path("/proc/self/task").iterdir():
        # Without CAP_SYS_NICE the system refuses a higher priority; then it stays as it is.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), NICENESS)
