"""What a thread makes is there, or will never be, once somebody has waited for it; whoever wanted it or not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dljob.runtime.process.making import Making


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


async def cancelled(task: asyncio.Task[object]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_work_that_has_begun_is_awaited_though_its_caller_is_gone(pool):
    making, began, go, made = Making(pool), threading.Event(), threading.Event(), list[str]()

    def make() -> None:
        began.set()
        go.wait()
        made.append("a")

    caller = asyncio.create_task(making.make("j/a", make))
    await asyncio.to_thread(began.wait)
    await cancelled(caller)
    assert making.names("j/") == ("j/a",)
    assert making.names("k/") == ()
    looks = asyncio.create_task(making.settled(making.names("j/")))
    await making.settled(["j/b"])  # another one is not waited for
    assert not looks.done()
    go.set()
    await looks
    assert made == ["a"]
    assert making.names("") == ()


async def test_work_that_has_not_begun_is_dropped_with_its_caller(pool):
    making, go, made = Making(pool), threading.Event(), list[str]()
    first = asyncio.create_task(making.make("first", go.wait))
    second = asyncio.create_task(making.make("second", made.append, "second"))
    await asyncio.sleep(0)
    await cancelled(second)
    go.set()
    await making.settled(["first", "second"])
    assert await first
    assert made == []


async def test_a_cancelled_waiter_does_not_cancel_the_making(pool):
    making, go = Making(pool), threading.Event()
    blocks = asyncio.create_task(making.make("first", go.wait))
    wanted = asyncio.create_task(making.make("second", str, 2))
    await asyncio.sleep(0)
    looks = asyncio.create_task(making.settled(["second"]))
    await asyncio.sleep(0)
    await cancelled(looks)
    go.set()
    assert (await blocks, await wanted) == (True, "2")


async def test_an_error_reaches_its_own_caller_only(pool):
    making, go = Making(pool), threading.Event()

    def fails() -> None:
        go.wait()
        raise ValueError("no room")

    caller = asyncio.create_task(making.make("a", fails))
    await asyncio.sleep(0)
    looks = asyncio.create_task(making.settled(["a"]))
    await asyncio.sleep(0)
    go.set()
    await looks
    with pytest.raises(ValueError, match="no room"):
        await caller
