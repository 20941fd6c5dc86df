"""The part of a cut that a queue holds: each request counts before or after it by its stamp."""

from __future__ import annotations

from dljob.calls.backlog import KEYS, Backlog, PutRefusal, Who
from dljob.calls.queue_cut import CutStamp, QueueCut

TRAINER, ROLLOUT = Who("trainer/0", 1, "t"), Who("rollout/0", 1, "r")
OLD = CutStamp()


def queue(items: int = 3) -> Backlog:
    made = Backlog(100, 1000)
    assert made.register(TRAINER)
    assert made.register(ROLLOUT)
    for number in range(1, items + 1):
        made.put(ROLLOUT, number, 10, f"k{number}")
    return made


def begun(backlog: Backlog) -> QueueCut:
    return QueueCut.begun(4, {"trainer/0": 1}, backlog)


def test_items_got_and_not_done_are_in_the_cut_unless_the_state_has_them():
    made = queue()
    made.begin_get(TRAINER, 1, 0)
    made.take(TRAINER, 1)
    cut = begun(made)
    assert list(cut.left) == [1, 2, 3]
    assert cut.mark(TRAINER, 4, [1])
    assert cut.mark(TRAINER, 4, [2])  # the marker again, after a lost answer: what it got since is of after the cut
    assert list(cut.left) == [2, 3]


def test_a_marker_of_another_cut_or_process_turns_nobody():
    cut = begun(queue())
    assert not cut.mark(TRAINER, 3, [1])
    assert not cut.mark(Who("trainer/0", 2, "t"), 4, [1])
    assert not cut.mark(ROLLOUT, 4, [1])
    assert (cut.turned, len(cut.left)) == (set(), 3)


def test_a_request_counts_by_its_stamp_and_not_by_its_arrival():
    cut = begun(queue())
    assert cut.is_before(TRAINER, OLD)
    assert not cut.is_before(TRAINER, CutStamp(0, 4))  # it overtook the marker
    cut.put(9, 5, "k9")
    cut.put(10, 5, "")
    cut.acknowledged([1, 77])
    assert (list(cut.left), list(cut.keys)) == ([2, 3, 9, 10], ["k1", "k2", "k3", "k9"])
    cut.mark(TRAINER, 4, [])
    assert not cut.is_before(TRAINER, OLD)


def test_ranks_without_a_state_turn_with_the_first_that_knows_of_the_other_side():
    cut = begun(queue())
    assert cut.is_before(ROLLOUT, OLD)
    assert not cut.taints([1, 2])
    assert cut.taints([1, 9])
    assert not cut.is_before(ROLLOUT, CutStamp(0, 0, 4))
    assert not cut.is_before(Who("rollout/1", 1, "s"), OLD)
    assert cut.taints([])
    assert cut.is_before(TRAINER, OLD)


def test_a_rank_that_is_still_to_save_gets_nothing_of_after_the_cut():
    made = queue(items=2)
    cut = begun(made)
    made.put(ROLLOUT, 3, 10)
    assert cut.hides(TRAINER, OLD)
    assert not cut.hides(ROLLOUT, OLD)
    made.begin_get(TRAINER, 1, 0)
    assert made.ready(3)
    assert not made.ready(3, cut.left)
    assert made.ready(2, cut.left)
    assert made.take(TRAINER, 3, cut.left) == (1, 2)
    made.close()
    assert not made.ready(1, cut.left)  # the queue is closed, and yet not empty for it
    assert made.ready(1)
    cut.mark(TRAINER, 4, [1, 2])
    assert not cut.hides(TRAINER, OLD)


def test_a_sealed_cut_changes_no_more():
    cut = begun(queue())
    cut.seal()
    assert cut.frozen
    assert not cut.is_before(TRAINER, OLD)
    assert not cut.is_before(ROLLOUT, OLD)


def test_a_queue_goes_back_to_the_items_of_a_cut_and_hands_them_out_again():
    made = queue()
    cut = begun(made)
    made.begin_get(TRAINER, 1, 0)
    made.take(TRAINER, 3)
    made.put(ROLLOUT, 4, 10, "k4")
    made.close()
    made.restore(cut.left, cut.keys, closed=cut.closed)
    assert (sorted(made.waiting), made.bytes, made.next, made.closed) == ([1, 2, 3], 30, 5, False)
    assert made.refused(ROLLOUT, 5, 10, "k4") is None
    assert made.item_keys == {1: "k1", 2: "k2", 3: "k3"}
    assert made.begin_get(TRAINER, 2, 1) == ()  # what it got before is of the past
    assert made.take(TRAINER, 2) == (1, 2)
    assert Backlog.loaded(made.dumped()) == made


def test_an_item_with_a_known_key_is_not_accepted_and_old_keys_are_forgotten():
    made = queue()
    made.close()
    assert made.refused(TRAINER, 1, 1, "k1") is PutRefusal.KNOWN
    made.keys = dict.fromkeys(map(str, range(KEYS)))
    made.put(TRAINER, 1, 1, "new")
    assert (len(made.keys), "0" in made.keys, "new" in made.keys) == (KEYS, False, True)
