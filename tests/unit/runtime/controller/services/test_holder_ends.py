"""Queues are told once which processes have ended, and how; PrimeMaster hears which items pay for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from immutables import Map
from master_shell_kit import until

from dljob.calls.backlog import DEAD_STREAK_LIMIT
from dljob.errors import DLJobError
from dljob.master.state import events as ev
from dljob.master.state.cuts import Cuts
from dljob.master.state.state import OwnFailure, RankPhase, RankState
from dljob.runtime.controller.services import holder_ends
from dljob.runtime.controller.services.holder_ends import HolderEnds, end_of
from dljob.tasks import TaskOwner

FAILED = OwnFailure(2, 100.0, "e/1: UserError: ValueError: no")


@pytest.mark.parametrize(
    ("rank", "end"),
    [
        (RankState(), None),
        (RankState(RankPhase.READY, 1), None),
        (RankState(RankPhase.STOPPING, 2), (1, "lost", "")),
        (RankState(RankPhase.WAITING, 2), (2, "lost", "")),
        (RankState(RankPhase.ABSENT, 2), (2, "lost", "")),
        (RankState(RankPhase.SUCCEEDED, 2), (2, "done", "")),
        (RankState(RankPhase.WAITING, 2, own_failure=FAILED), (2, "failed", FAILED.cause)),
        (RankState(RankPhase.FAILED, 2, own_failure=FAILED), (2, "failed", FAILED.cause)),
        (RankState(RankPhase.READY, 3, own_failure=FAILED), (2, "failed", FAILED.cause)),
        (RankState(RankPhase.ABSENT, 3, own_failure=FAILED), (3, "lost", "")),
    ],
)
def test_how_the_last_process_of_a_rank_ended(rank, end):
    assert end_of(rank) == end


class Master:
    """A master whose queues answer as told, and which records events."""

    def __init__(self, *queues: str, **ranks: RankState) -> None:
        self.setup: Any = SimpleNamespace(info=SimpleNamespace(uid="0123456789"))
        self.backend: Any = self
        self.changed = asyncio.Condition()
        self.tasks = TaskOwner(lambda error: pytest.fail(str(error)))
        self.answers: dict[str, Any] = {}
        self.asked: list[Any] = []
        self.events: list[Any] = []
        self.state: Any = None
        self.queues = queues
        self.put(**ranks)

    def put(self, **ranks: RankState) -> None:
        keys = Map({(name[0], int(name[1:])): rank for name, rank in ranks.items()})
        self.state = SimpleNamespace(cuts=Cuts(queue_names=self.queues), ranks=keys)

    async def change(self, **ranks: RankState) -> None:
        async with self.changed:
            self.put(**ranks)
            self.changed.notify_all()

    async def lookup(self, name: str) -> str | None:
        return name.rpartition("/")[2]

    async def call(self, ref: str, method: str, ends: Any) -> Any:
        assert method == "end_incarnations"
        self.asked.append((ref, ends))
        answer = self.answers.get(ref, {})
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return {}
        return answer

    async def offer(self, *events: ev.Event) -> None:
        self.events.extend(events)


async def test_each_queue_is_told_of_each_end_once_and_again_where_it_did_not_answer(monkeypatch):
    monkeypatch.setattr(holder_ends, "AGAIN_S", 0.01)
    monkeypatch.setattr(holder_ends, "LOOK_S", 0.0)
    ready = {"e0": RankState(RankPhase.READY, 2), "e1": RankState(RankPhase.READY, 2)}
    master = Master("tasks", "done", **ready)
    ends = HolderEnds(master)
    task = asyncio.create_task(ends.run())
    await until(lambda: len(master.asked) == 2)
    first = {"e/0": (1, "lost", ""), "e/1": (1, "lost", "")}
    assert sorted(master.asked) == [("done", first), ("tasks", first)], "a new master tells of all ends"
    master.asked.clear()
    master.answers = {"tasks": {"e/1": [("20", 1, False)]}, "done": DLJobError("it restarts")}
    await master.change(e0=ready["e0"], e1=RankState(RankPhase.WAITING, 2, own_failure=FAILED))
    await until(lambda: len(master.asked) > 3)
    end = {"e/1": (2, "failed", FAILED.cause)}
    assert {name for name, ends in master.asked if ends == end} == {"tasks", "done"}
    assert [name for name, _ in master.asked].count("tasks") == 1
    assert master.events == [ev.DeliveriesFailed("tasks", "e", 1, 2, (("20", 1, False),))]
    master.answers = {}
    await until(lambda: not any(ends._unreported.values()))
    count = len(master.asked)
    await asyncio.sleep(0.1)
    assert len(master.asked) == count, "all are told"
    task.cancel()


async def test_a_queue_that_hangs_holds_up_no_other_and_hears_of_later_ends_itself():
    lost = {"e1": RankState(RankPhase.WAITING, 2)}
    master = Master("tasks", "done", **lost)
    master.answers = {"tasks": (hang := asyncio.Event())}
    task = asyncio.create_task(HolderEnds(master).run())
    await until(lambda: len(master.asked) == 2)
    master.asked.clear()
    await master.change(**lost, e2=RankState(RankPhase.WAITING, 1))
    await until(lambda: bool(master.asked))
    end = {"e/2": (1, "lost", "")}
    assert master.asked == [("done", end)], "the other one is asked once at a time"
    hang.set()
    await until(lambda: len(master.asked) == 2)
    assert master.asked[1] == ("tasks", end), "it has heard of the first end"
    task.cancel()


async def test_the_role_pays_where_no_item_does():
    master = Master("tasks", e1=RankState(RankPhase.WAITING, 2, own_failure=FAILED))
    master.answers = {"tasks": {"e/1": None}}
    task = asyncio.create_task(HolderEnds(master).run())
    await until(lambda: bool(master.events))
    assert master.events == [ev.DeliveriesFailed("tasks", "e", 1, 2, (), DEAD_STREAK_LIMIT)]
    task.cancel()


async def test_a_job_without_queues_asks_nobody():
    master = Master(e1=RankState(RankPhase.WAITING, 2))
    task = asyncio.create_task(HolderEnds(master).run())
    await asyncio.sleep(0.1)
    assert not master.asked
    task.cancel()
