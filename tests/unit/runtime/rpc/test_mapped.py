"""`Rank.map`: many calls in a request, each with a value or error of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from life_kit import context
from rpc_threads import Threads

from dljob import PeerLostError, RemoteError, RoleGroup, UsageError, rpc
from dljob.master.state.views import Outcome
from dljob.runtime.process import wire
from dljob.runtime.process.context import install
from dljob.runtime.process.messages import BATCH, Call, Reply
from dljob.runtime.process.wire import WireError
from dljob.runtime.process.worker_context import RankCall
from dljob.runtime.rpc.mapped import packed, packed_calls
from dljob.runtime.rpc.rpc import Rank


class Scorer:
    """A rank that scores."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.seen: list[Any] = []

    @rpc(idempotent=True)
    def score(self, word: str, weight: int = 1) -> int:
        self.gate.wait(30)
        self.seen.append(word)
        if word == "bad":
            raise ValueError("no score for bad")
        return len(word) * weight

    @rpc
    def pay(scorer, method: str, size: int, self: str) -> tuple[str, int, str]:  # noqa: N805 - the point of it
        return method, size, self

    @rpc(timeout=0.2)
    def slowly(self, word: str) -> str:
        self.seen.append(word)
        self.gate.wait(0.3)
        return word

    @rpc
    def lock(self, _: str) -> Any:
        return threading.Lock()

    @rpc(stream=True)
    def items(self, word: str) -> Iterator[str]:
        yield word


@pytest.fixture
def calls() -> Iterator[Threads]:
    made = Threads([Scorer()])
    install(context(role="caller", rank=0, world_size=1, peers={"talker": 1, "caller": 1}, calls=made))
    made.open()
    yield made
    install(None)
    made.pool.shutdown()


@pytest.fixture
def rank(calls: Threads) -> Rank:
    return RoleGroup("talker")[0]


def batches(calls: Threads) -> list[RankCall]:
    return [call for call in calls.sent if call.method == BATCH]


def test_each_call_has_its_own_value_in_requests_of_the_batch_size(rank, calls):
    words = ["a" * n for n in range(7)]
    assert [call.result(30) for call in rank.map("score", words, batch_size=3)] == list(range(7))
    assert len(batches(calls)) == 3
    assert [call.result() for call in rank.map("score", ["ab", "c", "left out"], [2, 5])] == [4, 5]
    assert rank.map("score", []) == []
    assert calls.objects[0].seen == [*words, "ab", "c"]


def test_error_of_one_call_is_its_own(rank):
    good, bad, after = rank.map("score", ["ab", "bad", "abc"])
    assert (good.result(30), after.result(30)) == (2, 3)
    with pytest.raises(RemoteError, match=r"talker/0\.score raised ValueError: no score for bad"):
        bad.result()
    assert bad.wait()
    (result,) = rank.map("lock", ["x"])
    with pytest.raises(RemoteError, match=r"the result of talker/0\.lock, a _thread\.lock, cannot be pickled"):
        result.result()


async def test_calls_can_be_awaited_and_waited_for(rank, calls):
    gate = calls.objects[0].gate
    gate.clear()
    made = rank.map("score", ["a", "ab"])
    assert not made[0].done()
    assert not made[0].wait(0.01)
    with pytest.raises(TimeoutError, match=r"talker/0\.score: no answer yet after 0\.01 s; the call goes on"):
        made[1].result(0.01)
    gate.set()
    assert await asyncio.gather(*(_of(call) for call in made)) == [1, 2]
    assert made[0].done()


async def _of(call: Any) -> Any:
    return await call


def test_batch_ends_at_its_deadline_and_the_rest_is_not_run(rank, calls):
    calls.objects[0].gate.clear()
    made = rank.map("slowly", ["a", "b", "c"])
    for call in made:
        with pytest.raises(RemoteError, match="talker/0 has run 1 of the request's 3 calls, and runs no more"):
            call.result(30)
    assert calls.objects[0].seen == ["a"]


async def test_cancelled_await_costs_the_other_calls_of_its_request_nothing(rank, calls):
    rank.call("score", "a").result(30)
    answer: Future[Reply] = Future()  # as a client makes it where it does not know its callee yet
    calls.send = lambda _: answer  # type: ignore[method-assign]
    one, other = (asyncio.create_task(_of(call)) for call in rank.map("score", ["a", "ab"]))
    await asyncio.sleep(0)
    one.cancel()
    await asyncio.wait([one])
    answer.set_result(Reply(payload=packed([Reply(payload=wire.dump(n, "")) for n in (1, 2)])))
    assert await other == 2


def test_batch_that_is_lost_is_lost_for_each_call(rank, calls):
    rank.call("score", "a").result(30)
    lost: Future[Reply] = Future()
    calls.send = lambda _: lost  # type: ignore[method-assign]
    made = rank.map("score", ["a", "b"])
    lost.set_exception(PeerLostError("gone", role="talker", rank=0))
    for call in made:
        with pytest.raises(PeerLostError, match="gone"):
            call.result(30)
        assert call.wait(0)


def test_batch_that_cannot_run_says_so_for_each_call(rank):
    for call in rank.map("scroe", ["a", "b"]):
        with pytest.raises(RemoteError, match=r"has no @rpc method 'scroe'; did you mean 'score'\?"):
            call.result(30)


def test_what_cannot_be_mapped_is_refused_before_anything_is_sent(rank, calls):
    with pytest.raises(UsageError, match=r"talker/0\.items: it is a stream"):
        rank.map("items", ["a"])
    for size in (0, -1, 1.5, True):
        with pytest.raises(UsageError, match="wanted a whole number from 1"):
            rank.map("score", ["a"], batch_size=size)  # type: ignore[arg-type]
    with pytest.raises(WireError, match=r"talker/0\.score: argument 1, a _thread\.lock, cannot be pickled"):
        rank.map("score", ["a", threading.Lock()])
    assert batches(calls) == []


def test_batch_of_a_rank_that_is_broken_off_goes_back_whole(calls):
    callee, scorer = calls.callees[0], calls.objects[0]

    def breaks(word: str, weight: int = 1) -> int:
        callee.close(Outcome(ok=True, message="leaves"), cut=True)
        raise RuntimeError(f"{word} {weight}")

    scorer.score = breaks
    payload = packed_calls("score", [wire.dump((("a",), {}), "x")] * 2)
    found = callee.answer(Call("1", 0, 1, BATCH, None, "me"), payload)
    assert found.refused is not None
    again = callee.answer(Call("2", 0, 1, BATCH, None, "me", again=True), packed_calls("lock", []))
    assert again.refused is not None


def test_parameters_of_a_method_may_have_any_name(rank: Rank) -> None:
    keywords: dict[str, Any] = {"method": "card", "size": 2, "self": "me"}
    assert rank.pay(**keywords) == ("card", 2, "me")
    assert rank.call("pay", **keywords).result(30) == ("card", 2, "me")
    assert RoleGroup("talker").call_rank0("pay", **keywords).result(30) == ("card", 2, "me")
