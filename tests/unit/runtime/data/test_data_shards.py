"""Shards as user code sees them: an order without a table, done when taken, told with a save; the desk's answers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any, cast

import pytest
from desk_kit import Desk, Place
from hypothesis import given
from hypothesis import strategies as st

from dljob.errors import CheckpointError, UsageError
from dljob.master.state import events as ev
from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.master.state.evolve import evolve
from dljob.runtime.controller.services import shard_service
from dljob.runtime.data import leases
from dljob.runtime.data import shards as module
from dljob.runtime.data.shards import Shards, sample, shards
from dljob.runtime.process.context import install
from dljob.runtime.queues import session


@given(st.integers(1, 300), st.integers(0, 5), st.none() | st.integers())
def test_each_sample_stands_at_one_position_of_an_epoch(size, epoch, seed):
    found = [sample(epoch * size + place, size, seed) for place in range(size)]
    assert sorted(found) == list(range(size))
    assert seed is not None or found == list(range(size))


def test_orders_differ_by_seed_and_epoch_and_never_change():
    orders = [tuple(sample(epoch * 8 + n, 8, seed) for n in range(8)) for seed in (1, 2) for epoch in (0, 1)]
    assert len(set(orders)) == 4
    assert orders[0] == (0, 6, 5, 1, 7, 3, 2, 4)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk()
    me = SimpleNamespace(role="w", rank=0)
    monkeypatch.setattr(leases, "current_worker", lambda: me)
    monkeypatch.setattr(module, "new_client", lambda: made)
    monkeypatch.setattr(module.checkpoint, "feeds", [])
    return made


def test_a_shard_whose_indices_are_taken_is_done_and_told_with_the_next_question(desk):
    mine = shards("d", 5, shard=2, wait=False)
    assert [[*shard] for shard in mine] == [[0, 1], [2, 3], [4]]
    assert [(e.want, e.done) for e in desk.journal] == [
        (2, ()),
        (2, ((0, 2, None, 0), (2, 4, None, 0))),
        (2, ((4, 5, None, 0),)),
    ]
    assert desk.state.feeds["d"].over
    assert module.checkpoint.feeds == [mine]
    mine.close()
    assert desk.closed
    assert len(desk.journal) == 3


def test_a_save_tells_what_was_done_before_it_and_what_is_in_hand_is_not_done(desk):
    mine = shards("d", 8, shard=2)
    first, second = next(mine), next(mine)
    assert (first.epoch, first.start, len(second)) == (0, 0, 2)
    first.done()
    first.done()
    assert mine.unreported_positions()["done"] == [(0, 2, None)]
    assert mine.unreported_positions()["want"] == 0
    mine.close()
    assert desk.journal[-1].done == ((0, 2, None, 0),)
    assert desk.state.feeds["d"].leases["w", 0].runs == ((2, 4),)


def test_a_save_does_not_wait_for_a_question_that_waits_for_others(desk, monkeypatch):
    asked, answer = threading.Event(), threading.Event()
    mine = shards("d", 2, shard=2)

    def parked(_: Any) -> dict[str, Any]:
        asked.set()
        answer.wait(60)
        return {"why": "", "runs": [], "over": True}

    monkeypatch.setattr(desk, "shards", parked)
    thread = threading.Thread(target=lambda: list(mine))
    thread.start()
    assert asked.wait(60)
    assert mine.unreported_positions()["done"] == []
    answer.set()
    thread.join()


def test_a_waiting_process_gets_shards_given_back_and_others_end(desk):
    mine = shards("d", 2, shard=2)
    question = {**mine.unreported_positions(), "rank": 1, "world": "w/1", "want": 1}
    next(mine)

    async def waits() -> list[dict[str, Any]]:
        desk.changed = asyncio.Condition()
        task = asyncio.create_task(shard_service.answer(desk, question, {}))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await desk.offer(shard_service.event_of({**mine.unreported_positions(), "done": [(0, 2, None)]}))
        async with desk.changed:
            desk.changed.notify_all()
        return [await task, await shard_service.answer(desk, question, {})]  # type: ignore[arg-type]

    again, over = asyncio.run(waits())
    assert again == {"why": "", "again": True}
    assert over == {"why": "", "runs": (), "over": True, "epoch": 1, "oldest": None}
    assert [e.rank for e in desk.journal] == [0, 0]
    assert asyncio.run(shard_service.answer(desk, {**question, "wait": False}, {})) == over  # type: ignore[arg-type]


def test_many_waiting_processes_are_woken_by_news_only(desk):
    mine = shards("d", 2, shard=2)
    question = {**mine.unreported_positions(), "rank": 1, "world": "w/1", "want": 1}
    next(mine)

    async def waits() -> list[dict[str, Any]]:
        desk.changed, shared = asyncio.Condition(), {}
        tasks = [asyncio.create_task(shard_service.answer(desk, question, shared)) for _ in range(100)]  # type: ignore[arg-type]
        await asyncio.sleep(0)
        for _ in range(3):
            await tell_all()
            assert len(desk.changed._waiters) == 1, "whatever changes wakes one for all of them"  # type: ignore[reportAttributeAccessIssue]
        assert not any(task.done() for task in tasks)
        await desk.offer(shard_service.event_of({**mine.unreported_positions(), "done": [(0, 2, None)]}))
        await tell_all()
        return await asyncio.gather(*tasks)

    async def tell_all() -> None:
        async with desk.changed:
            desk.changed.notify_all()
        for _ in range(5):
            await asyncio.sleep(0)

    assert asyncio.run(waits()) == 100 * [{"why": "", "again": True}]


def test_a_question_for_shards_that_waits_too_long_is_asked_again(desk, monkeypatch):
    monkeypatch.setattr(shard_service, "POLL_S", 0.0)
    mine = shards("d", 2, shard=2)
    question = {**mine.unreported_positions(), "rank": 1, "world": "w/1", "want": 1}
    next(mine)

    async def waits() -> list[dict[str, Any]]:
        desk.changed, shared = asyncio.Condition(), {}
        return [await shard_service.answer(desk, question, shared) for _ in range(2)]  # type: ignore[arg-type]

    assert asyncio.run(waits()) == 2 * [{"why": "", "again": True}]


def test_a_process_of_the_past_is_told_so_and_one_that_lives_on_asks_as_what_it_is_now(desk):
    mine = shards("d", 4, shard=2)
    next(mine)
    now = desk.state.ranks["w", 0]
    desk.state = type(desk.state)(
        **{
            **{n: getattr(desk.state, n) for n in desk.state.__dataclass_fields__},
            "ranks": desk.state.ranks.set(("w", 0), type(now)(incarnation=2)),
        }
    )
    next(mine)
    with pytest.raises(CheckpointError, match=r"data set d: a later process of w/0 has begun"):
        next(mine)
    later = Place()
    later.incarnation, later.run_id = 2, RunId(1, 2)
    desk.places = [desk.places[0], later]
    assert next(mine).start == 0


def test_a_rank_that_lives_on_asks_for_shards_anew_and_its_saves_tell_of_them(desk):
    """The object is kept over a restart in process: what the life before held is others' now."""
    mine = shards("d", 8, shard=2)
    left = next(mine)
    mine.close()
    module.checkpoint.feeds.clear()  # as the end of user code leaves it
    desk.started_again(0)
    left.done()
    got = next(mine)
    assert (desk.journal[-1].incarnation, desk.journal[-1].done) == (2, ())
    assert (got.start, got.end) in desk.state.feeds["d"].leases["w", 0].runs
    assert desk.state.feeds["d"].leases["w", 0].incarnation == 2
    got.done()
    assert [feed.unreported_positions()["done"] for feed in module.checkpoint.feeds] == [[(got.start, got.end, None)]]


