"""Calls whose callers gave up: what waits in the callee's process is not run, and the caller hears what became of it.

Pools of threads stand for Ray's concurrency groups: what a full one is given waits where the callee cannot see it.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest
from master_shell_kit import until
from ray import exceptions as rx

from dljob import rpc
from dljob.errors import CallTimeoutError, PeerLostError
from dljob.master.state.views import Outcome
from dljob.runtime.process import activities, wire
from dljob.runtime.process.error_origin import remote_origin
from dljob.runtime.process.messages import BATCH, CANCEL, Call, NotRun, Peer, Reply
from dljob.runtime.process.worker_context import RankCall
from dljob.runtime.rpc import client, server
from dljob.runtime.rpc.client import RpcClient
from dljob.runtime.rpc.mapped import packed_calls
from dljob.runtime.rpc.server import RpcServer
from dljob.runtime.worker.host import Host

WAIT_S = 20.0
SHORT_S = 0.3


class Doer:
    """A callee whose `hold` runs until it is let go."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.gate, self.begun = threading.Event(), threading.Event()
        self.all_hold = threading.Barrier(Host.concurrency_groups["rpc"] + 1)

    @rpc
    def hold(self):
        self.all_hold.wait(WAIT_S)
        self.gate.wait(WAIT_S)

    @rpc
    def loop(self):
        self.gate.wait(WAIT_S)

    @rpc
    def do(self, what):
        self.ran.append(what)
        return what

    @rpc(concurrency=1)
    def one(self, what):
        self.ran.append(what)
        self.begun.set()
        self.gate.wait(WAIT_S)

    @rpc(stream=True)
    def count(self, n):
        self.gate.wait(WAIT_S)
        self.ran.append("opened")
        return iter(range(n))


class Handle:
    """The callee's actor, as its callers have it."""

    def __init__(self, callee: RpcServer, *, deaf: bool = False) -> None:
        self.callee, self.deaf = callee, deaf
        self.pools = {name: ThreadPoolExecutor(count) for name, count in Host.concurrency_groups.items()}
        self.invoke = SimpleNamespace(remote=lambda *sent: self._sent("rpc", *sent), options=self._options)

    def _options(self, concurrency_group: str) -> Any:
        return SimpleNamespace(remote=lambda *sent: self._sent(concurrency_group, *sent))

    def _get_local_state(self) -> int:
        return 2

    def _sent(self, group: str, packed: bytes) -> Any:
        call, small = Call.unpacked(packed)
        if call.method == CANCEL and self.deaf:
            return _lost()
        run = self.pools[group].submit(lambda: self.callee.answer(call, small).packed())
        return asyncio.shield(asyncio.wrap_future(run))  # who stops waiting for an answer of Ray's cancels nothing


async def _lost() -> bytes:
    raise rx.ActorUnavailableError("it cannot be reached", b"")


class Scene:
    def __init__(self) -> None:
        self.doer, self.callee = Doer(), RpcServer("w")
        self.callee.open(self.doer)
        self.handle = Handle(self.callee)
        self.calls = RpcClient(cast("Any", SimpleNamespace(name="j", namespace="n", uid="u")), "me/0")
        self.calls._peers["w", 0], self.calls._handles["w-0"] = Peer("w", 0, 1, "w-0", ready=True), self.handle
        self.numbers = iter(range(1, 1000))

    def call(self, method: str, *args: Any, timeout_s: float = WAIT_S) -> Coroutine[Any, Any, Reply]:
        payload = wire.dump((args, {}), "")
        call = RankCall("w", 0, method, payload, timeout_s, idempotent=False, id=f"me/0:x:{next(self.numbers)}")
        return self.calls._run(call, ())


@pytest.fixture
def scene() -> Iterator[Scene]:
    activities._forget()  # calls of other tests in this process
    made = Scene()
    yield made
    made.doer.gate.set()
    made.callee.close(Outcome(ok=True))


async def turn_taken(scene: Scene) -> asyncio.Task[Reply]:
    """A call of `one` that runs; another waits for its turn."""
    first = asyncio.create_task(scene.call("one", "first"))
    await asyncio.to_thread(scene.doer.begun.wait, WAIT_S)
    return first


