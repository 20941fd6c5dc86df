"""Waits for answers and items that are given up: by a deadline of the caller's own, or its thread is called back."""

from __future__ import annotations

import asyncio
import itertools
import threading
from concurrent.futures import Future

import pytest

from dljob.calls.dispatch import CallPlan, Send
from dljob.calls.mark import RpcMark
from dljob.runtime.process import wire
from dljob.runtime.process.messages import PULL, Reply
from dljob.runtime.rpc import sending
from dljob.runtime.rpc.arrivals import Arrivals
from dljob.runtime.rpc.futures import AsCompleted, Invocation
from dljob.runtime.rpc.streams import Stream


def reply(value) -> Reply:
    return Reply(payload=wire.dump(value, ""))


def started(count: int, *, stream: bool = False) -> Invocation:
    futures = tuple(Future() for _ in range(count))
    sent = CallPlan(tuple(Send(rank, 0) for rank in range(count)), (((), {}),))
    return Invocation("w", "f", RpcMark(stream=stream, collect="as_completed"), sent, futures)


async def given_up(waiting) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiting, 0.05)


class Router:
    """The caller's side of one stream of one rank; the test answers its pulls."""

    def __init__(self, monkeypatch) -> None:
        self.started = started(1, stream=True)
        self.pulls: list[Future[Reply]] = []
        self.context = self
        self.calls = self
        opened: Future[Invocation] = Future()
        opened.set_result(self.started)
        monkeypatch.setattr(sending, "begin", lambda *_, **__: opened)

    def send(self, call) -> Future[Reply]:
        future: Future[Reply] = Future()
        if call.method == PULL:
            self.pulls.append(future)
        return future

    def answer(self, *items: int, over: bool = False) -> None:
        self.pulls[-1].set_result(reply(([wire.dump(item, "") for item in items], over)))


@pytest.fixture
def router(monkeypatch):
    return Router(monkeypatch)


async def test_item_that_was_waited_for_in_vain_comes_to_the_next_who_waits(router):
    stream = Stream(router, "f", (), {})
    await given_up(anext(stream))
    router.started.futures[0].set_result(reply("key"))
    await given_up(anext(stream))
    await given_up(anext(stream))
    router.answer(1, 2)
    assert [await asyncio.wait_for(anext(stream), 5) for _ in range(2)] == [1, 2]
    await given_up(anext(stream))
    router.answer(3, over=True)
    assert [item async for item in stream] == [3]


async def test_answers_that_were_waited_for_in_vain_are_all_had():
    call = started(2)
    answers = AsCompleted(call)
    await given_up(anext(answers))
    await given_up(anext(answers))
    call.futures[1].set_result(reply("b"))
    assert await asyncio.wait_for(anext(answers), 5) == (1, "b")
    await given_up(anext(answers))
    call.futures[0].set_result(reply("a"))
    assert [pair async for pair in answers] == [(0, "a")]


async def test_several_who_wait_get_one_each_and_one_more_hears_of_the_end():
    call = started(2)
    answers = AsCompleted(call)
    waiting = [asyncio.ensure_future(anext(answers)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(StopAsyncIteration):
        await anext(answers)
    for number, future in enumerate(call.futures):
        future.set_result(reply(number))
    assert await asyncio.gather(*waiting) == [(0, 0), (1, 1)]


def test_a_waiting_thread_gets_the_answers_as_they_complete():
    call = started(2)
    answers = AsCompleted(call)
    threading.Timer(0.05, call.futures[1].set_result, (reply("b"),)).start()
    assert next(answers) == (1, "b")
    call.futures[0].set_result(reply("a"))
    assert list(answers) == [(0, "a")]


async def test_number_that_came_while_its_wait_was_given_up_is_the_first_of_the_next():
    futures = [Future() for _ in range(3)]
    coming = Arrivals(futures)
    waiting = asyncio.ensure_future(coming.coming())
    await asyncio.sleep(0)
    for future in futures:  # the loop hears of it after the next line
        future.set_result(None)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [await coming.coming() for _ in futures] == [0, 1, 2]


class CalledBackError(BaseException):
    """What is raised in a thread that is wanted elsewhere."""


class Interrupted(Future):
    """A future whose first wait is broken off, before or after it has its result."""

    waits = itertools.count()

    def result(self, timeout=None):
        if next(self.waits) == 0:
            raise CalledBackError
        return super().result(timeout)


@pytest.mark.parametrize("early", [True, False])
def test_thread_that_was_called_back_took_nothing(monkeypatch, early):
    monkeypatch.setattr(Interrupted, "waits", itertools.count())
    monkeypatch.setattr("dljob.runtime.rpc.arrivals.Future", Interrupted)
    futures = [Future(), Future()]
    coming = Arrivals(futures)
    if early:
        futures[1].set_result(None)
    with pytest.raises(CalledBackError):
        coming.wait()
    if not early:
        futures[1].set_result(None)
    assert coming.wait() == 1
    futures[0].set_result(None)
    assert coming.wait() == 0
