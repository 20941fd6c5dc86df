"""A client whose callee is on the same machine: what goes by its line, what by Ray, and what a broken line means."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from ray import exceptions as rx

from dljob import rpc
from dljob.calls.pending import Fate
from dljob.errors import CallTimeoutError, PeerLostError
from dljob.runtime.process import wire
from dljob.runtime.process.messages import CANCEL, PULL, Call, NotRun, Peer, Reply
from dljob.runtime.process.wire import LARGE
from dljob.runtime.process.worker_context import RankCall
from dljob.runtime.rpc import call_lines, client
from dljob.runtime.rpc.call_lines import LargeAnswers, LineServer, address
from dljob.runtime.rpc.client import RpcClient
from dljob.runtime.rpc.server import RpcServer
from dljob.runtime.worker.thread_host import ThreadHost

WAIT_S = 30.0


class Handle:
    """The handle of Ray's of a callee: notes what comes by Ray; `said` raises or answers."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.again: list[bool] = []
        self.said: Callable[[str], Reply] = lambda _: Reply(payload=b"by Ray")
        self.server: RpcServer | None = None
        """What answers in the place of `said`."""
        self.invoke = SimpleNamespace(remote=self._invoke, options=lambda **_: self.invoke)

    def _get_local_state(self) -> int:
        return 2

    async def _invoke(self, message: bytes) -> bytes:
        call, payload = Call.unpacked(message)
        self.called.append(call.method)
        self.again.append(call.again)
        if self.server is not None:
            return (await asyncio.to_thread(self.server.answer, call, payload)).packed()
        return self.said(call.method).packed()


class Scene:
    """A client that knows rank 0 of the role `t` in the actor `a`."""

    def __init__(self) -> None:
        self.uid = uuid4().hex
        self.handle = Handle()
        self.calls = RpcClient(cast("Any", SimpleNamespace(name="j", namespace="n", uid=self.uid)), "w/0")
        self.peer = Peer("t", 0, 3, "a", ready=True)
        self.calls._handles["a"] = self.handle
        self.calls._peers["t", 0] = self.peer
        self.calls._master = SimpleNamespace(
            await_peer=SimpleNamespace(remote=self._await_peer), hang_of=SimpleNamespace(remote=self._hang_of)
        )
        self.heard: list[Call] = []
        self.reply = Reply(payload=b"by line")
        self.gate = threading.Event()
        self.gate.set()

    async def _hang_of(self, role: str, rank: int, incarnation: int) -> str:
        return ""

    async def _await_peer(self, role: str, rank: int, after: int) -> Peer:
        self.calls._handles["a"] = self.handle
        return self.peer

    def serve(self) -> None:
        LineServer(address(self.uid, "a"), self._answer)

    def _answer(self, packed: bytes) -> bytes:
        self.heard.append(Call.unpacked(packed)[0])
        self.gate.wait(WAIT_S)
        return self.reply.packed()

    def call(self, method: str = "score", **more: Any) -> Any:
        payload, timeout_s = more.pop("payload", b""), more.pop("timeout_s", 60.0)
        return self.calls.send(RankCall("t", 0, method, payload, timeout_s, more.pop("idempotent", False)))


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(client, "RETRY_S", 0.001)
    made = Scene()
    yield made
    made.gate.set()


def test_call_goes_by_the_line_and_ray_hears_nothing(scene):
    scene.serve()
    assert scene.call().result(WAIT_S).payload == b"by line"
    assert [(call.method, call.incarnation, call.caller) for call in scene.heard] == [("score", 3, "w/0")]
    assert scene.handle.called == []


def test_a_call_is_under_way_until_it_ends(scene):
    scene.serve()
    scene.gate.clear()
    counts, call = scene.calls.counts, scene.call()
    assert [name for name, _ in counts.under_way.values()] == ["t.score"]
    scene.gate.set()
    call.result(WAIT_S)
    assert (counts.under_way, list(counts.took_s)) == ({}, ["t.score"])
    scene.gate.clear()
    scene.handle.said = lambda _: Reply(payload=Fate.BEGUN.encode())
    with pytest.raises(CallTimeoutError):
        scene.call(timeout_s=0.1).result(WAIT_S)
    assert (counts.under_way, counts.methods) == ({}, {"t.score": [2, 0, 0, 0]})


