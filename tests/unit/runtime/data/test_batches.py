"""Global batches: the same samples in each step whatever the number of ranks, and no rank calls more collectives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.errors import UsageError
from dljob.runtime.data.batches import GlobalBatch, global_batches

sizes = st.integers(1, 60)
worlds = st.integers(1, 9)


def of_all(size: int, batch: int, world: int, **more: Any) -> list[list[GlobalBatch]]:
    """Step -> what each rank has of it."""
    ranks = [list(global_batches(size, batch, rank=rank, world=world, **more)) for rank in range(world)]
    return [list(step) for step in zip(*ranks, strict=True)]


@given(sizes, sizes, worlds, st.none() | st.integers(1, 9), st.none() | st.integers())
def test_each_sample_is_in_one_step_of_an_epoch_and_in_one_rank(size, batch, world, micro, seed):
    steps = of_all(size, batch, world, micro=micro, seed=seed, epochs=2)
    for epoch in (0, 1):
        seen = [each for step in steps for own in step if own.epoch == epoch for each in own.samples]
        assert sorted(seen) == list(range(size))
    for number, step in enumerate(steps):
        assert {own.step for own in step} == {number}
        assert {own.size for own in step} == {sum(len(own.samples) for own in step)}
        assert len({len(own.parts) for own in step}) == 1, "all call the same collectives"
        shares = [len(own.samples) for own in step]
        assert max(shares) - min(shares) <= 1
        assert all(len(part) <= (micro or batch) for own in step for part in own.parts)


@given(sizes, sizes, worlds, worlds, st.integers(0, 20))
def test_a_step_has_the_same_samples_in_a_world_of_another_size(size, batch, one, other, first):
    whole = of_all(size, batch, one, seed=3, epochs=2)
    rest = of_all(size, batch, other, seed=3, epochs=2, first=first)
    samples = [sorted(each for own in step for each in own.samples) for step in whole]
    assert samples[first:] == [sorted(each for own in step for each in own.samples) for step in rest]


@pytest.mark.parametrize("world", [1, 3, 4])
def test_the_mean_over_ranks_of_what_is_weighed_is_the_mean_over_the_batch(world):
    for step in of_all(23, 10, world, micro=2):
        mean = sum(own.weight * sum(own.samples) for own in step) / world
        everything = [each for own in step for each in own.samples]
        assert mean == pytest.approx(sum(everything) / len(everything))


def test_fewer_samples_than_ranks_leave_some_with_nothing_and_as_many_micro_batches():
    (_, last) = of_all(6, 4, 4)
    assert [own.parts for own in last] == [((),), ((4,),), ((),), ((5,),)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"size": 0}, "size=0"),
        ({"batch": True}, "batch=True"),
        ({"micro": 0}, "micro=0"),
        ({"epochs": 1.5}, "epochs=1.5"),
        ({"first": -1}, "first=-1"),
        ({"rank": 2, "world": 2}, "counted from 0"),
        ({"rank": -1, "world": 2}, "rank=-1"),
        ({"rank": 1}, "go together"),
        ({"world": 1}, "go together"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_at_once(wrong, words):
    with pytest.raises(UsageError, match=words):
        global_batches(
            **{
                "size": 8,
                "batch": 4,
                **({} if "rank" in wrong or "world" in wrong else {"rank": 0, "world": 1}),
                **wrong,
            }
        )


def test_the_rank_defaults_to_the_one_that_asks(monkeypatch):
    class Me:
        rank, world_size = 1, 2

    monkeypatch.setattr("dljob.runtime.data.batches.current_worker", Me)
    assert [own.samples for own in global_batches(8, 4)] == [(2, 3), (6, 7)]
