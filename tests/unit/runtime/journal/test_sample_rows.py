"""Rows of samples: their text, and which of them are kept with age and size."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest

from dljob.runtime.journal.sample_rows import (
    AGES,
    ROWS,
    DamagedRowError,
    Merge,
    Same,
    SampleRow,
    Segment,
    encode,
    keep_each,
    merges,
    rows,
    same_span,
    thinned,
)


def lines(*columns: dict[str, Any]) -> list[str]:
    found: list[str] = []
    before: dict[str, Any] | None = None
    for at, now in enumerate(columns):
        found.append(encode(SampleRow(float(at), now), before))
        before = now
    return found


def read(*text: str, same: Same = keep_each) -> list[SampleRow]:
    return list(rows([line.encode() for line in text], same))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([5, 6, 7], [6, 7, 8]),  # all together
        ([5, 6, 7], [6, 6, 9]),  # a little apart
        ([5, 6, 7], [5000, 6, 7]),  # far apart
        ([5, None, 7], [6, None, 9]),  # without a rank
        ([5, None, 7], [6, None, 8]),
        ([5, None, 7], [6000, None, 8]),
        ([5, None], [5, 1]),  # a first step
        ([5, 3], [5, None]),  # a rank that is not known any more
        ([5], [5, 1]),  # a role that grew
        ([30, 31], [5, 31]),  # a way back
        (None, [1]),
        ("pp", "pr"),
        (0.5, 0.25),
        (0.5, None),
        ([4, 8], [4, 8]),
    ],
)
def test_any_change_of_a_column_is_read_back(before, after):
    first, second = lines({"steps/w": before, "other": 1}, {"steps/w": after, "other": 1})
    row, last = read(first, second)
    assert (row.columns.get("steps/w"), row.columns["other"]) == (before, 1)
    assert last == SampleRow(1.0, {"steps/w": after, "other": 1})


def test_world_in_lockstep_costs_few_bytes():
    _, second = lines({"steps/w": [7] * 10_000}, {"steps/w": [8] * 10_000})
    assert len(second) < 40
    _, apart = lines({"steps/w": [7] * 1000}, {"steps/w": [8, 9] * 500})
    assert len(apart) < 1040


def test_unchanged_columns_are_left_out():
    assert lines({"a": 1, "b": "x"}, {"a": 1, "b": "y"})[1] == '{"t":1.0,"c":{"b":"y"}}\n'


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "null", "{}", '{"t":1,"f":2}', '{"t":"x","f":1}', '{"f":1}', "\x00\x00"]
)
def test_damaged_first_line_is_refused(line):
    with pytest.raises(DamagedRowError):
        read(f"{line}\n")


@pytest.mark.parametrize(
    "deltas", ['{"a":[1]}', '{"b":1}', '{"a":"<"}', '{"a":{}}', '{"x":1}', '{"a":"\u00e9\u00e9"}', '{"a":["x",1]}', "7"]
)
def test_difference_that_does_not_fit_is_refused(deltas):
    with pytest.raises(DamagedRowError):
        read('{"t":1,"f":1,"c":{"a":[1,2],"x":5}}\n', f'{{"t":2,"d":{deltas}}}\n')


def test_rows_that_are_passed_over_are_part_of_the_next():
    columns: list[dict[str, Any]] = [{"a": [0, None, 5]}, {"a": [1, None, 5]}, {"a": [2, None, 6]}, {"a": [3, None, 7]}]
    columns += [{"a": [1000, None, 7]}, {"a": [1, 1, 1]}, {"a": [2, 1, 1]}]
    found = read(*lines(*columns), same=same_span(4))
    assert [(row.at, row.columns) for row in found] == [(3.0, columns[3]), (6.0, columns[6])]
    assert [row.columns for row in read(*lines(*columns))] == columns


def test_line_without_its_end_is_left_out():
    whole, torn = (line.encode() for line in lines({"a": 1}, {"a": 2}))
    assert [row.columns for row in rows([whole, torn[:-1]])] == [{"a": 1}]
    with pytest.raises(DamagedRowError):
        list(rows([whole, torn[:5] + b"\n", torn]))


def of(times: Iterable[float]) -> list[SampleRow]:
    return [SampleRow(at, {"n": at}) for at in times]


def test_last_row_of_each_span_is_kept():
    assert [row.at for row in thinned(of([1, 2, 9, 10, 11, 25]), same_span(10))] == [9, 11, 25]
    assert list(thinned([], same_span(10))) == []


def test_rows_of_a_clock_that_went_back_are_left_out():
    assert [row.at for row in thinned(of([100, 101, 50, 101, 102]), keep_each)] == [100, 101, 102]


def segment(number: int, until: float, *, seconds: float = 1, count: int = 600, size: int = 1000) -> Segment:
    return Segment(number, number, seconds, count, until, size)


NOW = 1_000_000.0


def test_rows_of_the_last_hour_stay():
    assert merges([segment(n, NOW - 3600 + 600 * n) for n in range(1, 7)], NOW, 10**9) == []


def test_rows_older_than_an_hour_are_thinned_together():
    old = [segment(n, NOW - 3600 - 600 * (6 - n)) for n in range(1, 7)]
    young = [segment(n, NOW - 600 * (13 - n)) for n in range(7, 13)]
    assert merges([*old, *young], NOW, 10**9) == [Merge(tuple(old[:5]), 10.0)]


def test_rows_older_than_a_day_are_thinned_again():
    count = ROWS
    old = [segment(n, NOW - 2 * 86400 + 3000 * n, seconds=10, count=count) for n in range(1, 8)]
    (merge,) = merges(old, NOW, 10**9)
    assert merge.seconds == 60
    assert merge.segments == tuple(old[:6])


def test_few_rows_between_thin_ones_are_merged_though_they_are_few():
    thin = segment(1, NOW - 9000, seconds=10)
    alone = segment(2, NOW - 8000)
    after = segment(3, NOW - 7000, seconds=10)
    assert merges([thin, alone, after], NOW, 10**9) == [Merge((alone,), 10.0)]
    assert merges([thin, alone], NOW, 10**9) == []


def test_size_bound_thins_beyond_the_age():
    segments = [segment(n, NOW - 600 * (6 - n), size=1000) for n in range(1, 7)]
    assert merges(segments, NOW, 6000) == []
    assert {merge.seconds for merge in merges(segments, NOW, 5999)} == {2.0}
    assert [(len(merge.segments), merge.seconds) for merge in merges(segments, NOW, 800)] == [(4, 8.0), (2, 8.0)]


def test_each_age_has_a_coarser_resolution():
    assert [age for age, _ in AGES] == sorted(age for age, _ in AGES)
    assert AGES[-1][0] == math.inf
    assert [seconds for _, seconds in AGES] == [1, 10, 60]
