"""What a thread makes for a caller that may be cancelled meanwhile: it comes all the same, and who looks waits for it.

A thread cannot be taken back from what it does. Without this, what was ordered just before a job's end would be there
after it: nobody waits for it any more, and a list of what is there does not have it yet.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


class Making:
    """What is being made, by name, in the threads of a pool."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._under_way: dict[str, Future[Any]] = {}
        self._lock = threading.Lock()

    async def make(self, name: str, function: Callable[..., T], *args: Any) -> T:
        """Make something in a thread. A caller that is cancelled does not keep what has begun from being made."""
        with self._lock:
            made = self._under_way[name] = self._pool.submit(function, *args)
        made.add_done_callback(lambda _: self._done(name, made))
        return await asyncio.wrap_future(made)

    def _done(self, name: str, made: Future[Any]) -> None:
        with self._lock:  # the same name may be being made again
            if self._under_way.get(name) is made:
                del self._under_way[name]

    def names(self, prefix: str) -> tuple[str, ...]:
        """Of what is being made, the names that start so."""
        return tuple(name for name in tuple(self._under_way) if name.startswith(prefix))

    async def settled(self, names: Iterable[str]) -> None:
        """Return when none of these is being made any more: each is there, or will never be."""
        under_way = [made for name in names if (made := self._under_way.get(name))]
        if under_way:
            # Unlike gather, wait does not cancel what it waits for when its own caller is cancelled.
            await asyncio.wait([_quiet(asyncio.wrap_future(made)) for made in under_way])


def _quiet(awaited: asyncio.Future[Any]) -> asyncio.Future[Any]:
    """Its error is that of who had it made, and is read here so that asyncio does not tell of it."""
    awaited.add_done_callback(lambda done: done.cancelled() or done.exception())
    return awaited
