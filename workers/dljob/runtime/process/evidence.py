"""Evidence on a machine about the end of a process: the kernel's log, and kills counted by the memory controller.

All of it may be missing (a container without the kernel's log, other control groups). Then there is no clue, or one
that says so, and never a guess. A line of the log that names a pid is a clue only about that process, and only if pids
there mean the same as here; a line without a pid, such as an error of a device, is a clue about any process. An
additional kill counted in the process's control group is a clue where the log cannot name its pid.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Container, Iterable
from contextlib import suppress
from pathlib import Path

from dljob.linux import memory_limit
from dljob.master.state.views import Clue

KMSG = Path("/dev/kmsg")
PROC = Path("/proc")
INITIAL_PIDS = "pid:[4026531836]"
"""The machine's initial pid namespace: only there are pids of the kernel's log those of this process."""
KEPT = 256
"""Number of lines of the kernel's log that are kept."""
RECORD_BYTES = 8192
"""The longest record that /dev/kmsg returns; a shorter buffer makes the read fail."""
SAMPLE_S = 1.0
KILL_S, DEVICE_S = 60.0, 900.0
"""Largest age, in seconds, of a kill and of a device's error that may explain an end noticed now. A kill is noticed at
once; after an error of its device a process may live on for a while."""
COUNTED_S = 20.0
"""Largest age, in seconds, of a kill that is only counted. The count grows at the kill; the process ends once
the kernel has freed its memory, some gigabytes a second, and PrimeMaster asks for evidence after the restart began."""
_XID = "NVRM: Xid"
_KERNEL_KILLS = re.compile(r"out of memory: killed process|nvrm: xid", re.IGNORECASE)
_PID = re.compile(r"killed process (\d+)|\bpid=(\d+)", re.IGNORECASE)


class KernelLog:
    """The lines of the kernel's log that can be a cause of death, from now on or (`whole`) since the boot."""

    def __init__(self, path: Path = KMSG, *, from_start: bool = False) -> None:
        self._lines: deque[tuple[float, str]] = deque(maxlen=KEPT)
        self.why_not = ""
        """Why the log cannot be read; empty if it can."""
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            # From the end: older lines cannot be about the end of a process that this one watches.
            os.lseek(self._fd, 0, os.SEEK_SET if from_start else os.SEEK_END)
        except OSError as error:
            self.why_not = error.strerror or type(error).__name__

    def lines(self) -> tuple[str, ...]:
        """Return the recent lines, the oldest first."""
        while self._fd >= 0:
            try:
                record = os.read(self._fd, RECORD_BYTES)
            except BrokenPipeError:  # the kernel has overwritten the ring: reading goes on behind the gap
                continue
            except OSError:
                break
            if not record:
                break
            # A record is `priority,number,microseconds since the boot,flags;text`, then lines of keys.
            head, _, text = record.decode(errors="replace").partition("\n")[0].partition(";")
            if _KERNEL_KILLS.search(text):
                self._lines.append((float(head.split(",")[2]) / 1e6, text))
        now = time.monotonic()
        lines = tuple(self._lines)  # another thread may be adding to them
        return tuple(text for at, text in lines if now - at <= (DEVICE_S if _XID in text else KILL_S))

    def close(self) -> None:
        """Stop reading."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class MemoryKills:
    """The number of processes of our control group that the kernel killed for memory, sampled once a second."""

    def __init__(self, cgroups: Path = memory_limit.CGROUPS, proc: Path = PROC) -> None:
        self._group = memory_limit.own_group(cgroups, proc)
        self._counts: deque[tuple[float, int | None]] = deque([(time.monotonic(), self._count())])

    def sample(self) -> None:
        """Sample the counter, at most once a second."""
        counts, now = self._counts, time.monotonic()
        if now - counts[-1][0] >= SAMPLE_S:
            counts.append((now, self._count()))
            # The oldest that stays is what the counter was `COUNTED_S` ago.
            while len(counts) > 1 and now - counts[1][0] >= COUNTED_S:
                counts.popleft()

    def clue(self) -> Clue | None:
        """Return the kills of the last `COUNTED_S` seconds; each kill is reported once."""
        self.sample()
        before, now = self._counts[0][1], self._count()
        if now is None or before is None or now <= before:
            return None
        self._counts = deque([(time.monotonic(), now)])
        peak = memory_limit.peak(self._group)
        return Clue("cgroup", f"oom_kill +{now - before}{f', {peak}' if peak else ''}")

    def _count(self) -> int | None:
        # The two versions of control groups have the same line in different files.
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError, ValueError, StopIteration):
                lines = (self._group / name).read_text().splitlines()
                return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
        return None


class HostEvidence:
    """The evidence that one host collects, to say why a process of its machine ended."""

    def __init__(self) -> None:
        self._kernel = KernelLog()
        self._memory = MemoryKills()
        self._own_pids = same_pids()

    def sample(self) -> None:
        """Sample the counters; called once per heartbeat."""
        self._memory.sample()

    def clues(self, pid: int, *, killed: bool, children: tuple[int, ...] = ()) -> tuple[Clue, ...]:
        """Return all clues about the end of a process.

        Args:
            pid: its pid.
            killed: whether it, or a child of it, died without a report of its own.
            children: pids of children that it lost before.
        """
        named = about(self._kernel.lines(), (pid, *children) if self._own_pids else ())
        if not killed or (self._own_pids and not self._kernel.why_not):
            return named  # the kernel's log names whom it kills: a count could only be about another process
        counted = self._memory.clue()
        silent = Clue("kernel", f"the kernel's log cannot be read here: {self._kernel.why_not}")
        return (*named, *((counted,) if counted else ()), *((silent,) if self._kernel.why_not else ()))


def about(lines: Iterable[str], pids: Container[int]) -> tuple[Clue, ...]:
    """Return the lines about processes, and lines that name none; `pids` is empty where they cannot be compared."""
    clues: list[Clue] = []
    for line in lines:
        named = _PID.search(line)
        # A line without a pid (an Xid of the driver) may be about any process, so it stays a clue.
        if named is None or int(named[1] or named[2]) in pids:
            clues.append(Clue("kernel", line[:1000]))
    return tuple(clues)


def same_pids() -> bool:
    """Whether pids here are those of the kernel's log."""
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink()) == INITIAL_PIDS
    return False


def of_the_dead(pid: int) -> tuple[Clue, ...]:
    """Return what the kernel's log says about a dead process, on a machine where no host watched it while it lived."""
    if not same_pids():
        return ()
    log = KernelLog(from_start=True)
    try:
        return about(log.lines(), (pid,))[-4:]
    finally:
        log.close()
