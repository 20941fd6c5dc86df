"""The file of a queue in a cut: its items, its keys, and whether it was closed. Written atomically, with a sum."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from dljob.runtime.queues.files import Place
from dljob.telemetry.wording import counted

_HEAD = struct.Struct("<4sQ")
_MAGIC = b"DJC1"


@dataclass(frozen=True, slots=True)
class CutFile:
    """What is to be written: the items by number, and where their bytes are."""

    name: str
    bounds: tuple[int, int]
    places: Sequence[tuple[int, Place]]
    keys: Mapping[str, int]
    """Key -> the item that has it; 0: none of these."""
    closed: bool
    body_of: Callable[[Place], bytes]

    def write(self, path: Path) -> tuple[int, int, int]:
        """Write the file; return the number of items, their bytes, and the file's CRC-32.

        Raises:
            OSError: The disk refused; nothing is left of the file.
        """
        items = [(number, place[2]) for number, place in self.places]
        head = {"name": self.name, "bounds": self.bounds, "items": items, "keys": self.keys, "closed": self.closed}
        text = json.dumps(head).encode()
        size = sum(size for _, size in items)
        _check_room(path, len(items), _HEAD.size + len(text) + size)
        # One item at a time: a queue may be larger than the memory of its process should be.
        bodies = (self.body_of(place) for _, place in self.places)
        crc = _write(path, chain((_HEAD.pack(_MAGIC, len(text)), text), bodies))
        return len(items), size, crc


@dataclass(frozen=True, slots=True)
class Restored:
    """What a file says: item -> bytes, in order."""

    sizes: Mapping[int, int]
    keys: Mapping[str, int]
    closed: bool = False
    path: Path | None = None
    begin: int = 0
    """The offset of the first item in the file."""

    def bodies(self) -> Iterator[tuple[int, bytes]]:
        """Read the items, one at a time: a queue may be larger than the memory of its process should be.

        Raises:
            OSError: The file cannot be read any more.
        """
        if self.path is None:
            return
        with self.path.open("rb") as file:
            file.seek(self.begin)
            for number, size in self.sizes.items():
                yield number, file.read(size)


EMPTY = Restored({}, {})


def copy(source: Path, path: Path, crc: int) -> None:
    """Copy the file of an earlier cut, a piece at a time, with bytes of its own: one damage must not hit both cuts.

    Raises:
        OSError: It cannot be read or written, or its checksum is not `crc`; nothing is left of the copy.
    """
    with source.open("rb") as file:
        copied_crc = _write(path, iter(lambda: file.read(1 << 20), b""))
    if copied_crc != crc:
        path.unlink()
        raise OSError(f"{source} is damaged: its checksum does not match the journal")


def _check_room(path: Path, items: int, size: int) -> None:
    """Refuse a file for which the disk has no room: the queues of a laptop's job write to the same one.

    Raises:
        OSError: It has not.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    free = shutil.disk_usage(path.parent).free
    if size > free:
        words = f"{counted(items, 'item')} need {size / 2**20:.1f} MiB, and its disk has {free / 2**20:.1f} MiB free"
        raise OSError(errno.ENOSPC, words)


def _write(path: Path, parts: Iterable[bytes]) -> int:
    """Write a file atomically, and return its CRC-32. Raises OSError; nothing is left of the file then."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_suffix(".tmp")
    crc = 0
    try:
        with temporary.open("wb", buffering=1 << 20) as file:
            for part in parts:
                crc = zlib.crc32(part, crc)
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return crc


def check(path: Path, crc: int) -> str:
    """Return why a file cannot be restored; empty if it can. Reads every byte, a piece at a time."""
    try:
        _verify(path, crc)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}" if error.strerror else str(error)
    return ""


def _verify(path: Path, crc: int) -> None:
    file_crc = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            file_crc = zlib.crc32(piece, file_crc)
    if file_crc != crc:
        raise OSError(f"{path} is damaged: its checksum does not match the journal")


def read(path: Path, crc: int) -> Restored:
    """Read a file, but for its items.

    Raises:
        OSError: It cannot be read, or its checksum is not `crc`.
    """
    _verify(path, crc)
    with path.open("rb") as file:
        _, length = _HEAD.unpack(file.read(_HEAD.size))
        head = json.loads(file.read(length))
    sizes: dict[int, int] = dict(head["items"])
    return Restored(sizes, head["keys"], head["closed"], path, _HEAD.size + length)
