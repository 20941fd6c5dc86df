"""A queue on disk: what was put, taken and done with, in segments; a process that dies leaves all that it answered.

Nothing is synced: this outlives processes, as the kernel keeps what they wrote; a machine that loses power loses it.
A segment is deleted when no item in it is left, wherever it stands: each begins with the whole of the queue's state, so
older ones are needed for the bytes of their items alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

_HEAD = struct.Struct("<4sIQI")
_MAGIC = b"DJQ1"
SEGMENT = 64 << 20
"""Bytes after which a new segment begins."""
Place = tuple[int, int, int]
"""Where the bytes of an item are: segment, offset, how many."""


class QueueFiles:
    """The folder of one queue; one process at a time has it, and the kernel says which."""

    def __init__(self, folder: Path, segment: int = SEGMENT) -> None:
        """Wait for the process that has it, which the kernel ends, and open it."""
        self._folder = folder
        self._limit = segment
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._files: dict[int, int] = {}
        self._end = 0
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            for name in sorted(int(path.stem) for path in folder.glob("*.seg")):
                self._files[name] = self._open(name)
        except BaseException:
            self.close()
            raise

    @property
    def full(self) -> bool:
        """Whether the next record is the first of a segment: nothing is in the last one, or it has its size."""
        return self._end == 0 or self._end >= self._limit

    @property
    def last(self) -> int:
        """The segment that is written to; 0: there is none yet."""
        return max(self._files, default=0)

    def records(self) -> Iterator[tuple[dict[str, Any], Place]]:
        """All records, and where their bytes are; what a process did not write to its end is cut off."""
        for segment, file in list(self._files.items()):
            at, size = 0, os.fstat(file).st_size
            while (found := self._record(file, at, size)) is not None:
                head, start, length = found
                yield head, (segment, start, length)
                at = start + length
            os.ftruncate(file, at)
            self._end = at

    def begin(self) -> None:
        """Begin a segment; one in which nothing is, as of a process that died in between, is begun anew."""
        if not self._files or self._end:
            self._files[self.last + 1] = self._open(self.last + 1)
        self._end = 0

    def append(self, head: dict[str, Any], body: bytes = b"") -> Place:
        """Write a record; it outlives this process when this returns."""
        segment = self.last
        text = json.dumps(head).encode()
        begin = _HEAD.pack(_MAGIC, len(text), len(body), zlib.crc32(body, zlib.crc32(text)))
        whole = len(begin) + len(text) + len(body)
        left: list[Any] = [begin + text, body]
        at = self._end
        while at < self._end + whole:
            wrote = os.pwritev(self._files[segment], left, at)
            at += wrote
            left = _after(left, wrote)
        self._end = at
        return segment, at - len(body), len(body)

    def read(self, place: Place) -> bytes:
        """The bytes of an item."""
        segment, start, length = place
        parts = list[bytes]()
        while length:
            part = os.pread(self._files[segment], length, start)
            if not part:
                raise OSError(f"{self._folder}: segment {segment} ends before byte {start}")
            parts.append(part)
            start, length = start + len(part), length - len(part)
        return b"".join(parts)

    def keep(self, segments: Collection[int]) -> None:
        """Delete all segments but these, which have items, and the last one."""
        for name in [name for name in self._files if name not in segments and name != self.last]:
            os.close(self._files.pop(name))
            self._path(name).unlink(missing_ok=True)

    def close(self) -> None:
        """Let the next process have it."""
        for file in (*self._files.values(), self._lock):
            with contextlib.suppress(OSError):
                os.close(file)

    def _open(self, name: int) -> int:
        return os.open(self._path(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _path(self, name: int) -> Path:
        return self._folder / f"{name:08d}.seg"

    def _record(self, file: int, at: int, size: int) -> tuple[dict[str, Any], int, int] | None:
        begin = os.pread(file, _HEAD.size, at)
        if len(begin) < _HEAD.size:
            return None
        magic, text_size, length, crc = _HEAD.unpack(begin)
        start = at + _HEAD.size + text_size
        if magic != _MAGIC or start + length > size:
            return None
        text = os.pread(file, text_size, at + _HEAD.size)
        found = zlib.crc32(text)
        for piece in range(start, start + length, 1 << 20):
            found = zlib.crc32(os.pread(file, min(1 << 20, start + length - piece), piece), found)
        return (json.loads(text), start, length) if found == crc else None


def _after(buffers: list[Any], wrote: int) -> list[Any]:
    """What is left of buffers of which so many bytes are written."""
    left = list[Any]()
    for buffer in buffers:
        if wrote < len(buffer):
            left.append(memoryview(buffer)[wrote:])
        wrote = max(0, wrote - len(buffer))
    return left
