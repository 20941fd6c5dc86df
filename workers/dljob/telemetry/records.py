"""The journal's lines: one JSON object each, numbered, with a CRC32 over the bytes before it.

    {"n":0,"r":{"k":"header","v":3,"epoch":2,"prev":["segment-1",4096],"core":"0.1.0 4be1c02d9a7f"},"c":"6d1f2b9a"}
    {"n":1,"r":{...},"c":"..."}

A segment is written by one epoch of PrimeMaster, and begins with a header that names the segment before it and the
offset up to which that one counts: lines that a fenced predecessor still wrote behind it do not.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from dljob.errors import JournalError

VERSION = 3
"""Version of lines and records, since dljob 0.1.0. A reader refuses any other one."""

Record: TypeAlias = Mapping[str, Any]
"""A JSON object; its key "k" names its kind."""

WINDOW = 4 * 2**20
"""Bytes at the segment's end in which the search for the last snapshot begins; each next try reads four times more."""
MOST_READ = 2**30
"""Approximate bound of that search, in bytes. PrimeMaster writes a snapshot every few thousand records."""
HEADER_MAX = 65536

_SNAPSHOT = re.compile(rb'^\{"n":\d+,"r":\{"k":"snapshot",[^{}\[\]]*?"i":0,', re.MULTILINE)
"""The beginning of a snapshot's first line. In a text within a line its quotes would be escaped."""

_TAIL = len(',"c":"00000000"}\n')


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a segment. `prev` is (segment, offset in bytes) of its predecessor; None for the first.

    `core` names the version of the code that folded the events into states.
    """

    epoch: int
    prev: tuple[str, int] | None = None
    version: int = VERSION
    core: str = ""

    def record(self) -> Record:
        """Return the record of the segment's first line."""
        return {"k": "header", "v": self.version, "epoch": self.epoch, "prev": self.prev, "core": self.core}


@dataclass(frozen=True, slots=True)
class SegmentBytes:
    """Access to a segment's bytes: their number, and the bytes between two offsets."""

    size: int
    read: Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Scan:
    """Contents of a segment, from some record on.

    `valid_bytes` is where its last whole line ends; `torn_tail`: bytes follow that line.
    """

    header: Header | None
    """Header of the segment; None where not even the first line is complete."""
    records: tuple[Record, ...]
    """Records in order, without the header."""
    valid_bytes: int
    torn_tail: bool


def encode_line(number: int, record: Record) -> bytes:
    """Return one line with its newline. Numbers count from 0 (the header) without a gap."""
    body = json.dumps({"n": number, "r": record}, separators=(",", ":"), allow_nan=False).encode()[:-1]
    return b'%s,"c":"%08x"}\n' % (body, zlib.crc32(body))


def encode_header(header: Header) -> bytes:
    """Return the first line of a segment."""
    return encode_line(0, header.record())


def scan(data: bytes, *, name: str = "journal", limit: int | None = None) -> Scan:
    """Read a segment.

    Args:
        data: Its bytes.
        name: What to call it in errors.
        limit: Where its successor fenced it; bytes behind it do not count. None: all of it counts.

    Raises:
        JournalError: A line is damaged, one is missing, or the version is another one. A last line without its newline
            is none of these: a write was cut short, and nobody acted on it.
    """
    end = _end(len(data), limit, name)
    counted = data[:end]
    first = counted.find(b"\n") + 1
    if not first:
        return Scan(None, (), 0, torn_tail=bool(end))
    header = _first(counted[:first], name)
    records, valid = _decoded(counted, first, 1, name, 0)
    return Scan(header, records, valid, torn_tail=valid < end)


def scan_tail(source: SegmentBytes, *, name: str = "journal", limit: int | None = None) -> Scan:
    """Read a segment from its last whole snapshot on; all of it where it has none. Arguments and errors as of `scan`.

    Records that the snapshot supersedes are not read, so the cost of a start does not grow with the age of a job.
    """
    end = _end(source.size, limit, name)
    header, first = read_header(source, name=name, limit=limit)
    if header is None:
        return Scan(None, (), 0, torn_tail=bool(end))
    window = WINDOW
    while window < end - first:
        if window > MOST_READ:
            raise _damaged(name, end - window, f"no whole snapshot in its last {window >> 20} MiB")
        start = end - window
        data = source.read(start, end)
        for match in reversed(list(_SNAPSHOT.finditer(data))):
            records, valid = _decoded(data, match.start(), None, name, start)
            if snapshot_at(records, 0):
                return Scan(header, records, start + valid, torn_tail=start + valid < end)
        window *= 4
    return scan(source.read(0, end), name=name)


