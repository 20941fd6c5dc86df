"""The files of a queue: a log of puts, takes and acknowledgements, in segments. A process's death loses no answer.

Nothing is synced. The kernel keeps what a process has written, so this survives processes; a power failure loses it.
Each segment begins with the whole state of the queue, so earlier ones are needed only for the bytes of their items: a
segment is deleted once none of its items is left, whatever its place.
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
"""The size in bytes after which a new segment begins."""
Place = tuple[int, int, int]
"""The place of an item's bytes: segment, offset, length."""


class QueueFiles:
    """The folder of one queue. One process at a time has it, by a lock of the kernel."""

    def __init__(self, folder: Path, segment: int = SEGMENT) -> None:
        """Open the folder, once the process that has it is gone; the kernel then releases its lock."""
        self._folder = folder
        self._limit = segment
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._files: dict[int, int] = {}
        self._end = 0
        try:
            # The kernel releases the lock at the holder's death, however it dies: no lease and no stale lock file.
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            for name in sorted(int(path.stem) for path in folder.glob("*.seg")):
                self._files[name] = self._open(name)
        except BaseException:
            self.close()
            raise

    @property
    def full(self) -> bool:
        """Whether the next record begins a segment: there is none, the last is empty, or it has reached its size."""
        return self._end == 0 or self._end >= self._limit

    @property
    def last(self) -> int:
        """The segment that is being written; 0: there is none yet."""
        return max(self._files, default=0)

    def records(self) -> Iterator[tuple[dict[str, Any], Place]]:
        """Read all records and the places of their bytes; truncate what a process did not finish writing."""
        for segment, file in list(self._files.items()):
            at, size = 0, os.fstat(file).st_size
            while (record := self._record(file, at, size)) is not None:
                head, start, length = record
                yield head, (segment, start, length)
                at = start + length
            # A torn record at the end was never answered; new records must not follow garbage.
            os.ftruncate(file, at)
            self._end = at

    def begin(self) -> None:
        """Begin a segment. An empty last one, left by a process that died just then, is used again."""
        if not self._files or self._end:
            self._files[self.last + 1] = self._open(self.last + 1)
        self._end = 0

    def append(self, head: dict[str, Any], body: bytes = b"") -> Place:
        """Write a record. When this returns, the record outlives this process."""
        segment = self.last
        text = json.dumps(head).encode()
        begin = _HEAD.pack(_MAGIC, len(text), len(body), zlib.crc32(body, zlib.crc32(text)))
        record_size = len(begin) + len(text) + len(body)
        buffers: list[Any] = [begin + text, body]
        at = self._end
        # A write may be short, e.g. when the disk fills up; only the whole record moves the end.
        while at < self._end + record_size:
            wrote = os.pwritev(self._files[segment], buffers, at)
            at += wrote
            buffers = _after(buffers, wrote)
        self._end = at
        return segment, at - len(body), len(body)

    def read(self, place: Place) -> bytes:
        """Read the bytes of an item."""
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
        """Delete all segments except the last one and these, which have items."""
        for name in [name for name in self._files if name not in segments and name != self.last]:
            os.close(self._files.pop(name))
            self._path(name).unlink(missing_ok=True)

    def close(self) -> None:
        """Release the folder for the next process."""
        for file in (*self._files.values(), self._lock):
            with contextlib.suppress(OSError):
                os.close(file)

    def _open(self, name: int) -> int:
        return os.open(self._path(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _path(self, name: int) -> Path:
        return self._folder / f"{name:08d}.seg"

    def _record(self, file: int, at: int, size: int) -> tuple[dict[str, Any], int, int] | None:
        """Read a record's head, and the place of its body; None if it is incomplete, or its checksum is wrong."""
        begin = os.pread(file, _HEAD.size, at)
        if len(begin) < _HEAD.size:
            return None
        magic, text_size, length, crc = _HEAD.unpack(begin)
        start = at + _HEAD.size + text_size
        # Lengths of a torn head may be anything: they must not lead beyond the file.
        if magic != _MAGIC or start + length > size:
            return None
        text = os.pread(file, text_size, at + _HEAD.size)
        computed_crc = zlib.crc32(text)
        # In pieces, so that checking a large item does not hold all of it in memory.
        for piece in range(start, start + length, 1 << 20):
            computed_crc = zlib.crc32(os.pread(file, min(1 << 20, start + length - piece), piece), computed_crc)
        return (json.loads(text), start, length) if computed_crc == crc else None


def _after(buffers: list[Any], wrote: int) -> list[Any]:
    """Return the buffers without their first `wrote` bytes."""
    remaining = list[Any]()
    for buffer in buffers:
        if wrote < len(buffer):
            remaining.append(memoryview(buffer)[wrote:])
        wrote = max(0, wrote - len(buffer))
    return remaining
