"""The future of a call by a line: what completes it, and what goes to the client's loop."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from dljob.runtime.process.messages import NotRun, Reply
from dljob.runtime.rpc import line_call
from dljob.runtime.rpc.line_call import LineBrokenError, LineCall

WAIT_S = 30.0
ANSWER = Reply(payload=b"1")


class Sending:
    seconds_left: float | None = None


class Scene:
    """Calls, and what the loop was given."""

    def __init__(self) -> None:
        self.given: list[LineCall] = []
        self.learned: list[Reply] = []
        self.sending = Sending()

    def call(self) -> LineCall:
        return LineCall(self.sending, self.given.append, self.learned.append)  # type: ignore[arg-type]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_answer_completes_the_call_and_is_learned(scene):
    call = scene.call()
    threading.Timer(0.05, call.took, [ANSWER.packed()]).start()
    assert call.result(WAIT_S) == ANSWER
    assert call.exception(0) is None
    assert (scene.given, scene.learned) == ([], [ANSWER])


def test_wait_that_timed_out_may_be_repeated(scene):
    call = scene.call()
    with pytest.raises(TimeoutError):
        call.result(0.01)
    with pytest.raises(TimeoutError):
        call.exception(0)
    call.took(ANSWER.packed())
    assert call.result(0) == ANSWER
    assert scene.given == []


def test_refusal_is_the_loops(scene):
    call, refused = scene.call(), Reply(refused=NotRun.ENDED)
    call.took(refused.packed())
    assert scene.given == [call]
    assert (call.later.future.result(0), call.done(), scene.learned) == (refused, False, [])


async def test_loss_is_the_loops(scene):
    call = scene.call()
    call.took(None)
    assert scene.given == [call]
    with pytest.raises(LineBrokenError):
        await call.later


@pytest.mark.parametrize("how", ["deadline", "callback", "unasked"])
async def test_call_that_is_handed_over_is_completed_by_the_loop_with_the_answer(scene, how):
    call, heard = scene.call(), []
    if how == "deadline":
        scene.sending.seconds_left = 0.0
        with pytest.raises(TimeoutError):
            call.result(0.01)
    elif how == "callback":
        call.add_done_callback(heard.append)
    call.hand_over()
    assert scene.given == [call], "once"
    threading.Timer(0.05, call.took, [ANSWER.packed()]).start()
    assert await asyncio.wait_for(_of(call), WAIT_S) == ANSWER
    assert not call.done(), "the loop has its own rules for the end"
    call.set_result(ANSWER)
    assert call.result(0) == ANSWER
    assert heard == ([call] if how == "callback" else [])


async def _of(call: LineCall) -> Reply:
    return await call.later


def test_thread_that_waits_can_be_interrupted_between_slices(scene, monkeypatch):
    monkeypatch.setattr(line_call, "SLICE_S", 0.01)
    call, begin = scene.call(), time.monotonic()
    threading.Timer(0.1, call.took, [ANSWER.packed()]).start()
    assert call.result() == ANSWER
    assert time.monotonic() - begin < WAIT_S


def test_answers_of_several_are_awaited_together_and_the_first_error_ends_the_wait(scene):
    calls = [scene.call() for _ in range(3)]
    for number, call in enumerate(calls):
        threading.Timer(0.02 * number, call.took, [ANSWER.packed()]).start()
    LineCall.fetch_together(calls, lambda: None, lambda: None)
    assert all(call.done() for call in calls)

    def check() -> None:
        if any(call.done() for call in calls):
            raise ValueError("the first error")

    calls = [scene.call() for _ in range(2)]
    threading.Timer(0.1, calls[1].took, [ANSWER.packed()]).start()
    with pytest.raises(ValueError, match="the first error"):
        LineCall.fetch_together(calls, lambda: None, check)
    assert not calls[0].done()


def test_waiting_for_several_ends_with_its_time_and_late_ones_are_the_loops(scene):
    end = time.monotonic() + 0.05
    calls = [scene.call() for _ in range(2)]
    with pytest.raises(TimeoutError):
        LineCall.fetch_together(calls, lambda: max(0.0, end - time.monotonic()), lambda: None)
    assert scene.given == []
    scene.sending.seconds_left = 0.0
    threading.Timer(0.1, lambda: [call.set_result(ANSWER) for call in scene.given]).start()
    LineCall.fetch_together(calls, lambda: None, lambda: None)
    assert scene.given == calls
