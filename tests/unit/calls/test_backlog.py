"""What a queue holds: nothing lost, nothing doubled, whoever dies and whatever answer is lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dljob.calls import backlog
from dljob.calls.backlog import DEAD_STREAK_LIMIT, Backlog, FailedItem, HolderEnd, PutRefusal, Who

A, B = Who("a/0", 1, "p"), Who("b/0", 1, "q")


def queue(items: int = 3, size: int = 100, *, filled: int = 0) -> Backlog:
    made = Backlog(items, size)
    assert made.register(A)
    assert made.register(B)
    for number in range(1, filled + 1):
        made.put(A, number, 10)
    return made


def test_items_leave_the_backlog_in_the_order_they_were_put():
    made = queue(filled=3)
    assert made.begin_get(B, 1, 0) == ()
    assert made.take(B, 2) == (1, 2)
    assert made.begin_get(B, 2, 1) == (1, 2)
    assert made.take(B, 2) == (3,)
    assert made.sizes == {3: 10}


def test_a_backlog_is_full_by_items_or_bytes_and_an_empty_one_takes_anything():
    made = queue(items=2, size=25)
    assert made.refused(A, 1, 1000) is None
    made.put(A, 1, 20)
    assert made.refused(A, 2, 6) is PutRefusal.FULL
    assert made.refused(A, 2, 5) is None
    made.put(A, 2, 5)
    assert made.refused(A, 3, 0) is PutRefusal.FULL
    made.begin_get(B, 1, 0)
    made.take(B, 1)
    assert made.bytes == 5
    assert made.refused(A, 3, 20) is None


def test_bytes_keep_no_get_waiting_for_ever():
    made = queue(items=5, size=20, filled=2)
    assert made.refused(A, 3, 10) is PutRefusal.FULL
    with made.counted_as_waiting(4), made.counted_as_waiting(3):
        assert made.refused(A, 3, 10) is None
        made.put(A, 3, 10)
        assert made.ready(3)
        assert made.refused(A, 4, 10) is PutRefusal.FULL  # the smaller one need not wait; the other one's turn is next
        made.begin_get(B, 1, 0)
        assert made.take(B, 3) == (1, 2, 3)
    for number in range(4, 7):
        with made.counted_as_waiting(4):
            assert made.refused(A, number, 30) is None
            made.put(A, number, 30)
        assert made.refused(A, number + 1, 30) is PutRefusal.FULL
    assert Backlog.loaded(json.loads(json.dumps(made.dumped()))) == made


def test_a_get_that_waits_lets_no_more_in_than_items_may_be():
    made = queue(items=2, size=100, filled=2)
    with made.counted_as_waiting(2):
        assert made.refused(A, 3, 0) is PutRefusal.FULL


def test_a_put_that_is_sent_twice_is_in_once_and_a_closed_queue_takes_none():
    made = queue(filled=1)
    assert made.refused(A, 1, 10) is PutRefusal.AGAIN
    made.close()
    assert made.refused(A, 1, 10) is PutRefusal.AGAIN
    assert made.refused(A, 2, 10) is PutRefusal.CLOSED


def test_a_closed_queue_gives_what_it_has_and_then_nothing():
    made = queue(filled=1)
    assert not made.ready(2)
    made.close()
    assert made.ready(2)
    made.begin_get(B, 1, 0)
    assert made.take(B, 2) == (1,)
    made.begin_get(B, 2, 1)
    assert made.take(B, 2) == ()


def test_an_answer_that_is_asked_for_again_is_the_same_and_one_never_seen_goes_back():
    made = queue(filled=3)
    assert made.begin_get(B, 1, 0) == ()
    assert made.answer(B) is None
    made.take(B, 1)
    assert made.begin_get(B, 1, 0) == ()
    assert made.answer(B) == (1,)
    assert made.begin_get(B, 2, 0) == ()
    assert made.take(B, 3) == (1, 2, 3)
    assert made.begin_get(B, 1, 0) is None


def test_an_unreadable_item_is_dropped_alone_and_the_rest_goes_back():
    made = queue(filled=4)
    made.begin_get(B, 1, 0)
    assert made.take(B, 3) == (1, 2, 3)
    assert made.begin_get(B, 2, 1, (1,)) == (2,)
    assert (sorted(made.waiting), made.bytes, made.sizes) == ([1, 3, 4], 30, {1: 10, 3: 10, 4: 10})
    made.take(B, 3)
    assert made.begin_get(B, 3, 1, (1,)) == (), "an answer that did not arrive was not read"
    assert made.take(B, 4) == (1, 3, 4)


def test_a_get_that_was_overtaken_is_not_current_any_more():
    made = queue()
    made.begin_get(B, 1, 0)
    assert made.current(B, 1)
    made.begin_get(B, 2, 0)
    assert not made.current(B, 1)
    assert made.register(Who("b/0", 2, "q"))
    assert not made.current(B, 2)
    assert not made.current(Who("c/0", 1, "r"), 1)


def test_items_of_a_dead_process_come_back_in_front_and_its_late_answers_are_refused():
    made = queue(filled=3)
    made.begin_get(B, 1, 0)
    made.take(B, 2)
    made.begin_get(A, 1, 0)
    made.take(A, 1)
    later = Who("b/0", 2, "other")
    assert made.register(later)
    assert not made.register(B)
    assert made.waiting[0] == 1
    made.begin_get(later, 1, 0)
    assert made.take(later, 3) == (1, 2)
    assert made.sessions["p"].ids == (3,)


def test_a_backlog_is_the_same_after_dump_and_load():
    made = queue(filled=3)
    made.begin_get(B, 1, 0)
    made.take(B, 1)
    assert Backlog.loaded(json.loads(json.dumps(made.dumped()))) == made


def get(items: Backlog, caller: Who, turn: int, count: int = 1) -> tuple[int, ...]:
    """A rank gets items, which acknowledges those that it got before."""
    assert items.register(caller)
    items.begin_get(caller, turn, turn - 1)
    only = items.choose(caller, count)
    return items.take(caller, count, only) if items.ready(count, only) else ()


def poisoned(*, filled: int = 3, deliveries: int = 3) -> Backlog:
    items = Backlog(100, 10_000, deliveries)
    assert items.register(A)
    for number in range(1, filled + 1):
        items.put(A, number, 10, f"key-{number}")
    return items


B2, C = Who("b/0", 2, "q2"), Who("c/0", 1, "r")


def test_a_failed_item_goes_to_another_rank_next_and_is_set_aside_after_the_last_delivery():
    items = poisoned(deliveries=2)
    assert get(items, B, 1) == (1,)
    assert get(items, C, 1) == (2,)
    (item,) = items.end_incarnation("b/0", 1, HolderEnd.FAILED, "ValueError") or ()
    assert item == FailedItem(1, "key-1", "b/0", "ValueError", 1)
    assert items.end_incarnation("b/0", 1, HolderEnd.FAILED, "ValueError") == (), "told again, as by another master"
    assert not items.register(B), "what it has sent before its end takes nothing"
    assert get(items, B2, 1) == (3,), "not the item that it failed with"
    assert items.choose(B2, 1, None, (1,)) == {1}, "but when the other rank takes too long"
    assert Backlog.loaded(json.loads(json.dumps(items.dumped()))) == items
    assert get(items, C, 2) == (1,)
    (item,) = items.end_incarnation("c/0", 1, HolderEnd.FAILED, "KeyError") or ()
    assert items.dead == {1: item}
    assert (item.rank, item.error, item.deliveries) == ("c/0", "KeyError", 2)
    assert (items.waiting, items.bytes, items.sizes) == ([], 0, {3: 10})
    assert items.refused(A, 9, 10, "key-1") is PutRefusal.KNOWN
    items.restore({3: 10}, {}, closed=False)
    assert items.refused(A, 9, 10, "key-1") is PutRefusal.KNOWN, "also after the job has gone back to before its put"
    assert Backlog.loaded(json.loads(json.dumps(items.dumped()))) == items


def test_failed_deliveries_count_on_where_the_job_goes_back_to_before_the_put():
    items = poisoned(filled=1, deliveries=2)
    assert get(items, B, 1) == (1,)
    items.end_incarnation("b/0", 1, HolderEnd.FAILED)
    items.restore({}, {}, closed=False)
    items = Backlog.loaded(json.loads(json.dumps(items.dumped())))
    assert items.refused(A, 2, 10, "key-1") is None
    assert items.put(A, 2, 10, "key-1") == 2
    assert get(items, B2, 1) == (2,)
    items.end_incarnation("b/0", 2, HolderEnd.FAILED)
    assert [(item.key, item.deliveries) for item in items.dead.values()] == [("key-1", 2)]
    items.restore({1: 10, 2: 10}, {"key-1": 2}, closed=False)
    assert items.waiting == [1], "what was set aside does not come back"


def test_the_only_rank_gets_a_failed_item_again():
    items = poisoned(filled=1)
    assert get(items, B, 1) == (1,)
    items.end_incarnation("b/0", 1, HolderEnd.FAILED)
    assert get(items, B2, 1) == (1,)
    items.begin_get(B2, 2, 1)
    assert (items.failed, items.sizes, items.item_keys) == ({}, {}, {}), "it was no bad item"


@pytest.mark.parametrize("how", [HolderEnd.LOST, HolderEnd.DONE, HolderEnd.FAILED])
def test_items_of_a_rank_that_is_gone_wait_again_and_those_of_a_good_end_are_done(how):
    items = poisoned(deliveries=0)
    assert get(items, B, 1, 2) == (1, 2)
    assert items.end_incarnation("b/0", 1, how) == ()
    assert items.end_incarnation("never/0", 1, how) == ()
    assert (sorted(items.waiting), items.bytes) == (([3], 10) if how is HolderEnd.DONE else ([1, 2, 3], 30))
    assert (items.failed, items.sessions.keys()) == ({}, {"p"})


def test_a_failure_counts_that_is_told_after_the_next_process_has_asked():
    items = poisoned(deliveries=1)
    get(items, B, 1, 2)
    assert items.register(B2)
    assert Backlog.loaded(json.loads(json.dumps(items.dumped()))) == items
    items.begin_get(B2, 1, 0)
    assert items.take(B2, 1) == (1,)
    first, second = items.end_incarnation("b/0", 1, HolderEnd.FAILED, "x") or ()
    assert items.dead == {2: second}
    assert items.failed == {1: first}, "its next holder has it already"
    assert items.end_incarnation("b/0", 1, HolderEnd.FAILED, "x") == ()
    assert items.register(Who("b/0", 3, "q3"))
    assert items.end_incarnation("b/0", 2, HolderEnd.LOST) == ()
    assert sorted(items.waiting) == [1, 3]


def test_a_bad_item_of_a_batch_is_found_among_good_ones():
    items, bad, turn = poisoned(filled=12), 5, 0
    for life in range(1, 20):
        caller = Who("b/0", life, f"line-{life}")
        turn = 0
        while True:
            turn += 1
            items.register(caller)
            items.begin_get(caller, turn, turn - 1)
            batch = items.take(caller, 4, items.choose(caller, 4)) if len(items.waiting) >= 4 else ()
            if bad in batch or not batch:
                break
        if not batch:
            break
        items.end_incarnation("b/0", life, HolderEnd.FAILED, "x")
    assert list(items.dead) == [bad], "none of those that it came with"


def test_the_role_pays_once_a_row_of_items_is_set_aside_and_none_is_done():
    items = poisoned(filled=DEAD_STREAK_LIMIT + 3, deliveries=1)
    for life in range(1, DEAD_STREAK_LIMIT + 1):
        get(items, Who("b/0", life, f"line-{life}"), 1)
        assert len(items.end_incarnation("b/0", life, HolderEnd.FAILED) or ()) == 1
    get(items, Who("b/0", 9, "line-9"), 1)
    assert items.end_incarnation("b/0", 9, HolderEnd.FAILED) is None
    assert len(items.dead) == DEAD_STREAK_LIMIT
    last = Who("b/0", 10, "line-10")
    get(items, last, 1)
    get(items, last, 2)
    assert items.dead_streak == 0, "one is done: the code is not at fault"
    assert len(items.end_incarnation("b/0", 10, HolderEnd.FAILED) or ()) == 1


def test_the_oldest_of_many_dead_items_are_forgotten(monkeypatch):
    monkeypatch.setattr(backlog, "DEAD", 1)
    items = poisoned(deliveries=1)
    get(items, B, 1, 2)
    items.end_incarnation("b/0", 1, HolderEnd.FAILED)
    assert (list(items.dead), items.stored) == ([2], {2, 3})


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

    def who(self, name: str) -> Who:
        who = Who(name, self.lives[name], f"{name}{self.lives[name]}")
        assert self.queue.register(who)
        return who

    @rule(name=st.sampled_from("ab"))
    def puts_one(self, name: str) -> None:
        who = self.who(name)
        self.puts += 1
        if self.queue.refused(who, self.puts, 1) is None:
            self.queue.put(who, self.puts, 1)

    @rule(name=st.sampled_from("ab"), count=st.integers(1, 3), lost=st.booleans(), bad=st.sets(st.integers(0, 2)))
    def gets(self, name: str, count: int, lost: bool, bad: set[int]) -> None:
        who = self.who(name)
        self.turns[name] += 1
        done = self.queue.begin_get(who, self.turns[name], self.seen[name], self.bad[name])
        got, unread = self.got[name], self.bad[name]
        assert done == (tuple(got[at] for at in unread if got) if unread else got)
        self.done += done
        self.got[name] = ()
        if self.queue.ready(count):
            found = self.queue.take(who, count)
            if not lost:
                self.got[name], self.seen[name] = found, self.turns[name]
                self.bad[name] = tuple(at for at in sorted(bad) if at < len(found))

    @rule(name=st.sampled_from("ab"))
    def dies(self, name: str) -> None:
        self.lives[name] += 1
        self.turns[name] = self.seen[name] = 0
        self.got[name] = self.bad[name] = ()
        self.who(name)

    @precondition(lambda self: self.puts > 10)
    @rule()
    def closes(self) -> None:
        self.queue.close()

    @rule()
    def keeper_dies(self) -> None:
        self.queue = Backlog.loaded(json.loads(json.dumps(self.queue.dumped())))

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        held = [number for line in self.queue.sessions.values() for number in line.ids]
        everywhere = self.done + held + self.queue.waiting
        assert sorted(everywhere) == list(range(1, self.queue.next))
        assert self.queue.bytes == len(self.queue.waiting)
        assert set(self.queue.sizes) == {*held, *self.queue.waiting}


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
