"""Reading of `events.jsonl`: from its beginning, line by line, or in blocks backwards, from its end or from an event.

A file may have a million events, torn lines, and events that two masters wrote; memory never holds more of it than is
asked for.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from dljob.linux.plain_files import SKIPPED_BYTES, bounded_lines, open_plain, parse_json

BLOCK = 64 << 10
LATE = 256
"""Events read beyond those asked for: so many may a fenced master have appended behind those of its successor."""
LINE_BYTES = 1 << 20
"""Longest line that is kept together: a longer one is no event."""
SEARCHED = 8 << 20
"""Bytes that one question for earlier events reads, at most: its asker goes on where it ended."""


class EarlierEvents(NamedTuple):
    """Events before one, oldest first."""

    events: list[dict[str, Any]]
    before: int
    """Number of the earliest event that was looked at, where the next question goes on; 1: there is none before it."""


def each_event(file: Path, after_seq: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the events with a number greater than `after_seq`, oldest first, each once; none without a file.

    A master that was fenced while it wrote may leave an event that its successor wrote, too: only growing numbers
    count.
    """
    try:
        stream = open_plain(file)
    except OSError:
        return  # no event was written yet, or the folder is gone
    with stream:
        for line in bounded_lines(stream, LINE_BYTES):
            event = parse_event(line)
            if event is not None and event["seq"] > after_seq:
                yield event
                after_seq = event["seq"]


def last_events(file: Path, count: int) -> list[dict[str, Any]]:
    """Return the last `count` events, oldest first, each once; of a large file only its end is read."""
    event_by_seq: dict[int, dict[str, Any]] = {}
    with suppress(OSError):  # as above: there are no events either way
        fd = _opened(file)
        try:
            for read, (event, _) in enumerate(_events_backwards(fd, _size(fd)), 1):
                event_by_seq[event["seq"]] = event  # of two, the one that was written first
                if read >= count + LATE:
                    break
        finally:
            os.close(fd)
    return [event_by_seq[seq] for seq in sorted(event_by_seq)[max(0, len(event_by_seq) - count) :]]


def events_before(file: Path, seq: int, count: int, is_wanted: Callable[[dict[str, Any]], bool]) -> EarlierEvents:
    """Return the last `count` wanted events with a smaller number, of those within about SEARCHED bytes before it."""
    event_by_seq: dict[int, dict[str, Any]] = {}
    latest: deque[int] = deque(maxlen=LATE)
    begin, looked, read_to_start = None, 0, True
    with suppress(OSError):  # as above
        fd = _opened(file)
        try:
            for event, read_down_to in _events_backwards(fd, _offset_of(fd, seq)):
                if event["seq"] >= seq:
                    continue
                begin = read_down_to if begin is None else begin
                looked += 1
                latest.append(event["seq"])
                if is_wanted(event):
                    event_by_seq[event["seq"]] = event  # of two, the one that was written first
                if len(event_by_seq) >= count + LATE or (begin - read_down_to > SEARCHED and looked > 2 * LATE):
                    read_to_start = False
                    break
        finally:
            os.close(fd)
    # Events that a fenced master wrote late, with small numbers, do not say how far back was read.
    before = 1 if read_to_start else max(latest)
    numbers = [number for number in sorted(event_by_seq) if number >= before]
    if len(numbers) > count:
        numbers = numbers[len(numbers) - count :]
        before = numbers[0]
    return EarlierEvents([event_by_seq[number] for number in numbers], before)


def _opened(file: Path) -> int:
    # O_NONBLOCK: a FIFO in place of the file would block for ever.
    return os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def _size(fd: int) -> int:
    """Return the size of a regular file; 0 of anything else."""
    info = os.fstat(fd)
    return info.st_size if stat.S_ISREG(info.st_mode) else 0


def _offset_of(fd: int, seq: int) -> int:
    """Return an offset behind all events with a smaller number, close to the first of the others: by bisection."""
    low, high = 0, _size(fd)
    while high - low > BLOCK:
        middle = (low + high) // 2
        # The first whole event behind the middle; where a block has none, the search ends early.
        event = next(_events_in(os.pread(fd, BLOCK, middle)), None)
        if event is None:
            break
        if event["seq"] >= seq:
            high = middle
        else:
            low = middle
    return min(high + BLOCK, _size(fd))


def _events_in(block: bytes) -> Iterator[dict[str, Any]]:
    """Yield the events whose lines begin and end in a block; its first line may have begun before it."""
    for line in block.split(b"\n")[1:-1]:
        if (event := parse_event(line)) is not None:
            yield event


def _events_backwards(fd: int, end: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the events before an offset, the last one first, each with the offset down to which the file was read."""
    for line, read_down_to in _lines_backwards(fd, end):
        if (event := parse_event(line)) is not None:
            yield event, read_down_to


def parse_event(line: bytes) -> dict[str, Any] | None:
    """Return the event in a line; None for a torn line, whose event the next master wrote again, and for no event."""
    try:
        # The writer may have died in the middle of a character.
        event = parse_json(line.decode("utf-8", "replace"))
        return event if isinstance(event["seq"], int) else None
    except (ValueError, KeyError, TypeError):
        return None


def _lines_backwards(fd: int, end: int) -> Iterator[tuple[bytes, int]]:
    """Yield the lines before an offset, the last one first, without line ends, and the offset that was read down to."""
    # Pieces of the line that begins before `end`, the last piece first.
    rest: list[bytes] = []
    # As in `bounded_lines`: what comes before a line of more than SKIPPED_BYTES is not read.
    line_end = end
    while end > 0 and line_end - end < SKIPPED_BYTES:
        begin = max(0, end - BLOCK)
        first, *lines = os.pread(fd, end - begin, begin).split(b"\n")
        end = begin
        if lines:
            yield b"".join([lines.pop(), *reversed(rest)]), end
            yield from ((line, end) for line in reversed(lines))
            rest, line_end = [], end + len(first)
        rest.append(first)
        if len(rest) * BLOCK > LINE_BYTES:
            rest = []  # its beginning alone is no JSON, and is skipped as a torn line
    yield b"".join(reversed(rest)), 0
