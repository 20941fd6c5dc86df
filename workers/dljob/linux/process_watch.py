"""The end of another process of this pid namespace, told by the kernel at once."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress


class ProcessWatch:
    """Watches one process at a time, on one event loop. A connection to a process may tell its end seconds later."""

    def __init__(self) -> None:
        self.pid = 0
        """Pid of the process that is watched; 0: none."""
        self._ended = asyncio.Event()
        self._fd = -1

    def watch(self, pid: int) -> None:
        """Watch this process and no other. One that cannot be watched, or has ended already, never counts as ended."""
        if pid == self.pid:
            return
        self.forget()
        with suppress(OSError):
            self._fd = os.pidfd_open(pid)
            self.pid = pid
            asyncio.get_running_loop().add_reader(self._fd, self._ended.set)

    def forget(self) -> None:
        """Watch no process any more."""
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
        self.pid, self._fd, self._ended = 0, -1, asyncio.Event()

    @property
    def fd(self) -> int:
        """The pidfd of the process that is watched, which tells how it ended; -1: none is."""
        return self._fd

    async def ended(self) -> None:
        """Return once the process that is watched has ended."""
        await self._ended.wait()