async def test_calls_behind_a_full_callee_are_not_run_once_their_callers_gave_up(scene):
    holds = [asyncio.create_task(scene.call("hold")) for _ in range(Host.concurrency_groups["rpc"])]
    await asyncio.to_thread(scene.doer.all_hold.wait, WAIT_S)
    late = await asyncio.gather(
        *(scene.call("do", "late", timeout_s=SHORT_S) for _ in range(5)), return_exceptions=True
    )
    for error in late:
        assert isinstance(error, CallTimeoutError)
        said = (
            r"w/0\.do: no answer within 0\.3 s, waited [\d.]+ s in the queue of w/0, not run; w/0 is busy at .*hold\n"
        )
        assert re.match(said, str(error))
    scene.doer.gate.set()
    await asyncio.gather(*holds)
    assert wire.load((await scene.call("do", "later")).payload) == "later"
    assert scene.doer.ran == ["later"]
    assert not scene.callee._pending.cancelled


async def test_a_caller_that_gives_up_is_told_why_its_callee_has_no_weights(scene):
    scene.callee.hold("it loads version 4: load raised ValueError: shape mismatch")
    with pytest.raises(CallTimeoutError) as late:
        await scene.call("do", "late", timeout_s=SHORT_S)
    assert "s for the weights of w/0, not run: it loads version 4: load raised ValueError: shape mis" in str(late.value)
    scene.callee.hold("")
    assert wire.load((await scene.call("do", "later")).payload) == "later"
    assert scene.doer.ran == ["later"]


async def test_a_call_that_waits_for_its_turn_is_not_run_after_its_deadline(scene):
    first = await turn_taken(scene)
    with pytest.raises(
        CallTimeoutError, match=r"w/0\.one: no answer within 0\.3 s, waited [\d.]+ s in the queue of w/0, not"
    ):
        await scene.call("one", "late", timeout_s=SHORT_S)
    scene.doer.gate.set()
    await first
    assert scene.doer.ran == ["first"]


async def test_a_cancel_comes_before_the_turn_that_the_callee_would_still_give(scene):
    first = await turn_taken(scene)
    second = asyncio.create_task(scene.call("one", "second"))
    await until(lambda: len(scene.callee._pending.has_begun) == 2)
    assert scene.callee.answer(Call("me/0:x:2", 0, 1, CANCEL, 1.0, "me/0"), b"").payload == b"not run"
    scene.doer.gate.set()
    await first
    with pytest.raises(CallTimeoutError, match="in the queue of w/0, not run"):
        await second
    assert scene.doer.ran == ["first"]


async def test_a_call_that_runs_is_told_so_and_runs_on(scene):
    said = r"waited [\d.]+ s for its answer; w/0 runs it to its end, now at test_calls_given_up\.py:\d+ in one"
    with pytest.raises(CallTimeoutError, match=said) as late:
        await scene.call("one", "long", timeout_s=SHORT_S)
    origin = remote_origin(late.value)
    assert origin is not None
    assert (origin.rank, origin.incarnation, origin.message) == ("w/0", 1, late.value.message)
    assert origin.frame.endswith(" in one")
    with pytest.raises(CallTimeoutError, match=r"in the queue of w/0, not run; w/0 is busy at .* in one") as late:
        await scene.call("one", "behind it", timeout_s=SHORT_S)
    assert remote_origin(RuntimeError("another")) is None
    assert late.value.origin is not None
    assert scene.doer.ran == ["long"]


BATCH_OF_ONE = packed_calls("one", [wire.dump(((what,), {}), "") for what in "abc"])


async def test_a_batch_whose_caller_gave_up_ends_at_the_call_that_it_is_at(scene):
    call = RankCall("w", 0, BATCH, BATCH_OF_ONE, SHORT_S, idempotent=False, id="me/0:x:1", label="one")
    with pytest.raises(CallTimeoutError, match="w/0 ends the call that it is at, and runs no more of the request"):
        await scene.calls._run(call, ())
    scene.doer.gate.set()
    await asyncio.to_thread(scene.callee.wait_idle)
    assert scene.doer.ran == ["a"]


