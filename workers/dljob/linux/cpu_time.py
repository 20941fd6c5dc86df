"""What keeps a process from a CPU: the quotas of its control groups, and whoever else wants the CPUs of its machine.

Source: docs.kernel.org/admin-guide/cgroup-v2.html (cpu.stat, cpu.max), scheduler/sched-bwc.html (version 1), and
scheduler/sched-stats.html (/proc/<pid>/schedstat). A quota holds for all groups below it. Inside a container the
group's own folder is the root of /sys/fs/cgroup, whatever /proc/<pid>/cgroup says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dljob.linux.memory_limit import CGROUPS, PROC


class Throttling(NamedTuple):
    """How a quota has held a control group back since the group was made."""

    periods: int
    """Periods in which one of its processes wanted to run."""
    throttled: int
    """Those of them in which the quota was used up."""
    throttled_ms: int
    """Time for which it was held back, of all CPUs together."""
    quota: int
    """Hundredths of a CPU that it is granted."""


class CpuUse(NamedTuple):
    """Time of the threads of a process that live now, in milliseconds."""

    ran: int
    waited: int
    """Ready to run, without a CPU."""


def throttling(pid: int, cgroups: Path = CGROUPS, proc: Path = PROC) -> Throttling | None:
    """Return how the tightest quota has held a process back; None where no quota holds for it, or it is gone."""
    known = [throttling for folder in _groups(pid, cgroups, proc) if (throttling := _throttling(folder)) is not None]
    return min(known, key=lambda throttling: throttling.quota, default=None)


def cpu_use(pid: int, proc: Path = PROC) -> CpuUse | None:
    """Return for how long the threads of a process ran and waited for a CPU; None where the kernel does not tell."""
    ran, waited, known = 0, 0, False
    for file in (proc / str(pid) / "task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # a thread that has ended meanwhile
            times = [int(word) for word in file.read_text().split()]
            ran, waited, known = ran + times[0], waited + times[1], True
    return CpuUse(ran // 10**6, waited // 10**6) if known else None


def load(proc: Path = PROC) -> float | None:
    """Return how many threads of the machine want a CPU: now, or on average over a minute, whichever is more."""
    with suppress(OSError, ValueError, IndexError):
        words = (proc / "loadavg").read_text().split()
        # The one that reads this does not count.
        return max(float(words[0]), int(words[3].partition("/")[0]) - 1)
    return None


def cpus() -> int:
    """Return the number of CPUs of the machine."""
    return os.cpu_count() or 1


def _groups(pid: int, cgroups: Path, proc: Path) -> Iterator[Path]:
    """Yield the CPU control groups of a process: its own, then its ancestors."""
    with suppress(OSError, ValueError):
        for row in (proc / str(pid) / "cgroup").read_text().splitlines():
            number, kinds, path = row.split(":", 2)
            if "cpu" in kinds.split(","):
                yield from _chain(cgroups / "cpu", path)
            elif number == "0":
                yield from _chain(cgroups, path)


def _chain(root: Path, path: str) -> Iterator[Path]:
    inside = root / path.lstrip("/")
    for folder in (inside, *inside.parents):
        yield folder
        if folder == root:
            return


def _throttling(folder: Path) -> Throttling | None:
    """Return how the quota of one group has held it back; None: it has none."""
    with suppress(OSError, ValueError, KeyError, ZeroDivisionError):
        if (folder / "cpu.max").exists():
            most, period = (folder / "cpu.max").read_text().split()  # "max": no quota
        else:
            most, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        if int(most) > 0:  # version 1 writes -1 for none
            rows = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            old = "throttled_time" in rows
            held_ms = int(rows["throttled_time"]) // 10**6 if old else int(rows["throttled_usec"]) // 10**3
            counts = int(rows["nr_periods"]), int(rows["nr_throttled"])
            return Throttling(*counts, held_ms, round(100 * int(most) / int(period)))
    return None
