"""Where a process stands in a partition: what is lost, repeated, gone, idle."""

from __future__ import annotations

from dljob.runtime.data.source_cursor import MISSING, Cursor, added, common, fresh, look, read_next, share, watermark
from dljob.runtime.data.source_reader import Extent, SourceEvent

SPAN = 1000


def event(offset: int, time: float = 0.0, after: int = 1) -> SourceEvent:
    return SourceEvent("p", offset, offset + after, b"", time)


def test_offsets_that_were_deleted_are_lost_with_their_range():
    cursor = Cursor(0, "p", 10)
    said = look(cursor, Extent(30, 50), SPAN)
    assert (said.lost, cursor.position, cursor.lag) == ((10, 30), 30, 20)
    assert look(cursor, Extent(30, 50, "torn"), SPAN).word == "torn"


def test_a_source_that_goes_back_is_not_read_until_it_has_passed_what_was_read():
    cursor = Cursor(0, "p", 10)
    said = look(cursor, Extent(0, 4), SPAN)
    assert said.word.startswith("p went back: it ends at offset 4, and 10 was read.")
    assert cursor.fenced
    assert look(cursor, Extent(0, 6), SPAN).word == "", "once"
    look(cursor, Extent(0, 12), SPAN)
    assert not cursor.fenced


def test_a_partition_is_gone_after_some_looks_and_its_rest_is_given_up():
    cursor = Cursor(0, "p", 10)
    look(cursor, Extent(0, 14), SPAN)
    looks = [look(cursor, None, SPAN) for _ in range(MISSING + 1)]
    assert [said.lost for said in looks] == [None] * (MISSING - 1) + [(10, SPAN), None]
    assert looks[MISSING - 1].word == "p is gone at offset 10: 4 offsets of it were not read"
    read = Cursor(0, "p", 10, end=10)
    assert [look(read, None, SPAN) for _ in range(MISSING)][-1].word == "p is gone at offset 10: all of it was read"


def test_a_partition_that_is_seen_again_in_time_is_not_gone():
    cursor = Cursor(0, "p", 10)
    for _ in range(MISSING):
        assert look(cursor, None, SPAN).lost is None
        look(cursor, Extent(0, 14), SPAN)
        if cursor.missing == 0:
            break
    assert cursor.missing == 0


def test_events_given_again_are_left_out_and_counted():
    cursor = Cursor(0, "p", 10)
    found = fresh(cursor, [event(9), event(10, 5.0), event(10), event(14, 3.0), event(15, after=0)], 7.0)
    assert [one.offset for one in found] == [10, 14]
    assert (cursor.position, cursor.repeated, cursor.newest, cursor.active_at) == (15, 3, 5.0, 7.0)


def test_the_watermark_is_that_of_the_slowest_partition_that_is_not_idle():
    slow, fast = Cursor(0, "a", 0, newest=5.0, active_at=100.0), Cursor(1, "b", 0, newest=9.0, active_at=108.0)
    silent = Cursor(2, "c", 0)
    assert watermark([slow, fast, silent], 109.0, 10.0) == 5.0
    assert watermark([slow, fast, silent], 111.0, 10.0) == 9.0
    assert watermark([slow, fast], 1000.0, 10.0) == 9.0, "all are idle"
    assert watermark([silent], 0.0, 1.0) is None


def test_each_rank_gets_its_share_of_partitions():
    assert [share(count, 2) for count in (0, 1, 2, 3)] == [0, 1, 1, 2]
    assert share(3, 0) == 3


def test_a_cursor_stops_at_the_end_of_its_interval_and_goes_on_with_the_next():
    cursor = Cursor(0, "p", 0, end=20, until=4, rest=[(8, SPAN)])
    assert (cursor.unread, cursor.lag) == ([(0, 4), (8, SPAN)], 16)
    assert [one.offset for one in fresh(cursor, [event(n) for n in range(10)], 7.0)] == [0, 1, 2, 3]
    assert (cursor.position, cursor.repeated, cursor.unread) == (4, 0, [(8, SPAN)])
    read_next(cursor, cursor.rest)
    assert (cursor.position, cursor.until, cursor.rest, cursor.lag) == (8, SPAN, [], 12)
    read_next(cursor, cursor.rest)
    assert (cursor.position, cursor.unread, cursor.lag) == (8, [], 0)


def test_an_event_behind_the_interval_shows_that_none_is_left_in_it():
    cursor = Cursor(0, "p", 2, until=4, rest=[(8, SPAN)])
    assert fresh(cursor, [event(6), event(9)], 7.0) == []
    assert (cursor.position, cursor.repeated) == (4, 0)


def test_an_event_that_reaches_beyond_the_interval_is_read_and_fills_it():
    cursor = Cursor(0, "p", 2, until=4, rest=[(8, SPAN)])
    assert [one.offset for one in fresh(cursor, [event(3, after=9), event(12)], 7.0)] == [3]
    assert cursor.unread == [(8, SPAN)]


def test_deleted_offsets_are_left_out_of_each_interval():
    cursor = Cursor(0, "p", 0, until=4, rest=[(8, 12), (20, SPAN)])
    assert look(cursor, Extent(10, 50), SPAN).lost == (0, 10)
    assert cursor.unread == [(10, 12), (20, SPAN)]
    look(cursor, Extent(15, 50), SPAN)
    assert cursor.unread == [(20, SPAN)]
    last = Cursor(0, "p", 4, until=8)
    look(last, Extent(15, 50), SPAN)
    assert last.unread == []


def test_a_partition_that_ends_before_an_interval_that_was_read_went_back():
    cursor = Cursor(0, "p", 0, until=4, rest=[(8, SPAN)])
    assert look(cursor, Extent(0, 6), SPAN).word.startswith("p went back: it ends at offset 6, and 8 was read.")
    assert cursor.fenced


def test_intervals_are_compared_by_their_parts():
    assert added([(0, 10), (20, 30)], [(2, 4), (8, 22), (40, 50)]) == [(0, 2), (4, 8), (22, 30)]
    assert added([(0, 4), (4, 8)], []) == [(0, 4), (4, 8)]
    assert added([(3, 4)], [(0, 9)]) == []
    assert common([(0, 4), (8, 12), (20, 30)], (2, 20)) == [(2, 4), (8, 12)]
