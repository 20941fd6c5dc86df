"""The part of a cut that a queue holds: each request counts before or after it by its stamp."""

from __future__ import annotations

from dljob.calls.backlog import MAX_KEYS, Backlog, PutRefusal, QueueCaller
from dljob.calls.queue_cut import CutStamp, QueueCut

TRAINER, ROLLOUT = QueueCaller("trainer/0", 1, "t"), QueueCaller("rollout/0", 1, "r")
OLD = CutStamp()


def queue(items: int = 3) -> Backlog:
    backlog = Backlog(100, 1000)
    assert backlog.register(TRAINER)
    assert backlog.register(ROLLOUT)
    for number in range(1, items + 1):
        backlog.put(ROLLOUT, number, 10, f"k{number}")
    return backlog


def cut_of(backlog: Backlog) -> QueueCut:
    return QueueCut.from_backlog(4, {"trainer/0": 1}, backlog)


def test_items_got_and_not_done_are_in_the_cut_unless_the_state_has_them():
    backlog = queue()
    backlog.begin_get(TRAINER, 1, 0)
    backlog.take(TRAINER, 1)
    cut = cut_of(backlog)
    assert list(cut.item_sizes) == [1, 2, 3]
    assert cut.mark_saved(TRAINER, 4, [1])
    # The marker again, after a lost answer: what it got since is from after the cut.
    assert cut.mark_saved(TRAINER, 4, [2])
    assert list(cut.item_sizes) == [2, 3]


def test_a_marker_of_another_cut_or_process_turns_nobody():
    cut = cut_of(queue())
    assert not cut.mark_saved(TRAINER, 3, [1])
    assert not cut.mark_saved(QueueCaller("trainer/0", 2, "t"), 4, [1])
    assert not cut.mark_saved(ROLLOUT, 4, [1])
    assert (cut.saved_members, len(cut.item_sizes)) == (set(), 3)


def test_a_request_counts_by_its_stamp_and_not_by_its_arrival():
    cut = cut_of(queue())
    assert cut.is_before(TRAINER, OLD)
    assert not cut.is_before(TRAINER, CutStamp(0, 4))  # it overtook the marker
    cut.put(9, 5, "k9")
    cut.put(10, 5, "")
    cut.drop_items([1, 77])
    assert (list(cut.item_sizes), list(cut.keys)) == ([2, 3, 9, 10], ["k1", "k2", "k3", "k9"])
    cut.mark_saved(TRAINER, 4, [])
    assert not cut.is_before(TRAINER, OLD)


def test_ranks_without_a_state_turn_with_the_first_that_knows_of_the_other_side():
    cut = cut_of(queue())
    assert cut.is_before(ROLLOUT, OLD)
    assert not cut.puts_receiver_after([1, 2])
    assert cut.puts_receiver_after([1, 9])
    assert not cut.is_before(ROLLOUT, CutStamp(0, 0, 4))
    assert not cut.is_before(QueueCaller("rollout/1", 1, "s"), OLD)
    assert cut.puts_receiver_after([])
    assert cut.is_before(TRAINER, OLD)


def test_a_rank_that_is_still_to_save_gets_nothing_of_after_the_cut():
    backlog = queue(items=2)
    cut = cut_of(backlog)
    backlog.put(ROLLOUT, 3, 10)
    assert cut.restricts_gets(TRAINER, OLD)
    assert not cut.restricts_gets(ROLLOUT, OLD)
    backlog.begin_get(TRAINER, 1, 0)
    assert backlog.can_answer_get(3)
    assert not backlog.can_answer_get(3, cut.item_sizes)
    assert backlog.can_answer_get(2, cut.item_sizes)
    assert backlog.take(TRAINER, 3, cut.item_sizes) == (1, 2)
    backlog.close()
    assert not backlog.can_answer_get(1, cut.item_sizes)  # the queue is closed, and yet not empty for it
    assert backlog.can_answer_get(1)
    cut.mark_saved(TRAINER, 4, [1, 2])
    assert not cut.restricts_gets(TRAINER, OLD)


def test_a_sealed_cut_changes_no_more():
    cut = cut_of(queue())
    cut.seal()
    assert cut.frozen
    assert not cut.is_before(TRAINER, OLD)
    assert not cut.is_before(ROLLOUT, OLD)


def test_a_queue_goes_back_to_the_items_of_a_cut_and_hands_them_out_again():
    backlog = queue()
    cut = cut_of(backlog)
    backlog.begin_get(TRAINER, 1, 0)
    backlog.take(TRAINER, 3)
    backlog.put(ROLLOUT, 4, 10, "k4")
    backlog.close()
    backlog.restore(cut.item_sizes, cut.keys, closed=cut.closed)
    assert (sorted(backlog.waiting), backlog.bytes, backlog.next, backlog.closed) == ([1, 2, 3], 30, 5, False)
    assert backlog.put_refusal(ROLLOUT, 5, 10, "k4") is None
    assert backlog.item_keys == {1: "k1", 2: "k2", 3: "k3"}
    assert backlog.begin_get(TRAINER, 2, 1) == ()  # what it got before is of the past
    assert backlog.take(TRAINER, 2) == (1, 2)
    assert Backlog.from_data(backlog.to_data()) == backlog


def test_an_item_with_a_known_key_is_not_accepted_and_old_keys_are_forgotten():
    backlog = queue()
    backlog.close()
    assert backlog.put_refusal(TRAINER, 1, 1, "k1") is PutRefusal.KNOWN
    backlog.keys = dict.fromkeys(map(str, range(MAX_KEYS)))
    backlog.put(TRAINER, 1, 1, "new")
    assert (len(backlog.keys), "0" in backlog.keys, "new" in backlog.keys) == (MAX_KEYS, False, True)
