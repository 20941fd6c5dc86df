"""event_file: events from the beginning, and the last ones from the end, of a file that may be huge and torn."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dljob.runtime.journal import event_file
from dljob.runtime.journal.event_file import each_event, events_before, last_events


def event(seq: int, message: str = "") -> dict[str, Any]:
    return {"seq": seq, "time": 1.0, "reason": "Restarting", "target": "w/0", "message": message}


def text(*events: Any) -> str:
    return "".join(f"{one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)}\n" for one in events)


def seqs(events: Any) -> list[int]:
    return [one["seq"] for one in events]


def test_only_the_end_of_a_large_file_is_read(tmp_path, monkeypatch):
    file = tmp_path / "events.jsonl"
    file.write_text(text(*(event(n, "x" * 100) for n in range(1, 20_001))))
    read = 0
    pread = os.pread

    def counting(fd: int, size: int, at: int) -> bytes:
        nonlocal read
        read += size
        return pread(fd, size, at)

    monkeypatch.setattr(event_file.os, "pread", counting)
    assert seqs(last_events(file, 100)) == list(range(19_901, 20_001))
    assert read <= event_file.BLOCK, "a hundred events fit a block"
    assert seqs(last_events(file, 1000)) == list(range(19_001, 20_001))
    assert read <= 5 * event_file.BLOCK


LINES = st.lists(st.one_of(
    st.integers(1, 60).map(event),
    st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=30),
    st.sampled_from(["", "[]", "7", "{}", '{"seq": "1"}', '{"seq": 3, "ti']),
), max_size=40)  # fmt: skip


@settings(deadline=None)
@given(LINES, st.integers(1, 50), st.integers(0, 40), st.booleans())
def test_the_last_events_are_whole_and_in_order_whatever_the_file_holds(lines, block, count, torn):
    import tempfile

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_file, "BLOCK", block)
        file = Path(folder) / "events.jsonl"
        file.write_text(text(*lines)[: -7 if torn else None])
        found = last_events(file, count)
        assert len(found) <= count
        assert seqs(found) == sorted(set(seqs(found)))
        growing: list[dict[str, Any]] = [one for one in lines if isinstance(one, dict)]
        if not torn and seqs(growing) == sorted(set(seqs(growing))):
            assert found == growing[max(0, len(growing) - count) :]
            assert list(each_event(file)) == growing


def every(_: object) -> bool:
    return True


def every_nth(number: int) -> Any:
    return lambda one: one["seq"] % number == 0


def pages_before(file: Path, seq: int, count: int, wanted: Any = every) -> list[list[int]]:
    """Numbers of the events of all pages before an event, the last page first."""
    found: list[list[int]] = []
    while seq > 1:
        page = events_before(file, seq, count, wanted)
        assert page.before < seq
        found.append(seqs(page.events))
        seq = page.before
    return found


def test_pages_of_earlier_events_are_found_without_reading_what_is_around(tmp_path, monkeypatch):
    file = tmp_path / "events.jsonl"
    file.write_text(text(*(event(n, "x" * 100) for n in range(1, 20_001))))
    read: list[int] = []
    pread = os.pread
    monkeypatch.setattr(event_file.os, "pread", lambda fd, size, at: read.append(size) or pread(fd, size, at))
    page = events_before(file, 10_000, 100, every)
    assert (seqs(page.events), page.before) == (list(range(9_900, 10_000)), 9_900)
    assert sum(read) <= 12 * event_file.BLOCK, "a bisection of 48 blocks, and the events themselves"
    assert [len(one) for one in pages_before(file, 2_001, 900)] == [900, 900, 200]
    assert events_before(file, 1, 10, every) == ([], 1)
    assert events_before(tmp_path / "none", 5, 10, every) == ([], 1)


def test_a_search_for_few_events_ends_early_and_goes_on_where_it_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(event_file, "SEARCHED", 100_000)
    monkeypatch.setattr(event_file, "BLOCK", 4096)
    file = tmp_path / "events.jsonl"
    file.write_text(text(*(event(n, "x" * 100) for n in range(1, 5_001))))
    pages = pages_before(file, 5_001, 10, lambda one: one["seq"] in (7, 4_000, 4_001))
    assert [one for page in pages for one in page[::-1]] == [4_001, 4_000, 7]
    assert len(pages) > 5


@settings(deadline=None)
@given(st.integers(1, 50), st.lists(st.tuples(st.integers(0, 49), st.integers(1, 50)), max_size=5),
       st.integers(20, 400), st.integers(1, 20), st.integers(1, 9))  # fmt: skip
@example(50, [(38, 3)], 100, 20, 7)
def test_each_earlier_event_is_on_one_page_whatever_a_fenced_master_wrote_late(count, late, block, at_once, each):
    import tempfile

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in (("BLOCK", block), ("SEARCHED", 500), ("LATE", 8)):
            patch.setattr(event_file, name, value)
        lines: list[Any] = [event(n) for n in range(1, count + 1)]
        for place, number in sorted(late, reverse=True):
            if number <= place < len(lines):
                lines.insert(place, event(number, "late"))
        file = Path(folder) / "events.jsonl"
        file.write_text(text(*lines, '{"seq": 4, "ti'))
        found = [one for page in pages_before(file, count + 1, at_once, every_nth(each)) for one in page[::-1]]
        assert found == [number for number in range(count, 0, -1) if number % each == 0]


def test_events_that_two_masters_wrote_count_once(tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_text(text(event(1), event(2), event(2), event(1), '{"seq": 3, "mess', event(3)))
    assert seqs(each_event(file)) == [1, 2, 3]
    assert seqs(each_event(file, 1)) == [2, 3]
    assert seqs(last_events(file, 2)) == [2, 3]
    file.write_text(text(event(1), event(2), event(3), event(1, "late"), event(4), event(2, "late")))
    assert [one["message"] for one in last_events(file, 4)] == [""] * 4


def test_a_line_that_never_ends_is_left_out_and_kept_out_of_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(event_file, "BLOCK", 10)
    monkeypatch.setattr(event_file, "LINE_BYTES", 100)
    file = tmp_path / "events.jsonl"
    file.write_text(text(event(1), event(2, "y" * 1000), event(3, "z" * 10)))
    assert seqs(last_events(file, 5)) == [1, 3]
    monkeypatch.setattr(event_file, "LINE_BYTES", 2000)
    assert seqs(last_events(file, 5)) == [1, 2, 3]


def test_without_a_regular_file_there_are_no_events(tmp_path):
    assert (last_events(tmp_path / "none", 1), list(each_event(tmp_path / "none"))) == ([], [])
    os.mkfifo(tmp_path / "pipe")
    assert last_events(tmp_path / "pipe", 1) == []
