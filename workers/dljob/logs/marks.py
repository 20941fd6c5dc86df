"""Time marks of a log: pairs of a time and a size in a file beside it, `<role>-<rank>.marks`.

Processes write to a log directly, so no line can be timed. `LogWatch` adds a mark once a second if the log has grown:
bytes after the mark's size were written after its time. A reader who wants the output since a time begins at the last
mark before it, and so misses nothing and shows at most a second too much. A mark may lie in a part that was cut out;
then reading begins with the line that says so.
"""

from __future__ import annotations

import os
import stat
import struct
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from dljob.logs.cut import next_data

Mark = tuple[int, int]
"""Nanoseconds since 1970, and the log's size at that time."""
SUFFIX = ".marks"
MOST = 1 << 16
"""The number of marks (1 MiB, 18 hours of a log that grows each second) at which old ones are thinned out."""
FINE = 1800
"""Marks of the last FINE seconds all stay. Of older ones, one stays per 1/FINE of its age: every 48 s at the age of a
day. After a year at most half of MOST are left."""
LINE_BYTES = 64 << 10
"""Bytes before a mark in which the beginning of its line is searched for."""
_MARK = struct.Struct("<QQ")
_SECOND = 1_000_000_000


def add(log: Path, size: int) -> None:
    """Record that a log has this size now.

    Raises:
        OSError: The disk is full, or the folder is not writable.
    """
    path = log.with_suffix(SUFFIX)
    now = time.time_ns()  # taken after the size: whatever is written from now on lies behind it
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        have = os.fstat(fd).st_size
        if have % _MARK.size:  # a full disk cut a mark short
            os.ftruncate(fd, have - have % _MARK.size)
        os.write(fd, _MARK.pack(now, size))
    finally:
        os.close(fd)
    if have >= MOST * _MARK.size:
        thinned_marks = b"".join(_MARK.pack(*mark) for mark in thinned(read(log), now))
        # Replaced as a whole, so that a reader finds either all marks or the thinned ones.
        new = path.with_suffix(".marks-new")
        new.write_bytes(thinned_marks)
        new.replace(path)


def thinned(marks: Sequence[Mark], now: int) -> list[Mark]:
    """Drop marks so that reading from the one before a missing mark shows at most 1 s, or 1/FINE of its age, more."""
    kept_marks = list(marks[:1])
    for mark, after in pairwise(marks[1:]):
        if after[0] - kept_marks[-1][0] > max(_SECOND, (now - mark[0]) // FINE):
            kept_marks.append(mark)
    return kept_marks + list(marks[1:][-1:])


def read(log: Path) -> list[Mark]:
    """Return the marks of a log; none if there is no file, or something else is in its place."""
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
    """Return the offset of the first line written since a time (unix seconds); None if no mark is that old.

    A line that was incomplete at that time counts.
    """
    try:
        fd = os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        size = os.fstat(fd).st_size  # before the marks: a log with a first line has a first mark
        moment_ns, marks, place = int(moment * _SECOND), read(log), None
        for at, marked in marks:
            if at > moment_ns:
                break
            place = marked
        if place is None:
            return 0 if not size or (marks and not marks[0][1]) else None
        return _line_at(fd, place, size)
    finally:
        os.close(fd)


def _line_at(fd: int, place: int, size: int) -> int:
    """Return the beginning of the line at an offset; in a part that was cut out, that of the line that says so."""
    at = end = 0
    while at < min(place, size):
        start, after = next_data(fd, at, size)
        if start >= place:
            break
        at = end = after
    cut = end < place
    behind = min(place, end)
    # The mark may lie inside a line, whose beginning belongs to what is shown.
    before = os.pread(fd, min(behind, LINE_BYTES), max(0, behind - LINE_BYTES))
    line_end = (before.rstrip(b"\n") if cut else before).rfind(b"\n")
    return behind - len(before) + line_end + 1
