"""Reading of `events.jsonl`: from its beginning, line by line, or its last events, in blocks from its end.

A file may have a million events, torn lines, and events that two masters wrote; memory never holds more of it than is
asked for.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

BLOCK = 64 << 10
LATE = 256
"""Events read beyond those asked for: so many may a fenced master have appended behind those of its successor."""
LINE_BYTES = 1 << 20
"""Longest line that is kept together: a longer one is no event."""


def each_event(file: Path, after_seq: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the events with a number greater than `after_seq`, oldest first, each once; none without a file.

    A master that was fenced while it wrote may leave an event that its successor wrote, too: only growing numbers
    count.
    """
    try:
        # Split at "\n" only, and tolerate half a character: the writer may have died in the middle of one.
        lines = file.open(encoding="utf-8", errors="replace", newline="\n")
    except OSError:
        return  # no event was written yet, or the folder is gone
    with lines:
        for line in lines:
            event = _parsed(line)
            if event is not None and event["seq"] > after_seq:
                yield event
                after_seq = event["seq"]


def last_events(file: Path, count: int) -> list[dict[str, Any]]:
    """Return the last `count` events, oldest first, each once; of a large file only its end is read."""
    found: dict[int, dict[str, Any]] = {}
    read = 0
    with suppress(OSError):  # as above: there are no events either way
        # O_NONBLOCK: a FIFO in place of the file would block for ever.
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            info = os.fstat(fd)
            for line in _lines_backwards(fd, info.st_size) if stat.S_ISREG(info.st_mode) else ():
                event = _parsed(line.decode("utf-8", "replace"))
                if event is None:
                    continue
                found[event["seq"]] = event  # of two, the one that was written first
                read += 1
                if read >= count + LATE:
                    break
        finally:
            os.close(fd)
    return [found[seq] for seq in sorted(found)[max(0, len(found) - count) :]]


def _parsed(line: str) -> dict[str, Any] | None:
    """Return the event in a line; None for a torn line, whose event the next master wrote again."""
    try:
        event = json.loads(line)
        return event if isinstance(event["seq"], int) else None
    except (ValueError, KeyError, TypeError):
        return None


def _lines_backwards(fd: int, end: int) -> Iterator[bytes]:
    """Yield the lines of a file from its end, without their line ends."""
    # Pieces of the line that begins before `end`, the last piece first.
    rest: list[bytes] = []
    while end > 0:
        begin = max(0, end - BLOCK)
        first, *lines = os.pread(fd, end - begin, begin).split(b"\n")
        end = begin
        if lines:
            yield b"".join([lines.pop(), *reversed(rest)])
            yield from reversed(lines)
            rest = []
        rest.append(first)
        if len(rest) * BLOCK > LINE_BYTES:
            rest = []  # its beginning alone is no JSON, and is skipped as a torn line
    yield b"".join(reversed(rest))