@pytest.mark.parametrize(("loaded", "again"), [(10, [2, 4, 6]), (20, [4, 6])])
def test_a_load_that_goes_back_has_what_was_done_since_handed_out_again(desk, monkeypatch, loaded, again):
    saved = [-1]
    monkeypatch.setattr(type(module.checkpoint), "saved", property(lambda _self: (saved[0], 0)), raising=False)
    mine = shards("d", 8, shard=2)
    next(mine).done()
    saved[0] = 10
    next(mine).done()
    saved[0] = 20
    left = next(mine)
    if loaded == 20:
        left.done()
    desk.loaded = CheckpointId(RunId(1, 1), loaded)
    mine.went_back(desk)  # type: ignore[arg-type]
    left.done()
    found = [next(mine) for _ in again]
    assert [shard.start for shard in found] == again
    for shard in found:
        shard.done()
    mine.close()
    table = desk.state.feeds["d"]
    assert table.over
    assert [(one.start, one.end, one.mark.step) for one in table.acked][-1] == (again[0], 8, 20)


def test_a_load_of_a_step_that_was_saved_again_keeps_what_was_done_between_the_two_saves(desk, monkeypatch):
    saved = [(10, 0)]
    monkeypatch.setattr(type(module.checkpoint), "saved", property(lambda _self: saved[0]), raising=False)
    mine = shards("d", 6, shard=2)
    next(mine).done()
    saved[0] = (10, 2)
    next(mine).done()
    assert mine.unreported_positions()["done"] == [(0, 2, 10), (2, 4, 10, 2)]
    desk.shards(mine.unreported_positions())
    desk.loaded = CheckpointId(RunId(1, 1), 10, 2)
    mine.went_back(desk)  # type: ignore[arg-type]
    assert next(mine).start == 2
    assert [(one.start, one.mark.revision) for one in desk.state.feeds["d"].acked] == [(0, 0)]


