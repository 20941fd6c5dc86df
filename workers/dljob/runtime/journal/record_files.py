"""Files of a job's record, read on the node of its PrimeMaster for a page that is made elsewhere.

Each file only grows, or is replaced by another one, except for the status, which is written anew. So a copy is kept up
to date by the bytes behind those that it has (docs/adr/0092-pages-of-clusters.md).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dljob.runtime.journal.samples import FOLDER as SAMPLES
from dljob.runtime.journal.stores import CLOSED
from dljob.runtime.journal.timeline import EVENTS, STATUS

FOLDERS = (SAMPLES, "journal", f"journal/{CLOSED}")
NAME = re.compile(rf"(?:{re.escape(STATUS)}|{re.escape(EVENTS)}|(?:{'|'.join(FOLDERS)})/\w[\w.-]*)", re.ASCII)
"""A file of a record, by its path in the job's folder; `spec.json`, with its values, is none."""
PIECE = 1 << 20
"""Bytes in one answer."""
STATUS_BYTES = 32 << 20
"""Most bytes of a status, which is never sent in pieces: 10,000 ranks take a few MB."""


class RecordPart(NamedTuple):
    """Bytes of a file from an offset on."""

    name: str
    offset: int
    data: bytes


class RecordNews(NamedTuple):
    """What a record has, and what is new in the files that were asked for."""

    files: dict[str, int]
    """Path -> size in bytes; of the status its time of change in nanoseconds."""
    parts: list[RecordPart]


def record_news(folder: str, have: Mapping[str, int]) -> RecordNews:
    """Return the record's files, and up to PIECE bytes of those in `have` behind what the caller has of each."""
    place, bytes_left = Path(folder), PIECE
    files = _files(place)
    parts: list[RecordPart] = []
    for name, known in have.items():
        now = files.get(name, known)
        if now == known or bytes_left <= 0:
            continue
        # One that became shorter is another file, and the status is always another one.
        begin = known if known < now and name != STATUS else 0
        data = _read(place / name, begin, STATUS_BYTES if name == STATUS else bytes_left)
        bytes_left -= len(data)
        parts.append(RecordPart(name, begin, data))
    return RecordNews(files, parts)


def _files(place: Path) -> dict[str, int]:
    size_by_name: dict[str, int] = {}
    names = [STATUS, EVENTS]
    for folder in FOLDERS:
        with suppress(OSError):  # a job that has just begun, or whose journal is elsewhere
            names += sorted(f"{folder}/{entry.name}" for entry in os.scandir(place / folder))
    for name in names:
        with suppress(OSError):  # not written yet, or archived meanwhile
            info = (place / name).lstat()
            if stat.S_ISREG(info.st_mode) and NAME.fullmatch(name):
                size_by_name[name] = info.st_mtime_ns if name == STATUS else info.st_size
    return size_by_name


def _read(file: Path, begin: int, limit: int) -> bytes:
    with suppress(OSError):  # as above
        # Only a plain file: user code may have put a link or a FIFO in its place.
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.pread(fd, limit, begin)
        finally:
            os.close(fd)
    return b""
