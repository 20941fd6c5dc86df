"""Awaitable twins of blocking methods: a thread does the work and knows whether its coroutine took what it made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

LOOK_S = 1.0
"""How often a thread that offers something looks whether the loop of its coroutine is still there."""

T = TypeVar("T")


class Handover(Generic[T]):
    """One value on its way from a thread to the coroutine that made this."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[T] = self._loop.create_future()
        self._over = threading.Event()
        self._taken = False

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits any more: the coroutine was cancelled."""
        return self._over.is_set() and not self._taken

    def offer(self, value: T) -> bool:
        """Give the coroutine its value; False when it was cancelled and has not taken it."""
        self._post(self._answer.set_result, value)
        while not self._over.wait(LOOK_S):
            if self._loop.is_closed():
                return False
        return self._taken

    async def run(self, work: Callable[[], object]) -> T:
        """The value that `work` offers in a thread of its own, or what it raises.

        The thread is a daemon: one whose coroutine was cancelled keeps no loop and no process alive.
        """

        def body() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised where it is awaited
                self._post(self._answer.set_exception, error)

        threading.Thread(target=body, name="dljob-aio", daemon=True).start()
        try:
            value = await self._answer
            self._taken = True
            return value
        finally:
            self._over.set()

    def _post(self, set_it: Callable[[Any], None], value: object) -> None:
        def settle() -> None:
            if not self._answer.done():
                set_it(value)

        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(settle)


async def in_thread(call: Callable[[], T]) -> T:
    """The call's answer, in a thread of its own."""
    made = Handover[T]()
    return await made.run(lambda: made.offer(call()))
