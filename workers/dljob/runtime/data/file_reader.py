"""A source that reads an append-only file of lines, and the files that its rotation left beside it.

    source("clicks", "file:/data/clicks.log")     # also clicks.log.1, clicks.log-20270101, ...

A partition is one file, by inode and first line: rotation renames it, and its offsets stay. An offset is a byte.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from dljob.errors import UsageError
from dljob.runtime.data.source_reader import Extent, SourceError, SourceEvent

HEAD = 4096
"""Bytes of the first line that tell a file from another."""
CHUNK = 1 << 20
"""Bytes that are read at once."""
MOST_LINE = 256 << 20
"""Longest line, in bytes."""
PACKED = (".gz", ".bz2", ".xz", ".zst")
"""Rotated files that are left out: they were read before they were compressed, or are told as gone."""


def open_source(uri: str, options: Mapping[str, Any]) -> FileReader:
    """Open `file:PATH`."""
    if options:
        raise UsageError(f"source({uri!r}): a file takes no option {next(iter(options))!r}")
    parts = urlsplit(uri)
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or not path.is_absolute():
        raise UsageError(f"source({uri!r}): wanted an absolute path, as in file:/data/clicks.log")
    return FileReader(path)


class FileReader:
    """The files of one path and its rotation."""

    def __init__(self, path: Path, chunk: int = CHUNK) -> None:
        self._path = path
        self._chunk = chunk
        self._files: dict[str, Path] = {}

    def partitions(self) -> Mapping[str, Extent]:
        """Return the files that have a first line."""
        extents, self._files = dict[str, Extent](), {}
        try:
            beside = sorted(self._path.parent.glob(f"{self._path.name}*"))
        except OSError as error:
            raise SourceError(f"{self._path.parent}: {error.strerror}") from error
        for path in beside:
            if path.suffix in PACKED or not path.is_file():
                continue
            try:
                name, size, torn = self._about(path)
            except FileNotFoundError:  # it was renamed since
                continue
            except OSError as error:
                raise SourceError(f"{path}: {error.strerror}") from error
            if name:
                note = f"the last line of {path.name} has no end: its {torn} bytes are left out"
                extents[name] = Extent(0, size, note if torn and path != self._path else "")
                self._files[name] = path
        return extents

    def read(self, partition: str, offset: int, most: int) -> Sequence[SourceEvent]:
        """Return whole lines; one without its end is not there yet."""
        path = self._files.get(partition)
        if path is None:
            return ()
        try:
            with path.open("rb") as file:
                # The name may be another file's since the last look.
                if self._name(file.fileno(), file.read(HEAD)) != partition:
                    return ()
                file.seek(offset)
                data = file.read(self._chunk)
                while b"\n" not in data and len(data) >= self._chunk and (more := file.read(len(data))):
                    data += more
                    if len(data) > MOST_LINE:
                        raise SourceError(f"{path} has a line of more than {MOST_LINE} bytes at offset {offset}")
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror}") from error
        events, at, now = list[SourceEvent](), 0, time.time()
        while len(events) < most and (end := data.find(b"\n", at)) >= 0:
            events.append(SourceEvent(partition, offset + at, offset + end + 1, data[at:end], now))
            at = end + 1
        return events

    def close(self) -> None:
        """Nothing is kept open."""

    def _about(self, path: Path) -> tuple[str, int, int]:
        """Return a file's name as a partition, its whole lines in bytes, and the bytes of a line without its end."""
        with path.open("rb") as file:
            name = self._name(file.fileno(), file.read(HEAD))
            size = file.seek(0, 2)
            back = 0
            # From the end back to the last line that is whole.
            while back < size:
                back = min(size, back * 2 or HEAD)
                file.seek(size - back)
                at = file.read(back).rfind(b"\n")
                if at >= 0:
                    whole_size = size - back + at + 1
                    return name, whole_size, size - whole_size
            return name, 0, size

    @staticmethod
    def _name(descriptor: int, head: bytes) -> str:
        line, end, _ = head.partition(b"\n")
        if not end and len(head) < HEAD:
            return ""
        return f"{os.fstat(descriptor).st_ino:x}-{zlib.crc32(line):08x}"
