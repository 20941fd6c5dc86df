"""The journal in a job's folder, for readers: its segments from the oldest that is kept, closed ones included.

PrimeMaster itself reads its journal from the last snapshot on (`dljob.runtime.journal`); readers of a job's past begin
at any snapshot.
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import IO, NamedTuple, cast

from dljob.errors import JournalError, NotFoundError
from dljob.telemetry.records import HEADER_MAX, Header, Record, scan, snapshot_at

SUFFIX, CLOSED = ".jsonl", "closed"


class JournalPart(NamedTuple):
    """A segment that counts. `limit` is where its successor fenced it, in bytes; None for the newest."""

    number: int
    path: Path
    header: Header
    limit: int | None


class PartContent(NamedTuple):
    """The records of a segment; `damage` says why they end early."""

    records: tuple[Record, ...]
    damage: JournalError | None = None


def journal_of(folder: Path) -> Path:
    """Return the folder of the journal in a job's folder.

    Raises:
        NotFoundError: There is none.
    """
    journal = folder / "journal"
    if journal.is_dir():
        return journal
    hint = "a job that never started has none; with spec.master.journal.path it is below that path: copy it there"
    raise NotFoundError(f"{folder} has no journal", hint=hint)


def parts(journal: Path) -> tuple[JournalPart, ...]:
    """Return the segments that count, oldest first.

    Raises:
        JournalError: A segment's header is damaged, or of a newer version.
        NotFoundError: No segment has a header.
    """
    files = {int(path.name[: -len(".jsonl.gz")]): path for path in (journal / CLOSED).glob(f"*{SUFFIX}.gz")}
    # A death while a segment was archived leaves it in both places.
    files |= {int(path.stem): path for path in journal.glob(f"*{SUFFIX}") if path.stem.isdigit()}
    chain: list[JournalPart] = []
    # A claim without a header is of a master that died at once. Backwards from there, each header names the one before.
    for number in sorted(files, reverse=True):
        if chain:
            break
        chain += _part(number, files[number], None)
    while chain and (prev := chain[-1].header.prev) is not None and int(prev[0]) in files:
        found = _part(int(prev[0]), files[int(prev[0])], prev[1])
        if not found:
            raise JournalError(f"{files[int(prev[0])]}: it has no header", offset=0)
        chain += found
    if not chain:
        raise NotFoundError(f"the journal in {journal} is empty", hint="the job never started: there is no past of it")
    return tuple(reversed(chain))


def _part(number: int, path: Path, limit: int | None) -> list[JournalPart]:
    try:
        with _open(path) as file:
            head = file.readline(HEADER_MAX)
    except (OSError, EOFError, zlib.error) as error:
        raise JournalError(f"{path}: {error}", offset=0, hint="copy the folder again") from error
    header = scan(head, name=str(path)).header
    return [] if header is None else [JournalPart(number, path, header, limit)]


def _open(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path) if path.suffix == ".gz" else path.open("rb"))


def content(part: JournalPart) -> PartContent:
    """Return the records of a segment, up to where it is damaged. Its last line may be torn, which is no damage."""
    try:
        with _open(part.path) as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        return PartContent((), JournalError(f"{part.path}: {error}", offset=0, hint="copy the folder again"))
    try:
        return PartContent(scan(data, name=str(part.path), limit=part.limit).records)
    except JournalError as error:
        return PartContent(scan(data[: error.offset], name=str(part.path)).records, error)


def first_time(part: JournalPart) -> float | None:
    """Return the time of a segment's first record; None without one, or where it is damaged."""
    try:
        with _open(part.path) as file:
            file.readline()
            return float(json.loads(file.readline())["r"]["at"])
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError):
        return None


def begins(records: tuple[Record, ...]) -> bool:
    """Whether a state can be rebuilt from these records alone: they begin a job, or with a whole snapshot."""
    return bool(records) and (records[0]["k"] == "begin" or snapshot_at(records, 0))
