"""DataQueue without Ray: its files, its keeper, and what users call; keepers and ranks die at any place."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from life_kit import context as here

from dljob import CallError, CallTimeoutError, DataQueue, QueueClosedError, UsageError
from dljob.calls.backlog import DEAD_STREAK_LIMIT, PutRefusal, QueueCaller
from dljob.runtime.process import context
from dljob.runtime.process.handover import Handover
from dljob.runtime.process.messages import Call, Reply
from dljob.runtime.process.worker_context import RankCall
from dljob.runtime.queues import data_queue, session
from dljob.runtime.queues.files import QueueFiles
from dljob.runtime.queues.keeper import QueueKeeper, folder_of
from dljob.runtime.queues.session import line_of
from dljob.runtime.queues.store import QueueStore
from dljob.runtime.rpc import storage_actor

BOUNDS = (10, 1 << 20, 0)
A, B = QueueCaller("a/0", 1, "p"), QueueCaller("b/0", 1, "q")


def store(folder: Path, **changes: Any) -> QueueStore:
    made = QueueStore(folder, BOUNDS, **changes)
    assert made.register(A)
    assert made.register(B)
    return made


def reopened(old: QueueStore, folder: Path, **changes: Any) -> QueueStore:
    old.close()
    return QueueStore(folder, BOUNDS, **changes)


# -- files


def test_records_are_there_after_a_process_and_a_torn_one_is_cut_off(tmp_path):
    files = QueueFiles(tmp_path)
    assert files.full
    files.begin()
    place = files.append({"n": 1}, b"one")
    files.append({"n": 2}, b"two" * 1000)
    files.close()
    last = tmp_path / "00000001.seg"
    os.truncate(last, last.stat().st_size - 1)
    files = QueueFiles(tmp_path)
    assert list(files.records()) == [({"n": 1}, place)]
    assert files.read(place) == b"one"
    after = files.append({"n": 3}, b"three")
    files.close()
    files = QueueFiles(tmp_path)
    assert [head["n"] for head, _ in files.records()] == [1, 3]
    assert files.read(after) == b"three"
    with pytest.raises(OSError, match="ends before"):
        files.read((1, 1 << 20, 1))
    files.close()


def test_a_record_whose_bytes_are_others_ends_the_log(tmp_path):
    files = QueueFiles(tmp_path)
    files.begin()
    segment, start, _ = files.append({"n": 1}, b"bytes")
    files.close()
    with (tmp_path / f"{segment:08d}.seg").open("r+b") as file:
        file.seek(start)
        file.write(b"B")
    files = QueueFiles(tmp_path)
    assert list(files.records()) == []
    files.close()


def test_one_process_at_a_time_has_the_folder(tmp_path):
    first = QueueFiles(tmp_path)
    second: list[QueueFiles] = []
    waiting = threading.Thread(target=lambda: second.append(QueueFiles(tmp_path)))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    first.close()
    waiting.join(60)
    assert second
    second[0].close()


def test_a_store_that_is_opened_anew_has_what_was_answered(tmp_path):
    first = store(tmp_path)
    for number in range(1, 4):
        assert first.put(A, number, b"item%d" % number) is None
    assert first.begin_get(B, 1, 0)
    assert first.take(B, 2) == [b"item1", b"item2"]
    second = reopened(first, tmp_path)
    assert second.folder_id == first.folder_id
    assert second.backlog == first.backlog
    assert second.put(A, 3, b"again") is PutRefusal.AGAIN
    assert second.take(B, 2) == [b"item1", b"item2"]
    assert second.begin_get(B, 2, 1)
    assert second.take(B, 1) == [b"item3"]
    second.close_queue()
    third = reopened(second, tmp_path)
    assert third.backlog == second.backlog
    assert third.register(QueueCaller("b/0", 2, "r"))
    assert not third.register(B)
    fourth = reopened(third, tmp_path)
    assert fourth.backlog.waiting == [3]
    fourth.close()


def test_one_held_item_does_not_keep_the_segments_after_its_own(tmp_path):
    """A consumer holds the first item for long, while others put and get many."""
    queue = store(tmp_path, segment=1000)
    slow = QueueCaller("slow/0", 1, "s")
    assert queue.register(slow)
    assert queue.put(A, 1, b"held") is None
    assert queue.begin_get(slow, 1, 0)
    assert queue.take(slow, 1) == [b"held"]
    for number in range(2, 41):
        assert queue.put(A, number, bytes([number]) * 400) is None
        assert queue.begin_get(B, number, number - 1)
        assert queue.take(B, 1) == [bytes([number]) * 400]
        if number % 7 == 0:
            before = queue.backlog
            queue = reopened(queue, tmp_path, segment=1000)
            assert queue.backlog == before
    names = sorted(path.name for path in tmp_path.glob("*.seg"))
    assert (names[0], len(names) <= 3) == ("00000001.seg", True), names
    assert queue.take(slow, 1) == [b"held"]
    queue.close()


def broken_begin(queue: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is begun, and there is no room for its state."""

    def no_room(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as here:
        here.setattr(os, "pwritev", no_room)
        with pytest.raises(OSError, match="No space"):
            queue.put(A, 99, b"x")


def filled(tmp_path: Path, *puts: int) -> QueueStore:
    """One whose segment is full after these."""
    queue = store(tmp_path, segment=1 << 20)
    for number in puts:
        assert queue.put(A, number, b"item%d" % number) is None
    queue._files._limit = 1
    return queue


@pytest.mark.parametrize("dies", [True, False])
def test_a_segment_whose_state_is_missing_is_begun_anew(tmp_path, monkeypatch, dies):
    queue = filled(tmp_path, 1)
    broken_begin(queue, monkeypatch)
    assert (tmp_path / "00000002.seg").stat().st_size == 0
    queue = reopened(queue, tmp_path) if dies else queue
    queue._files._limit = 1 << 20
    assert queue.begin_get(B, 1, 0)
    assert queue.take(B, 1) == [b"item1"]
    assert queue.put(A, 2, b"item2") is None
    assert queue.begin_get(B, 2, 1)  # item1 is done: its segment, and the state in it, go
    assert [path.name for path in tmp_path.glob("*.seg")] == ["00000002.seg"]
    again = reopened(queue, tmp_path)
    assert (again.folder_id, again.backlog) == (queue.folder_id, queue.backlog)
    assert again.take(B, 1) == [b"item2"]
    again.close()


def without_state(queue: QueueStore) -> None:
    """As a version before did it: a segment without its state."""
    queue._files.begin()
    queue._files._limit = 1 << 20
    queue._files.append({"op": "register", "rank": A.rank, "incarnation": A.incarnation, "session": A.session})


def test_a_log_whose_first_state_is_gone_gives_back_all_items_that_are_in_it(tmp_path):
    queue = filled(tmp_path, 1, 2)
    assert queue.begin_get(B, 1, 0)
    assert queue.take(B, 2) == [b"item1", b"item2"]
    without_state(queue)
    for number in (3, 4):
        assert queue.put(A, number, b"item%d" % number) is None
    assert queue.begin_get(B, 2, 1)
    assert queue.take(B, 1) == [b"item3"]
    queue.close_queue()
    assert len(list(tmp_path.glob("*.seg"))) == 1
    for _ in range(2):  # it has its state from then on
        again = reopened(queue, tmp_path)
        assert [len(again.backlog.waiting), again.backlog.closed] == [2, True]
        queue = again
    assert queue.folder_id == again.folder_id
    assert queue.put(A, 4, b"again") is PutRefusal.AGAIN
    assert queue.take(B, 2) == [b"item3", b"item4"]
    queue.close()


def test_a_later_state_says_which_of_them_are_left(tmp_path):
    queue = filled(tmp_path, 1)
    assert queue.begin_get(B, 1, 0)
    assert queue.take(B, 1) == [b"item1"]
    without_state(queue)
    for number in (2, 3):
        assert queue.put(A, number, b"item%d" % number) is None
    assert queue.begin_get(B, 2, 1)
    assert queue.take(B, 1) == [b"item2"]
    queue._files._limit = 1
    assert queue.put(A, 4, b"item4") is None
    assert [path.name for path in sorted(tmp_path.glob("*.seg"))] == ["00000003.seg", "00000004.seg"]
    again = reopened(queue, tmp_path)
    assert (again.folder_id, again.backlog) == (queue.folder_id, queue.backlog)
    assert again.take(B, 1) == [b"item2"]
    assert again.begin_get(B, 3, 2)
    assert again.take(B, 2) == [b"item3", b"item4"]
    again.close()


def test_a_segment_that_follows_a_state_of_another_gets_one_before_that_goes(tmp_path):
    queue = filled(tmp_path, 1)
    without_state(queue)
    assert queue.put(A, 2, b"item2") is None
    again = reopened(queue, tmp_path)
    assert again.begin_get(B, 1, 0)
    assert again.take(B, 1) == [b"item1"]
    assert again.begin_get(B, 2, 1)
    assert [path.name for path in sorted(tmp_path.glob("*.seg"))] == ["00000002.seg", "00000003.seg"]
    last = reopened(again, tmp_path)
    assert (last.folder_id, last.backlog) == (queue.folder_id, again.backlog)
    assert last.take(B, 1) == [b"item2"]
    last.close()


@pytest.mark.parametrize("what", ["store.QueueStore._recover", "files.QueueFiles._open"])
def test_a_log_that_cannot_be_opened_is_let_go(tmp_path, monkeypatch, what):
    store(tmp_path).close()

    def fails(*_: Any) -> None:
        raise OSError("it cannot be read")

    with monkeypatch.context() as here:
        here.setattr(f"dljob.runtime.queues.{what}", fails)
        with pytest.raises(OSError, match="it cannot be read"):
            QueueStore(tmp_path, BOUNDS)
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


# -- what users call


class Loopback:
    """Carries calls to a keeper in a loop of its own; `kill` has another one take over, as the router does."""

    def __init__(self, folder: Path) -> None:
        self.job: Any = SimpleNamespace(dir=str(folder), attempt=1, lease_s=30.0)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.keepers: dict[str, QueueKeeper] = {}
        self.lost: list[str] = []
        self.away = False
        self.sizes: dict[str, int] = {}
        self.numbers: dict[str, tuple[int, ...]] = {}
        self.incarnations: dict[str, int] = {}

    def send(self, call: RankCall) -> Future[Reply]:
        if self.away:
            failed: Future[Reply] = Future()
            failed.set_exception(CallTimeoutError(f"{call.name}: no answer", role=call.role, rank=0))
            return failed
        return asyncio.run_coroutine_threadsafe(self._send(call), self.loop)

    async def _send(self, call: RankCall) -> Reply:
        while True:
            name = call.role.removeprefix(":queue:")
            if name not in self.keepers:
                self.keepers[name] = QueueKeeper(self.job, name)
            packed = Call("1", 0, 1, call.method, call.timeout_s, "").packed(call.payload)
            answer = await self.keepers[name].invoke(packed)
            if call.method in self.lost:
                self.lost.remove(call.method)
                self._drop(name)
                continue
            return answer if isinstance(answer, Reply) else Reply.unpacked(answer)

    def kill(self, name: str) -> None:
        async def drop() -> None:
            self._drop(name)

        asyncio.run_coroutine_threadsafe(drop(), self.loop).result(60)

    def _drop(self, name: str) -> None:
        self.keepers.pop(name)._opening.result().close()

    def close(self) -> None:
        for name in list(self.keepers):
            if self.keepers[name]._opening is not None:
                self.kill(name)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(60)
        self.loop.close()

    def ask(self, what: str, args: Any, timeout_s: float) -> Future[Any]:
        raise AssertionError


@pytest.fixture
def line(tmp_path, monkeypatch) -> Iterator[Loopback]:
    monkeypatch.setattr(storage_actor, "Guard", lambda *_: None)
    monkeypatch.setattr(storage_actor.storage_actors, "follow_master", lambda *_: None)
    monkeypatch.setattr(session, "_lines", session.QueueSessions())  # a process has the queues of one job
    made = Loopback(tmp_path)
    become(made)
    yield made
    context.install(None)
    made.close()


def become(line: Loopback, rank: int = 0, incarnation: int = 1) -> None:
    context.install(here(rank=rank, incarnation=incarnation, world_size=2, peers={"w": 2}, calls=line))


def test_items_come_in_order_and_the_end_is_told(line):
    queue = DataQueue("samples")
    for item in ({"a": 1}, [2], "three"):
        queue.put(item)
    assert queue.qsize() == 3
    assert queue.get() == {"a": 1}
    queue.close()
    queue.close()
    assert queue.get_batch(5) == [[2], "three"]
    with pytest.raises(QueueClosedError, match=r"DataQueue\('samples'\).get: the queue is closed and empty"):
        queue.get()
    with pytest.raises(QueueClosedError, match="put: the queue is closed"):
        queue.put(4)
    assert list(queue) == []
    assert queue.stats() == {"items": 0, "bytes": 0, "held": 0, "dead": 0, "closed": True}


def test_a_get_waits_for_its_item_and_a_put_for_room(line):
    queue, other = DataQueue("q", max_items=1), DataQueue("q", max_items=1)
    got: list[Any] = []
    getter = threading.Thread(target=lambda: got.append(queue.get(60)))
    getter.start()
    other.put("first", 60)
    getter.join(60)
    assert got == ["first"]
    other.put("second")
    putter = threading.Thread(target=lambda: other.put("third", 60))
    putter.start()
    assert queue.get(60) == "second"
    putter.join(60)
    assert queue.get(60) == "third"


def test_a_get_that_times_out_takes_no_item(line):
    queue = DataQueue("q", max_items=2)
    with pytest.raises(TimeoutError, match=r"fewer than 1 item arrived in 0\.01 s"):
        queue.get(0.01)
    queue.put(1)
    with pytest.raises(TimeoutError):
        queue.get_batch(2, 0)
    queue.put(2)
    with pytest.raises(TimeoutError, match="the queue has been full for 0 s"):
        queue.put(3, timeout=0)
    assert queue.get_batch(2, 0) == [1, 2]
    line.away = True
    with pytest.raises(TimeoutError, match="the item may be in the queue, or not"):
        queue.put(3, timeout=1)
    with pytest.raises(TimeoutError, match="no answer"):
        queue.get(1)


def test_numbers_of_numpy_and_waits_of_any_length_are_taken(line):
    queue = DataQueue("q", max_items=np.int64(8), max_bytes=np.int64(1000))
    for number in range(3):
        queue.put(number, timeout=float("inf"))
    assert queue.get_batch(np.int64(2), timeout=np.float32(60)) == [0, 1]
    line.kill("q")
    assert queue.get(timeout=float("inf")) == 2
    with pytest.raises(UsageError, match="timeout='1': wanted seconds"):
        queue.get(timeout="1")


def not_here() -> None:
    raise ImportError("No module named 'only_where_it_was_put'")


class Poison:
    """Pickles everywhere, and comes back nowhere."""

    def __reduce__(self) -> Any:
        return not_here, ()


@pytest.mark.parametrize("dies", [False, True])
def test_an_item_that_cannot_be_unpickled_is_told_and_left_out_alone(line, dies):
    queue = DataQueue("q")
    for item in (1, Poison(), 3, Poison(), 5, Poison()):
        queue.put(item)
    words = r"'q'\).get: item 2 of 4 cannot be unpickled here: ImportError: No module .*, and 1 more\n.*; the others"
    with pytest.raises(CallError, match=words):
        queue.get_batch(4)
    if dies:
        line.kill("q")
    line.lost = ["get"]
    assert queue.get_batch(2, 0) == [1, 3]
    if dies:
        line.kill("q")
    assert queue.get(0) == 5
    with pytest.raises(CallError, match=r"get: the item cannot be unpickled here: ImportError"):
        queue.get(0)
    with pytest.raises(TimeoutError, match="fewer than 1 item"):
        queue.get(0)
    queue.put(7)
    assert queue.get(0) == 7
    assert queue.stats() == {"items": 0, "bytes": 0, "held": 1, "dead": 0, "closed": False}


def test_an_unreadable_item_of_a_dead_process_goes_to_the_next(line):
    DataQueue("q").put(Poison())
    DataQueue("q").put(2)
    for life in (1, 2):
        become(line, incarnation=life)
        with pytest.raises(CallError, match="item 1 of 2"):
            DataQueue("q").get_batch(2, 0)
    assert DataQueue("q").get(0) == 2


def test_a_queue_is_bounded_by_bytes(line):
    queue = DataQueue("q", max_bytes=1000)
    queue.put(b"x" * 5000, 0)
    with pytest.raises(TimeoutError):
        queue.put(b"", 0)
    assert len(queue.get()) == 5000
    queue.put(b"", 0)


def test_a_batch_whose_items_have_more_than_the_bytes_comes_all_the_same(line):
    queue, got = DataQueue("q", max_bytes=1000), list[Any]()
    producer = threading.Thread(target=lambda: [queue.put(b"x" * 400, 5) for _ in range(6)])
    producer.start()
    for _ in range(2):
        got += DataQueue("q", max_bytes=1000).get_batch(3, 5)
    producer.join(60)
    assert [len(item) for item in got] == [400] * 6
    queue.put(b"x" * 800, 0)
    with pytest.raises(TimeoutError, match="the queue has been full"):
        queue.put(b"x" * 800, 0)  # nobody waits for it


@pytest.mark.parametrize("method", ["put", "get"])
def test_a_keeper_that_dies_before_its_answer_is_out_loses_and_doubles_nothing(line, method):
    queue = DataQueue("q")
    queue.put(1)
    line.lost = [method]
    if method == "put":
        queue.put(2)
        assert queue.get_batch(2) == [1, 2]
    else:
        assert queue.get() == 1
        queue.put(2)
        assert queue.get() == 2
    assert queue.qsize() == 0


def test_a_keeper_that_dies_between_calls_is_not_noticed(line):
    queue = DataQueue("q")
    for number in range(5):
        queue.put(number)
        line.kill("q")
        if number % 2:
            assert queue.get_batch(2) == [number - 1, number]
            line.kill("q")
    queue.close()
    line.kill("q")
    assert list(queue) == [4]


def test_an_item_held_by_a_dead_rank_goes_to_the_next_that_asks(line):
    DataQueue("q").put("a")
    DataQueue("q").put("b")
    old = DataQueue("q")
    assert old.get() == "a"
    become(line, incarnation=2)
    new = DataQueue("q")
    assert new.get_batch(2) == ["a", "b"]
    become(line, incarnation=1)
    with pytest.raises(CallError, match=r"a later process of w/0 has begun"):
        old.get()
    become(line, rank=1)
    with pytest.raises(TimeoutError):
        DataQueue("q").get(0)


def test_an_item_with_which_ranks_failed_is_set_aside_and_can_be_read(line):
    queue = DataQueue("q", max_deliveries=1)
    for item in ("bad", "good"):
        queue.put(item, key=f"the {item} one")
    become(line, 1)
    assert queue.get() == "bad"
    assert queue.stats() | {"bytes": 0} == {"items": 1, "bytes": 0, "held": 1, "dead": 0, "closed": False}

    def end(*ends: tuple[str, int, str, str]) -> Any:
        by_rank = {rank: (life, how, error) for rank, life, how, error in ends}
        return asyncio.run_coroutine_threadsafe(line.keepers["q"].end_incarnations(by_rank), line.loop).result(60)

    died = ("w/1", 1, "failed", "w/1: UserError: ValueError: no")
    assert end(died, ("w/7", 1, "lost", "")) == {"w/1": [("the bad one", 1, True)]}
    assert end(died) == {}, "another PrimeMaster tells it again"
    with pytest.raises(CallError, match="a later process of w/1 has begun"):
        queue.get()
    become(line, 0)
    (item,) = queue.dead()
    assert (item.key, item.rank, item.error, item.deliveries, item.item) == (
        "the bad one",
        *died[:1],
        died[3],
        1,
        "bad",
    )
    assert asyncio.run(queue.aio.dead()) == [item]
    with pytest.raises(
        UsageError, match="max_bytes=1073741824, max_deliveries=1; this rank gave 1000, 1073741824, None"
    ):
        DataQueue("q", max_deliveries=None).stats()
    with pytest.raises(UsageError, match=r"max_deliveries=0\): wanted a whole number from 1"):
        DataQueue("q", max_deliveries=0)
    keeper = QueueKeeper(line.job, "never used")
    assert asyncio.run(keeper.end_incarnations({"w/0": (1, "lost", "")})) == {}


def test_the_role_pays_for_a_queue_of_bad_items_alone(line):
    queue = DataQueue("q", max_deliveries=1)
    for item in range(DEAD_STREAK_LIMIT + 1):
        queue.put(item)
    paid = {}
    for life in range(1, DEAD_STREAK_LIMIT + 2):
        become(line, 1, life)
        assert queue.get() == life - 1
        coroutine = line.keepers["q"].end_incarnations({"w/1": (life, "failed", "no")})
        paid = asyncio.run_coroutine_threadsafe(coroutine, line.loop).result(60)
        assert bool(paid["w/1"]) is (life <= DEAD_STREAK_LIMIT)
    assert paid == {"w/1": None}


def lines_of(line: Loopback, name: str) -> dict[str, Any]:
    """What the keeper of a queue knows of those who put and get."""
    return line.keepers[name]._opening.result().backlog.sessions


def test_a_threads_last_item_is_acknowledged_when_it_asks_by_another_object(line):
    for number in range(6):
        DataQueue("q").put(number)
    assert [DataQueue("q").get() for _ in range(3)] == [0, 1, 2]
    kept = DataQueue("q")
    assert kept.get() == 3
    for item in DataQueue("q"):
        assert item == 4
        break
    assert DataQueue("q").qsize() == 1
    assert len(lines_of(line, "q")) == 1
    become(line, incarnation=2)
    assert DataQueue("q").get_batch(2) == [4, 5]


def in_threads(*work: Any) -> None:
    """Run each in a thread of its own, all at once."""
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_threads_that_get_by_objects_of_their_own_hold_an_item_each(line):
    DataQueue("q").put("a")
    DataQueue("q").put("b")
    both = threading.Barrier(2)

    def holds() -> None:
        DataQueue("q").get(60)
        both.wait(60)  # neither is over before the other one has got

    in_threads(holds, holds)
    become(line, incarnation=2)
    assert DataQueue("q").get_batch(2, 0) == ["a", "b"]


def test_threads_that_share_an_object_are_as_one(line):
    queue, got = DataQueue("q"), list[Any]()
    for number in range(3):
        queue.put(number)
    in_threads(lambda: got.extend((queue.get(60), queue.get(60))), lambda: got.append(queue.get(60)))
    assert sorted(got) == [0, 1, 2]
    assert queue.qsize() == 0
    become(line, incarnation=2)
    assert queue.get_batch(1, 0) == [2]
    assert queue.qsize() == 0


def test_a_thread_goes_on_where_one_that_is_over_was(line):
    for number in range(3):
        DataQueue("q").put(number)
    for _ in range(3):
        in_threads(lambda: DataQueue("q").get(60))
    assert len(lines_of(line, "q")) == 2
    become(line, incarnation=2)
    assert DataQueue("q").get_batch(1, 0) == [2]


def test_a_new_object_need_not_wait_for_its_threads_other_one(line):
    queue = DataQueue("q")
    assert queue.qsize() == 0  # its line is this thread's
    getter = threading.Thread(target=lambda: queue.get_batch(2, 60))
    getter.start()
    while not any(known.last_get for known in lines_of(line, "q").values()):
        time.sleep(0.01)
    DataQueue("q").put(1)
    with pytest.raises(TimeoutError, match="fewer than 1 item"):
        [DataQueue("q").get(0) for _ in range(2)]
    DataQueue("q").put(1)
    DataQueue("q").put(1)
    getter.join(60)
    assert not getter.is_alive()


def test_a_thread_of_an_earlier_life_does_not_hold_up_the_next_one_and_is_refused(line):
    queue, full = DataQueue("q"), DataQueue("full", max_items=1)
    assert queue.qsize() == 0
    full.put(1)
    heard = list[str]()

    def strays(call: Callable[[], Any]) -> None:
        with pytest.raises(CallError) as refused:  # QueueClosedError would say that all was got
            call()
        heard.append(refused.value.message)

    calls = (lambda: queue.get(60), lambda: DataQueue("full", max_items=1).put(2))
    strayed = [threading.Thread(target=strays, args=(call,)) for call in calls]
    for stray in strayed:
        stray.start()
    while not any(known.last_get for known in lines_of(line, "q").values()) or len(lines_of(line, "full")) < 2:
        time.sleep(0.01)
    become(line, incarnation=2)
    assert full.get(0) == 1
    with pytest.raises(TimeoutError, match="fewer than 1 item"):
        queue.get(0)
    for stray in strayed:
        stray.join(60)
    assert [message.endswith("a later process of w/0 has begun") for message in heard] == [True, True]
    assert full.qsize() == 0
    queue.put(1)
    assert queue.get(0) == 1


class Piped:
    """Carries calls from a forked child to its parent, who has the keeper."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.sizes: dict[str, int] = {}
        self.numbers: dict[str, tuple[int, ...]] = {}

    def send(self, call: RankCall) -> Future[Reply]:
        self.pipe.send((call.role, call.method, call.payload))
        answer: Future[Reply] = Future()
        answer.set_result(Reply.unpacked(self.pipe.recv()))
        return answer


def in_child(line: Loopback, work: Any) -> list[Any]:
    """What `work` gives in a forked child of this process, whose calls this one carries."""
    here, there = Pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(60)
        try:
            become(Piped(there))
            there.send(list(work()))
        finally:
            os._exit(0)
    there.close()
    while isinstance(said := here.recv(), tuple):
        role, method, payload = said
        call = RankCall(role, 0, method, payload, None, idempotent=True)
        here.send(line.send(call).result(60).packed())
    os.waitpid(pid, 0)
    return said


def test_forked_children_have_lines_of_their_own(line):
    queue = DataQueue("q")
    queue.put("parent's")
    assert queue.get() == "parent's"
    for number in range(2):
        assert in_child(line, lambda at=number: [queue.put(at, 0)]) == [None]
    assert queue.qsize() == 2
    assert [in_child(line, lambda: [queue.get(0)]) for _ in range(2)] == [[0], [1]]
    assert in_child(line, lambda: [queue.qsize()]) == [0]


def test_a_child_that_is_forked_while_other_threads_are_at_it_does_not_wait_for_them(line):
    queue, held, over = DataQueue("q"), threading.Event(), threading.Event()
    assert queue.qsize() == 0

    def holds() -> None:
        with session._lines._lock:
            held.set()
            over.wait(60)

    getter = threading.Thread(target=lambda: queue.get(60))
    getter.start()
    while not any(known.last_get for known in lines_of(line, "q").values()):
        time.sleep(0.01)
    holder = threading.Thread(target=holds)
    holder.start()
    assert held.wait(60)
    assert in_child(line, lambda: [queue.put(0, 1), queue.put(1, 1), queue.get(1)]) == [None, None, 1]
    over.set()
    for thread in (holder, getter):
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("call", [lambda queue: queue.get(0), lambda queue: queue.put(2)], ids=["get", "put"])
def test_a_queue_lost_with_its_machine_is_told_once_and_the_put_that_hears_it_is_not_in(line, call):
    queue = DataQueue("q")
    queue.put(1)
    lose(line, "q")
    with pytest.raises(CallError, match="lost with the machine"):
        call(queue)
    assert queue.qsize() == 0
    queue.put(2)
    assert queue.get(0) == 2


def lose(line: Loopback, name: str) -> None:
    line.kill(name)
    for path in folder_of(line.job, name).iterdir():
        path.unlink()


def test_the_loss_of_a_queue_is_told_once_to_a_thread_whichever_objects_it_uses(line):
    """A user who puts the remaining work again at each error would put it twice."""
    first, second = DataQueue("q"), DataQueue("q")
    first.put(1)
    second.put(2)
    lose(line, "q")
    with pytest.raises(CallError, match="lost with the machine"):
        DataQueue("q").put(3)  # an object of its own for each call hears of it as well
    for queue in (first, second, DataQueue("q")):
        queue.put(3)
    assert first.get_batch(3, 0) == [3, 3, 3]
    assert second.qsize() == 0


def test_a_put_by_one_object_that_a_dying_process_answers_is_not_repeated_by_another(line):
    first, second = DataQueue("q"), DataQueue("q")
    line.lost = ["put", "get"]
    first.put(1)
    second.put(2)
    assert (first.get(0), second.get(0)) == (1, 2)
    assert first.qsize() == 0


def test_a_put_that_is_refused_after_another_thread_heard_of_the_loss_fails_too(line, monkeypatch):
    """Its item is in neither queue: it must not return as if it were."""
    queue = DataQueue("q")
    queue.put(1)
    lose(line, "q")
    ask = queue._keeper.ask

    def late(method: str, *args: Any, **more: Any) -> Any:
        if method == "put":
            with pytest.raises(CallError, match="lost with the machine"):
                queue.qsize()  # as another thread that shares the object does, while the put is under way
        return ask(method, *args, **more)

    monkeypatch.setattr(queue._keeper, "ask", late)
    with pytest.raises(CallError, match="lost with the machine"):
        queue.put(2)
    monkeypatch.setattr(queue._keeper, "ask", ask)
    assert queue.qsize() == 0
    session = line_of(queue, "q")
    assert not session.follow("", "before")  # an answer of before the loss that comes last
    queue.put(3)


async def test_a_twin_answers_and_raises_as_its_method(line):
    queue = DataQueue("q", max_items=2)
    await queue.aio.put(1)
    await queue.aio.put(2)
    assert await queue.aio.qsize() == 2
    with pytest.raises(TimeoutError, match="the queue has been full for 0 s"):
        await queue.aio.put(3, timeout=0)
    assert await queue.aio.get() == 1
    await queue.aio.close()
    assert [item async for item in queue.aio] == [2]
    with pytest.raises(QueueClosedError, match="the queue is closed and empty"):
        await queue.aio.get_batch(2)
    with pytest.raises(UsageError, match="wanted 1 to 2"):
        await queue.aio.get_batch(3)
    assert (await queue.aio.stats())["closed"]


async def test_a_get_that_is_cancelled_while_it_waits_takes_nothing(line):
    queue, other = DataQueue("q"), DataQueue("q")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.aio.get(), 0.05)
    await other.aio.put("late")
    got: list[Any] = []
    await asyncio.to_thread(in_threads, lambda: got.append(DataQueue("q").get(30)))
    assert got == ["late"]


async def test_an_item_that_a_cancelled_get_had_already_goes_to_the_next(line, monkeypatch):
    queue = DataQueue("q")
    queue.put("first")
    queue.put("second")
    offer, loop = Handover.offer, asyncio.get_running_loop()

    def late(made: Handover[Any], value: Any) -> bool:
        loop.call_soon_threadsafe(getting.cancel)  # its coroutine ends before it can take what is on its way
        return offer(made, value)

    with monkeypatch.context() as patch:
        patch.setattr(Handover, "offer", late)
        getting = asyncio.create_task(queue.aio.get())
        with pytest.raises(asyncio.CancelledError):
            await getting
    assert [await queue.aio.get(30), await queue.aio.get(30)] == ["first", "second"]


async def test_coroutines_of_a_loop_are_one_consumer(line):
    queue = DataQueue("q")
    for item in (1, 2):
        queue.put(item)
    assert await queue.aio.get() == 1
    other: list[Any] = []
    await asyncio.to_thread(in_threads, lambda: other.append(DataQueue("q").get(30)))
    assert [len(held.ids) for held in lines_of(line, "q").values()] == [1, 1], "a thread does not end its item"
    become(line, incarnation=2)
    assert sorted(DataQueue("q").get_batch(2, 30)) == [1, 2]


def test_misuse_of_a_queue_is_told(line):
    with pytest.raises(UsageError, match="max_items=0"):
        DataQueue("q", max_items=0)
    with pytest.raises(UsageError, match="name is printable"):
        DataQueue("")
    with pytest.raises(UsageError, match="wanted 1 to 10"):
        DataQueue("q", max_items=10).get_batch(11)
    with pytest.raises(TypeError, match="cannot be pickled"):
        DataQueue("q").put(threading.Lock())
    DataQueue("q").put(1)
    with pytest.raises(UsageError, match=r"the queue has max_items=1000.* this rank gave 7"):
        DataQueue("q", max_items=7).put(1)
    DataQueue("../b:..").put(1)
    assert folder_of(line.job, "../b:..").parent == folder_of(line.job, "q").parent
    assert folder_of(replace_attempt(line.job), "q") != folder_of(line.job, "q")


def replace_attempt(job: Any) -> Any:
    return SimpleNamespace(**{**vars(job), "attempt": 2})


def test_fill_of_a_queue_is_told_once_it_is_open(line):
    def gauge(keeper: QueueKeeper) -> tuple[int, int] | None:
        return asyncio.run_coroutine_threadsafe(keeper.gauge(), line.loop).result(60)

    queue = DataQueue("q", max_items=9)
    for item in (1, 2):
        queue.put(item)
    assert gauge(line.keepers["q"]) == (2, 9)
    unused = asyncio.run_coroutine_threadsafe(_made(line), line.loop).result(60)
    assert gauge(unused) is None


async def _made(line: Loopback) -> QueueKeeper:
    return QueueKeeper(line.job, "other")


def test_a_thread_that_saves_marks_all_queues_of_its_process_with_its_own_sessions(line):
    become(line, incarnation=77)  # sessions of other tests are not its own
    samples, others = DataQueue("samples"), DataQueue("others")
    samples.put("mine", key="a")
    samples.put("mine", key="a")
    samples.put("theirs")
    others.put("theirs")
    samples.put("left")
    assert samples.get(60) == "mine"
    reader = threading.Thread(target=lambda: (DataQueue("samples").get(60), others.stats()))
    reader.start()
    reader.join(60)
    keepers = line.keepers.values()
    for keeper in keepers:
        assert keeper._opening.result().begin_cut(3, {"w/0": 77}) is not None
    assert data_queue.mark(3, 60) == ""
    assert list(line.keepers["samples"]._opening.result().cut.item_sizes) == [2, 3]
    assert list(line.keepers["others"]._opening.result().cut.item_sizes) == [1]
    assert data_queue.mark(4, 60) == "queue samples has no part in the cut; queue others has no part in the cut"
    line.away = True
    assert "queue samples: " in data_queue.mark(4, 60)


def test_an_item_of_a_history_that_was_left_is_dropped_and_said(line, caplog):
    queue = DataQueue("samples")
    queue.put("first")
    assert queue.get(60) == "first"
    line.keepers["samples"]._opening.result().restore(1, None, 0)
    with caplog.at_level("INFO"):
        queue.put("made of the first")
    assert "an item was dropped: it was made before a restore" in caplog.text
    assert queue.qsize() == 0
    queue.put("made after it")
    assert queue.get(60) == "made after it"
