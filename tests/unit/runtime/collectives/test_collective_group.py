"""What an operation of a group says that another thread has closed meanwhile."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.errors import CollectiveAbortedError, UsageError
from dljob.runtime.collectives import group as module
from dljob.runtime.collectives.group import CollectiveGroup
from dljob.runtime.collectives.rendezvous import Assembly, MemberLossWatch, RendezvousClient
from dljob.runtime.collectives.runner import OperationRunner

MEMBERS = (("a", 0, 1), ("b", 0, 1))


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> CollectiveGroup:
    """One that was made, and then closed."""
    monkeypatch.setattr(module, "_lost", {})
    gone = {"epoch": 3, "members": [["a", 0, 2], ["b", 0, 1]], "absent": [], "ended": False, "why": ""}
    told = threading.Event()

    def ask(_: Any) -> Any:
        told.wait(60)
        return gone

    me: Any = SimpleNamespace(role="b", rank=0, incarnation=1)
    made = CollectiveGroup.__new__(CollectiveGroup)
    made.name, made._group, made._process = "w", None, "w/1"
    made._spec = SimpleNamespace(recreate=False)  # type: ignore[assignment]
    made._assembly = Assembly("j.1", 2, 1, MEMBERS, 1)
    made._watch = MemberLossWatch(RendezvousClient("w", me, ask, lambda _: 1, 0.0), made._assembly, "", lambda: None)
    made._runner = OperationRunner("w", 2, made._watch, abortable=True, recreate=False)
    made.lose = told.set  # type: ignore[attr-defined]
    return made


def test_a_group_closed_by_its_user_raises_usage_error(closed):
    with pytest.raises(UsageError, match=r"barrier: group w \(epoch 2\) is closed"):
        closed.barrier()
    closed.lose()


def test_a_group_closed_for_a_loss_names_the_loss(closed):
    closed.lose()
    assert closed._watch.lost.wait(60)
    with pytest.raises(CollectiveAbortedError, match=r"barrier: group w .* is broken: a/0 was started again") as told:
        closed.barrier()
    assert module._lost == {"w/1": told.value}


def test_a_group_closed_after_a_cut_connection_names_the_cut(closed):
    closed._runner.broken = "RuntimeError: Connection closed by peer"
    with pytest.raises(CollectiveAbortedError, match="Connection closed by peer"):
        closed.barrier()
    closed.lose()
