"""The order in which futures complete, for a thread or a coroutine that waits for the next one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any


class Arrivals:
    """Yields the indices of futures as they complete. Each index goes to one waiter."""

    def __init__(self, futures: Sequence[Future[Any]] = ()) -> None:
        self._lock = threading.Lock()
        self._ended: deque[int] = deque()
        self._waiting: deque[Future[int]] = deque()
        for number, future in enumerate(futures):
            self.add(number, future)

    def add(self, number: int, future: Future[Any]) -> None:
        """Watch one more future under an index."""
        future.add_done_callback(lambda _: self._arrived(number))

    def take(self) -> Future[int]:
        """Return a future with the index of the next future that completes, or has completed and was not taken."""
        next_index: Future[int] = Future()
        # Running: a cancelled coroutine must not cancel it, or the index that it gets would be lost.
        next_index.set_running_or_notify_cancel()
        with self._lock:
            if not self._ended:
                self._waiting.append(next_index)
                return next_index
            number = self._ended.popleft()
        next_index.set_result(number)
        return next_index

    def wait(self) -> int:
        """Block until the next index; a thread that is interrupted here has taken none."""
        next_index = self.take()
        try:
            return next_index.result()
        except BaseException:
            self._return_index(next_index)
            raise

    async def coming(self) -> int:
        """Await the next index; a coroutine that is cancelled here has taken none."""
        import asyncio  # only coroutines need it, and a forked script rank has none

        next_index = self.take()
        try:
            return await asyncio.wrap_future(next_index)
        except BaseException:
            self._return_index(next_index)
            raise

    def _return_index(self, next_index: Future[int]) -> None:
        """Put back the index of an interrupted waiter, which may have come meanwhile: the next waiter gets it."""
        with self._lock:
            if next_index in self._waiting:
                self._waiting.remove(next_index)
                return
        # To the front: an index that is given back is older than those that have arrived since.
        self._arrived(next_index.result(), again=True)

    def _arrived(self, number: int, *, again: bool = False) -> None:
        with self._lock:
            if not self._waiting:
                (self._ended.appendleft if again else self._ended.append)(number)
                return
            next_index = self._waiting.popleft()
        # Outside the lock: a waiter's callbacks run in here, and may take the next index.
        next_index.set_result(number)
