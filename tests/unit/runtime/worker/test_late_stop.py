"""An order to stop that comes late, again from a new master, ends no later start of its ranks."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.master.state.actions import RankStart
from dljob.runtime.process.messages import StopOrder
from dljob.runtime.worker.fork_host import ForkHost


@pytest.mark.parametrize(
    ("incarnations", "ended"), [((1, 1), [0]), ((1, 2), [0, 1]), ((), [0, 1])], ids=["late", "current", "any"]
)
def test_an_order_to_stop_means_the_incarnations_it_names(incarnations, ended):
    host: Any = ForkHost.__new__(ForkHost)
    host._lock, host._barred = threading.RLock(), {}
    host._ranks = {
        rank: SimpleNamespace(
            start=RankStart(rank, rank + 1, rank, 2, 0),
            ended=threading.Event(),
            stopped=Future(),
            forking=threading.Lock(),
            why="",
        )
        for rank in (0, 1)
    }
    host.spec = SimpleNamespace(role=SimpleNamespace(drain=None))
    orders: list[int] = []

    def order(kind: str, rank: int, _incarnation: int) -> None:
        orders.append(rank)
        host._ranks[rank].ended.set()
        assert kind == "term"

    host._helper = SimpleNamespace(order=order)
    host._socket = SimpleNamespace(stopping=lambda *_: None)
    host.stop_ranks(StopOrder(1, (0, 1), 1.0, "restart", incarnations))
    assert orders == ended
    assert [rank for rank, own in host._ranks.items() if own.stopped.done()] == ended, "also where it is not forked yet"
