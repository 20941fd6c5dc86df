"""The journal in a job's folder, for readers of its past: its parts from the oldest kept on, closed ones included.

A part is a segment on disk, live or compressed. PrimeMaster itself reads its journal from the last snapshot on
(`dljob.runtime.journal`). Damage is collected, not raised: a page with a gap is better than none, and a replay decides
itself what it cannot do without.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

from dljob.errors import JournalError
from dljob.linux.plain_files import bounded_lines, open_plain
from dljob.runtime.journal.stores import CLOSED, SUFFIX
from dljob.telemetry.records import HEADER_MAX, Header, Record, line_body, scan, snapshot_at

DAMAGED = "copy the folder again; if the file is the original one, what follows in it is lost"
LINE_BYTES = 64 << 20
"""Longest line that is read: a change of 10,000 ranks has a few MB."""
_UNREADABLE = (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, RecursionError)
"""Errors of a damaged file, and of one that another program wrote."""


class JournalPart(NamedTuple):
    """A segment that counts. `limit` is where its successor fenced it, in bytes; None for the newest."""

    number: int
    path: Path
    header: Header
    limit: int | None

    @property
    def name(self) -> str:
        """The part, for messages."""
        return _name(self.path)


def parts(journal: Path, troubles: list[JournalError]) -> list[JournalPart]:
    """Return the parts that count, oldest first; `troubles` receives what cannot be read.

    Each header names the part before it, so the newest one leads to all others: a part that none leads to was claimed
    by a master that had no successor.
    """
    files = {_number(path): path for path in journal.glob(f"{CLOSED}/*{SUFFIX}.gz")}
    # A death while a segment was archived leaves it in both places.
    files |= {_number(path): path for path in journal.glob(f"*{SUFFIX}")}
    files.pop(0, None)  # of other programs
    chain: list[JournalPart] = []
    previous: tuple[int, int] | None = None
    for number in sorted(files, reverse=True):
        if chain and (previous is None or number != previous[0]):
            continue
        header = _header(files[number], troubles, required=bool(chain))
        if header is not None:
            chain.append(JournalPart(number, files[number], header, previous[1] if previous else None))
            previous = (int(header.prev[0]), header.prev[1]) if header.prev else None
    return chain[::-1]


def older_is_gone(chain: list[JournalPart]) -> str:
    """Return a message where parts before the oldest one were dropped or are missing; else an empty text."""
    dropped = chain and chain[0].header.prev is not None
    return f"journal: what is older than part {chain[0].path.name} is not kept" if dropped else ""


def records(
    chain: Iterable[JournalPart], needed: Callable[[bytes], bool], troubles: list[JournalError]
) -> Iterator[Record]:
    """Yield the records of needed lines, oldest first.

    A damaged line ends its part; the next one begins with a snapshot.
    """
    for part in chain:
        yield from PartLines(part).read(needed, troubles)


class PartLines:
    """The lines of a part from an offset on; a later `read` goes on behind the last whole line."""

    def __init__(self, part: JournalPart, offset: int = 0, line: int = 0) -> None:
        self._part = part
        self.offset = offset
        self.line = line
        """Number of the line at the offset."""

    def read(self, needed: Callable[[bytes], bool], troubles: list[JournalError]) -> Iterator[Record]:
        """Yield the records of needed lines, of a file of any size; damage ends the part, and `troubles` says so."""
        name, limit = self._part.name, self._part.limit
        try:
            with _open(self._part.path) as file:
                file.seek(self.offset)
                for line in bounded_lines(file, LINE_BYTES):
                    end = self.offset + len(line)
                    # A torn last line is normal: its writer died, and nobody acted on it; or it is being written.
                    if len(line) == LINE_BYTES and not line.endswith(b"\n"):
                        raise ValueError(f"a line at byte {self.offset} is longer than {LINE_BYTES >> 20} MiB")
                    if not line.endswith(b"\n") or (limit is not None and end > limit):
                        break
                    body = line_body(line, self.line, name, self.offset)
                    self.offset, self.line = end, self.line + 1
                    # The first line is the header.
                    if self.line > 1 and needed(line):
                        yield json.loads(body)["r"]
                else:
                    end = self.offset
            if limit is not None and end < limit:
                message = f"{name}: it ends at byte {end}, and its successor counts on {limit} bytes"
                troubles.append(JournalError(message, offset=end, hint=DAMAGED))
        except JournalError as error:
            troubles.append(JournalError(error.message, offset=error.offset, hint=DAMAGED))
        except _UNREADABLE as error:
            troubles.append(JournalError(f"{name}: {error}", offset=self.offset, hint=DAMAGED))


class PartContent(NamedTuple):
    """The records of a part; `damage` says why they end early."""

    records: tuple[Record, ...]
    damage: JournalError | None = None


def content(part: JournalPart) -> PartContent:
    """Return all records of a part, up to where it is damaged."""
    troubles: list[JournalError] = []
    records = tuple(PartLines(part).read(lambda _: True, troubles))
    return PartContent(records, troubles[0] if troubles else None)


def first_time(part: JournalPart) -> float | None:
    """Return the time of a part's first record; None without one, or where it is damaged."""
    first = next(PartLines(part).read(lambda _: True, []), None)
    return None if first is None else first["at"]


def begins(records: tuple[Record, ...]) -> bool:
    """Whether a state can be rebuilt from these records alone: they begin a job, or with a whole snapshot."""
    return bool(records) and (records[0]["k"] == "begin" or snapshot_at(records, 0))


def _header(path: Path, troubles: list[JournalError], *, required: bool) -> Header | None:
    """Return the header of a part; None where its writer died before it was written, or it cannot be read."""
    hint = DAMAGED
    try:
        with _open(path) as file:
            line = file.readline(HEADER_MAX)
        if line.endswith(b"\n"):
            line_body(line, 0, _name(path), 0)
            hint = ""  # a whole header that is refused is of another version, whose error says what to use
        header = scan(line, name=_name(path)).header
    except JournalError as error:
        troubles.append(JournalError(error.message, offset=error.offset, hint=hint or error.hint))
        return None
    except _UNREADABLE as error:
        troubles.append(JournalError(f"{_name(path)}: {error}", offset=0, hint=DAMAGED))
        return None
    if header is None and required:
        troubles.append(JournalError(f"{_name(path)}: it has no header", offset=0, hint=DAMAGED))
    return header


@contextmanager
def _open(path: Path) -> Generator[IO[bytes]]:
    with open_plain(path) as plain:
        yield cast("IO[bytes]", gzip.GzipFile(fileobj=plain)) if path.suffix == ".gz" else plain


def _name(path: Path) -> str:
    return f"journal: part {path.name}"


def _number(path: Path) -> int:
    stem = path.name.partition(".")[0]
    return int(stem) if stem.isdigit() else 0
