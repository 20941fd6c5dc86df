"""The end of programs that a killed host left on its node, found by their environment.

A host that ends itself kills its descendants. One that is killed cannot, and a program that user code had started may
hold a device, a port or a file that the rank's next process needs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

ROUNDS = 3
"""Number of searches for processes: a program may start another one before it is killed."""


def leftover(uid: str, role: str, incarnations: Mapping[int, int]) -> list[int]:
    """Return the pids of processes of earlier incarnations. `incarnations`: rank -> present incarnation."""
    every = (folder for folder in Path("/proc").iterdir() if folder.name.isdigit())
    return [int(folder.name) for folder in every if _is_leftover(folder, uid, role, incarnations)]


def _is_leftover(folder: Path, uid: str, role: str, incarnations: Mapping[int, int]) -> bool:
    """Whether a process was left. One that we may not inspect is not ours to end; a zombie has no environment."""
    with suppress(OSError, ValueError, KeyError):
        environment = (folder / "environ").read_bytes()
        # A cheap test first: nearly all processes fail it.
        if f"DLJOB_UID={uid}".encode() not in environment:
            return False
        variables = dict(pair.split(b"=", 1) for pair in environment.split(b"\0") if b"=" in pair)
        if (variables[b"DLJOB_UID"], variables[b"DLJOB_ROLE"]) == (uid.encode(), role.encode()):
            past = int(variables[b"DLJOB_INCARNATION"]) < incarnations[int(variables[b"DLJOB_RANK"])]
            return past and not _hosted(int(folder.name))
    return False


def _hosted(pid: int) -> bool:
    """Whether a Ray worker is among a process's ancestors: then its host lives, and will end it."""
    while pid > 1:
        process = Path(f"/proc/{pid}")
        if (process / "cmdline").read_bytes().startswith(b"ray::"):
            return True
        pid = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    return False


def reap(uid: str, role: str, incarnations: Mapping[int, int]) -> int:
    """SIGKILL the processes that `leftover` finds, repeatedly while more appear; return the number of signals sent."""
    sent = 0
    for _ in range(ROUNDS):
        pids = leftover(uid, role, incarnations)
        if not pids:
            break
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                sent += 1
    return sent
