"""Calls that are parked until a rank is back: a change wakes those that it concerns, and no others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.runtime.controller import peers
from dljob.runtime.controller.peers import ParkedCalls
from dljob.runtime.process.messages import Peer
from dljob.tasks import TaskOwner

RANKS = 100


class Job:
    """As much of a job's state as peers are read from; `looks` counts how often one is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranks: dict[tuple[str, int], Any] = {
            ("w", rank): SimpleNamespace(incarnation=1, ready=False) for rank in range(RANKS)
        }
        self.verdict: object = None
        self.changed = asyncio.Condition()
        self.looks = 0
        self.failures: list[Exception] = []
        self.parked = ParkedCalls(TaskOwner(self.failures.append))
        monkeypatch.setattr(peers, "peer", self._peer)

    def _peer(self, _: object, role: str, rank: int) -> Peer:
        self.looks += 1
        own = self.ranks.get((role, rank))
        if own is None or self.verdict:
            return Peer(role, rank, 0, "", ready=False, gone_reason="gone")
        return Peer(role, rank, own.incarnation, "a", own.ready, "")

    def park(self, rank: int, after: int = 1) -> asyncio.Task[Peer]:
        state: Any = self
        return asyncio.create_task(self.parked.ready(lambda: state, self.changed, ("w", rank), after))

    async def turn(self, rank: int | None = None, life: int = 2) -> None:
        """Something changes: a rank is ready, or something else."""
        async with self.changed:
            if rank is not None:
                self.ranks["w", rank] = SimpleNamespace(incarnation=life, ready=True)
            self.changed.notify_all()
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch)


async def test_a_change_wakes_the_calls_that_it_concerns_alone(job):
    calls = [job.park(rank) for rank in range(RANKS)]
    await job.turn()
    job.looks = 0
    for _ in range(10):
        await job.turn()
    assert job.looks == 0, "nothing that a call waits for has changed"
    await job.turn(7)
    assert (job.looks, calls[7].done(), sum(call.done() for call in calls)) == (1, True, 1)
    assert calls[7].result().incarnation == 2
    job.verdict = object()
    await job.turn()
    assert {call.result().gone_reason for call in calls if call is not calls[7]} == {"gone"}


async def test_a_rank_that_is_there_is_answered_at_once_and_each_call_by_its_own_incarnation(job):
    early, late = job.park(3, 1), job.park(3, 2)
    await job.turn(3, 2)
    assert (early.done(), late.done()) == (True, False)
    assert (await job.park(3, 1)).incarnation == 2
    await job.turn(3, 3)
    assert late.result().incarnation == 3
    again = job.park(4)
    await job.turn(4)
    assert again.result().ready, "whoever looked ended with the last call, and comes back with the next one"


async def test_a_call_that_nobody_awaits_any_more_is_dropped_and_one_of_a_rank_that_goes_is_answered(job):
    gone, call = job.park(1), job.park(2)
    await job.turn()
    gone.cancel()
    del job.ranks["w", 2]
    await job.turn(1)
    assert gone.cancelled()
    assert call.result().gone_reason == "gone"


async def test_parked_calls_hear_that_nobody_looks_any_more(job, monkeypatch):
    call = job.park(1)
    await job.turn()

    def broken(*_: object) -> Peer:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(peers, "peer", broken)
    await job.turn(1)
    with pytest.raises(ValueError, match="a fault of ours"):
        await call
    assert job.failures == []


async def test_a_callee_hears_which_of_its_callers_have_ended(job):
    def ask(*callers: tuple[str, int, int], asker: str = "a/1", within_s: float = 10.0) -> asyncio.Task[Any]:
        state: Any = job
        return asyncio.create_task(job.parked.await_end(lambda: state, job.changed, asker, callers, within_s))

    first, other = ask(("w", 1, 1), ("w", 2, 1)), ask(("w", 2, 1), asker="b/1")
    await job.turn(3)
    assert (first.done(), other.done()) == (False, False)
    # With one caller more: the same callee has one question at a time.
    second = ask(("w", 1, 1), ("w", 2, 1), ("w", 3, 2))
    await job.turn()
    assert (await first, second.done(), other.done()) == ([], False, False)
    await job.turn(2)
    assert await second == await other == [("w", 2, 1)]
    assert await ask(("w", 2, 1), ("w", 1, 1)) == [("w", 2, 1)], "it is told at once of one that has ended"
    assert await ask(("w", 1, 1), within_s=0.01) == []
    del job.ranks["w", 1]
    assert await ask(("w", 1, 1), ("w", 2, 2)) == [("w", 1, 1)], "a rank whose role shrank has no process"
    job.verdict = object()
    assert not job.parked._parked, "what is not asked any more is dropped"
    assert not job.parked._questions
