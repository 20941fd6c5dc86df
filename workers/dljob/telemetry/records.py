"""The journal's lines: one JSON object each, numbered, with a CRC32 over the bytes before it.

    {"n":0,"r":{"k":"header","v":1,"epoch":2,"prev":["segment-1",4096],"core":"0.1.0 4be1c02d9a7f"},"c":"6d1f2b9a"}
    {"n":1,"r":{...},"c":"..."}

A segment is written by one epoch of PrimeMaster, and begins with a header that names the segment before it and the
offset up to which that one counts: what a fenced predecessor still wrote behind it is not part of the journal.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from dljob.errors import JournalError

VERSION = 1
"""The version of lines and records. A reader refuses what is newer."""

Record: TypeAlias = Mapping[str, Any]
"""JSON-able; its key "k" says what it is."""

_TAIL = len(',"c":"00000000"}\n')


@dataclass(frozen=True, slots=True)
class Header:
    """What a segment begins with. `prev` is (segment, offset in bytes) of its predecessor; None for the first.

    `core` names the code that folded the events into states; empty before journals said so.
    """

    epoch: int
    prev: tuple[str, int] | None = None
    version: int = VERSION
    core: str = ""

    def record(self) -> Record:
        """As the first line's record."""
        said = {"k": "header", "v": self.version, "epoch": self.epoch, "prev": self.prev}
        return {**said, "core": self.core} if self.core else said


@dataclass(frozen=True, slots=True)
class Scan:
    """What a segment holds. `valid_bytes` is where its last whole line ends; `torn_tail`: something follows that."""

    header: Header | None
    """None: not even the first line is whole."""
    records: tuple[Record, ...]
    """After the header, in order."""
    valid_bytes: int
    torn_tail: bool


def encode_line(number: int, record: Record) -> bytes:
    """One line, newline included. Numbers count from 0, the header's, without a gap."""
    body = json.dumps({"n": number, "r": record}, separators=(",", ":"), allow_nan=False).encode()[:-1]
    return b'%s,"c":"%08x"}\n' % (body, zlib.crc32(body))


def encode_header(header: Header) -> bytes:
    """The first line of a segment."""
    return encode_line(0, header.record())


def scan(data: bytes, *, name: str = "journal", limit: int | None = None) -> Scan:
    """Read a segment.

    Args:
        data: Its bytes.
        name: What to call it in errors.
        limit: Where its successor fenced it; what lies behind does not count. None: all of it counts.

    Raises:
        JournalError: A line is damaged, one is missing, or the version is newer. A last line without its newline is
            none of these: a write was cut short, and nobody acted on it.
    """
    counted = data if limit is None else data[:limit]
    if limit is not None and len(counted) < limit:
        raise _damaged(name, len(counted), f"it ends here, and its successor counts on {limit} bytes")
    records: list[Record] = []
    offset = 0
    while (end := counted.find(b"\n", offset)) >= 0:
        records.append(_decode(counted[offset : end + 1], len(records), name, offset))
        if len(records) == 1:
            _check_version(records[0], name)
        offset = end + 1
    header = _header(records[0], name) if records else None
    return Scan(header, tuple(records[1:]), offset, torn_tail=offset < len(counted))


def _decode(line: bytes, number: int, name: str, offset: int) -> Record:
    body, tail = line[:-_TAIL], line[-_TAIL:]
    if tail != b',"c":"%08x"}\n' % zlib.crc32(body):
        raise _damaged(name, offset, f"the checksum of line {number} is wrong")
    parsed = cast("dict[str, Any]", json.loads(body + b"}"))
    if parsed["n"] != number:
        raise _damaged(name, offset, f"line {number} is missing, line {parsed['n']} follows")
    return cast("Record", parsed["r"])


def _check_version(record: Record, name: str) -> None:
    version = record.get("v")
    if isinstance(version, int) and version > VERSION:
        raise JournalError(
            f"{name}: written in version {version} of the journal; this dljob reads up to version {VERSION}",
            offset=0,
            hint="use the dljob that wrote it, or a newer one",
        )


def _header(record: Record, name: str) -> Header:
    if record.get("k") != "header":
        raise _damaged(name, 0, "it does not begin with a header")
    prev = record["prev"]
    known = None if prev is None else (prev[0], prev[1])
    return Header(record["epoch"], known, record["v"], record.get("core", ""))


def _damaged(name: str, offset: int, what: str) -> JournalError:
    return JournalError(
        f"{name}: damaged at byte {offset}: {what}",
        offset=offset,
        hint="the job's state cannot be rebuilt from it; keep the file for a report, and start the job again",
    )
