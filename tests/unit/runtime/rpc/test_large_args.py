"""Large arguments of calls: stored once for all ranks, before any of them is called, until the last call ends."""

from __future__ import annotations

import asyncio
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray
from ray.exceptions import ObjectStoreFullError

from dljob.errors import UsageError
from dljob.runtime.process.messages import Peer, Reply
from dljob.runtime.process.wire import LARGE
from dljob.runtime.process.worker_context import RankCall
from dljob.runtime.rpc.client import RpcClient


class Ref:
    """What `ray.put` gives."""


class Store:
    """Ray's object store, and a callee's process that answers every call once it may."""

    def __init__(self) -> None:
        self.put_in: list[weakref.ref[Ref]] = []
        self.came: list[tuple[int, ...]] = []
        self.room: int | None = None
        """How many objects it has room for."""
        self.three, self.gate = asyncio.Event(), asyncio.Event()
        self.invoke = SimpleNamespace(remote=self._invoke)
        self.await_peer = SimpleNamespace(remote=self._await_peer)

    def put(self, data: bytes) -> Ref:
        assert len(data) >= LARGE
        if self.room is not None and len(self.put_in) == self.room:
            raise ObjectStoreFullError("full")
        ref = Ref()
        self.put_in.append(weakref.ref(ref))
        return ref

    def known(self) -> RpcClient:
        """The caller's side, in the loop of this test."""
        self.calls = RpcClient(cast("Any", SimpleNamespace(name="j", namespace="n", uid="u")), "w/0")
        self.calls._master, self.calls._handles["a"] = self, self
        self.calls._loop = asyncio.get_running_loop()
        return self.calls

    def _get_local_state(self) -> int:
        return 2

    async def _await_peer(self, role: str, rank: int, after: int) -> Peer:
        return Peer(role, rank, 1, "a", ready=True)

    async def _invoke(self, message: bytes, *payload: Any) -> bytes:
        del message
        self.came.append(tuple(id(part) for part in payload if isinstance(part, Ref)))
        if len(self.came) == 3:
            self.three.set()
        await self.gate.wait()
        return Reply().packed()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr(ray, "put", made.put)
    return made


def outgoing(rank: int, payload: bytes, common: bytes = b"") -> RankCall:
    return RankCall("t", rank, "f", payload, None, idempotent=False, common=common)


async def test_an_argument_common_to_several_ranks_is_stored_once_until_the_last_call_ends(store):
    calls, common = store.known(), bytes(LARGE)
    to_send = [outgoing(rank, b"own", common) for rank in range(3)]
    futures = calls.send_all(to_send)
    await store.three.wait()
    assert len(store.put_in) == len(set(store.came)) == 1
    assert store.put_in[0]() is not None
    store.gate.set()
    await asyncio.gather(*map(asyncio.wrap_future, futures))
    assert store.put_in[0]() is None, "though futures and calls are kept"
    assert [(call.payload, call.common) for call in to_send] == [(b"", b"")] * 3


async def test_a_call_that_its_own_thread_sends_and_reads_drops_its_arguments_then(store, monkeypatch):
    calls, call = store.known(), outgoing(0, bytes(LARGE))
    calls._peers["t", 0] = Peer("t", 0, 1, "a", ready=True)
    store.invoke.remote = lambda *_: object()
    monkeypatch.setattr(ray, "get", lambda _ref, timeout: Reply().packed())
    future = calls.send(call)
    assert store.put_in[0]() is not None
    assert not future.result(10).error_type
    assert (store.put_in[0](), call.payload) == (None, b"")


async def test_a_call_of_a_stream_that_may_resume_keeps_its_pickled_arguments_alone(store):
    calls, call = store.known(), outgoing(0, bytes(LARGE))
    call.once = True
    store.gate.set()
    await asyncio.wrap_future(calls.send(call))
    assert (store.put_in[0](), call.payload) == (None, bytes(LARGE))


async def test_other_bytes_are_stored_for_themselves_and_small_ones_are_not(store):
    calls = store.known()
    store.gate.set()
    for payload in (bytes(LARGE), bytes(LARGE), b"small"):
        await asyncio.wrap_future(calls.send(outgoing(0, payload)))
        calls._peers.clear()  # else the thread that calls would ask Ray itself
    assert [len(parts) for parts in store.came] == [1, 1, 0]
    assert [ref() for ref in store.put_in] == [None, None]


async def test_a_call_whose_arguments_find_no_room_is_sent_to_none_of_its_ranks(store):
    calls = store.known()
    store.room = 2
    said = r"^no rank was called: arguments for t/2: Ray's object store of this node takes no 0 MiB more"
    with pytest.raises(UsageError, match=said):
        calls.send_all([outgoing(rank, bytes(LARGE)) for rank in range(3)])
    assert [ref() for ref in store.put_in] == [None, None], "those that were stored are dropped again"
    store.gate.set()
    await asyncio.wrap_future(calls.send(outgoing(3, b"small")))
    assert store.came == [()], "only the call after it"
