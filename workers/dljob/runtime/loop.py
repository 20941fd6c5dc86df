"""One event loop per process, in a thread of its own, for what users write as `async def`."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable
from typing import Any

from dljob.runtime.recall import Recalled

LOOK_S = 0.1
"""How often a waiting thread comes by where it can be called back."""

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def user_loop() -> asyncio.AbstractEventLoop:
    """The loop, started when it is first wanted."""
    global _loop  # noqa: PLW0603 - a loop belongs to its process
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="dljob-loop", daemon=True).start()
        return _loop


def settle(value: Any) -> Any:
    """The value itself, or, when it is awaitable, what it gives: awaited on the loop while this thread waits."""
    if not inspect.isawaitable(value):
        return value
    future = asyncio.run_coroutine_threadsafe(_await(value), user_loop())
    while True:
        try:
            return future.result(LOOK_S)
        except TimeoutError:
            if future.done():
                return future.result()
        except Recalled:
            future.cancel()
            raise


async def _await(value: Awaitable[Any]) -> Any:
    return await value
