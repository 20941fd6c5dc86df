"""The CPU priority of processes that others wait for. Ray gives all its workers niceness 15 (`worker_niceness`)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

NICENESS = -5
"""Above computation: a node that computes on all cores must not appear frozen, and its PrimeMaster must answer."""


def raise_priority() -> None:
    """Raise this process's priority above computation, where the system allows it; Ray's workers come last otherwise.

    Linux keeps the niceness per thread.
    """
    for thread in Path("/proc/self/task").iterdir():
        # Without CAP_SYS_NICE the system refuses a higher priority; then it stays as it is.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), NICENESS)
