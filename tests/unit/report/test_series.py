"""Samples as a page shows them: narrowed, shortened, and lanes made of them."""

from __future__ import annotations

from typing import Any

from dljob.report import series
from dljob.runtime.journal.samples import Samples
from dljob.telemetry.job_samples import ACCOUNTS


def _data(**parts: Any) -> dict[str, Any]:
    return Samples(times=[1.0, 2.0, 3.0]).data() | parts


def test_without_a_sample_there_is_no_part() -> None:
    assert series.samples_part(Samples().data()) is None


def test_series_of_few_ranks_stay_one_by_one() -> None:
    steps = {"t": [[1, 2, None], [1, 3, 4]]}
    found = series.samples_part(_data(steps=steps, progress={"loss": [0.123456789, None, 2.0]}))
    assert found
    assert found["times"] == [1.0, 2.0, 3.0]
    assert found["steps"] == steps
    assert found["progress"] == {"loss": [0.123457, None, 2.0]}


def test_series_of_many_ranks_become_three() -> None:
    ranks = series.RANKS + 1
    by_rank = [[rank, None, 10 + rank] for rank in range(ranks)]
    by_rank[0][2] = None
    assert series.narrowed(by_rank) == {"low": [0, None, 11], "middle": [8, None, 19], "high": [16, None, 26]}


def test_calls_queues_and_weights_go_to_the_page() -> None:
    calls = {"a>b.c": {"sent": [1, 2, 3]}}
    queues = {"q": {"items": [1, 2, 3], "capacity": [9, 9, 9]}}
    weights = {"policy": {"published": [1, 1, 2], "held": {"r": [[0, 1, 1]] * (series.RANKS + 1)}}}
    found = series.samples_part(_data(calls=calls, queues=queues, weights=weights, memory={"t": [[1, 2, 3]]}))
    assert found
    assert (found["calls"], found["queues"], found["memory"]) == (calls, queues, {"t": [[1, 2, 3]]})
    assert found["weights"]["policy"]["held"]["r"]["middle"] == [0, 1, 1]


def test_lanes_follow_the_letters_of_samples() -> None:
    init, productive = ACCOUNTS.index("init"), ACCOUNTS.index("productive")
    found = series.lanes(_data(accounts={"t": ["i", "pi", "p-"]}), 5.0)
    assert found == {"t": [[1.0, init, 2.0, productive, 5.0, -1], [2.0, init, 3.0, -1, 5.0, -1]]}
    assert series.lanes(_data(accounts={"t": [None, "?", None]}), 5.0) == {"t": [[2.0, -1, 5.0, -1]]}
    assert series.lanes(_data(), 5.0) is None