async def test_a_batch_that_is_withdrawn_long_before_its_deadline_runs_no_more(scene):
    call = RankCall("w", 0, BATCH, BATCH_OF_ONE, WAIT_S, idempotent=False, id="me/0:x:1", label="one")
    made = asyncio.create_task(scene.calls._run(call, ()))
    await asyncio.to_thread(scene.doer.begun.wait, WAIT_S)
    assert scene.callee.answer(Call("me/0:x:1", 0, 1, CANCEL, 1.0, "me/0"), b"").payload == b"begun"
    scene.doer.gate.set()
    with pytest.raises(CallTimeoutError, match="w/0 has run 1 of the request's 3 calls, and runs no more"):
        await made
    assert scene.doer.ran == ["a"]


async def test_a_callee_that_does_not_answer_leaves_it_open_whether_it_ran(scene):
    scene.handle.deaf = True
    with pytest.raises(CallTimeoutError, match="for its answer; w/0 does not say whether it runs"):
        await scene.call("one", "long", timeout_s=SHORT_S)


async def test_another_process_of_the_rank_cannot_say_whether_it_ran(scene):
    scene.handle.callee = cast("Any", SimpleNamespace(answer=lambda call, _: _Other.answer(call)))
    with pytest.raises(CallTimeoutError, match="for its answer; it may have run"):
        await scene.call("do", "x", timeout_s=SHORT_S)


class _Other:
    """Takes a call, and is another process of the rank when its caller cancels it."""

    @staticmethod
    def answer(call: Call) -> Reply:
        if call.method == CANCEL:
            return Reply(error_type="CallError", message="w/0 is another process now", refused=NotRun.ENDED)
        threading.Event().wait(SHORT_S * 2)
        return Reply()


async def test_setup_and_the_turn_count_on_one_timeout(scene):
    waits: list[float | None] = []
    scene.callee._slots["one"] = cast("Any", SimpleNamespace(acquire=lambda timeout: bool(waits.append(timeout))))
    scene.callee._open = False
    threading.Timer(SHORT_S, scene.callee.open, (scene.doer,)).start()
    call = Call("me/0:x:1", 0, 1, "one", WAIT_S, "me/0")
    reply = await asyncio.to_thread(scene.callee.answer, call, wire.dump((("x",), {}), ""))
    assert (reply.refused, reply.message) == (NotRun.LATE, "in the queue of w/0, not run")
    assert waits[0] is not None
    assert waits[0] < WAIT_S - SHORT_S / 2


async def test_a_stream_that_opens_after_its_caller_gave_up_is_closed(scene):
    with pytest.raises(CallTimeoutError, match="w/0 runs it to its end"):
        await scene.call("count", 1000, timeout_s=SHORT_S)
    scene.doer.gate.set()
    await asyncio.to_thread(scene.callee.wait_idle)
    assert scene.doer.ran == ["opened"]
    await until(lambda: not scene.callee._pending.has_begun)


async def test_a_stream_that_nobody_wanted_does_not_hold_up_a_rank_that_leaves(scene, monkeypatch):
    monkeypatch.setattr(server, "KNOWN_S", 0.0)
    with pytest.raises(CallTimeoutError):
        await scene.call("count", 3, timeout_s=SHORT_S)
    scene.doer.gate.set()
    await asyncio.to_thread(scene.callee.wait_idle)
    assert await asyncio.to_thread(scene.callee.finish, WAIT_S)


async def test_a_stream_that_is_open_when_its_caller_gives_up_is_closed(scene):
    scene.doer.gate.set()
    await scene.call("count", 1000)
    assert scene.callee._running == 1, "it waits a window ahead of its caller"
    assert scene.callee.answer(Call("me/0:x:1", 0, 1, CANCEL, 1.0, "me/0"), b"").payload == b"unknown"
    await asyncio.to_thread(scene.callee.wait_idle)
    assert not scene.callee._streams


async def test_a_call_lost_before_its_cancel_may_have_run(scene, monkeypatch):
    # A busy machine answers the cancel late: the deadline is what is short here, not the wait for that answer.
    monkeypatch.setattr(client, "CANCEL_S", WAIT_S)
    monkeypatch.setattr(client, "CANCEL_LEAST_S", WAIT_S)
    first = await turn_taken(scene)
    call = RankCall("w", 0, "one", wire.dump((("x",), {}), ""), SHORT_S, idempotent=True, id="me/0:x:1000")
    scene.calls._may_go_again(call, Peer("w", 0, 1, "w-0", ready=True))
    with pytest.raises(CallTimeoutError, match=r"in the queue of w/0, not run; .*; an earlier try may have run"):
        await scene.calls._run(call, ())
    scene.doer.gate.set()
    await first