def test_calls_to_the_host_itself_and_those_without_a_line_go_by_ray(scene, monkeypatch):
    scene.serve()
    monkeypatch.setattr(client, "DirectCall", lambda answer, *_: answer)
    monkeypatch.setattr(scene.calls._unasked, "add", lambda *_: None)
    scene.call(PULL).close()
    scene.calls._lines._uid = "another machine"
    scene.calls._lines._lines.clear()
    scene.call().close()
    assert scene.heard == []


def test_large_answer_is_fetched_by_ray_and_so_are_those_of_its_method_from_then_on(scene, monkeypatch):
    scene.serve()
    scene.reply = Reply(refused=NotRun.BY_RAY)
    assert scene.call().result(WAIT_S).payload == b"by Ray"
    assert (scene.handle.called, scene.handle.again) == (["score"], [True]), "it does not run again if it is not kept"
    monkeypatch.setattr(client, "DirectCall", lambda answer, *_: answer)
    monkeypatch.setattr(scene.calls._unasked, "add", lambda *_: None)
    scene.call().close()
    assert len(scene.heard) == 1
    scene.reply = Reply(payload=b"small")
    assert scene.call("other").result(WAIT_S).payload == b"small"


def host_of(answer: Callable[..., Reply]) -> Any:
    made = ThreadHost.__new__(ThreadHost)
    made._callee, made._large, made._start = (
        cast("Any", SimpleNamespace(begin_answer=answer, trace=None)),
        LargeAnswers(),
        None,
    )
    made.spec = cast("Any", SimpleNamespace(role=SimpleNamespace(name="t")))
    return made


def test_host_keeps_a_large_answer_for_the_same_call_by_ray():
    host = host_of(lambda call, *_, **__: Reply(payload=call.method.encode() * LARGE))
    packed = Call("1", 0, 3, "x", None, "w/0").packed(b"")
    assert Reply.unpacked(ThreadHost._by_line(host, packed)).refused is NotRun.BY_RAY
    assert ThreadHost.answer(host, Call("1", 0, 3, "x", None, "w/0"), b"").payload == b"x" * LARGE
    assert host._large.take("1") is None, "once"
    small = host_of(lambda *_, **__: Reply(payload=b"1"))
    assert Reply.unpacked(ThreadHost._by_line(small, packed)).payload == b"1"


def test_host_that_cannot_answer_says_so():
    def fails(*_: object, **__: object) -> Reply:
        raise KeyError("x")

    said = Reply.unpacked(ThreadHost._by_line(host_of(fails), Call("1", 0, 3, "x", None, "w/0").packed(b"")))
    assert (said.message, said.refused) == ("t/0.x failed in its host: KeyError('x')", NotRun.BAD_ARGUMENTS)


def test_large_answer_that_nobody_fetches_is_dropped(monkeypatch):
    monkeypatch.setattr(call_lines, "KEPT_S", 0.01)
    kept, others = LargeAnswers(), threading.enumerate()
    kept.keep("1", Reply())
    for thread in threading.enumerate():
        if thread not in others:
            thread.join(WAIT_S)
    assert kept.take("1") is None


def test_large_answers_share_a_thread_and_do_without_where_none_is_left(monkeypatch):
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    kept, others = LargeAnswers(), threading.active_count()
    host = host_of(lambda call, *_, **__: Reply(payload=b"x" * LARGE))
    host._large = kept
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        packed = Call("1", 0, 3, "x", None, "w/0").packed(b"")
        assert Reply.unpacked(ThreadHost._by_line(host, packed)).refused is NotRun.BY_RAY
    for number in range(2, 100):
        kept.keep(str(number), Reply(payload=str(number).encode()))
    assert threading.active_count() <= others + 1
    assert kept.take("99") == Reply(payload=b"99")
    assert kept.take("1") == Reply(payload=b"x" * LARGE)


