"""The laws of the work queue, against a model of one line each, in time that is told."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dljob_operator.watch.clock import OperatorClock
from dljob_operator.watch.workqueue import LONGEST_RETRY, VOID, Key, WorkQueue

KEYS = [Key("ns", name) for name in "abc"]
A, B = KEYS[:2]


class Laws(RuleBasedStateMachine):
    """Any order of calls: a key is in at most one hand, nothing added is forgotten, nothing comes too early."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.queue = WorkQueue(OperatorClock(monotonic=lambda: self.now))
        self.owed: set[Key] = set()
        """Added, and not taken since."""
        self.due: dict[Key, float] = {}
        self.held: set[Key] = set()

    @rule(key=st.sampled_from(KEYS))
    def add(self, key: Key) -> None:
        self.queue.add(key)
        self.owed.add(key)

    @rule(key=st.sampled_from(KEYS), delay=st.sampled_from([0.0, 1.0, 5.0]))
    def add_after(self, key: Key, delay: float) -> None:
        self.queue.add_after(key, delay)
        self.due[key] = min(self.due.get(key, float("inf")), self.now + delay)

    @rule(seconds=st.sampled_from([0.5, 1.0, 10.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def take(self) -> None:
        ready = {key for key, at in self.due.items() if at <= self.now}
        self.owed |= ready
        for key in ready:
            del self.due[key]
        key = self.queue.take()
        if key is None:
            assert not self.owed - self.held
            return
        assert key in self.owed
        assert key not in self.held
        self.owed.discard(key)
        self.due.pop(key, None)
        self.held.add(key)

    @rule(key=st.sampled_from(KEYS))
    def done(self, key: Key) -> None:
        if key in self.held:
            self.held.discard(key)
            self.queue.done(key)

    @invariant()
    def its_busy_keys_are_those_in_hands(self) -> None:
        assert self.queue.busy == self.held


Laws.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
test_laws = pytest.mark.filterwarnings("ignore")(Laws.TestCase)


@pytest.mark.parametrize("delay", [0, 0.01])
async def test_a_waiting_worker_is_woken_by_a_key_when_it_is_due(delay: float) -> None:
    queue = WorkQueue()
    taken = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add_after(A, delay) if delay else queue.add(A)
    assert await asyncio.wait_for(taken, 1) == A


async def test_two_waiting_workers_get_a_key_each() -> None:
    queue = WorkQueue()
    both = [asyncio.create_task(queue.get()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.add(A)
    queue.add(B)
    assert {await asyncio.wait_for(task, 1) for task in both} == {A, B}


def test_failures_wait_twice_as_long_each_time_up_to_a_minute() -> None:
    now = [0.0]
    queue = WorkQueue(OperatorClock(monotonic=lambda: now[0]))
    retried = Counter[str]()
    queue.retried = lambda: retried.update(["one"])
    delays = [queue.retry(A) for _ in range(20)]
    assert 0.04 <= delays[0] <= 0.06
    assert all(1.3 <= after / before <= 3.1 for before, after in itertools.pairwise(delays[:10]))
    assert all(0.8 * LONGEST_RETRY <= delay <= 1.2 * LONGEST_RETRY for delay in delays[12:])
    assert retried["one"] == 20
    queue.forget(A)
    assert queue.retry(A) <= 0.06


def test_a_dropped_key_does_not_come_back_by_itself() -> None:
    now = [0.0]
    queue = WorkQueue(OperatorClock(monotonic=lambda: now[0]))
    queue.add_after(A, 5)
    queue.drop(A)
    now[0] = 10
    assert queue.take() is None


def test_a_deadline_that_each_pass_says_anew_takes_no_more_room() -> None:
    now = [0.0]
    queue = WorkQueue(OperatorClock(monotonic=lambda: now[0]))
    for _ in range(1000):
        for key in KEYS:
            queue.add(key)
            assert queue.take() == key
            queue.add_after(key, 86400 - now[0])
            queue.done(key)
        now[0] += 15
    assert len(queue._heap) <= 2 * len(KEYS) + VOID
    assert queue.take() is None
    now[0] = 86401
    assert {queue.take() for _ in KEYS} == set(KEYS)
    assert queue.take() is None


def test_the_queue_reports_how_long_a_key_lay_ready() -> None:
    now = [0.0]
    queue = WorkQueue(OperatorClock(monotonic=lambda: now[0]))
    waited: list[float] = []
    queue.waited = waited.append
    queue.add(A)
    now[0] = 2.5
    assert queue.take() == A
    assert waited == [2.5]
    assert str(A) == "ns/a"
    assert len(queue) == 0


@pytest.mark.parametrize("turns", range(5))
async def test_a_worker_that_is_cancelled_as_a_key_comes_ends(turns: int) -> None:
    """Else an operator that is told to go waits for ever for its workers."""
    queue = WorkQueue()
    queue.add_after(B, 1000)

    async def work() -> None:
        while True:
            queue.done(await queue.get())

    worker = asyncio.create_task(work())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    queue.add(A)
    for _ in range(turns):
        await asyncio.sleep(0)
    worker.cancel()
    done, _ = await asyncio.wait([worker], timeout=5)
    worker.cancel()
    assert done