async def test_late_answer_that_is_large_is_told_with_its_size(scene, monkeypatch):
    monkeypatch.setattr(server, "LONG_ON_ITS_WAY", 1)
    monkeypatch.setattr(server, "PLACES", 1)
    for number in range(2):  # the size of the last one is remembered
        call = Call(f"me/0:y:{number}", 0, 1, "do", 1.0, "me/0")
        assert not scene.callee.answer(call, wire.dump((("x",), {}), "")).error_type
    call = RankCall("w", 0, "do", b"", SHORT_S, idempotent=False, id="me/0:y:1")
    peer = scene.calls._peers["w", 0]
    assert await scene.calls._cancel(call, peer) == "for the 0.0 GiB of its answer, which w/0 has sent"
    call.id = "me/0:y:0"
    assert "it may have run" in await scene.calls._cancel(call, peer)


async def test_calls_whose_answers_nobody_reads_are_known_until_they_end(scene):
    turn = await turn_taken(scene)
    quiet = RankCall("w", 0, "one", wire.dump((("second",), {}), ""), WAIT_S, idempotent=False, quiet=True)
    scene.calls._name(quiet)
    waits = asyncio.create_task(scene.calls._run(quiet))
    unread_calls, end = list[str](), time.monotonic() + WAIT_S
    while not unread_calls and time.monotonic() < end:
        await asyncio.sleep(0.01)
        unread_calls = scene.callee.unread_calls()
    assert unread_calls == ["one of me/0"]
    scene.doer.gate.set()
    await asyncio.gather(turn, waits)
    assert scene.callee.unread_calls() == []


class Master:
    """Ends a callee that is reported late; the next incarnation is served at once."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.reports = scene, list[Any]()
        self.late_callee = SimpleNamespace(remote=self._late_callee)
        self.await_peer = SimpleNamespace(remote=self._await_peer)
        self.hang_of = SimpleNamespace(remote=self._hang_of)

    async def _late_callee(self, *report: Any) -> bool:
        self.reports.append(report)
        return True

    async def _await_peer(self, role: str, rank: int, after: int) -> Peer:
        self.scene.handle.callee = RpcServer("w")
        self.scene.handle.callee.open(self.scene.doer)
        self.scene.calls._handles["w-0"] = self.scene.handle
        return Peer(role, rank, after + 1, "w-0", ready=True)

    async def _hang_of(self, role: str, rank: int, incarnation: int) -> str:
        return f"incarnation {incarnation} loops"


@pytest.mark.parametrize(
    ("idempotent", "method", "ends"),
    [(True, "loop", 2), (False, "loop", 1), (False, "one", 0), (True, "do", 0)],
    ids=["sent once more", "lost", "waits for its turn", "in time"],
)
async def test_callee_that_runs_a_late_call_is_restarted(scene, idempotent, method, ends):
    master = Master(scene)
    scene.calls._master = cast("Any", master)
    turn = await turn_taken(scene) if method == "one" else None
    call = RankCall("w", 0, method, wire.dump((("x",) if method != "loop" else (), {}), ""), SHORT_S, idempotent)
    call.restarts_callee = True
    scene.calls._name(call)
    if method == "do":
        call.timeout_s = WAIT_S
        assert (await scene.calls._run(call)).error_type == ""
    else:
        words = f"died with the call.*; it hung: incarnation {ends} loops" if ends else "in the queue of w/0, not run"
        with pytest.raises(PeerLostError if ends else CallTimeoutError, match=words) as caught:
            await scene.calls._run(call)
        assert caught.value.__suppress_context__, "its traceback has no frames of the client"
    assert [callee for callee, *_ in master.reports] == [("w", 0, number + 1) for number in range(ends)]
    for _, reason, line, caller in master.reports:
        assert (reason, caller) == (f"it did not answer loop() of me/0 within {SHORT_S:g} s", "me/0")
        assert "test_calls_given_up.py" in line
    scene.doer.gate.set()
    if turn is not None:
        await turn
