"""Traced calls in a trace, read by a parser of the format: slices, waits, arrows, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_format import Trace, parse

from dljob.calls.trace_rows import CalleeRow, CallerRow, RowsDropped, TracedFile, TracedRow, encode, header
from dljob.report import call_files, traced_calls
from dljob.report import trace_events as traces
from dljob.telemetry.job_samples import ACCOUNTS

S = 1_000_000


def caller(number: int, start: float, seconds: float, **more: object) -> CallerRow:
    row = CallerRow(f"ab:{number}", "g", 0, "make", start, 0.0, seconds, 1, start, "ok", 0, 10, 20)
    return row._replace(**more)


def callee(number: int, start: float, seconds: float, **more: object) -> CalleeRow:
    return CalleeRow("t/0", f"ab:{number}", "make", start, 0.0, seconds, "ok")._replace(**more)


def drawn(callers: list[TracedRow], callees: list[TracedRow]) -> Trace:
    lanes = {"t": [[100.0, ACCOUNTS.index("productive")]], "g": [[100.0, ACCOUNTS.index("productive")]]}
    data = {"lanes": lanes, "accounts": ACCOUNTS, "incidents": [], "samples": None}
    files = [TracedFile("t", 0, callers, 0), TracedFile("g", 0, callees, 0), TracedFile("gone", 7, callers, 0)]
    events = traces.trace(data, {("t", 0): "n0", ("g", 0): "n1"}, 110.0, files)
    return parse(json.dumps({"traceEvents": list(events)}))


def test_a_call_is_a_slice_of_both_sides_joined_by_an_arrow() -> None:
    made = drawn([caller(1, 101.0, 2.0)], [callee(1, 101.5, 1.0)])
    assert made.threads == {(2, 1): "t/0", (3, 2): "g/0", (2, 3): "t/0 calls", (3, 4): "g/0 calls"}
    assert made.slices["t/0 calls"] == [(1 * S, 3 * S, "call g.make")]
    assert made.slices["g/0 calls"] == [(1_500_000, 2_500_000, "run make")]
    assert made.flows == [("g.make", "t/0 calls", "g/0 calls")]


def test_calls_at_a_time_are_on_threads_of_their_own() -> None:
    made = drawn([caller(1, 101.0, 5.0), caller(2, 102.0, 1.0), caller(3, 104.0, 3.0), RowsDropped(3)], [])
    assert made.slices["t/0 calls"] == [(1 * S, 6 * S, "call g.make")]
    assert made.slices["t/0 calls 2"] == [(2 * S, 3 * S, "call g.make"), (4 * S, 7 * S, "call g.make")]


def test_more_calls_at_a_time_than_threads_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_calls, "THREADS", 3)
    made = drawn([caller(number, 101.0, 5.0) for number in range(5)], [])
    assert [name for name in made.slices if "calls" in name] == ["t/0 calls", "t/0 calls 2"]


def test_waits_are_drawn_inside_their_calls() -> None:
    parked = caller(1, 101.0, 3.0, parked_s=1.5, sent_at=103.0, sends=2)
    never = caller(2, 105.0, 1.0, parked_s=1.0, sent_at=0.0, sends=0, outcome="CallTimeoutError")
    made = drawn([parked, never], [callee(1, 103.0, 0.5, waited_s=0.25)])
    assert sorted(made.slices["t/0 calls"]) == [
        (1 * S, 4 * S, "call g.make"),
        (1_500_000, 3 * S, "parked"),
        (5 * S, 6 * S, "call g.make"),
        (5 * S, 6 * S, "parked"),
    ]
    assert made.slices["g/0 calls"] == [(3 * S, 3_500_000, "run make"), (3 * S, 3_250_000, "waits to begin")]


def test_a_call_that_was_sent_again_has_an_arrow_to_each_run() -> None:
    made = drawn([caller(1, 101.0, 5.0, sent_at=104.0, sends=2)], [callee(1, 101.5, 0.5), callee(1, 104.5, 1.0)])
    assert made.flows == [("g.make", "t/0 calls", "g/0 calls")] * 2


def test_where_clocks_differ_too_much_there_is_no_arrow() -> None:
    assert drawn([caller(1, 105.0, 1.0)], [callee(1, 101.0, 1.0)]).flows == []


def test_times_before_the_trace_and_clocks_that_went_back_are_no_error() -> None:
    made = drawn([caller(1, 99.0, 2.0, parked_s=9.0), caller(2, 104.0, -1.0)], [callee(1, 99.5, 1.0, waited_s=7.0)])
    assert made.slices["t/0 calls"] == [(0, 1 * S, "call g.make"), (0, 0, "parked"), (4 * S, 4 * S, "call g.make")]
    assert made.slices["g/0 calls"] == [(0, 500_000, "run make"), (0, 500_000, "waits to begin")]


def test_files_are_read_and_what_is_missing_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "calls"
    assert call_files.load(tmp_path) == ([], [])
    folder.mkdir()
    row = caller(1, 101.0, 2.0)
    (folder / "t-0.a.jsonl").write_text(header("t", 0) + encode(row) + encode(RowsDropped(3)) + '["c","torn')
    (folder / "t-0.b.jsonl").write_text("nonsense")
    (folder / "t-0.c.jsonl").mkdir()
    files, unread = call_files.load(tmp_path)
    assert files == [TracedFile("t", 0, [row, RowsDropped(3)], 1)]
    assert unread == [
        "calls: t-0.b.jsonl is damaged, or of another version of dljob",
        "calls: t-0.c.jsonl: Is a directory",
        "calls: 3 sampled ones were dropped: there was no room for them",
        "calls: 1 damaged line left out, as a killed process leaves them",
    ]


def test_calls_on_a_volume_are_those_of_the_attempt(tmp_path: Path) -> None:
    for attempt in (1, 2):
        (tmp_path / "calls" / f"attempt-{attempt}").mkdir(parents=True)
        (tmp_path / "calls" / f"attempt-{attempt}" / "t-0.a.jsonl").write_text(header("t", attempt))
    (tmp_path / "attempt").write_text("2")
    assert [own.rank for own in call_files.load(tmp_path)[0]] == [2]
    assert [own.rank for own in call_files.load(tmp_path / "earlier" / "attempt-1")[0]] == [1]