def test_what_every_checkpoint_left_contains_is_not_remembered_for_a_load(desk, monkeypatch):
    saved = [-1]
    monkeypatch.setattr(type(module.checkpoint), "saved", property(lambda _self: (saved[0], 0)), raising=False)
    mine = shards("d", 8, shard=2)
    next(mine).done()
    saved[0] = 10
    next(mine).done()
    mark = CheckpointId(RunId(1, 1), 10)
    asyncio.run(desk.offer(ev.CheckpointCommitted("w/0", mark, mark)))
    next(mine)
    assert mine._undoable == {(10, 0): ((2, 4),)}


def test_what_an_earlier_life_did_is_not_given_back_by_a_load(desk):
    mine = shards("d", 4, shard=2)
    next(mine)
    desk.started_again(0)
    desk.renewed()
    mine.went_back(desk)  # type: ignore[arg-type]
    assert [event.undone for event in desk.journal] == [None]


def test_a_process_of_the_past_cannot_give_back(desk):
    mine = shards("d", 4, shard=2)
    next(mine)
    desk.started_again(0)
    with pytest.raises(CheckpointError, match="a later process of w/0 has begun"):
        mine.went_back(desk)  # type: ignore[arg-type]


def test_shards_done_while_an_answer_is_awaited_are_not_given_again(desk, monkeypatch):
    mine = shards("d", 8, shard=2)
    first, _second = next(mine), next(mine)
    answer = desk.shards

    def late(question: Any) -> dict[str, Any]:
        said = answer(question)
        first.done()
        return said

    monkeypatch.setattr(desk, "shards", late)
    assert [next(mine).start, next(mine).start] == [4, 6]


