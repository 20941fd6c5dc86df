"""A stream that resumes: what is items_added of what arrives, where it goes on, when it is given up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.calls import resumption
from dljob.calls.resumption import (
    CalleeLoss,
    CalleeRank,
    GapError,
    ResumePlace,
    StreamProgress,
    StreamSegment,
    WireItem,
    choose_callee,
)


def items(first: int, count: int, version: int = 1) -> list[WireItem]:
    return [WireItem(n, {"policy": version}, b"%d" % n) for n in range(first, first + count)]


def loss(rank: int, position: int = 0, *, incarnation: int = 1, died: bool = True, opened: bool = True) -> CalleeLoss:
    return CalleeLoss(rank, incarnation, position, died, opened, "it died")


def test_items_that_came_before_are_not_taken_twice() -> None:
    progress = StreamProgress()
    progress.begin_segment("rollout/0", 1)
    assert progress.add_items(items(0, 3)) == items(0, 3)
    assert progress.add_items(items(1, 4)) == items(3, 2)
    assert progress.add_items(items(0, 5)) == []
    assert progress.received == [b"0", b"1", b"2", b"3", b"4"]


def test_a_gap_takes_nothing() -> None:
    progress = StreamProgress()
    progress.begin_segment("rollout/0", 1)
    progress.add_items(items(0, 3))
    with pytest.raises(GapError, match="item 5 came where item 3 was due"):
        progress.add_items(items(5, 1))
    with pytest.raises(GapError, match="item 5 came where item 4 was due"):
        progress.add_items([*items(3, 1), *items(5, 1)])
    assert len(progress.received) == 3


def test_a_new_version_begins_a_segment_and_so_does_a_new_process() -> None:
    progress = StreamProgress([b"before"])
    progress.begin_segment("rollout/0", 1)
    progress.add_items([*items(1, 2), *items(3, 1, version=2)])
    progress.begin_segment("rollout/1", 4)
    progress.begin_segment("rollout/2", 1)
    progress.add_items(items(4, 2, version=2))
    assert [s for s in progress.segments if s.count] == [
        StreamSegment("rollout/0", 1, {"policy": 1}, 1, 2),
        StreamSegment("rollout/0", 1, {"policy": 2}, 3, 1),
        StreamSegment("rollout/2", 1, {"policy": 2}, 4, 2),
    ]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 6), st.integers(1, 3)), max_size=12))
def test_whatever_arrives_each_item_is_taken_once_and_in_order(batches: list[tuple[int, int, int]]) -> None:
    """Batches that overlap, repeat or leave gaps, as after losses; segments say of each item who made it."""
    progress, items_added = StreamProgress(), list[WireItem]()
    for process, (first, count, version) in enumerate(batches):
        progress.begin_segment(f"rollout/{process}", 1)
        try:
            items_added += progress.add_items(items(first, count, version))
        except GapError:
            assert first > len(items_added)
    assert [item.position for item in items_added] == list(range(len(items_added)))
    assert progress.received == [item.packed for item in items_added]
    spans = [n for s in progress.segments for n in range(s.first, s.first + s.count)]
    assert spans == list(range(len(items_added)))
    versions = {n: s.version for s in progress.segments for n in range(s.first, s.first + s.count)}
    assert [versions[item.position] for item in items_added] == [item.version for item in items_added]


class TestChoice:
    def test_the_least_loaded_ready_rank_goes_on(self) -> None:
        callees = [CalleeRank(rank, 1, ready=rank != 1, is_gone=False) for rank in range(4)]
        assert choose_callee(callees, [loss(0)], {1: 0, 2: 3, 3: 2}, 0) == ResumePlace(3, 0)
        assert choose_callee(callees, [loss(0)], {}, 1) == ResumePlace(3, 0)
        assert choose_callee(callees, [loss(0)], {}, 2) == ResumePlace(2, 0)

    def test_a_rank_that_lost_it_serves_again_in_its_next_process(self) -> None:
        callees = [CalleeRank(0, 2, ready=True, is_gone=False), CalleeRank(1, 1, ready=False, is_gone=False)]
        assert choose_callee(callees, [loss(0)], {}, 0) == ResumePlace(0, 1)
        # PrimeMaster has not heard of the death yet.
        assert choose_callee(callees, [loss(0, incarnation=2)], {}, 0) == ResumePlace(0, 2)

    def test_with_no_other_ready_it_waits_for_the_last_that_is_not_gone(self) -> None:
        callees = [CalleeRank(rank, 1, ready=False, is_gone=rank == 2) for rank in range(3)]
        assert choose_callee(callees, [loss(1), loss(0), loss(2)], {}, 0) == ResumePlace(0, 1)
        assert choose_callee(callees, [loss(2)], {}, 0) == ResumePlace(0, 0)
        assert choose_callee([CalleeRank(2, 1, ready=True, is_gone=True)], [loss(2)], {}, 0) is None

    def test_a_rank_lost_in_an_unknown_process_is_asked_last(self) -> None:
        callees = [CalleeRank(0, 5, ready=True, is_gone=False), CalleeRank(1, 1, ready=True, is_gone=False)]
        assert choose_callee(callees, [loss(0, incarnation=0)], {1: 9}, 0) == ResumePlace(1, 0)
        assert choose_callee(callees[:1], [loss(0, incarnation=0)], {}, 0) == ResumePlace(0, 0)

    def test_a_rank_that_refused_it_is_passed_over_and_no_other_is_waited_for(self) -> None:
        callees = [CalleeRank(0, 1, ready=False, is_gone=False), CalleeRank(1, 1, ready=True, is_gone=False)]
        assert choose_callee(callees, [loss(0)], {}, 0, {2: ""}) == ResumePlace(1, 0)
        assert choose_callee(callees, [loss(0)], {}, 0, {1: ""}) is None

    @given(
        st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.booleans()), min_size=1, max_size=5),
        st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=6),
        st.integers(0, 9),
    )
    def test_nobody_who_lost_it_is_chosen_again_and_a_ready_one_is_not_passed_over(
        self, ranks: list[tuple[int, bool, bool]], lost: list[tuple[int, int]], turn: int
    ) -> None:
        callees = [CalleeRank(n, *facts) for n, facts in enumerate(ranks)]
        losses = [loss(rank, incarnation=incarnation) for rank, incarnation in lost]
        place = choose_callee(callees, losses, {}, turn)
        living = {callee.rank: callee for callee in callees if not callee.is_gone}
        assert (place is None) == (not living)
        if place is not None:
            assert all(place.after_incarnation >= loss.incarnation for loss in losses if loss.rank == place.rank)
            fresh = [c for c in living.values() if c.ready and not any(loss.rank == c.rank for loss in losses)]
            assert not fresh or living[place.rank].ready


class TestPoison:
    def test_three_deaths_at_one_place_are_the_requests_doing(self) -> None:
        deaths = [loss(0, 10), loss(1, 12), loss(2, 14)]
        assert StreamProgress(losses=deaths[:2]).poison_deaths(8) == ()
        assert StreamProgress(losses=deaths).poison_deaths(8) == tuple(deaths)
        assert StreamProgress(losses=[loss(5, 1), *deaths]).poison_deaths(8) == tuple(deaths)

    def test_deaths_between_which_it_got_on_are_not(self) -> None:
        assert StreamProgress(losses=[loss(0, 10), loss(1, 30), loss(2, 50)]).poison_deaths(8) == ()

    def test_an_orderly_end_breaks_the_row(self) -> None:
        assert StreamProgress(losses=[loss(0), loss(1, died=False), loss(2), loss(3)]).poison_deaths(8) == ()

    def test_one_process_counts_once(self) -> None:
        assert StreamProgress(losses=[loss(0), loss(0), loss(1)]).poison_deaths(8) == ()
        assert StreamProgress(losses=[loss(0), loss(0, incarnation=2), loss(1)]).poison_deaths(8)

    def test_callees_that_had_not_begun_count_half(self) -> None:
        found_dead = [loss(rank, opened=False) for rank in range(6)]
        assert StreamProgress(losses=[loss(9), *found_dead[:3]]).poison_deaths(8) == ()
        assert StreamProgress(losses=found_dead).poison_deaths(8) == tuple(found_dead)
        assert resumption.POISON_DEATHS == 3
