"""Records of a job's journal, from all parts of it that are kept: live segments and the compressed ones in `closed`.

A start of PrimeMaster reads from the last snapshot on; this reads from the oldest part on. Damage does not end it: a
page with a gap is better than none.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dljob.errors import JournalError
from dljob.runtime.journal.stores import CLOSED, SUFFIX
from dljob.telemetry.records import Header, Record, scan

_TAIL = len(',"c":"00000000"}\n')
_CHUNK = 1 << 20


class SegmentFile(NamedTuple):
    """A part of a journal on disk."""

    number: int
    path: Path
    header: Header

    def follows(self, other: SegmentFile) -> bool:
        """Whether this part continues another one."""
        return self.header.prev is not None and int(self.header.prev[0]) == other.number


def segments(folder: Path, troubles: list[str]) -> list[SegmentFile]:
    """Return the parts of a journal that count, oldest first; `troubles` receives what cannot be read.

    Each header names the part before it, so the newest one leads to all others: a part that none leads to was claimed
    by a master that had no successor.
    """
    files = {_number(path): path for path in folder.glob(f"{CLOSED}/*{SUFFIX}.gz")}
    files |= {_number(path): path for path in folder.glob(f"*{SUFFIX}")}
    chain: list[SegmentFile] = []
    wanted = 0
    for number in sorted(files, reverse=True):
        if chain and number != wanted:
            continue
        header = _header(files[number], troubles)
        if header is not None:
            chain.append(SegmentFile(number, files[number], header))
            wanted = int(header.prev[0]) if header.prev else 0
    if chain and wanted:
        troubles.append(f"journal: what is older than part {chain[-1].path.name} is not kept")
    return chain[::-1]


def records(chain: list[SegmentFile], needed: Callable[[bytes], bool], troubles: list[str]) -> Iterator[Record]:
    """Yield the records of needed lines, oldest first.

    A damaged line ends its segment; the next one begins with a snapshot.
    """
    for own in chain:
        yield from SegmentLines(own.path).read(needed, fence_of(own, chain), troubles)


def fence_of(own: SegmentFile, chain: Iterable[SegmentFile]) -> int | None:
    """Return the offset up to which a part counts: where its successor begins; None without one."""
    return next((later.header.prev[1] for later in chain if later.header.prev and later.follows(own)), None)


class SegmentLines:
    """The lines of a segment from an offset on; a later `read` goes on behind the last whole line."""

    def __init__(self, path: Path, offset: int = 0, line: int = 0) -> None:
        self._path = path
        self.offset = offset
        self.line = line
        """Number of the line at the offset."""

    def read(self, needed: Callable[[bytes], bool], fence: int | None, troubles: list[str]) -> Iterator[Record]:
        """Yield the records of needed lines up to a fence; damage ends the segment, and `troubles` says so."""
        try:
            with _open(self._path) as file:
                file.seek(self.offset)
                for line in file:
                    # A torn last line is normal: its writer died, and nobody acted on it; or it is being written.
                    if not line.endswith(b"\n") or (fence is not None and self.offset + len(line) > fence):
                        return
                    body, tail = line[:-_TAIL], line[-_TAIL:]
                    if tail != b',"c":"%08x"}\n' % zlib.crc32(body):
                        raise ValueError(f"damaged at byte {self.offset}")
                    self.offset += len(line)
                    self.line += 1
                    # The first line is the header.
                    if self.line > 1 and needed(line):
                        yield json.loads(body + b"}")["r"]
        except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as error:
            troubles.append(f"journal: part {self._path.name} cannot be read to its end: {error}")


def _header(path: Path, troubles: list[str]) -> Header | None:
    """Return the header of a part; None where its writer died before it was written, or it cannot be read."""
    try:
        with _open(path) as file:
            line = file.readline(_CHUNK)
        return scan(line, name=f"journal: part {path.name}").header
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error, JournalError) as error:
        troubles.append(f"journal: part {path.name} cannot be read: {error}")
        return None


def _open(path: Path) -> Any:  # noqa: ANN401 - a binary file, plain or compressed
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _number(path: Path) -> int:
    stem = path.name.partition(".")[0]
    return int(stem) if stem.isdigit() else 0
