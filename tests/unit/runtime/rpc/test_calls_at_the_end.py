"""Calls that have come, and do not run yet, when their rank ends: they must not run in what is there next."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dljob import rpc
from dljob.master.state.views import Outcome
from dljob.runtime.process import activities, wire
from dljob.runtime.process.messages import PULL, Call, NotRun
from dljob.runtime.rpc import server
from dljob.runtime.rpc.server import RpcServer

WAIT_S = 10.0


class Doer:
    """A callee whose first call runs until it is let go."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.begun, self.gate = threading.Event(), threading.Event()

    @rpc(concurrency=1)
    def do(self, what):
        self.ran.append(what)
        self.begun.set()
        self.gate.wait(WAIT_S)

    @rpc(stream=True, concurrency=1)
    def count(self, what):
        self.ran.append(what)
        yield what


@pytest.fixture
def doer():
    return Doer()


@pytest.fixture
def callee(doer):
    made = RpcServer("w")
    made.open(doer)
    return made


_ids = itertools.count(1)


def answer(callee: RpcServer, method: str, what):
    return callee.answer(Call(f"me:{next(_ids)}", 0, 1, method, WAIT_S, "me"), wire.dump(((what,), {}), ""))


def test_call_that_waits_for_its_turn_is_refused_at_the_end(callee, doer):
    with ThreadPoolExecutor(3) as callers:
        first = callers.submit(answer, callee, "do", "first")
        assert doer.begun.wait(WAIT_S)
        later = [callers.submit(answer, callee, "do", "later") for _ in range(2)]
        time.sleep(0.1)
        callee.close(Outcome(ok=True), cut=True)
        doer.gate.set()
        callee.wait_idle()
        assert [reply.result(WAIT_S).refused for reply in (first, *later)] == [None, NotRun.ENDED, NotRun.ENDED]
    assert doer.ran == ["first"]


def test_a_rank_that_its_role_gives_up_answers_what_it_was_asked(callee, doer, monkeypatch):
    monkeypatch.setattr(server, "KNOWN_S", 1.0)
    with ThreadPoolExecutor(4) as callers:
        first = callers.submit(answer, callee, "do", "first")
        assert doer.begun.wait(WAIT_S)
        finishing = callers.submit(callee.finish, WAIT_S)
        early = callers.submit(answer, callee, "do", "before callers have heard")
        while not callee._finishing:
            time.sleep(0.01)
        late = answer(callee, "do", "late")
        assert (late.refused, late.message) == (NotRun.ENDED, "w/0 is about to leave: its role goes on without it")
        assert not finishing.done()
        doer.gate.set()
        assert finishing.result(WAIT_S)
        assert [reply.result(WAIT_S).refused for reply in (first, early)] == [None, None]
    assert doer.ran == ["first", "before callers have heard"]


def test_a_stream_is_taken_to_its_end_before_a_rank_leaves(callee, monkeypatch):
    monkeypatch.setattr(server, "KNOWN_S", 0.0)
    opened = answer(callee, "count", 1)
    key = wire.load(opened.payload)
    assert not callee.finish(0.1), "nobody has taken its item"
    pull = Call(f"me:{next(_ids)}", 0, 1, PULL, WAIT_S, "me")
    with ThreadPoolExecutor(1) as waiter:
        finishing = waiter.submit(callee.finish, WAIT_S)
        assert wire.load(callee.answer(pull, key.encode()).payload)[0] == [wire.dump(1, "")]
        while not wire.load(callee.answer(pull, key.encode()).payload)[1]:
            pass
        assert finishing.result(WAIT_S)


_ends: list[RpcServer] = []


def _end() -> str:
    _ends[-1].close(Outcome(ok=True), cut=True)
    _ends[-1].wait_idle()
    return "late"


class EndsTheRank:
    """An argument with which the rank ends while it is read."""

    def __reduce__(self):
        return _end, ()


@pytest.mark.parametrize("method", ["do", "count"])
def test_call_that_is_being_read_is_refused_at_the_end(callee, doer, method):
    _ends.append(callee)
    reply = answer(callee, method, EndsTheRank())
    assert (reply.refused, reply.message) == (NotRun.ENDED, "w/0 ended well")
    assert doer.ran == []


class Engine:
    """A callee with one method that runs whatever its weights are."""

    @rpc
    def score(self, what):
        return what

    @rpc(any_weights=True)
    def ping(self, what):
        return what


def test_calls_wait_while_weights_are_stale_but_of_methods_that_take_any():
    callee = RpcServer("w")
    callee.open(Engine())
    callee.hold("it loads version 7")
    with ThreadPoolExecutor(2) as callers:
        waiting = callers.submit(answer, callee, "score", 1)
        assert wire.load(answer(callee, "ping", 2).payload) == 2
        late = callee.answer(Call("me:999999", 0, 1, "score", 0.01, "me"), wire.dump(((3,), {}), ""))
        assert (late.refused, late.message) == (NotRun.LATE, "for the weights of w/0, not run: it loads version 7")
        while callee.under_way != 1:
            time.sleep(0.001)
        assert "score" not in [row[2] for row in activities.report(0.0)["rows"] if not row[3]], "it does not run"
        assert not waiting.done()
        callee.hold("")
        assert wire.load(waiting.result(WAIT_S).payload) == 1
        callee.recheck_weights()
        reasons = ["it holds version 1"]
        behind = RpcServer("w", why_behind=lambda call: reasons[0] if call.published else "")
        behind.open(Engine())
        knows = Call("me:999998", 0, 1, "score", None, "me", published=[("policy", (2, 20.0))])
        arguments = wire.dump(((5,), {}), "")
        assert not behind.answer(replace(knows, id="1", published=()), arguments).refused, "its caller knows of none"
        late = behind.answer(replace(knows, id="2", timeout_s=0.01), arguments)
        assert late.message == "for the weights of w/0, not run: it holds version 1"
        held_call = callers.submit(behind.answer, knows, arguments)
        while behind.under_way != 1:
            time.sleep(0.001)
        behind.hold("it loads version 2")
        reasons[0] = ""
        behind.recheck_weights()
        assert not held_call.done(), "PrimeMaster holds it now"
        behind.hold("")
        assert wire.load(held_call.result(WAIT_S).payload) == 5
        callee.hold("it holds no version")
        last = callers.submit(answer, callee, "score", 4)
        while callee.under_way != 1:
            time.sleep(0.001)
        callee.close(Outcome(ok=True))
        assert last.result(WAIT_S).refused is NotRun.ENDED
