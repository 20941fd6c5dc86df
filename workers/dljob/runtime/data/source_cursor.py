"""Positions of a process in the partitions of a source. Pure: what is lost, repeated or gone follows from numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dljob.runtime.data.source_reader import Extent, SourceEvent
from dljob.telemetry.wording import counted

MISSING = 3
"""Looks in a row that do not show a partition until it counts as gone: a file that is being renamed is in none."""


@dataclass(slots=True)
class Cursor:
    """A partition that is leased to this process."""

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

    @property
    def lag(self) -> int:
        """Offsets that were not read yet."""
        return max(0, self.end - self.position)


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
    if extent.next < cursor.position:
        # Not read again: offsets that were read would name other events, and count as the same.
        word = (
            f"{cursor.name} went back: it ends at offset {extent.next}, and {cursor.position} was read. Nothing is read"
            " of it until it has passed that; if it was made anew, give the source another name"
        )
        said, cursor.fenced = cursor.fenced, word
        return PartitionNews(word="" if said else word)
    cursor.fenced = ""
    if extent.first > cursor.position:
        lost = (cursor.position, extent.first)
        cursor.position = extent.first
        return PartitionNews(lost, extent.note)
    return PartitionNews(word=extent.note)


def _absent(cursor: Cursor, span: int) -> PartitionNews:
    cursor.missing += 1
    if cursor.missing != MISSING or cursor.fenced:
        return PartitionNews()
    unread = f"{counted(cursor.lag, 'offset')} of it were not read" if cursor.lag else "all of it was read"
    word = f"{cursor.name} is gone at offset {cursor.position}: {unread}"
    cursor.fenced = word
    # The rest of the partition is given up, known or not: a successor would wait for it for ever.
    return PartitionNews((cursor.position, span), word)


def fresh(cursor: Cursor, events: Sequence[SourceEvent], now: float) -> list[SourceEvent]:
    """Return the events that are new, in order, and move the cursor past them. Those given again are counted."""
    found: list[SourceEvent] = []
    for event in events:
        if event.offset < cursor.position or event.next <= event.offset:
            cursor.repeated += 1
            continue
        found.append(event)
        cursor.position = event.next
        cursor.newest = event.time if cursor.newest is None else max(cursor.newest, event.time)
        cursor.active_at = now
    cursor.end = max(cursor.end, cursor.position)
    return found


def watermark(cursors: Iterable[Cursor], now: float, idle_s: float) -> float | None:
    """Return the time up to which events were read in all partitions; None before the first event.

    A partition without events for `idle_s` seconds does not hold it back, unless all are idle.
    """
    known = [(one.newest, one.active_at) for one in cursors if one.newest is not None]
    active = [newest for newest, at in known if now - at < idle_s]
    if active:
        return min(active)
    return max((newest for newest, _ in known), default=None)


def share(partitions: int, ranks: int) -> int:
    """Return how many partitions a rank holds at most, so that all ranks have work."""
    return -(-partitions // max(1, ranks))
