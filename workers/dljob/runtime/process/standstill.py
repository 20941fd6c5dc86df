"""Since when the process of a script does nothing that can be seen: no CPU, no output, no input.

For a script that reports no steps and makes no call nothing else tells whether it goes on. A process that listens on a
port waits for its clients, which is its work.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from time import monotonic, process_time

from dljob.linux import own_sockets
from dljob.linux.descendants import descendants_cpu_s

STILL_CPU = 0.1
"""Share of a CPU that a process and its children may use and still stand still: a loop that looks for a file."""
STILL_BYTES = 64 << 10
"""Bytes that it may read and write a look: our own looks take some."""
_IO = Path("/proc/self/io")


class Standstill:
    """Watches this process."""

    def __init__(self) -> None:
        self.since: float | None = None
        """On the monotonic clock; None: it does something."""
        self._looked_at = monotonic()
        self._seen = self._look()

    def look(self) -> None:
        """Compare what the process has done with the last look."""
        before, now = self._seen, self._look()
        cpu_s, size, moved = (b - a for a, b in zip(before, now, strict=True))
        at = monotonic()
        # A child that has ended takes its time with it, unless somebody waits for it.
        is_still = 0 <= cpu_s < STILL_CPU * (at - self._looked_at) and not size and moved < STILL_BYTES
        if not is_still or own_sockets.listens():
            self.since = None
        elif self.since is None:
            self.since = self._looked_at
        self._seen, self._looked_at = now, at

    def skip(self) -> None:
        """Let what was done since the last look not count: it was dljob's own work."""
        self._seen, self._looked_at = self._look(), monotonic()

    def lasts(self, seconds: float) -> bool:
        """Return whether it has stood still for so long."""
        return self.since is not None and monotonic() - self.since >= seconds

    @staticmethod
    def _look() -> tuple[float, int, int]:
        """Return CPU seconds, the size of what was printed, and bytes read and written."""
        size = moved = 0
        for fd in (1, 2):
            with suppress(OSError):
                size += os.fstat(fd).st_size
        with suppress(OSError, ValueError, IndexError):
            moved = sum(int(row.split()[1]) for row in _IO.read_text().splitlines()[:2])
        return process_time() + descendants_cpu_s(), size, moved
