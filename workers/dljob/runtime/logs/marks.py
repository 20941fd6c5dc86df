"""When what of a log was written: pairs of a time and a size beside it, `<role>-<rank>.marks`.

Processes write to a log by themselves, so nobody sees a line go by. Whoever watches its size (`LogWatch`) notes it
once a second where it has grown: what lies behind the size of a mark was written after its time. A reader who asks for
what came since a moment begins at the last mark before it, and so misses nothing, and shows a second too much at most.
A mark may lie in what was cut out of a log: reading begins with the words that tell of the cut.
"""

from __future__ import annotations

import os
import stat
import struct
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from dljob.runtime.logs.cut import next_data

Mark = tuple[int, int]
"""Nanoseconds since 1970, and the size of the log at that time."""
SUFFIX = ".marks"
MOST = 1 << 16
"""At so many marks (1 MiB, 18 hours of a log that grows each second) the old ones are thinned out."""
FINE = 1800
"""The marks of the last so many seconds stay; before, one stays in each such part of its age: of a day, 48 s. After a
year it is half of MOST at most."""
LINE_BYTES = 64 << 10
"""The beginning of a line is looked for in so much before a mark."""
_MARK = struct.Struct("<QQ")
_SECOND = 1_000_000_000


def add(log: Path, size: int) -> None:
    """Note that a log has this size now.

    Raises:
        OSError: The disk is full, or nobody may write there.
    """
    path = log.with_suffix(SUFFIX)
    now = time.time_ns()  # read after the size: what is written from now on lies behind it
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        have = os.fstat(fd).st_size
        if have % _MARK.size:  # a full disk took a part of one
            os.ftruncate(fd, have - have % _MARK.size)
        os.write(fd, _MARK.pack(now, size))
    finally:
        os.close(fd)
    if have >= MOST * _MARK.size:
        kept = b"".join(_MARK.pack(*mark) for mark in thinned(read(log), now))
        new = path.with_suffix(".marks-new")
        new.write_bytes(kept)
        new.replace(path)


def thinned(marks: Sequence[Mark], now: int) -> list[Mark]:
    """Fewer marks: what a moment that fell on one that is gone shows too much is a second, or 1/FINE of its age."""
    kept = list(marks[:1])
    for mark, after in pairwise(marks[1:]):
        if after[0] - kept[-1][0] > max(_SECOND, (now - mark[0]) // FINE):
            kept.append(mark)
    return kept + list(marks[1:][-1:])


def read(log: Path) -> list[Mark]:
    """The marks of a log; none where there are none, or where something else lies in their place."""
    try:
        fd = os.open(log.with_suffix(SUFFIX), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return []
        data = file.read(2 * MOST * _MARK.size)
    return list(_MARK.iter_unpack(data[: len(data) // _MARK.size * _MARK.size]))


def place_since(log: Path, moment: float) -> int | None:
    """Where the lines of a log begin that were written since a moment (unix seconds); None: no times of then are known.

    A line that had no end yet is among them.
    """
    try:
        fd = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        size = os.fstat(fd).st_size  # before the marks: the first one stands when the first line is written
        wanted, marks, place = int(moment * _SECOND), read(log), None
        for at, marked in marks:
            if at > wanted:
                break
            place = marked
        if place is None:
            return 0 if not size or (marks and not marks[0][1]) else None
        return _line_at(fd, place, size)
    finally:
        os.close(fd)


def _line_at(fd: int, place: int, size: int) -> int:
    """The beginning of the line at a place; of one that was cut out, of the line that tells it."""
    at = end = 0
    while at < min(place, size):
        start, after = next_data(fd, at, size)
        if start >= place:
            break
        at = end = after
    cut = end < place
    behind = min(place, end)
    before = os.pread(fd, min(behind, LINE_BYTES), max(0, behind - LINE_BYTES))
    found = (before.rstrip(b"\n") if cut else before).rfind(b"\n")
    return behind - len(before) + found + 1
