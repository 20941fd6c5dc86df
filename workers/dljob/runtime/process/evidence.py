"""What a machine knows of the end of a process: the kernel's log, and what the memory controller counted.

Everything here may be missing (a container without the kernel's log, another kind of control groups): then there is no
clue, or one that says so, and never a guess. A clue must be about the process itself: its pid in the kernel's log,
where pids mean the same as here, or one more kill counted in its own control group since just before.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dljob.master.state.views import Clue
from dljob.runtime.linux import memory_limit

KMSG = Path("/dev/kmsg")
PROC = Path("/proc")
INITIAL_PIDS = "pid:[4026531836]"
"""The machine's own pid namespace: only there is a pid of the kernel's log one of ours."""
KEPT = 256
RECORD_BYTES = 8192
SAMPLE_S = 1.0
KILL_S, DEVICE_S = 60.0, 900.0
"""How old a line may be that explains an end that is noticed now."""
_XID = "NVRM: Xid"
_WANTED = re.compile(r"out of memory: killed process|nvrm: xid", re.IGNORECASE)
_PID = re.compile(r"killed process (\d+)|\bpid=(\d+)", re.IGNORECASE)


class KernelLog:
    """Lines of the kernel's log that can be a cause, from now on (or from the boot on)."""

    def __init__(self, path: Path = KMSG, *, whole: bool = False) -> None:
        self._lines: deque[tuple[float, str]] = deque(maxlen=KEPT)
        self.why_not = ""
        """Why it cannot be read; empty: it can."""
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_SET if whole else os.SEEK_END)
        except OSError as error:
            self.why_not = error.strerror or type(error).__name__

    def lines(self) -> tuple[str, ...]:
        """What was written of late, the oldest first: a kill is noticed at once, a device's error may take a while."""
        while self._fd >= 0:
            try:
                record = os.read(self._fd, RECORD_BYTES)
            except BrokenPipeError:  # the ring was overwritten: reading goes on behind the gap
                continue
            except OSError:
                break
            if not record:
                break
            head, _, text = record.decode(errors="replace").partition("\n")[0].partition(";")
            if _WANTED.search(text):
                self._lines.append((float(head.split(",")[2]) / 1e6, text))
        now = time.monotonic()
        lines = tuple(self._lines)  # another thread may be adding to them
        return tuple(text for at, text in lines if now - at <= (DEVICE_S if _XID in text else KILL_S))

    def close(self) -> None:
        """Read no more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class MemoryKills:
    """How often the kernel ended a process of our control group for its memory, as `sample` saw it."""

    def __init__(self, cgroups: Path = memory_limit.CGROUPS, proc: Path = PROC) -> None:
        self._group = memory_limit.own_group(cgroups, proc)
        first = self._count()
        self._before = self._last = first
        self._at = time.monotonic()

    def sample(self) -> None:
        """Look, once a second at most: what was counted before the last look but one is of the past."""
        if time.monotonic() - self._at >= SAMPLE_S:
            self._at = time.monotonic()
            self._before, self._last = self._last, self._count()

    def clue(self) -> Clue | None:
        """What was counted since the last look but one; the same kill is told once."""
        now = self._count()
        if now is None or self._before is None or now <= self._before:
            return None
        more = now - self._before
        self._before = self._last = now
        peak = memory_limit.peak(self._group)
        return Clue("cgroup", f"oom_kill +{more}{f', {peak}' if peak else ''}")

    def _count(self) -> int | None:
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError, ValueError, StopIteration):
                lines = (self._group / name).read_text().splitlines()
                return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
        return None


class HostEvidence:
    """What one host keeps an eye on, so that it can say why a process beside it ended."""

    def __init__(self) -> None:
        self._kernel = KernelLog()
        self._memory = MemoryKills()
        self._own_pids = same_pids()

    def sample(self) -> None:
        """Once in a beacon."""
        self._memory.sample()

    def clues(self, pid: int, *, killed: bool) -> tuple[Clue, ...]:
        """All that is known of the end of a process; `killed`: it went without a word."""
        found = about(self._kernel.lines(), pid if self._own_pids else None)
        if not killed or (self._own_pids and not self._kernel.why_not):
            return found  # the kernel names whom it ends: a count could only be somebody else's
        counted = self._memory.clue()
        silent = Clue("kernel", f"the kernel's log cannot be read here: {self._kernel.why_not}")
        return (*found, *((counted,) if counted else ()), *((silent,) if self._kernel.why_not else ()))


def about(lines: Iterable[str], pid: int | None) -> tuple[Clue, ...]:
    """The lines about a process, and those about a device that name no other; pid None: none can be told apart."""
    found: list[Clue] = []
    for line in lines:
        named = _PID.search(line)
        if named is None or (pid is not None and int(named[1] or named[2]) == pid):
            found.append(Clue("kernel", line[:1000]))
    return tuple(found)


def same_pids() -> bool:
    """Whether pids here are those of the kernel's log."""
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink()) == INITIAL_PIDS
    return False


def of_the_dead(pid: int) -> tuple[Clue, ...]:
    """What this machine's kernel log says of a process that is gone; run where nobody watched while it lived."""
    if not same_pids():
        return ()
    log = KernelLog(whole=True)
    try:
        return about(log.lines(), pid)[-4:]
    finally:
        log.close()
