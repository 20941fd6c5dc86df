"""Cuts of a queue without Ray: its file, going back to it, and the requests of ranks and PrimeMaster."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.calls.backlog import FailedItem, HolderEnd, PutRefusal, QueueCaller
from dljob.calls.queue_cut import CutStamp
from dljob.errors import CallError
from dljob.runtime.queues import cut_file
from dljob.runtime.queues import store as store_module
from dljob.runtime.queues.files import SEGMENT
from dljob.runtime.queues.keeper import QueueKeeper
from dljob.runtime.queues.store import QueueStore
from dljob.runtime.rpc import storage_actor

BOUNDS = (100, 1 << 25, 0)
A, B = QueueCaller("a/0", 1, "p"), QueueCaller("b/0", 1, "q")


def store(folder: Path, *items: int, segment: int = SEGMENT) -> QueueStore:
    made = QueueStore(folder, BOUNDS, segment)
    assert made.register(A)
    assert made.register(B)
    for number in items:
        assert made.put(A, number, b"item%d" % number, key=f"k{number}") is None
    return made


def cut(queue: QueueStore, path: Path, *held: str) -> int:
    queue.begin_cut(1, {B.rank: B.incarnation})
    assert queue.mark(B, 1, held)
    found = queue.seal_cut(1, "samples")
    assert found is not None
    return found.write(path)[2]


def taken(queue: QueueStore, who: QueueCaller, turn: int, count: int) -> list[bytes] | None:
    queue.begin_get(who, turn, turn - 1)
    return queue.take(who, count)


@pytest.mark.parametrize("segment", [SEGMENT, 1])
def test_a_queue_goes_back_to_its_cut_and_stays_there_for_its_next_process(tmp_path, segment):
    queue = store(tmp_path / "q", 1, 2, 3, 4, segment=segment)
    assert taken(queue, B, 1, 1) == [b"item1"]
    crc = cut(queue, tmp_path / "cut", B.session)
    assert taken(queue, B, 2, 2) == [b"item2", b"item3"]
    assert queue.put(A, 5, b"item5", key="k5") is None
    queue.end_cut()
    queue.restore(1, tmp_path / "cut", crc)
    queue.restore(1, None, 0)  # it is there already
    for _ in range(2):
        assert (queue.epoch, sorted(queue.backlog.waiting)) == (1, [2, 3, 4])
        queue.close()
        queue = QueueStore(tmp_path / "q", BOUNDS, segment)
    assert queue.put(A, 6, b"item1", key="k1") is PutRefusal.KNOWN
    assert queue.put(A, 6, b"item5", key="k5") is None
    assert taken(queue, B, 3, 4) == [b"item2", b"item3", b"item4", b"item5"]
    queue.close()


def test_an_item_that_was_made_in_a_history_that_was_left_is_dropped(tmp_path):
    queue = store(tmp_path / "q", 1)
    old = queue.answer_stamp(B)
    assert queue.put(A, 2, b"x", old) is None
    queue.restore(1, None, 0)
    assert queue.put(A, 3, b"x", old) is PutRefusal.PAST
    assert queue.put(A, 3, b"x", queue.answer_stamp(B, put=True)) is None
    assert queue.put(A, 4, b"x") is None
    assert len(queue.backlog.waiting) == 2
    queue.close()


def test_a_restore_that_is_broken_off_leaves_the_queue_as_it_was(tmp_path, monkeypatch):
    queue = store(tmp_path / "q", 1, 2)
    crc = cut(queue, tmp_path / "cut")
    assert taken(queue, B, 1, 1) == [b"item1"]
    assert taken(queue, B, 2, 1) == [b"item2"]

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as here:
        here.setattr(QueueStore, "_begin", fails)
        with pytest.raises(OSError, match="No space"):
            queue.restore(1, tmp_path / "cut", crc)
    queue.close()
    again = QueueStore(tmp_path / "q", BOUNDS)
    assert (again.epoch, again.backlog.waiting) == (0, [])
    assert again.take(B, 1) == [b"item2"]
    again.restore(1, tmp_path / "cut", crc)
    assert taken(again, B, 3, 2) == [b"item1", b"item2"]
    again.close()


@pytest.mark.parametrize("segment", [SEGMENT, 1])
def test_an_item_that_was_set_aside_is_there_after_a_restart_and_does_not_come_back_with_a_cut(tmp_path, segment):
    queue = QueueStore(tmp_path / "q", (100, 1 << 20, 2), segment)
    assert queue.register(A)
    for number in (1, 2, 3):
        assert queue.put(A, number, b"item%d" % number, key=f"k{number}") is None
    queue.begin_cut(1, {})
    file = queue.seal_cut(1, "samples")
    crc = file.write(tmp_path / "cut")[2]
    queue.end_cut()
    queue.begin_cut(2, {})
    for rank, how in (("b/0", HolderEnd.LOST), ("b/1", HolderEnd.FAILED), ("b/2", HolderEnd.FAILED)):
        caller = QueueCaller(rank, 1, rank)
        assert queue.register(caller)
        assert taken(queue, caller, 1, 1) == [b"item1"]
        queue.end_incarnation(rank, 1, how, "ValueError: no")
        assert queue.end_incarnation(rank, 1, how, "again") == ()
        queue.close()
        queue = QueueStore(tmp_path / "q", (100, 1 << 20, 2), segment)
    item = FailedItem(1, "k1", "b/2", "ValueError: no", 2)
    for _ in range(2):
        assert queue.dead_items() == [(item, b"item1")]
        assert sorted(queue.backlog.waiting) == [2, 3]
        queue.restore(1, tmp_path / "cut", crc)
        queue.close()
        queue = QueueStore(tmp_path / "q", (100, 1 << 20, 2), segment)
    assert queue.put(A, 9, b"item1", key="k1") is PutRefusal.KNOWN
    queue.close()


@pytest.mark.parametrize("segment", [SEGMENT, 1])
@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize("reopened", [True, False])
def test_failures_of_an_item_count_on_where_the_job_goes_back_to_before_its_put(tmp_path, segment, key, reopened):
    def reopen(queue: QueueStore | None = None) -> QueueStore:
        if queue is not None and not reopened:
            return queue
        if queue is not None:
            queue.close()
        return QueueStore(tmp_path / "q", (100, 1 << 20, 2), segment)

    queue, deliveries = reopen(), list[int]()
    for epoch in (1, 2):
        assert queue.register(A)
        # As it was put before, behind another item that was not there.
        assert queue.put(A, 10 * epoch, b"good%d" % epoch) is None
        assert queue.put(A, 10 * epoch + 1, b"bad", key=key) is None
        queue = reopen(queue)
        caller = QueueCaller(f"b/{epoch}", 1, f"b{epoch}")
        assert queue.register(caller)
        assert taken(queue, caller, 1, 2) == [b"good%d" % epoch, b"bad"]
        queue.begin_get(caller, 2, 1, (0,))  # it has done the good one
        assert queue.take(caller, 1) == [b"bad"]
        deliveries += [item.deliveries for item in queue.end_incarnation(caller.rank, 1, HolderEnd.FAILED, "no")]
        queue = reopen(queue)
        if epoch == 1:
            queue.restore(1, None, 0)
    assert deliveries == [1, 2]
    assert [body for _, body in queue.dead_items()] == [b"bad"]
    queue.restore(2, None, 0)
    assert queue.register(A)
    again = queue.put(A, 30, b"bad", key=key)
    assert again is (PutRefusal.KNOWN if key else None), "another item may have the same bytes"
    if not key:
        assert queue.put(A, 31, b"bad") is None
        assert [item.deliveries for item in queue.backlog.failed.values()] == [2], "of the first of two"
        caller = QueueCaller("b/3", 1, "b3")
        assert queue.register(caller)
        assert taken(queue, caller, 1, 1) == [b"bad"]
        queue.end_incarnation("b/3", 1, HolderEnd.FAILED, "no")
        assert len(queue.backlog.dead) == 2
        assert len(queue.backlog.waiting) == 1
    queue.close()


def test_a_cut_under_way_does_not_have_the_dead_items(tmp_path):
    queue = QueueStore(tmp_path / "q", (100, 1 << 20, 1))
    for number in (1, 2, 3):
        assert queue.register(A)
        assert queue.put(A, number, b"item%d" % number) is None
    consumer = QueueCaller("c/0", 1, "c")
    for caller in (B, consumer):
        assert queue.register(caller)
    assert taken(queue, consumer, 1, 1) == [b"item1"]
    assert taken(queue, B, 1, 1) == [b"item2"]
    queue.begin_cut(1, {})
    assert queue.end_incarnation(B.rank, B.incarnation, HolderEnd.FAILED, "x")[0].number == 2
    assert sorted(queue.cut.item_sizes) == [1, 3]
    queue.end_incarnation(consumer.rank, consumer.incarnation, HolderEnd.DONE, "")
    assert sorted(queue.backlog.waiting) == [3], "the item of a rank that ended well is done"
    queue.close()


def test_a_rank_gets_the_item_that_it_failed_with_once_no_other_has_come_for_it(tmp_path, monkeypatch):
    queue = QueueStore(tmp_path / "q", (100, 1 << 20, 3))
    assert queue.register(A)
    assert queue.put(A, 1, b"item1") is None
    assert queue.put(A, 2, b"item2") is None
    consumer, later = QueueCaller("c/0", 1, "c"), QueueCaller(B.rank, 2, "q2")
    for caller in (B, consumer):
        assert queue.register(caller)
    assert taken(queue, B, 1, 1) == [b"item1"]
    assert taken(queue, consumer, 1, 1) == [b"item2"]
    queue.end_incarnation(B.rank, B.incarnation, HolderEnd.FAILED, "x")
    assert queue.register(later)
    assert taken(queue, later, 1, 1) is None
    monkeypatch.setattr(store_module, "PATIENCE_S", 0.0)
    assert queue.take(later, 1) == [b"item1"]
    queue.close()


def test_a_damaged_file_is_refused_and_a_full_disk_leaves_none(tmp_path, monkeypatch):
    queue = store(tmp_path / "q", 1)
    crc = cut(queue, tmp_path / "cut")
    (tmp_path / "cut").write_bytes((tmp_path / "cut").read_bytes().replace(b"item1", b"item2"))
    with pytest.raises(OSError, match="is damaged: its checksum"):
        queue.restore(1, tmp_path / "cut", crc)
    assert queue.epoch == 0
    queue.begin_cut(2, {})
    found = queue.seal_cut(2, "samples")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cut_file.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        found.write(tmp_path / "full" / "cut")
    assert list((tmp_path / "full").iterdir()) == []
    queue.close()


def test_a_cut_and_a_restore_hold_one_item_at_a_time_in_memory(tmp_path):
    queue, size = store(tmp_path / "q"), 1 << 18
    for number in range(1, 65):
        assert queue.put(A, number, b"%02d" % number * (size // 2)) is None
    tracemalloc.start()
    try:
        crc = cut(queue, tmp_path / "cut")
        queue.restore(1, tmp_path / "cut", crc)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 64 * size / 2, "half of the queue's bytes"
    assert taken(queue, B, 1, 64) == [b"%02d" % number * (size // 2) for number in range(1, 65)]
    queue.close()


async def test_a_cut_that_is_larger_than_its_disk_is_refused_before_it_is_written(keeper, tmp_path, monkeypatch):
    """Half of it would take the room of the queues themselves, which are on the same disk."""
    for number in (1, 2):
        await ask(keeper, "put", A, BOUNDS, ("", number), b"x" * (1 << 19), 0.0)
    await keeper.begin_cut(1, {})
    monkeypatch.setattr(cut_file.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    path = tmp_path / "cuts" / "samples"
    said = await keeper.seal_cut(1, str(path))
    why = "2 items need 1.0 MiB, and its disk has 1.0 MiB free"
    assert said["why"] == f"queue samples cannot be written to {path}: {why}"
    assert list(path.parent.iterdir()) == []
    (await keeper._opened()).close()


def test_the_bytes_of_a_cut_stay_until_it_is_written(tmp_path):
    queue = store(tmp_path / "q", 1, 2, segment=1)
    queue.begin_cut(1, {})
    stamp = CutStamp(0, 0, 1)
    queue.begin_get(B, 1, 0, stamp=stamp)
    assert queue.take(B, 2) == [b"item1", b"item2"]
    queue.begin_get(B, 2, 1, stamp=stamp)
    assert queue.put(A, 3, b"item3", stamp) is None
    found = queue.seal_cut(1, "samples")
    assert found.write(tmp_path / "cut")[:2] == (2, 10)
    queue.end_cut()
    assert queue.seal_cut(1, "samples") is None
    queue.close()


async def ask(keeper: QueueKeeper, method: str, *args: Any, **more: Any) -> Any:
    return await getattr(keeper, f"on_{method}")(*args, **more)


@pytest.fixture
def keeper(tmp_path, monkeypatch):
    monkeypatch.setattr(storage_actor, "Guard", lambda *_: None)
    monkeypatch.setattr(storage_actor.storage_actors, "follow_master", lambda *_: None)
    job: Any = SimpleNamespace(dir=str(tmp_path), attempt=1, lease_s=30.0)
    return QueueKeeper(job, "samples")


async def test_a_new_primemaster_repeats_the_orders_of_a_cut_while_those_of_the_lost_one_are_carried_out(
    keeper, tmp_path, monkeypatch
):
    path, writes, second = tmp_path / "cuts" / "samples", threading.Event(), threading.Event()
    replace, goes_on = Path.replace, threading.Event()
    for number in (1, 2):
        await ask(keeper, "put", A, BOUNDS, ("", number), b"i%d" % number, 0.0)
    await ask(keeper, "get", B, BOUNDS, (1, 0, ()), 1, 0.0)
    await keeper.begin_cut(1, {"b/0": 1})
    assert await ask(keeper, "mark", B, 1, (B.session,))
    assert await keeper.begin_cut(1, {"b/0": 1}) == ["b/0"], "late: its rank has saved already"

    def slow(self: Path, target: Path) -> Path:
        if not writes.is_set():
            writes.set()
            goes_on.wait(20)
        else:
            second.set()
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", slow)
    lost = asyncio.ensure_future(keeper.seal_cut(1, str(path)))
    assert await asyncio.to_thread(writes.wait, 20)
    repeated = asyncio.ensure_future(keeper.seal_cut(1, str(path)))
    await asyncio.to_thread(second.wait, 0.5)  # in vain where it waits for the first one, as it should
    goes_on.set()
    one, two = await lost, await repeated
    assert one == two == {"why": "", "items": 1, "bytes": 2, "crc": one["crc"]}
    assert cut_file.check(path, two["crc"]) == ""
    (await keeper._opened()).close()


async def test_a_keeper_takes_part_in_a_cut_and_goes_back(keeper, tmp_path, monkeypatch):
    path = tmp_path / "cuts" / "samples"
    assert await keeper.begin_cut(1, {}) is None
    assert not await ask(keeper, "mark", B, 1, ())
    assert "was replaced" in (await keeper.seal_cut(1, str(path)))["why"]
    await keeper.end_cut()
    assert await keeper.go_back(1, "", 0) == ("", "")
    for number in (1, 2):
        _, (why, stamp) = await ask(keeper, "put", A, BOUNDS, ("", number), b"i%d" % number, 0.0)
        assert (why, stamp) == (None, CutStamp(1, 0, 0))
    _, (items, _) = await ask(keeper, "get", B, BOUNDS, (1, 0, ()), 1, 0.0)
    assert items == [b"i1"]
    assert await keeper.begin_cut(1, {"b/0": 1, "a/0": 1}) == ["b/0"]
    assert await ask(keeper, "put", A, BOUNDS, ("", 3), b"i3", 0.0, stamp=CutStamp(0, 1)) is not None
    assert (await ask(keeper, "get", B, BOUNDS, (2, 1, ()), 2, 0.0))[1] is None, "one of them is of after the cut"
    assert await ask(keeper, "mark", B, 1, (B.session,))
    _, (items, stamp) = await ask(keeper, "get", B, BOUNDS, (3, 1, ()), 2, 0.0)
    assert (items, stamp.observed_cut) == ([b"i2", b"i3"], 1)
    said = await keeper.seal_cut(1, str(path))
    assert (said["why"], said["items"], said["bytes"]) == ("", 1, 2)
    assert "cannot be written" in (await keeper.seal_cut(1, str(path / "below a file")))["why"]
    await keeper.end_cut()
    assert "cannot go back" in (await keeper.go_back(1, str(path), 0))[1]
    token, _ = await ask(keeper, "stats", A, BOUNDS)
    assert await keeper.go_back(1, str(path), said["crc"]) == (token, "")
    _, (items, stamp) = await ask(keeper, "get", B, BOUNDS, (4, 3, ()), 1, 0.0)
    assert (items, stamp.epoch) == ([b"i2"], 2)
    later = QueueCaller("b/0", 2, "r")
    await ask(keeper, "stats", later, BOUNDS)
    with pytest.raises(CallError, match="a later process"):
        await ask(keeper, "mark", B, 1, ())
    (await keeper._opened()).close()


async def test_a_queue_that_opens_is_told_where_the_job_is(keeper, monkeypatch):
    from dljob.runtime.queues import keeper as module

    answers: list[Any] = [RuntimeError("PrimeMaster is away"), {"epoch": 3, "path": "", "crc": 0}]

    def get(*_: Any, **__: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    master = SimpleNamespace(queue_opened=SimpleNamespace(remote=lambda *told: told))
    monkeypatch.setattr(module, "ray", SimpleNamespace(is_initialized=lambda: True, get=get))
    monkeypatch.setattr(module, "find_master", lambda _job: master)
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    await ask(keeper, "stats", A, BOUNDS)
    queue = await keeper._opened()
    assert queue.epoch == 3
    queue.close()

    def nobody(*_: Any) -> None:
        raise ValueError("no such actor")

    monkeypatch.setattr(module, "find_master", nobody)
    assert keeper._introduce("") == module.NO_MASTER


async def test_a_queue_that_cannot_go_back_lets_its_folder_go(keeper, monkeypatch, tmp_path):
    gone = {"epoch": 1, "path": str(tmp_path / "nowhere"), "crc": 0}
    monkeypatch.setattr(keeper, "_introduce", lambda _: gone)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            await ask(keeper, "stats", A, BOUNDS)


async def test_a_put_that_waits_at_a_full_queue_is_after_the_cut_and_goes_on(keeper, tmp_path, monkeypatch):
    path, bounds, full = tmp_path / "cuts" / "samples", (1, 1 << 20, 0), asyncio.Event()
    real = QueueStore.put

    def put(*args: Any) -> PutRefusal | None:
        if (why := real(*args)) is PutRefusal.FULL:
            full.set()
        return why

    monkeypatch.setattr(QueueStore, "put", put)
    await ask(keeper, "put", A, bounds, ("", 1), b"i1", 0.0)
    waiting = asyncio.create_task(ask(keeper, "put", A, bounds, ("", 2), b"i2", 60.0))
    await full.wait()
    await keeper.begin_cut(1, {})
    said = await keeper.seal_cut(1, str(path))
    assert (said["why"], said["items"], waiting.done()) == ("", 1, False)
    await keeper.end_cut()
    assert (await ask(keeper, "get", B, bounds, (1, 0, ()), 1, 0.0))[1][0] == [b"i1"]
    assert (await waiting)[1][0] is None
    assert (await keeper.go_back(1, str(path), said["crc"]))[1] == ""
    assert (await ask(keeper, "get", B, bounds, (2, 1, ()), 1, 0.0))[1][0] == [b"i1"]
    (await keeper._opened()).close()
