"""Creations that outlive the cancellation of their caller, so that a cleanup can wait for them.

A thread cannot be cancelled. An actor ordered just before a job's end would otherwise exist after it: nobody waits for
it any more, and a listing does not have it yet.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


class Making:
    """The creations under way in the threads of a pool, by name."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._under_way: dict[str, Future[Any]] = {}
        self._lock = threading.Lock()

    async def make(self, name: str, function: Callable[..., T], *args: Any) -> T:
        """Create something in a thread. Cancelling the caller does not cancel a creation that has begun."""
        with self._lock:
            creation = self._under_way[name] = self._pool.submit(function, *args)
        creation.add_done_callback(lambda _: self._done(name, creation))
        return await asyncio.wrap_future(creation)

    def _done(self, name: str, creation: Future[Any]) -> None:
        with self._lock:  # a second creation of the same name may have begun
            if self._under_way.get(name) is creation:
                del self._under_way[name]

    def names(self, prefix: str) -> tuple[str, ...]:
        """Return the names of creations under way that start with `prefix`."""
        return tuple(name for name in tuple(self._under_way) if name.startswith(prefix))

    async def settled(self, names: Iterable[str]) -> None:
        """Return when none of these is under way: each exists now, or never will."""
        under_way = [creation for name in names if (creation := self._under_way.get(name))]
        if under_way:
            # Unlike gather, wait does not cancel what it waits for when its own caller is cancelled.
            await asyncio.wait([_quiet(asyncio.wrap_future(creation)) for creation in under_way])


def _quiet(awaited: asyncio.Future[Any]) -> asyncio.Future[Any]:
    """Mark the error as retrieved, so that asyncio does not log it: the caller of `make` gets it."""
    awaited.add_done_callback(lambda done: done.cancelled() or done.exception())
    return awaited
