"""What a queue holds: nothing lost, nothing doubled, whoever dies and whatever answer is lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dljob.calls.backlog import DEAD_STREAK_LIMIT, Backlog, FailedItem, HolderEnd, PutRefusal, QueueCaller

A, B = QueueCaller("a/0", 1, "p"), QueueCaller("b/0", 1, "q")


def queue(items: int = 3, size: int = 100, *, filled: int = 0) -> Backlog:
    backlog = Backlog(items, size)
    assert backlog.register(A)
    assert backlog.register(B)
    for number in range(1, filled + 1):
        backlog.put(A, number, 10)
    return backlog


def test_items_leave_the_backlog_in_the_order_they_were_put():
    backlog = queue(filled=3)
    assert backlog.begin_get(B, 1, 0) == ()
    assert backlog.take(B, 2) == (1, 2)
    assert backlog.begin_get(B, 2, 1) == (1, 2)
    assert backlog.take(B, 2) == (3,)
    assert backlog.sizes == {3: 10}


def test_a_backlog_is_full_by_items_or_bytes_and_an_empty_one_takes_anything():
    backlog = queue(items=2, size=25)
    assert backlog.put_refusal(A, 1, 1000) is None
    backlog.put(A, 1, 20)
    assert backlog.put_refusal(A, 2, 6) is PutRefusal.FULL
    assert backlog.put_refusal(A, 2, 5) is None
    backlog.put(A, 2, 5)
    assert backlog.put_refusal(A, 3, 0) is PutRefusal.FULL
    backlog.begin_get(B, 1, 0)
    backlog.take(B, 1)
    assert backlog.bytes == 5
    assert backlog.put_refusal(A, 3, 20) is None


def test_bytes_keep_no_get_waiting_for_ever():
    backlog = queue(items=5, size=20, filled=2)
    assert backlog.put_refusal(A, 3, 10) is PutRefusal.FULL
    with backlog.count_waiting_get(4), backlog.count_waiting_get(3):
        assert backlog.put_refusal(A, 3, 10) is None
        backlog.put(A, 3, 10)
        assert backlog.can_answer_get(3)
        # The smaller get need not wait any more; the other one is next.
        assert backlog.put_refusal(A, 4, 10) is PutRefusal.FULL
        backlog.begin_get(B, 1, 0)
        assert backlog.take(B, 3) == (1, 2, 3)
    for number in range(4, 7):
        with backlog.count_waiting_get(4):
            assert backlog.put_refusal(A, number, 30) is None
            backlog.put(A, number, 30)
        assert backlog.put_refusal(A, number + 1, 30) is PutRefusal.FULL
    assert Backlog.from_data(json.loads(json.dumps(backlog.to_data()))) == backlog


def test_a_get_that_waits_lets_no_more_in_than_items_may_be():
    backlog = queue(items=2, size=100, filled=2)
    with backlog.count_waiting_get(2):
        assert backlog.put_refusal(A, 3, 0) is PutRefusal.FULL


def test_a_put_that_is_sent_twice_is_in_once_and_a_closed_queue_takes_none():
    backlog = queue(filled=1)
    assert backlog.put_refusal(A, 1, 10) is PutRefusal.AGAIN
    backlog.close()
    assert backlog.put_refusal(A, 1, 10) is PutRefusal.AGAIN
    assert backlog.put_refusal(A, 2, 10) is PutRefusal.CLOSED


def test_a_closed_queue_gives_what_it_has_and_then_nothing():
    backlog = queue(filled=1)
    assert not backlog.can_answer_get(2)
    backlog.close()
    assert backlog.can_answer_get(2)
    backlog.begin_get(B, 1, 0)
    assert backlog.take(B, 2) == (1,)
    backlog.begin_get(B, 2, 1)
    assert backlog.take(B, 2) == ()


def test_an_answer_that_is_asked_for_again_is_the_same_and_one_never_seen_goes_back():
    backlog = queue(filled=3)
    assert backlog.begin_get(B, 1, 0) == ()
    assert backlog.last_answer(B) is None
    backlog.take(B, 1)
    assert backlog.begin_get(B, 1, 0) == ()
    assert backlog.last_answer(B) == (1,)
    assert backlog.begin_get(B, 2, 0) == ()
    assert backlog.take(B, 3) == (1, 2, 3)
    assert backlog.begin_get(B, 1, 0) is None


def test_an_unreadable_item_is_dropped_alone_and_the_rest_goes_back():
    backlog = queue(filled=4)
    backlog.begin_get(B, 1, 0)
    assert backlog.take(B, 3) == (1, 2, 3)
    assert backlog.begin_get(B, 2, 1, (1,)) == (2,)
    assert (sorted(backlog.waiting), backlog.bytes, backlog.sizes) == ([1, 3, 4], 30, {1: 10, 3: 10, 4: 10})
    backlog.take(B, 3)
    assert backlog.begin_get(B, 3, 1, (1,)) == (), "an answer that did not arrive was not read"
    assert backlog.take(B, 4) == (1, 3, 4)


def test_a_get_that_was_overtaken_is_not_current_any_more():
    backlog = queue()
    backlog.begin_get(B, 1, 0)
    assert backlog.is_last_get(B, 1)
    backlog.begin_get(B, 2, 0)
    assert not backlog.is_last_get(B, 1)
    assert backlog.register(QueueCaller("b/0", 2, "q"))
    assert not backlog.is_last_get(B, 2)
    assert not backlog.is_last_get(QueueCaller("c/0", 1, "r"), 1)


def test_items_of_a_dead_process_come_back_in_front_and_its_late_answers_are_refused():
    backlog = queue(filled=3)
    backlog.begin_get(B, 1, 0)
    backlog.take(B, 2)
    backlog.begin_get(A, 1, 0)
    backlog.take(A, 1)
    later = QueueCaller("b/0", 2, "other")
    assert backlog.register(later)
    assert not backlog.register(B)
    assert backlog.waiting[0] == 1
    backlog.begin_get(later, 1, 0)
    assert backlog.take(later, 3) == (1, 2)
    assert backlog.sessions["p"].ids == (3,)


def test_a_backlog_is_the_same_after_dump_and_load():
    backlog = queue(filled=3)
    backlog.begin_get(B, 1, 0)
    backlog.take(B, 1)
    assert Backlog.from_data(json.loads(json.dumps(backlog.to_data()))) == backlog


def get(backlog: Backlog, caller: QueueCaller, turn: int, count: int = 1) -> tuple[int, ...]:
    """A rank gets items, which acknowledges those that it got before."""
    assert backlog.register(caller)
    backlog.begin_get(caller, turn, turn - 1)
    only = backlog.choose_items(caller, count)
    return backlog.take(caller, count, only) if backlog.can_answer_get(count, only) else ()


def poisoned(*, filled: int = 3, deliveries: int = 3) -> Backlog:
    backlog = Backlog(100, 10_000, deliveries)
    assert backlog.register(A)
    for number in range(1, filled + 1):
        backlog.put(A, number, 10, f"key-{number}")
    return backlog


B2, C = QueueCaller("b/0", 2, "q2"), QueueCaller("c/0", 1, "r")


def test_a_failed_item_goes_to_another_rank_next_and_is_set_aside_after_the_last_delivery():
    backlog = poisoned(deliveries=2)
    assert get(backlog, B, 1) == (1,)
    assert get(backlog, C, 1) == (2,)
    (item,) = backlog.end_incarnation("b/0", 1, HolderEnd.FAILED, "ValueError") or ()
    assert item == FailedItem(1, "key-1", "b/0", "ValueError", 1)
    assert backlog.end_incarnation("b/0", 1, HolderEnd.FAILED, "ValueError") == (), "told again, as by another master"
    assert not backlog.register(B), "what it has sent before its end takes nothing"
    assert get(backlog, B2, 1) == (3,), "not the item that it failed with"
    assert backlog.choose_items(B2, 1, None, (1,)) == {1}, "but when the other rank takes too long"
    assert Backlog.from_data(json.loads(json.dumps(backlog.to_data()))) == backlog
    assert get(backlog, C, 2) == (1,)
    (item,) = backlog.end_incarnation("c/0", 1, HolderEnd.FAILED, "KeyError") or ()
    assert backlog.dead == {1: item}
    assert (item.rank, item.error, item.deliveries) == ("c/0", "KeyError", 2)
    assert (backlog.waiting, backlog.bytes, backlog.sizes) == ([], 0, {3: 10})
    assert backlog.put_refusal(A, 9, 10, "key-1") is PutRefusal.KNOWN
    backlog.restore({3: 10}, {}, closed=False)
    assert backlog.put_refusal(A, 9, 10, "key-1") is PutRefusal.KNOWN, "also after a restore to before its put"
    assert Backlog.from_data(json.loads(json.dumps(backlog.to_data()))) == backlog


def test_failed_deliveries_count_on_where_the_job_goes_back_to_before_the_put():
    backlog = poisoned(filled=1, deliveries=2)
    assert get(backlog, B, 1) == (1,)
    backlog.end_incarnation("b/0", 1, HolderEnd.FAILED)
    backlog.restore({}, {}, closed=False)
    backlog = Backlog.from_data(json.loads(json.dumps(backlog.to_data())))
    assert backlog.put_refusal(A, 2, 10, "key-1") is None
    assert backlog.put(A, 2, 10, "key-1") == 2
    assert get(backlog, B2, 1) == (2,)
    backlog.end_incarnation("b/0", 2, HolderEnd.FAILED)
    assert [(item.key, item.deliveries) for item in backlog.dead.values()] == [("key-1", 2)]
    backlog.restore({1: 10, 2: 10}, {"key-1": 2}, closed=False)
    assert backlog.waiting == [1], "what was set aside does not come back"


def test_the_only_rank_gets_a_failed_item_again():
    backlog = poisoned(filled=1)
    assert get(backlog, B, 1) == (1,)
    backlog.end_incarnation("b/0", 1, HolderEnd.FAILED)
    assert get(backlog, B2, 1) == (1,)
    backlog.begin_get(B2, 2, 1)
    assert (backlog.failed, backlog.sizes, backlog.item_keys) == ({}, {}, {}), "it was no bad item"


@pytest.mark.parametrize("end", [HolderEnd.LOST, HolderEnd.DONE, HolderEnd.FAILED])
def test_items_of_a_rank_that_is_gone_wait_again_and_those_of_a_good_end_are_done(end):
    backlog = poisoned(deliveries=0)
    assert get(backlog, B, 1, 2) == (1, 2)
    assert backlog.end_incarnation("b/0", 1, end) == ()
    assert backlog.end_incarnation("never/0", 1, end) == ()
    assert (sorted(backlog.waiting), backlog.bytes) == (([3], 10) if end is HolderEnd.DONE else ([1, 2, 3], 30))
    assert (backlog.failed, backlog.sessions.keys()) == ({}, {"p"})


def test_a_failure_counts_that_is_told_after_the_next_process_has_asked():
    backlog = poisoned(deliveries=1)
    get(backlog, B, 1, 2)
    assert backlog.register(B2)
    assert Backlog.from_data(json.loads(json.dumps(backlog.to_data()))) == backlog
    backlog.begin_get(B2, 1, 0)
    assert backlog.take(B2, 1) == (1,)
    first, second = backlog.end_incarnation("b/0", 1, HolderEnd.FAILED, "x") or ()
    assert backlog.dead == {2: second}
    assert backlog.failed == {1: first}, "its next holder has it already"
    assert backlog.end_incarnation("b/0", 1, HolderEnd.FAILED, "x") == ()
    assert backlog.register(QueueCaller("b/0", 3, "q3"))
    assert backlog.end_incarnation("b/0", 2, HolderEnd.LOST) == ()
    assert sorted(backlog.waiting) == [1, 3]


def test_a_bad_item_of_a_batch_is_found_among_good_ones():
    backlog, bad, turn = poisoned(filled=12), 5, 0
    for life in range(1, 20):
        caller = QueueCaller("b/0", life, f"line-{life}")
        turn = 0
        while True:
            turn += 1
            backlog.register(caller)
            backlog.begin_get(caller, turn, turn - 1)
            batch = backlog.take(caller, 4, backlog.choose_items(caller, 4)) if len(backlog.waiting) >= 4 else ()
            if bad in batch or not batch:
                break
        if not batch:
            break
        backlog.end_incarnation("b/0", life, HolderEnd.FAILED, "x")
    assert list(backlog.dead) == [bad], "none of those that it came with"


def test_the_role_pays_once_a_row_of_items_is_set_aside_and_none_is_done():
    backlog = poisoned(filled=DEAD_STREAK_LIMIT + 3, deliveries=1)
    for life in range(1, DEAD_STREAK_LIMIT + 1):
        get(backlog, QueueCaller("b/0", life, f"line-{life}"), 1)
        assert len(backlog.end_incarnation("b/0", life, HolderEnd.FAILED) or ()) == 1
    get(backlog, QueueCaller("b/0", 9, "line-9"), 1)
    assert backlog.end_incarnation("b/0", 9, HolderEnd.FAILED) is None
    assert len(backlog.dead) == DEAD_STREAK_LIMIT
    last = QueueCaller("b/0", 10, "line-10")
    get(backlog, last, 1)
    get(backlog, last, 2)
    assert backlog.dead_streak == 0, "one is done: the code is not at fault"
    assert len(backlog.end_incarnation("b/0", 10, HolderEnd.FAILED) or ()) == 1


def test_the_oldest_of_many_dead_items_are_forgotten(monkeypatch):
    monkeypatch.setattr("dljob.calls.backlog.MAX_DEAD_ITEMS", 1)
    backlog = poisoned(deliveries=1)
    get(backlog, B, 1, 2)
    backlog.end_incarnation("b/0", 1, HolderEnd.FAILED)
    assert (list(backlog.dead), backlog.stored_items) == ([2], {2, 3})


class Traffic(RuleBasedStateMachine):
    """Two ranks put, two get, answers are lost, processes die: what was done, is held and waits is what was put."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Backlog(4, 1000)
        self.lives = {"a": 1, "b": 1}
        self.turns = {"a": 0, "b": 0}
        self.seen = {"a": 0, "b": 0}
        self.puts = 0
        self.got: dict[str, tuple[int, ...]] = {"a": (), "b": ()}
        self.bad: dict[str, tuple[int, ...]] = {"a": (), "b": ()}
        self.done: list[int] = []

    def register(self, name: str) -> QueueCaller:
        caller = QueueCaller(name, self.lives[name], f"{name}{self.lives[name]}")
        assert self.queue.register(caller)
        return caller

    @rule(name=st.sampled_from("ab"))
    def puts_one(self, name: str) -> None:
        caller = self.register(name)
        self.puts += 1
        if self.queue.put_refusal(caller, self.puts, 1) is None:
            self.queue.put(caller, self.puts, 1)

    @rule(name=st.sampled_from("ab"), count=st.integers(1, 3), lost=st.booleans(), bad=st.sets(st.integers(0, 2)))
    def gets(self, name: str, count: int, lost: bool, bad: set[int]) -> None:
        caller = self.register(name)
        self.turns[name] += 1
        done = self.queue.begin_get(caller, self.turns[name], self.seen[name], self.bad[name])
        got, unread = self.got[name], self.bad[name]
        assert done == (tuple(got[at] for at in unread if got) if unread else got)
        self.done += done
        self.got[name] = ()
        if self.queue.can_answer_get(count):
            items = self.queue.take(caller, count)
            if not lost:
                self.got[name], self.seen[name] = items, self.turns[name]
                self.bad[name] = tuple(at for at in sorted(bad) if at < len(items))

    @rule(name=st.sampled_from("ab"))
    def dies(self, name: str) -> None:
        self.lives[name] += 1
        self.turns[name] = self.seen[name] = 0
        self.got[name] = self.bad[name] = ()
        self.register(name)

    @precondition(lambda self: self.puts > 10)
    @rule()
    def closes(self) -> None:
        self.queue.close()

    @rule()
    def keeper_dies(self) -> None:
        self.queue = Backlog.from_data(json.loads(json.dumps(self.queue.to_data())))

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        held_items = [number for line in self.queue.sessions.values() for number in line.ids]
        everywhere = self.done + held_items + self.queue.waiting
        assert sorted(everywhere) == list(range(1, self.queue.next))
        assert self.queue.bytes == len(self.queue.waiting)
        assert set(self.queue.sizes) == {*held_items, *self.queue.waiting}


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
