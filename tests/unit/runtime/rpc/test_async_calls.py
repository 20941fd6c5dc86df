"""Calls of `async` methods, by a line and by Ray: as many at once as `concurrency` says, without a thread for each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from ray import exceptions as rx

from dljob import rpc
from dljob.errors import CallTimeoutError, PeerLostError, UsageError
from dljob.master.state.views import Outcome
from dljob.runtime.process import activities, wire
from dljob.runtime.process.messages import Call, Peer, Reply
from dljob.runtime.process.wire import LARGE
from dljob.runtime.process.worker_context import RankCall
from dljob.runtime.rpc import kept_answers
from dljob.runtime.rpc.call_lines import LargeAnswers, LineServer, address
from dljob.runtime.rpc.client import RpcClient
from dljob.runtime.rpc.kept_answers import KeptAnswers
from dljob.runtime.rpc.server import RpcServer
from dljob.runtime.worker.host import Host
from dljob.runtime.worker.thread_host import ThreadHost

WAIT_S = 30.0


class Engine:
    def __init__(self) -> None:
        self.at_once = self.most = 0
        self.all_run = threading.Event()
        self.wanted = 300

    @rpc(concurrency=512)
    async def generate(self, prompt: int) -> int:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        if self.at_once == self.wanted:
            self.all_run.set()
        while not self.all_run.is_set():  # noqa: ASYNC110 - a thread sets it, too
            await asyncio.sleep(0.01)
        self.at_once -= 1
        return prompt

    @rpc(concurrency=2)
    async def two(self) -> int:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0.03)
        self.at_once -= 1
        return self.most

    @rpc(concurrency=1)
    async def stand(self) -> None:
        await asyncio.sleep(WAIT_S)

    @rpc
    async def fail(self) -> None:
        await asyncio.sleep(0.05)
        raise ValueError("no words")

    @rpc
    async def large(self) -> bytes:
        await asyncio.sleep(0.05)
        return bytes(LARGE)


class Scene:
    """A callee in this process and a client of it; `by` is the way that calls take."""

    def __init__(self, by: str) -> None:
        self.by, self.engine, self.uid = by, Engine(), uuid4().hex
        self.server = RpcServer("t")
        self.server.open(self.engine)
        self.host = ThreadHost.__new__(ThreadHost)
        self.host._large = LargeAnswers()
        self.host._kept_answers, self.host._start = KeptAnswers(self.host._large), None
        self.host._callee = self.server
        self.pools = {name: ThreadPoolExecutor(count) for name, count in Host.concurrency_groups.items()}
        self.is_dead = False
        self.calls = RpcClient(cast("Any", SimpleNamespace(name="j", namespace="n", uid=self.uid)), "w/0")
        self.calls._peers["t", 0] = Peer("t", 0, 1, "a", ready=True)
        self.invoke = SimpleNamespace(remote=lambda *sent: self._sent("rpc", *sent), options=self._options)
        self.calls._handles["a"] = self
        if by == "line":
            LineServer(address(self.uid, "a"), self.host._by_line)

    def _get_local_state(self) -> int:
        return 2

    def _options(self, concurrency_group: str) -> Any:
        return SimpleNamespace(remote=lambda *sent: self._sent(concurrency_group, *sent))

    def _sent(self, group: str, packed: bytes) -> Any:
        call, payload = Call.unpacked(packed)

        def answer() -> bytes:
            if self.is_dead:
                raise rx.ActorDiedError
            return self.host.answer(call, payload).packed()

        return asyncio.shield(asyncio.wrap_future(self.pools[group].submit(answer), loop=self.calls._running_loop()))

    def call(self, method: str, *args: Any, timeout_s: float = WAIT_S) -> Any:
        """Start a call; by Ray on the client's loop, as `ray.wait` takes no handle of this test's."""
        call = RankCall("t", 0, method, wire.dump((args, {}), ""), timeout_s, idempotent=False)
        if self.by == "line":
            return self.calls.send(call)
        self.calls._name(call)
        return asyncio.run_coroutine_threadsafe(self.calls._run(call), self.calls._running_loop())


@pytest.fixture(params=["line", "Ray"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    activities._forget()
    made = Scene(request.param)
    yield made
    made.engine.all_run.set()
    made.server.close(Outcome(ok=True))


def test_hundreds_of_calls_run_at_once_in_few_threads(scene):
    before = threading.active_count()
    calls = [scene.call("generate", number) for number in range(300)]
    assert scene.engine.all_run.wait(WAIT_S), scene.engine.most
    assert threading.active_count() - before < 150, "64 of the lines, 64 of Ray and some of the executor"
    assert [wire.load(call.result(WAIT_S).payload) for call in calls] == list(range(300))
    assert (scene.server.under_way, scene.server._pending.has_begun) == (0, {})
    assert activities._calls == {}


def test_concurrency_is_kept_and_a_call_that_waits_for_its_turn_can_be_withdrawn(scene):
    assert max(wire.load(call.result(WAIT_S).payload) for call in [scene.call("two") for _ in range(9)]) == 2
    scene.call("stand")
    with pytest.raises(CallTimeoutError, match=r"in the queue of t/0, not run"):
        scene.call("stand", timeout_s=0.3).result(WAIT_S)


def test_error_and_large_answer_come_as_of_other_methods(scene):
    failed, large = scene.call("fail"), scene.call("large")
    assert (failed.result(WAIT_S).error_type, failed.result().message) == ("ValueError", "no words")
    assert wire.load(large.result(WAIT_S).payload) == bytes(LARGE)


def test_stack_of_a_call_is_its_coroutines(scene):
    late = scene.call("stand", timeout_s=0.5)
    with pytest.raises(CallTimeoutError, match=r"t/0 runs it to its end, now at test_async_calls.py:\d+ in stand"):
        late.result(WAIT_S)


def test_death_of_the_callee_loses_the_calls_that_run():
    scene = Scene("Ray")
    scene.calls._idempotent["t", "stand"] = False
    lost = scene.call("stand")
    with pytest.raises(TimeoutError):
        lost.result(0.3)
    scene.is_dead = True
    with pytest.raises(PeerLostError):
        lost.result(WAIT_S)


def test_answers_that_nobody_fetches_are_dropped(monkeypatch):
    monkeypatch.setattr(kept_answers, "LOOK_S", 0.01)
    kept = KeptAnswers(LargeAnswers())

    def add(call: str) -> None:
        answer: Future[Reply] = Future()
        answer.set_result(Reply())
        kept.keep(call, answer)

    add("w/0:x:1")
    monkeypatch.setattr(kept_answers, "KEPT_S", -1.0)
    add("w/0:x:2")
    assert kept._kept == {}


@pytest.mark.parametrize(
    ("count", "words"), [(4097, "wanted at most 4096"), (65, "a thread for each call, and a rank has 64")]
)
def test_concurrency_that_cannot_be_is_refused(count, words):
    with pytest.raises(UsageError, match=words):

        @rpc(concurrency=count)
        def generate(self: object) -> None: ...


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_timeout": "restrat"}, "did you mean 'restart'"),
        ({"on_timeout": "restart", "timeout": None}, "no call is ever late"),
    ],
)
def test_on_timeout_that_means_nothing_is_refused(options, words):
    with pytest.raises(UsageError, match=words):
        rpc(**options)
