"""Calls whose answer is fetched by who waits for it, with a Ray whose answers the test gives."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from concurrent.futures import FIRST_COMPLETED, Future, wait

import pytest
from ray.exceptions import ActorDiedError, GetTimeoutError

from dljob.runtime.process.messages import NotRun, Reply
from dljob.runtime.rpc import direct
from dljob.runtime.rpc.arrivals import Arrivals
from dljob.runtime.rpc.direct import DirectCall, UnawaitedCalls


class FakeRay:
    """`get` and `wait` over futures."""

    def __init__(self) -> None:
        self.asked = 0

    def get(self, refs, timeout=None):
        self.asked += 1
        many = refs if isinstance(refs, list) else [refs]
        if wait(many, timeout).not_done:
            raise GetTimeoutError("not yet")
        values = [ref.result() for ref in many]
        return values if isinstance(refs, list) else values[0]

    def wait(self, refs, num_returns=1, timeout=None):
        done = wait(refs, timeout, FIRST_COMPLETED).done if num_returns == 1 else wait(refs, timeout).done
        found = [ref for ref in refs if ref in done][:num_returns]
        return found, [ref for ref in refs if ref not in found]


class Sending:
    seconds_left: float | None = None


class Scene:
    """Calls, and what the loop was given."""

    def __init__(self) -> None:
        self.given: list[DirectCall] = []
        self.learned: list[Reply] = []
        self.sending = Sending()

    def call(self) -> DirectCall:
        return DirectCall(Future(), self.sending, lambda call, _: self.given.append(call), self.learned.append)

    @staticmethod
    def answer(call: DirectCall, **reply) -> None:
        call.ref.set_result(Reply(**reply).packed())


@pytest.fixture
def ray(monkeypatch):
    made = FakeRay()
    monkeypatch.setattr(direct, "ray", made)
    return made


@pytest.fixture
def scene(ray):
    return Scene()


def test_an_answer_is_fetched_by_the_thread_that_waits(scene):
    call = scene.call()
    assert not call.done()
    scene.answer(call, payload=b"1")
    assert call.result(1).payload == b"1"
    assert call.done()
    assert call.exception(1) is None
    assert scene.given == []
    assert [reply.payload for reply in scene.learned] == [b"1"], "it says whether it may be sent again"


def test_a_wait_that_timed_out_may_be_repeated(scene):
    call = scene.call()
    with pytest.raises(TimeoutError):
        call.result(0.01)
    assert scene.given == []
    threading.Timer(0.05, scene.answer, (call,), {"payload": b"1"}).start()
    assert call.result(10).payload == b"1"


def test_large_answer_comes_as_it_is(scene):
    call = scene.call()
    call.ref.set_result(Reply(payload=b"large"))
    assert call.result(1).payload == b"large"


@pytest.mark.parametrize("how", ["asked", "done", "together", "handed over"])
def test_a_kept_future_keeps_no_answer_in_rays_store(scene, how):
    """Its pickled bytes are here; the store keeps an object for as long as somebody has its reference."""
    call = scene.call()
    ref = weakref.ref(call.ref)
    scene.answer(call, payload=b"large")
    match how:
        case "asked":
            call.result(1)
        case "done":
            assert call.done()
        case "together":
            DirectCall.fetch_together([call], lambda: None, lambda: None)
        case _:
            call.hand_over()
    gc.collect()
    assert ref() is None


@pytest.mark.parametrize("how", ["refused", "died", "late", "called back"])
def test_an_answer_that_is_not_plain_is_given_to_the_loop_once(scene, how):
    call = scene.call()
    heard = []
    if how == "refused":
        scene.answer(call, refused=NotRun.ENDED)
    elif how == "died":
        call.ref.set_exception(ActorDiedError())
    elif how == "late":
        scene.sending.seconds_left = 0.0
    else:
        call.add_done_callback(heard.append)
    threading.Timer(0.05, lambda: [given.set_result(Reply(payload=b"2")) for given in scene.given]).start()
    assert call.result(10).payload == b"2"
    call.add_done_callback(heard.append)
    assert len(scene.given) == 1
    assert heard


def test_done_fetches_an_answer_that_is_there(scene):
    call = scene.call()
    scene.answer(call, payload=b"1")
    assert call.done()
    assert Future.done(call)


def test_a_dropped_call_is_left_to_the_loop(scene):
    call = scene.call()
    del call
    gc.collect()
    (given,) = scene.given
    given.add_done_callback(lambda _: None)
    assert len(scene.given) == 1, "once, though it was asked about again"
    done = scene.call()
    scene.answer(done, payload=b"1")
    done.result(1)
    del done
    gc.collect()
    assert len(scene.given) == 1


def test_an_unawaited_call_is_soon_left_to_the_loop(scene):
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    unasked = UnawaitedCalls()
    kept, asked, dropped = scene.call(), scene.call(), scene.call()
    for call in (kept, asked, dropped):
        unasked.add(call, loop)
    scene.answer(asked, payload=b"1")
    assert asked.result(1).payload == b"1"
    end = time.monotonic() + 30
    while kept not in scene.given:
        assert time.monotonic() < end
        time.sleep(0.005)
    later = scene.call()
    unasked.add(later, loop)
    while later not in scene.given:
        assert time.monotonic() < end
        time.sleep(0.005)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()
    assert asked not in scene.given


class TestTogether:
    def test_answers_that_are_there_soon_are_one_question(self, scene, ray):
        calls = [scene.call() for _ in range(16)]
        for call in calls:
            scene.answer(call, payload=b"x")
        DirectCall.fetch_together(calls, lambda: None, lambda: None)
        assert ray.asked == 1
        assert all(call.done() for call in calls)

    def test_first_error_ends_the_wait(self, scene):
        calls = [scene.call() for _ in range(3)]

        def check() -> None:
            if any(Future.done(call) and call.result().error_type for call in calls):
                raise ValueError("the callee's")

        threading.Timer(0.1, scene.answer, (calls[2],), {"error_type": "E"}).start()
        begin = time.monotonic()
        with pytest.raises(ValueError, match="the callee's"):
            DirectCall.fetch_together(calls, lambda: None, check)
        assert time.monotonic() - begin < 5

    def test_a_wait_ends_at_its_deadline(self, scene):
        calls = [scene.call(), scene.call()]
        scene.answer(calls[0], payload=b"1")
        end = time.monotonic() + 0.1
        with pytest.raises(TimeoutError):
            DirectCall.fetch_together(calls, lambda: max(0.0, end - time.monotonic()), lambda: None)
        assert calls[0].done()

    def test_only_the_call_of_a_dead_peer_is_given_to_the_loop(self, scene):
        calls = [scene.call() for _ in range(3)]
        scene.answer(calls[0], payload=b"1")
        calls[1].ref.set_exception(ActorDiedError())
        threading.Timer(0.1, scene.answer, (calls[2],), {"payload": b"3"}).start()
        threading.Timer(0.2, lambda: [given.set_result(Reply(payload=b"2")) for given in scene.given]).start()
        DirectCall.fetch_together(calls, lambda: None, lambda: None)
        assert [call.result(10).payload for call in calls] == [b"1", b"2", b"3"]
        assert scene.given == [calls[1]]


def test_arrivals_come_in_the_order_in_which_they_end():
    futures = [Future() for _ in range(3)]
    coming = Arrivals(futures)
    early = coming.take()
    assert not early.done()
    for number in (2, 0, 1):
        futures[number].set_result(None)
    assert [early.result(1), coming.take().result(1), coming.take().result(1)] == [2, 0, 1]
