"""Calls that have come, and do not run yet, when their rank ends: they must not run in what is there next."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dljob import rpc
from dljob.master.state.views import Outcome
from dljob.runtime.process import wire
from dljob.runtime.process.messages import Call, NotRun
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
