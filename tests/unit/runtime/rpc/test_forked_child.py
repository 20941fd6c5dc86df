"""A forked child of a process that has Ray: calls, queues and weight channels are refused there, in words, at once."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from dljob import DataQueue, WeightChannel
from dljob.errors import UsageError
from dljob.runtime.process.context import install
from dljob.runtime.process.messages import Peer, Reply
from dljob.runtime.process.worker_context import RankCall
from dljob.runtime.rpc.call_lines import LineServer, address
from dljob.runtime.rpc.client import RpcClient
from dljob.runtime.worker.thread_host import ThreadHost

WAIT_S = 60


class Rank:
    """A rank of a class, which has a call line to rank 0 of the role `t`."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        uid = uuid4().hex
        self.calls = RpcClient(cast("Any", SimpleNamespace(name="j", namespace="n", uid=uid)), "w/0")
        self.calls._handles["a"] = SimpleNamespace(_get_local_state=lambda: 2)
        self.calls._peers["t", 0] = Peer("t", 0, 3, "a", ready=True)
        LineServer(address(uid, "a"), self._answer)

    def _answer(self, packed: bytes) -> bytes:
        self.heard.append(packed)
        return Reply(payload=b"by line").packed()

    def call(self) -> Any:
        return self.calls.send(RankCall("t", 0, "score", b"", WAIT_S, idempotent=False)).result(WAIT_S)


@pytest.fixture
def rank() -> Iterator[Rank]:
    made = Rank()
    me = SimpleNamespace(name="w/0", role="w", rank=0, incarnation=1, calls=made.calls, note=lambda *_: None)
    install(cast("Any", me))
    yield made
    install(None)


def error_in_child(work: Callable[[], object]) -> str:
    """The UsageError that `work` raises in a forked child of this process."""
    here, there = Pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(WAIT_S)
        try:
            work()
            there.send("no error")
        except UsageError as error:
            there.send(str(error))
        finally:
            os._exit(0)
    there.close()
    said = here.recv()
    os.waitpid(pid, 0)
    return said


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("t/0.score", lambda rank: rank.call()),
        ("the question 'status' to PrimeMaster", lambda rank: rank.calls.ask("status", (), WAIT_S)),
        ("weights:policy", lambda rank: rank.calls.keeper(":weights:policy")),
        ("DataQueue('samples').get", lambda _: DataQueue("samples").get(timeout=WAIT_S)),
        ("WeightChannel('policy')", lambda _: WeightChannel("policy").receive(timeout=WAIT_S)),
        ("WeightChannel('policy')", lambda _: WeightChannel("policy").publish(1, [])),
    ],
)
def test_what_needs_ray_is_refused_in_a_forked_child(rank, name, work):
    said = error_in_child(lambda: work(rank))
    who = rf"process \d+, a forked child, .* of process {os.getpid()}, a rank"
    assert re.match(rf"{re.escape(name)} was used in {who}", said)
    assert "\n  use it in the rank itself and hand the child what it needs" in said


def test_forked_child_writes_nothing_into_the_line_of_its_parent(rank):
    assert rank.call().payload == b"by line"
    assert error_in_child(rank.call).startswith("t/0.score was used in process")
    assert rank.call().payload == b"by line"
    assert len(rank.heard) == 2


def test_place_of_checkpoints_is_not_asked_for_in_a_forked_child():
    host: Any = SimpleNamespace(_pid=os.getpid())
    said = error_in_child(lambda: ThreadHost._saver(host, cast("Any", None), cast("Any", None)))
    assert said.startswith("checkpoint was used in process")
