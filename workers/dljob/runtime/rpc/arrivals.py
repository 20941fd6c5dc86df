"""Futures in the order in which they end, for one who waits in a thread or in a coroutine."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any


class Arrivals:
    """Gives the numbers of futures as they end."""

    def __init__(self, futures: Sequence[Future[Any]] = ()) -> None:
        self._lock = threading.Lock()
        self._ended: deque[int] = deque()
        self._waiting: deque[Future[int]] = deque()
        for number, future in enumerate(futures):
            self.add(number, future)

    def add(self, number: int, future: Future[Any]) -> None:
        """One more to come."""
        future.add_done_callback(lambda _: self._arrived(number))

    def take(self) -> Future[int]:
        """The number of the next one that ends, or has ended and was not taken."""
        taken: Future[int] = Future()
        taken.set_running_or_notify_cancel()
        with self._lock:
            if not self._ended:
                self._waiting.append(taken)
                return taken
            number = self._ended.popleft()
        taken.set_result(number)
        return taken

    def wait(self) -> int:
        """`take`, and wait for it; a thread that is called back from there has taken nothing."""
        taken = self.take()
        try:
            return taken.result()
        except BaseException:
            self._give_back(taken)
            raise

    async def coming(self) -> int:
        """`take`, in a coroutine; one that is cancelled has taken nothing."""
        import asyncio

        taken = self.take()
        try:
            return await asyncio.wrap_future(taken)
        except BaseException:
            self._give_back(taken)
            raise

    def _give_back(self, taken: Future[int]) -> None:
        """Nobody waits for it any more. It may have its number all the same, or be about to: then the next has it."""
        with self._lock:
            if taken in self._waiting:
                self._waiting.remove(taken)
                return
        self._arrived(taken.result(), again=True)

    def _arrived(self, number: int, *, again: bool = False) -> None:
        with self._lock:
            if not self._waiting:
                (self._ended.appendleft if again else self._ended.append)(number)
                return
            taken = self._waiting.popleft()
        taken.set_result(number)
