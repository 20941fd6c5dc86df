"""Ranks of a world that ended with code 0 while the others wait: the words, and the wait that nobody else sees."""

from __future__ import annotations

import pytest

from dljob.master.state import early_end, limits
from dljob.master.state.early_end import EndedRank
from dljob.master.state.hang import Pace, ProcessSample, SamplePair, Where
from dljob.spec.policy import HangPolicy

POLICY = HangPolicy(action="Restart", idleSeconds=10, busySeconds=100)
IN_COLLECTIVE = ProcessSample(activity=Where.COLLECTIVE, call="barrier")
IN_CODE = ProcessSample(activity=Where.USER)
WAITS, IDLE = SamplePair(IN_COLLECTIVE, IN_COLLECTIVE, 1.0), SamplePair(IN_CODE, IN_CODE, 1.0)
WORKS = SamplePair(IN_CODE, ProcessSample(cpu_s=1.0, activity=Where.USER), 1.0)
UNKNOWN = SamplePair(ProcessSample(), ProcessSample(), 1.0)
ENDED = {1: EndedRank(8, 100.0)}


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([0], "w/0"), ([0, 2], "w/0 and 2"), ([0, 2, 3], "w/0, 2 and 3"), ([*range(9)], "w/0, 1, 2 and 6 more")],
)
def test_ranks_in_words(ranks, words):
    assert early_end.ranks_in_words("w", ranks) == words


def test_a_wait_is_looked_into_after_the_bound_of_idle_ranks_since_the_end_or_the_last_step():
    assert not early_end.must_look({}, {}, 1e6, POLICY)
    assert not early_end.must_look(ENDED, {}, 110.0, POLICY)
    assert early_end.must_look(ENDED, {}, 110.1, POLICY)
    few, slow = Pace(1, 9, 105.0), Pace(1, 9, 101.0, times=(1.0,) * 5, steps=5)
    assert not early_end.must_look(ENDED, {0: few}, 114.0, POLICY)
    assert not early_end.must_look(ENDED, {0: slow}, 120.0, POLICY), "30 median steps"
    assert early_end.must_look(ENDED, {0: slow}, 132.0, POLICY)


@pytest.mark.parametrize(
    ("looks", "rank"),
    [
        ({0: WAITS, 2: WAITS}, 1),
        ({0: WAITS, 2: IDLE}, 1),
        ({0: WAITS, 2: WORKS}, None),
        ({0: WAITS, 2: UNKNOWN}, None),
        ({0: IDLE, 2: IDLE}, None),
        ({}, None),
    ],
)
def test_the_rank_that_ended_is_named_where_nobody_works_elsewhere(looks, rank):
    found = early_end.find_wait("w", ENDED, {}, looks)
    assert (found and found.rank) == rank
    if found:
        assert found.message.startswith("ended with code 0 at step 8; w/0")
        assert found.message.endswith("in barrier: uneven data?")


def test_ranks_that_went_on_for_long_do_not_wait_for_it():
    on = Pace(1, 20, 100.0 + limits.SAME_FAILURE_WINDOW_S + 1)
    assert early_end.find_wait("w", ENDED, {0: on}, {0: WAITS, 2: WAITS}) is None
    assert early_end.find_wait("w", {1: EndedRank(None, 100.0)}, {0: on}, {0: WAITS}) is not None
    soon = Pace(1, 20, 101.0)
    assert early_end.find_wait("w", ENDED, {0: soon}, {0: WAITS}) is not None
