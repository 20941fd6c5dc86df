"""Positions of a process in the partitions of a source. Pure: what is lost, repeated or gone follows from numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dljob.master.state.shard_table import SPAN, Run
from dljob.runtime.data.source_reader import Extent, SourceEvent
from dljob.telemetry.wording import counted

MISSING = 3
"""Looks in a row that do not show a partition until it counts as gone: a file that is being renamed is in none."""


@dataclass(slots=True)
class Cursor:
    """A partition that is leased to this process: the offsets [position, until), and those of `rest`.

    A restore may leave several intervals of it to do. What lies between them is done, and is not read again.
    """

    number: int
    name: str
    position: int
    """The offset of the next event."""
    end: int = 0
    """The end of the partition when it was last seen."""
    newest: float | None = None
    """The latest time of an event that was read."""
    active_at: float = 0.0
    """When the last event was read, by the clock of `now`."""
    repeated: int = 0
    """Events that the source gave again, which were left out."""
    missing: int = 0
    """Looks in a row that did not show it."""
    fenced: str = ""
    """Why nothing is read of it."""
    until: int = SPAN
    """The end of the interval that is being read."""
    rest: list[Run] = field(default_factory=list[Run])
    """The intervals that are read after it, in order."""

    @property
    def unread(self) -> list[Run]:
        """The intervals that were not read yet, in order."""
        return [run for run in ((self.position, self.until), *self.rest) if run[0] < run[1]]

    @property
    def lag(self) -> int:
        """Offsets that were not read yet."""
        return sum(max(0, min(end, self.end) - start) for start, end in self.unread)


def read_next(cursor: Cursor, unread: Sequence[Run]) -> None:
    """Make a cursor read these intervals, in order."""
    if unread:
        (cursor.position, cursor.until), cursor.rest = unread[0], list(unread[1:])
    else:
        cursor.until, cursor.rest = cursor.position, []


def added(runs: Sequence[Run], known: Sequence[Run]) -> list[Run]:
    """Return the parts of intervals that no known interval has. Those that touch stay apart: partitions do."""
    new_parts = list(runs)
    for first, last in known:
        parts = (part for start, end in new_parts for part in ((start, min(end, first)), (max(start, last), end)))
        new_parts = [(start, end) for start, end in parts if start < end]
    return new_parts


def common(runs: Sequence[Run], interval: Run) -> list[Run]:
    """Return the parts of intervals that another interval has."""
    parts = ((max(start, interval[0]), min(end, interval[1])) for start, end in runs)
    return [(start, end) for start, end in parts if start < end]


@dataclass(frozen=True, slots=True)
class PartitionNews:
    """What a look at a partition showed: offsets [start, end) that are lost, and a word for users."""

    lost: tuple[int, int] | None = None
    word: str = ""


def look(cursor: Cursor, extent: Extent | None, span: int) -> PartitionNews:
    """Move a cursor past what is lost, fence it where the source went back, and return what happened."""
    if extent is None:
        return _absent(cursor, span)
    cursor.missing = 0
    cursor.end = extent.next
    # All before the last interval that is left was read, if not by this process.
    read = cursor.unread[-1][0] if cursor.unread else cursor.position
    if extent.next < read:
        # Not read again: offsets that were read would name other events, and count as the same.
        word = (
            f"{cursor.name} went back: it ends at offset {extent.next}, and {read} was read. Nothing is read"
            " of it until it has passed that; if it was made anew, give the source another name"
        )
        was_fenced, cursor.fenced = cursor.fenced, word
        return PartitionNews(word="" if was_fenced else word)
    cursor.fenced = ""
    if extent.first > cursor.position:
        lost = (cursor.position, extent.first)
        read_next(cursor, common(cursor.unread, (extent.first, span)))
        return PartitionNews(lost, extent.note)
    return PartitionNews(word=extent.note)


def _absent(cursor: Cursor, span: int) -> PartitionNews:
    cursor.missing += 1
    if cursor.missing != MISSING or cursor.fenced:
        return PartitionNews()
    unread = f"{counted(cursor.lag, 'offset')} of it were not read" if cursor.lag else "all of it was read"
    word = f"{cursor.name} is gone at offset {cursor.position}: {unread}"
    cursor.fenced = word
    read_next(cursor, ())
    # The rest of the partition is given up, known or not: a successor would wait for it for ever.
    return PartitionNews((cursor.position, span), word)


def fresh(cursor: Cursor, events: Sequence[SourceEvent], now: float) -> list[SourceEvent]:
    """Return the events that are new, in order, and move the cursor past them. Those given again are counted.

    An event behind the interval that is being read shows that there is none left in it: the cursor moves to its end.
    """
    new_events: list[SourceEvent] = []
    for event in events:
        if event.offset >= cursor.until:
            cursor.position = cursor.until
            break
        if event.offset < cursor.position or event.next <= event.offset:
            cursor.repeated += 1
            continue
        new_events.append(event)
        # An event that reaches beyond the interval counts as what is left of that: the offsets behind are done.
        cursor.position = min(event.next, cursor.until)
        cursor.newest = event.time if cursor.newest is None else max(cursor.newest, event.time)
        cursor.active_at = now
    cursor.end = max(cursor.end, cursor.position)
    return new_events


def watermark(cursors: Iterable[Cursor], now: float, idle_s: float) -> float | None:
    """Return the time up to which events were read in all partitions; None before the first event.

    A partition without events for `idle_s` seconds does not hold it back, unless all are idle.
    """
    known = [(cursor.newest, cursor.active_at) for cursor in cursors if cursor.newest is not None]
    active = [newest for newest, at in known if now - at < idle_s]
    if active:
        return min(active)
    return max((newest for newest, _ in known), default=None)


def share(partitions: int, ranks: int) -> int:
    """Return how many partitions a rank holds at most, so that all ranks have work."""
    return -(-partitions // max(1, ranks))
