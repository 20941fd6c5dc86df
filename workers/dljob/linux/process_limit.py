"""The limits of processes and threads that hold for this process, and whether one of them is reached.

Source: docs.kernel.org/admin-guide/cgroup-v2.html (pids.max counts threads, too, and holds for all groups below), and
getrlimit(2): RLIMIT_NPROC counts the threads of the user, and does not hold for root.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dljob.linux.memory_limit import CGROUPS, PROC

_NEARLY, _HALF = 0.95, 0.5
"""Share of a limit in use from which it counts as reached, and where the kernel has refused a process because of it:
who met it has often given some up by now, and a refusal may be long ago."""
RAISE = "raise it (ulimit -u; a container: --pids-limit; a pod: the kubelet's podPidsLimit), or start fewer threads"


@dataclass(frozen=True, slots=True)
class ProcessLimit:
    """One limit: its name for users, what it allows, and what is in use."""

    name: str
    most: int
    used: int
    refused: int = 0
    """How often the kernel refused a process or thread because of it, as far as it counts that."""

    @property
    def reached(self) -> bool:
        """Whether there is no room for another thread, or lately was none."""
        return self.used >= self.most * (_HALF if self.refused else _NEARLY)

    def __str__(self) -> str:
        refused = f", {self.refused} more were refused" if self.refused else ""
        return f"{self.name} allows {self.most} processes and threads, {self.used} are in use{refused}"


def process_limits(cgroups: Path = CGROUPS, proc: Path = PROC) -> Iterator[ProcessLimit]:
    """Yield the limits that hold here: those of our control groups, the innermost first, then the user's."""
    for folder in _groups(cgroups, proc):
        with suppress(OSError, ValueError):  # "max": no limit
            most = int((folder / "pids.max").read_text())
            used = int((folder / "pids.current").read_text())
            yield ProcessLimit(f"pids.max of {folder}", most, used, _refused(folder))
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        yield ProcessLimit(f"ulimit -u of user {os.geteuid()}", soft, _threads_of_user(proc))


def reached_limit(cgroups: Path = CGROUPS, proc: Path = PROC) -> ProcessLimit | None:
    """Return a limit that is reached; None: none is."""
    return next((limit for limit in process_limits(cgroups, proc) if limit.reached), None)


def describe_refusal(error: BaseException) -> str:
    """Return which limit an error of starting a process or thread has met; empty for another error, or none found."""
    thread = isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    process = isinstance(error, OSError) and error.errno == errno.EAGAIN and error.filename is None
    limit = reached_limit() if thread or process else None
    return f"{limit}: {RAISE}" if limit else ""


def _groups(cgroups: Path, proc: Path) -> Iterator[Path]:
    """Yield the folders of our groups and their ancestors, of version 1's hierarchy and of version 2's."""
    rows: list[list[str]] = []
    with suppress(OSError):  # without /proc only the roots are known
        rows = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    version_1_path = next((path for _, kinds, path in rows if "pids" in kinds.split(",")), "/")
    version_2_path = next((path for number, _, path in rows if number == "0"), "/")
    for root, path in ((cgroups / "pids", version_1_path), (cgroups, version_2_path)):
        inside = root / path.lstrip("/")
        yield from (folder for folder in (inside, *inside.parents) if folder == root or root in folder.parents)


def _refused(folder: Path) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int((folder / "pids.events").read_text().split()[1])
    return 0


def _threads_of_user(proc: Path) -> int:
    count = 0
    for status in proc.glob("[0-9]*/status"):
        with suppress(OSError, ValueError, KeyError):  # it has just ended
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            count += int(fields["Threads"]) if int(fields["Uid"].split()[0]) == os.geteuid() else 0
    return count
