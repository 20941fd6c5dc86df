"""One event loop per process, in a thread of its own, for what users write as `async def`."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from dljob.runtime.process.thread_interrupt import ThreadInterrupted

LOOK_S = 0.1
"""How often a waiting thread comes by where it can be called back."""
CLEAN_S = 10.0
"""How long it waits, when it is broken off, until what it waited for has cleaned up; not longer: Ray may be gone."""

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
    tasks: list[asyncio.Task[Any]] = []
    future: Future[Any] | None = None
    try:
        future = asyncio.run_coroutine_threadsafe(_await(value, tasks), user_loop())
        return _result(future)
    except ThreadInterrupted:
        if future is not None:
            future.cancel()
        raise
    except BaseException:
        if future is None or not future.done():  # Ctrl-C and the like, here: what was awaited puts right what it began
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_cancel(tasks), user_loop()).result(CLEAN_S)
        raise


def _result(future: Future[Any]) -> Any:
    while True:
        try:
            return future.result(LOOK_S)
        except TimeoutError:
            if future.done():
                return future.result()


async def _await(value: Awaitable[Any], tasks: list[asyncio.Task[Any]]) -> Any:
    if (task := asyncio.current_task()) is not None:
        tasks.append(task)
    return await value


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    """End what is awaited. It has begun if it ever will: the loop takes things up in their order."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
