"""A start reads a segment from its last whole snapshot on, however much is before it."""

from __future__ import annotations

import pytest

from dljob.errors import JournalError
from dljob.telemetry import records
from dljob.telemetry.records import Header, SegmentBytes, encode_header, encode_line, scan_on, scan_tail


def snapshot(number: int, parts: int = 2) -> list[dict[str, object]]:
    head = {"k": "snapshot", "at": 1.5, "plan": "p", "of": parts}
    return [{**head, "i": i, "d": f'{number}.{i} "r":{{"k":"snapshot","i":0,'} for i in range(parts)]


def segment(*records: dict[str, object]) -> bytes:
    lines = [encode_line(number, record) for number, record in enumerate(records, 1)]
    return b"".join([encode_header(Header(1)), *lines])


def source(data: bytes) -> SegmentBytes:
    return SegmentBytes(len(data), lambda start, end: data[start:end])


LATE = [{"k": "event", "n": n} for n in range(3)]
EARLY = [{"k": "event", "n": n, "pad": "x" * 50} for n in range(100)]


@pytest.mark.parametrize("window", [1, 64, 4096, 2**20])
@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ([], []),
        (EARLY, EARLY),
        (snapshot(1) + LATE, snapshot(1) + LATE),
        (EARLY + snapshot(1) + LATE, snapshot(1) + LATE),
        (EARLY + snapshot(1) + EARLY + snapshot(2) + LATE, snapshot(2) + LATE),
        (EARLY + snapshot(1) + LATE + snapshot(2)[:1], snapshot(1) + LATE + snapshot(2)[:1]),
    ],
)
def test_a_tail_begins_with_the_last_whole_snapshot(
    monkeypatch: pytest.MonkeyPatch, window: int, written: list[dict[str, object]], kept: list[dict[str, object]]
) -> None:
    monkeypatch.setattr(records, "WINDOW", window)
    data = segment(*written)
    got = scan_tail(source(data + b'{"n":99'))
    first = len(got.records) - len(kept)
    assert [dict(record) for record in got.records[first:]] == kept
    assert window > 4096 or not first, "what a snapshot supersedes is read where all is read at once alone"
    assert (got.header, got.valid_bytes, got.torn_tail) == (Header(1), len(data), True)


def test_a_tail_ends_at_its_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "WINDOW", 64)
    data = segment(*EARLY, *snapshot(1), *LATE)
    fence = len(data) - len(encode_line(105, LATE[2]))
    got = scan_tail(source(data), limit=fence)
    assert [dict(record) for record in got.records] == [*snapshot(1), *LATE[:2]]
    with pytest.raises(JournalError, match="its successor counts on"):
        scan_tail(source(data), limit=len(data) + 1)


def test_damage_in_a_tail_is_refused_and_damage_before_it_matters_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "WINDOW", 64)
    data = segment(*EARLY, *snapshot(1), *LATE)
    assert scan_tail(source(data.replace(b'"n":7,"pad"', b'"n":8,"pad"'))).records[0]["k"] == "snapshot"
    bad = data.replace(b'{"n":103,', b'{"n":109,')
    with pytest.raises(JournalError, match="the checksum of line 103 is wrong") as caught:
        scan_tail(source(bad))
    assert caught.value.offset == bad.index(b'{"n":109,')
    spoilt = data.replace(b'"of":2,"i":0', b'"of":3,"i":0')
    with pytest.raises(JournalError, match="the checksum of a line is wrong"):
        scan_tail(source(spoilt))


def test_a_tail_without_a_header_is_none() -> None:
    assert scan_tail(source(b'{"n":0')).header is None
    assert scan_tail(source(b"")).torn_tail is False
    with pytest.raises(JournalError, match="does not begin with a header"):
        scan_tail(source(b"x" * 2 * records.HEADER_MAX))


def test_a_file_that_is_no_journal_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "WINDOW", 1)
    monkeypatch.setattr(records, "MOST_READ", 64)
    with pytest.raises(JournalError, match="no whole snapshot in its last"):
        scan_tail(source(segment(*EARLY)))


def test_a_later_scan_reads_on_behind_an_earlier_one() -> None:
    first = scan_tail(source(segment(*EARLY)))
    whole = segment(*EARLY, *LATE)
    later = scan_on(first, source(whole + b'{"n":99'))
    assert [dict(record) for record in later.records] == [*EARLY, *LATE]
    assert all(old is new for old, new in zip(first.records, later.records, strict=False))
    assert (later.valid_bytes, later.torn_tail) == (len(whole), True)


def test_a_scan_beyond_a_fence_or_without_a_header_begins_anew() -> None:
    whole = segment(*EARLY, *LATE)
    fence = len(segment(*EARLY))
    fenced = scan_on(scan_tail(source(whole)), source(whole), limit=fence)
    assert [dict(record) for record in fenced.records] == EARLY
    begun = scan_on(scan_tail(source(b"")), source(whole))
    assert len(begun.records) == len(EARLY) + len(LATE)