def test_threads_of_a_rank_get_different_shards(desk, monkeypatch):
    mine, got = shards("d", 8, shard=2), list[int]()
    mine._ask(2)
    both, own = threading.Barrier(2), threading.Lock()

    class Lock:
        """Whoever gave it back waits for the other one to have had it."""

        def __enter__(self) -> None:
            own.acquire()

        def __exit__(self, *_: object) -> None:
            own.release()
            both.wait(60)

    monkeypatch.setattr(mine, "_lock", Lock())
    threads = [threading.Thread(target=lambda: got.append(next(mine).start)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [0, 2]


AGAIN = (
    r"shards\('d'\) was opened again in this process, and the later object has all leases .*\n  open a name once, and"
)


def test_two_objects_of_a_name_in_use_hand_out_no_sample_twice_in_silence(desk):
    first, second = shards("d", 8, shard=2), shards("d", 8, shard=2)
    in_hand = next(first)
    found = [*second]
    assert [shard.start for shard in found] == [0, 2, 4, 6]
    for use in (lambda: next(first), in_hand.done):
        with pytest.raises(UsageError, match=AGAIN):
            use()
    for shard in found:
        shard.done()
    assert next(second, None) is None
    assert desk.state.feeds["d"].over


def test_an_object_that_waits_for_shards_while_another_begins_hands_out_none(desk, monkeypatch):
    first, second = shards("d", 8, shard=2), shards("d", 8, shard=2)
    answer, begun = desk.shards, list[Any]()

    def late(question: Any) -> dict[str, Any]:
        monkeypatch.setattr(desk, "shards", answer)
        begun.append(next(second))
        return answer(question)

    monkeypatch.setattr(desk, "shards", late)
    with pytest.raises(UsageError, match=AGAIN):
        next(first)
    assert [shard.start for shard in begun] == [0]


def test_a_name_that_is_opened_again_goes_on_from_what_was_done_and_a_load_undoes_it(desk, monkeypatch):
    monkeypatch.setattr(type(module.checkpoint), "saved", property(lambda _self: (10, 0)), raising=False)
    for shard in shards("d", 8, shard=2):
        if shard.start == 2:
            break
        shard.done()
    mine = shards("d", 8, shard=2)
    again = next(mine)
    assert again.start == 2, "it was in hand, and what was done is not given again"
    again.done()
    assert module.checkpoint.feeds == [mine]
    assert mine.unreported_positions()["done"] == [(2, 4, 10)]
    desk.loaded = CheckpointId(RunId(1, 1), 9)
    mine.went_back(desk)  # type: ignore[arg-type]
    assert [shard.start for shard in mine] == [0, 2, 4, 6]


def test_evaluation_that_is_repeated_over_the_same_name_ends_each_time(desk):
    for expected in ([0, 1, 2, 3], [], []):
        assert [index for shard in shards("d", 4, shard=2, wait=False) for index in shard] == expected


def test_an_object_is_used_again_once_the_later_one_is_closed(desk):
    first, second = shards("d", 8, shard=2), shards("d", 8, shard=2)
    next(first)
    next(second).done()
    second.close()
    module.checkpoint.feeds.clear()  # as the end of user code leaves it
    got = next(first)
    assert got.start == 2
    got.done()
    assert first.unreported_positions()["done"] == [(2, 4, None)]


def test_what_an_earlier_life_did_is_not_taken_over(desk):
    first = shards("d", 8, shard=2)
    next(first).done()
    desk.started_again(0)
    desk.renewed()
    second = shards("d", 8, shard=2)
    assert next(second).start == 0
    assert desk.journal[-1].done == ()


def test_data_set_is_refused_in_a_forked_child_of_the_rank(desk):
    install(cast("Any", SimpleNamespace()))
    mine = shards("d", 8, shard=2)
    next(mine)
    here, there = Pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(60)
        try:
            for use in (lambda: shards("d", 8, shard=2), lambda: next(mine)):
                with pytest.raises(UsageError, match=IN_CHILD):
                    use()
            there.send("refused")
        finally:
            os._exit(0)
    there.close()
    assert here.recv() == "refused"
    os.waitpid(pid, 0)
    install(None)
    assert next(mine).start == 2


def test_data_set_is_refused_in_a_worker_of_a_loader_however_it_was_started(desk, monkeypatch):
    loading = SimpleNamespace(get_worker_info=lambda: None)
    monkeypatch.setitem(sys.modules, "torch.utils.data", cast("Any", loading))
    mine = shards("d", 8, shard=2)
    next(mine)
    loading.get_worker_info = lambda: SimpleNamespace(id=0)
    for use in (lambda: shards("d", 8, shard=2), lambda: next(mine)):
        with pytest.raises(UsageError, match=IN_CHILD):
            use()


IN_CHILD = r"shards\('d'\) was used in process \d+, a child of the rank, .*\n  iterate it in the rank itself"


@pytest.mark.parametrize(("key", "value"), [("size", 0), ("shard", -1), ("epochs", True), ("size", 2.5)])
def test_sizes_are_whole_numbers(key, value):
    with pytest.raises(UsageError, match=rf"shards\('d', {key}={value}\): wanted a whole number from 1"):
        shards("d", **{"size": 1, key: value})


def test_two_processes_with_different_data_sets_are_told(desk):
    next(shards("d", 4, shard=2))
    with pytest.raises(CheckpointError, match=r"it is 4 samples in shards of 2, 1 time in .*, and not 5 samples"):
        next(shards("d", 5, shard=2))
    with pytest.raises(CheckpointError, match=r"1 time in the order of their numbers, and not .* of seed 7; under"):
        next(shards("d", 4, shard=2, seed=7))
    assert isinstance(module.checkpoint.feeds[0], Shards)


def test_what_comes_of_a_shard_belongs_to_the_history_in_which_it_was_leased(desk, monkeypatch):
    sessions = session.QueueSessions()
    monkeypatch.setattr(session, "_lines", sessions)
    epochs = list[int]()
    made = shards("d", size=8, shard=2)
    for epoch in (0, 3, 3):
        desk.state = evolve(desk.state, cuts=evolve(desk.state.cuts, restore_count=epoch))
        next(made)
        epochs.append(sessions._thread_local.thread.epoch)
    assert epochs == [1, 1, 4], "the second one was leased ahead, before the job went back"
