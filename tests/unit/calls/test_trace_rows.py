"""Rows of traced calls: which calls are sampled, how rows are written and read, and what a full file keeps."""

from __future__ import annotations

import json

import pytest

from dljob.calls import trace_rows
from dljob.calls.trace_rows import (
    MAX_LEVEL,
    MAX_RATE,
    CalleeRow,
    CallerRow,
    RowsDropped,
    TracedRow,
    decode,
    encode,
    header,
    is_sampled,
    next_level,
    thin_rows,
)


def caller(number: int, **more: object) -> CallerRow:
    return CallerRow(f"ab:{number}", "t", 1, "m", 100.0 + number, 0.0, 0.5, 1, 100.0, "ok", 0, 10, 20)._replace(**more)


def lines(*rows: TracedRow) -> list[bytes]:
    return [text.encode() for text in (header("w", 2), *map(encode, rows))]


@pytest.mark.parametrize("level", range(8))
@pytest.mark.parametrize("nth", [1, 2, 3, 4, 7])
def test_each_level_samples_half_of_the_calls_also_of_each_nth_one(level: int, nth: int) -> None:
    count = sum(is_sampled(number, level) for number in range(1, nth * 4096 + 1, nth))
    assert count == pytest.approx(4096 >> level, rel=0.1)


def test_a_call_of_a_level_is_one_of_each_lower_level() -> None:
    for number in range(2**15):
        sampled = [is_sampled(number, level) for level in range(10)]
        assert sampled == sorted(sampled, reverse=True)


def test_the_level_follows_the_rate_and_does_not_swing() -> None:
    assert next_level(0, 0, MAX_RATE, 1.0) == 0
    assert next_level(0, 0, 5 * MAX_RATE, 1.0) == 3
    assert next_level(3, 0, MAX_RATE, 2.0) == 3
    assert next_level(3, 0, MAX_RATE, 8.0) == 2
    assert next_level(3, 3, 0, 1.0) == 3
    assert next_level(0, 2, MAX_RATE, 1.0) == 2
    assert next_level(0, 0, 10**12, 1.0) == MAX_LEVEL


def test_rows_are_read_as_they_were_written() -> None:
    rows = [caller(1, start=1.25), CalleeRow("c/0", "ab:1", "m", 2.5, 0.25, 1.5, "ValueError"), RowsDropped(3)]
    assert decode(lines(*rows)) == ("w", 2, rows, 0)


def test_torn_and_strange_lines_are_left_out_and_counted() -> None:
    good = caller(1)
    half = encode(caller(2)).encode()[:40]
    strange = [b"[]\n", b"3\n", b'["x",1]\n', b'["d","many"]\n', b'["c","too few"]\n', b'["d",1,2]\n', b"\xff\n", b"\n"]
    late = json.dumps(["s", "c/0", "ab:1", "m", "yesterday", 0, 0, "ok"]).encode()
    file = decode([*lines(good), half + b"\n", *strange, late, *lines(good)])
    assert file == ("w", 2, [good, good], 9)


def test_a_file_without_a_readable_first_line_is_none() -> None:
    assert decode([]) is None
    assert decode([b'{"f": 1, "ro']) is None
    assert decode([b'{"f": 99, "role": "w", "rank": 0}\n', encode(caller(1)).encode()]) is None


def test_a_full_file_keeps_sampled_calls_and_all_in_trouble() -> None:
    trouble = [caller(10_001, sends=2), caller(10_002, parked_s=1.0), caller(10_003, outcome="PeerLostError")]
    rows = [RowsDropped(4), *map(caller, range(1000)), *trouble]
    most = sum(len(encode(row)) for row in rows) // 3
    rows_left, level = thin_rows(rows, 0, most)
    assert level == 2
    assert rows_left[-3:] == trouble
    assert rows_left[0] == RowsDropped(4 + 1003 - (len(rows_left) - 1))
    assert all(is_sampled(trace_rows.call_number(row.id), 2) for row in rows_left[1:-3] if isinstance(row, CallerRow))
    assert sum(len(encode(row)) for row in rows_left[1:]) <= most
    assert thin_rows(rows_left, level, most) == (rows_left, level)


def test_where_all_calls_are_in_trouble_the_oldest_go() -> None:
    rows = [caller(number, sends=2) for number in range(100)]
    rows_left, level = thin_rows(rows, 3, 10 * len(encode(rows[50])))
    assert (rows_left, level) == ([RowsDropped(90), *rows[90:]], 3)