def test_deadline_of_a_call_by_line_withdraws_it_by_ray(scene):
    scene.serve()
    scene.gate.clear()
    scene.handle.said = lambda _: Reply(payload=Fate.BEGUN.encode())
    with pytest.raises(CallTimeoutError, match=r"t/0\.score: no answer within 0\.1 s, .* runs it to its end"):
        scene.call(timeout_s=0.1).result(WAIT_S)
    assert scene.handle.called == [CANCEL]


def broken(scene: Scene, *, idempotent: bool, payload: bytes = b"") -> Any:
    """Send a call by a line that breaks before its answer."""
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(address(scene.uid, "a"))
        line.listen()
        call = scene.call(idempotent=idempotent, payload=payload)
        line.accept()[0].close()
    return call


def test_broken_line_of_a_callee_that_lives_is_a_lost_answer(scene):
    scene.calls._idempotent["t", "score"] = False
    call = broken(scene, idempotent=False)
    with pytest.raises(PeerLostError, match="it may have run, or not"):
        call.result(WAIT_S)
    assert scene.handle.called == [CANCEL]
    assert broken(Scene(), idempotent=True).result(WAIT_S).payload == b"by Ray"


class Scorer:
    """A callee that counts what it ran."""

    def __init__(self) -> None:
        self.runs = 0

    @rpc
    def score(self) -> int:
        self.runs += 1
        return self.runs


def with_server(scene: Scene) -> Scorer:
    """Have calls by Ray answered by a server, which knows what was withdrawn."""
    scene.handle.server, scorer = RpcServer("t"), Scorer()
    scene.handle.server.open(scorer)
    return scorer


NO_ARGUMENTS = wire.dump(((), {}), "")


def test_call_that_had_not_begun_when_its_line_broke_goes_by_ray_whatever_its_method(scene):
    scorer = with_server(scene)
    scene.calls._idempotent["t", "score"] = False
    call = broken(scene, idempotent=False, payload=NO_ARGUMENTS)
    assert wire.load(call.result(WAIT_S).payload) == 1
    assert (scorer.runs, scene.handle.called, scene.handle.again) == (1, [CANCEL, "score"], [False, False])


def test_idempotent_call_whose_answer_was_lost_with_its_line_runs_again(scene):
    scorer, heard = with_server(scene), threading.Event()

    def run_and_break(packed: bytes) -> bytes:
        assert scene.handle.server is not None
        scene.handle.server.answer(*Call.unpacked(packed))
        line = scene.calls._lines._lines["a"].line
        assert line is not None
        line.shut_down()
        heard.wait(WAIT_S)
        return b""

    LineServer(address(scene.uid, "a"), run_and_break)
    try:
        assert wire.load(scene.call(idempotent=True, payload=NO_ARGUMENTS).result(WAIT_S).payload) == 2
    finally:
        heard.set()
    assert (scorer.runs, scene.handle.called) == (2, [CANCEL, "score"])


def test_cancel_is_not_answered_with_the_kept_answer_of_its_call():
    host = host_of(lambda *_, **__: Reply(payload=Fate.BEGUN.encode()))
    host._large.keep("1", Reply(payload=b"large"))
    assert ThreadHost.answer(host, Call("1", 0, 3, CANCEL, None, "w/0"), b"").payload == b"begun"
    assert host._large.take("1") is None, "its caller has given up"


def test_broken_line_of_a_callee_that_died_is_a_death(scene):
    def died(_: str) -> Reply:
        raise rx.ActorDiedError

    scene.handle.said = died
    scene.calls._idempotent["t", "score"] = False
    call = broken(scene, idempotent=False)
    with pytest.raises(PeerLostError, match=r"the process of t/0 \(incarnation 3\) died with the call"):
        call.result(WAIT_S)


def test_callee_without_a_handle_of_rays_is_gone(scene, monkeypatch):
    def gone(*_: object) -> None:
        raise ValueError("no such actor")

    monkeypatch.setattr(client.ray, "get_actor", gone)
    scene.calls._idempotent["t", "score"] = False
    call = broken(scene, idempotent=False)
    scene.calls._handles.clear()
    with pytest.raises(PeerLostError):
        call.result(WAIT_S)
