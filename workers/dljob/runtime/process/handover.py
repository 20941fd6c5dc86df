"""Awaitable versions of blocking methods: a thread does the work and knows whether its coroutine took the result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from dljob.runtime.process import activities

LOOK_S = 1.0
"""Seconds between checks that the coroutine's loop still exists, by a thread that offers a value."""

T = TypeVar("T")


class Handover(Generic[T]):
    """Hands one value from a thread to the coroutine that created this object.

    A cancelled coroutine must not lose the value: the thread learns that nobody took it, and can put it back.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[T] = self._loop.create_future()
        self._over = threading.Event()
        self._taken = False

    @property
    def cancelled(self) -> bool:
        """Whether the coroutine was cancelled, so that nobody waits for the value."""
        return self._over.is_set() and not self._taken

    def offer(self, value: T) -> bool:
        """Offer the value; False when the coroutine was cancelled before it took it."""
        self._post(self._answer.set_result, value)
        # In steps: if the loop is closed, the coroutine never runs again, and `_over` is never set.
        while not self._over.wait(LOOK_S):
            if self._loop.is_closed():
                return False
        return self._taken

    async def run(self, work: Callable[[], object]) -> T:
        """Return the value that `work` offers in a thread of its own, or raise what it raises.

        The thread is a daemon: after a cancellation it keeps neither the loop nor the process alive.
        """

        def body() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised where it is awaited
                self._post(self._answer.set_exception, error)

        # With the context of the coroutine: what the thread waits for, the coroutine's activity waits for.
        context = activities.context()
        threading.Thread(target=context.run, args=(body,), name="dljob-aio", daemon=True).start()
        try:
            value = await self._answer
            # Set in the coroutine: only here is it certain that the value arrived, and was not dropped by a cancel.
            self._taken = True
            return value
        finally:
            self._over.set()

    def _post(self, set_it: Callable[[Any], None], value: object) -> None:
        def settle() -> None:
            # The coroutine may have been cancelled since the thread posted the value.
            if not self._answer.done():
                set_it(value)

        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(settle)


async def in_thread(call: Callable[[], T]) -> T:
    """Return the call's result, computed in a thread of its own."""
    handover = Handover[T]()
    return await handover.run(lambda: handover.offer(call()))
