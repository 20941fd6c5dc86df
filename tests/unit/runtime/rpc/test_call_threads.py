"""Which threads of a host answer what, with pools in the place of Ray's concurrency groups."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from dljob import rpc
from dljob.master.state.views import Outcome
from dljob.runtime.process import wire
from dljob.runtime.process.messages import CLOSE, DESCRIBE, PULL, Call, Reply
from dljob.runtime.rpc import server
from dljob.runtime.rpc.client import invoke
from dljob.runtime.rpc.server import RpcServer
from dljob.runtime.worker.host import Host

WAIT_S = 5.0


class Handle:
    """An actor's handle: `invoke` runs in the pool of a group, by default that of the method."""

    def __init__(self, callee: RpcServer) -> None:
        self.callee = callee
        self.pools = {name: ThreadPoolExecutor(count) for name, count in Host.concurrency_groups.items()}
        self.group = "rpc"

    @property
    def invoke(self) -> Handle:
        return self

    def options(self, concurrency_group: str) -> Handle:
        made = object.__new__(Handle)
        made.__dict__ = {**self.__dict__, "group": concurrency_group}
        return made

    def remote(self, packed: bytes, *payload: bytes) -> Future[Reply]:
        call, small = Call.unpacked(packed)
        return self.pools[self.group].submit(self.callee.answer, call, *(payload or (small,)))


class Speaker:
    """A callee with few places."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    @rpc(stream=True, concurrency=8)
    def count(self, n):
        self.gate.wait(WAIT_S)
        yield from range(n)

    @rpc(concurrency=1)
    def wait(self):
        return self.gate.wait(WAIT_S)


@pytest.fixture
def speaker():
    return Speaker()


@pytest.fixture
def handle(speaker):
    callee = RpcServer("w")
    callee.open(speaker)
    yield Handle(callee)
    speaker.gate.set()
    callee.close(Outcome(ok=True))


_ids = itertools.count(1)


def send(handle: Handle, method: str, payload: bytes = b"") -> Future[Reply]:
    message = Call(str(next(_ids)), 0, 1, method, WAIT_S, "me", window=2).packed(payload)
    return invoke(handle, method, message, ())


def items_of(handle: Handle, n: int, all_are_sent: threading.Barrier) -> list[int]:
    """What a caller takes of a stream."""
    opening = send(handle, "count", wire.dump(((n,), {}), ""))
    all_are_sent.wait(WAIT_S)
    opened = opening.result(WAIT_S)
    assert not opened.error_type, opened.message
    key, got, over = wire.load(opened.payload).encode(), [], False
    while not over:
        items, over = wire.load(send(handle, PULL, key).result(WAIT_S).payload)
        got += [wire.load(item) for item in items]
    return got


def test_streams_that_wait_for_their_turn_do_not_hold_up_those_that_have_it(handle, speaker):
    speaker.gate.set()
    all_are_sent = threading.Barrier(72)
    with ThreadPoolExecutor(72) as callers:
        streams = [callers.submit(items_of, handle, 5, all_are_sent) for _ in range(72)]
        assert [stream.result(2 * WAIT_S) for stream in streams] == [list(range(5))] * 72


def test_card_and_the_end_of_a_stream_come_through_calls_and_pulls_that_wait(handle, speaker):
    keys = [wire.load(send(handle, "count", wire.dump(((1,), {}), "")).result(WAIT_S).payload) for _ in range(8)]
    waiting = [send(handle, "wait", wire.dump(((), {}), "")) for _ in range(64)]
    waiting += [send(handle, PULL, key.encode()) for key in keys * 8]
    assert set(wire.load(send(handle, DESCRIBE).result(WAIT_S / 2).payload).methods) == {"count", "wait"}
    assert not send(handle, CLOSE, keys[0].encode()).result(WAIT_S / 2).error_type
    assert not waiting[1].done()


def test_item_is_read_while_more_streams_without_one_wait_than_there_are_threads(handle, speaker, monkeypatch):
    monkeypatch.setattr(server, "LOOK_S", 0.01)
    handle.pools["pull"] = ThreadPoolExecutor(2)
    opened = [send(handle, "count", wire.dump(((1,), {}), "")) for _ in range(2)]
    keys = [wire.load(each.result(WAIT_S).payload).encode() for each in opened]
    waiting = [send(handle, PULL, key) for key in keys]
    speaker.gate = threading.Event()  # the others wait at theirs
    speaker.gate.set()
    assert items_of(handle, 3, threading.Barrier(1)) == [0, 1, 2]
    assert [wire.load(each.result(WAIT_S).payload) for each in waiting] == [([], False)] * 2


def test_stream_without_a_thread_gives_its_turn_back(handle, speaker, monkeypatch):
    def refused(_):
        raise RuntimeError("can't start new thread")

    opening = Call("1", 0, 1, "count", WAIT_S, "me", window=2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        replies = [handle.callee.answer(opening, wire.dump(((1,), {}), "")) for _ in range(9)]
    assert {reply.message for reply in replies} == {"can't start new thread"}
    assert handle.callee.under_way == 0
    speaker.gate.set()
    assert items_of(handle, 3, threading.Barrier(1)) == [0, 1, 2]


def test_calls_to_what_has_one_kind_of_threads_go_as_they_come(handle):
    handle.options = None  # as at a keeper, which knows no groups
    assert send(handle, "wait", b"no arguments").result(WAIT_S).error_type == "CallError"
