"""Limit of concurrent passes, without those that wait for a head."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator


class Turns:
    """A number of turns, one for each pass that works; first come, first served."""

    def __init__(self, count: int = 1) -> None:
        self._free = asyncio.Semaphore(count)

    async def take(self) -> None:
        """Wait for a turn."""
        await self._free.acquire()

    def give(self) -> None:
        """Return a turn."""
        self._free.release()

    @contextlib.asynccontextmanager
    async def lent(self) -> AsyncGenerator[None]:
        """Release the held turn while a head is asked: a head may be silent, and must not block other passes."""
        self.give()
        try:
            yield
        finally:
            # Also after an error: `Controller._release_turn` gives back the turn of every pass.
            await self.take()
