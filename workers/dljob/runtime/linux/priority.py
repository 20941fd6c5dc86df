"""The CPU priority of the processes that others wait for. Ray gives all its workers niceness 15 (`worker_niceness`)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

NICENESS = -5
"""Above what computes: a node on which everybody computes is not frozen, and its PrimeMaster still answers."""


def raise_priority() -> None:
    """Let this process run before others that compute, where the system allows it; Ray's workers come last otherwise.

    Linux keeps a niceness per thread.
    """
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), NICENESS)
