"""One event loop per process, in a thread of its own, for user methods that are `async def`."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from dljob.runtime.process.activities import tasks_awaited
from dljob.runtime.process.thread_interrupt import ThreadInterrupted

LOOK_S = 0.1
"""Longest time, in seconds, between two bytecodes of a waiting thread: only there can it be interrupted."""
CLEAN_S = 10.0
"""Seconds for the coroutine of an interrupted wait to clean up; bounded, because Ray may already be gone."""

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def user_loop() -> asyncio.AbstractEventLoop:
    """Return the loop; it starts at the first call."""
    global _loop  # noqa: PLW0603 - a loop belongs to its process
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="dljob-loop", daemon=True).start()
        return _loop


def settle(value: Any) -> Any:
    """Return the value; an awaitable is awaited on the loop first, while this thread waits."""
    if not inspect.isawaitable(value):
        return value
    tasks: list[asyncio.Task[Any]] = []
    future: Future[Any] | None = None
    thread = threading.get_ident()
    outer_tasks = tasks_awaited.get(thread)
    tasks_awaited[thread] = tasks
    try:
        future = asyncio.run_coroutine_threadsafe(_await(value, tasks), user_loop())
        return _result(future)
    except ThreadInterrupted:
        # Cancelled, but not waited for: the other ranks of the group wait for this thread.
        if future is not None:
            future.cancel()
        raise
    except BaseException:
        if future is None or not future.done():  # Ctrl-C and the like: the awaited coroutine may clean up
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_cancel(tasks), user_loop()).result(CLEAN_S)
        raise
    finally:
        if outer_tasks is None:
            tasks_awaited.pop(thread, None)
        else:
            tasks_awaited[thread] = outer_tasks


def _result(future: Future[Any]) -> Any:
    while True:
        try:
            # In steps: ThreadInterrupted strikes only at a bytecode, never inside a wait.
            return future.result(LOOK_S)
        except TimeoutError:
            if future.done():
                return future.result()


async def _await(value: Awaitable[Any], tasks: list[asyncio.Task[Any]]) -> Any:
    if (task := asyncio.current_task()) is not None:
        tasks.append(task)
    return await value


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel the awaited task and wait for it. It has begun by now: the loop runs callbacks in order."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