def read_header(source: SegmentBytes, *, name: str = "journal", limit: int | None = None) -> tuple[Header | None, int]:
    """Return the header of a segment and its length in bytes; (None, 0) while its line is not complete."""
    end = _end(source.size, limit, name)
    head = source.read(0, min(end, HEADER_MAX))
    first = head.find(b"\n") + 1
    if not first and end > HEADER_MAX:
        raise _damaged(name, 0, "it does not begin with a header")
    return (_first(head[:first], name), first) if first else (None, 0)


def scan_on(known: Scan, source: SegmentBytes, *, name: str = "journal", limit: int | None = None) -> Scan:
    """Read on behind an earlier scan of a segment that grows; anew where that had no header or reached too far.

    The records of the earlier scan stay the same objects, by which a reader knows what it has folded already.
    """
    end = _end(source.size, limit, name)
    if known.header is None or known.valid_bytes > end:
        return scan_tail(source, name=name, limit=limit)
    records, read = _decoded(source.read(known.valid_bytes, end), 0, None, name, known.valid_bytes)
    valid = known.valid_bytes + read
    return Scan(known.header, (*known.records, *records), valid, torn_tail=valid < end)


def snapshot_at(records: Sequence[Record], at: int) -> bool:
    """Return whether a complete snapshot starts at a record."""
    if at >= len(records) or records[at]["k"] != "snapshot" or records[at]["i"]:
        return False
    parts = records[at : at + records[at]["of"]]
    return len(parts) == records[at]["of"] and all(part["k"] == "snapshot" for part in parts)


def _end(size: int, limit: int | None, name: str) -> int:
    """Return the offset where the valid part of a segment ends."""
    if limit is not None and size < limit:
        raise _damaged(name, size, f"it ends here, and its successor counts on {limit} bytes")
    return size if limit is None else limit


def _first(line: bytes, name: str) -> Header:
    record, _ = _decode(line, 0, name, 0)
    _check_version(record, name)
    return _header(record, name)


def _decoded(data: bytes, offset: int, number: int | None, name: str, base: int) -> tuple[tuple[Record, ...], int]:
    """Return the records of all whole lines from an offset on, and the offset where they end.

    Args:
        data: bytes of the segment.
        offset: where in `data` the first line begins.
        number: number of that line; None: unknown.
        name: the segment, for messages.
        base: where in the segment `data` begins.
    """
    records: list[Record] = []
    while (end := data.find(b"\n", offset)) >= 0:
        record, number = _decode(data[offset : end + 1], number, name, base + offset)
        records.append(record)
        offset, number = end + 1, number + 1
    return tuple(records), offset


def _decode(line: bytes, number: int | None, name: str, offset: int) -> tuple[Record, int]:
    """Return the record and the number of a line."""
    parsed = cast("dict[str, Any]", json.loads(line_body(line, number, name, offset)))
    return cast("Record", parsed["r"]), parsed["n"]


def line_body(line: bytes, number: int | None, name: str, offset: int) -> bytes:
    """Return a whole line's JSON without its checksum.

    Args:
        line: With its newline.
        number: The number that it must have; None: any.
        name: The segment, for messages.
        offset: Where in the segment the line begins.

    Raises:
        JournalError: The line is damaged, or another one.
    """
    body, tail = line[:-_TAIL], line[-_TAIL:]
    if tail != b',"c":"%08x"}\n' % zlib.crc32(body):
        which = "a line" if number is None else f"line {number}"
        raise _damaged(name, offset, f"the checksum of {which} is wrong")
    if number is not None and not body.startswith(b'{"n":%d,' % number):
        line_number = json.loads(body + b"}")["n"]
        raise _damaged(name, offset, f"line {number} is missing, line {line_number} follows")
    return body + b"}"


def _check_version(record: Record, name: str) -> None:
    version = record.get("v")
    if isinstance(version, int) and version != VERSION:
        writer = "a later dljob" if version > VERSION else "a dljob from before 0.1.0"
        raise JournalError(
            f"{name}: {writer} wrote it, in version {version} of the journal; this one reads version {VERSION}",
            offset=0,
            hint="use the dljob that wrote it, or start the job again from its checkpoints",
        )


def _header(record: Record, name: str) -> Header:
    if record.get("k") != "header":
        raise _damaged(name, 0, "it does not begin with a header")
    prev = record["prev"]
    known = None if prev is None else (prev[0], prev[1])
    return Header(record["epoch"], known, record["v"], record["core"])


def _damaged(name: str, offset: int, problem: str) -> JournalError:
    return JournalError(
        f"{name}: damaged at byte {offset}: {problem}",
        offset=offset,
        hint="the job's state cannot be rebuilt from it; keep the file for a report, and start the job again",
    )
