"""Samples of a job in its folder: what no journal holds, once a second or less, thinned by age.

    <job>/samples/000007.jsonl                          the segment that is written
    <job>/samples/000001-000006.10.360.1764106205.z     closed ones: numbers, seconds, rows, time of the last row

One writer appends (`SampleWriter`), any number of readers read meanwhile (`read`). Closed segments are compressed; a
merge writes a new file, and a reader ignores files whose numbers lie within those of another: a death at any line
leaves samples twice on disk, never in an answer. docs/adr/0076-samples.md has the reasons.
"""

from __future__ import annotations

import itertools
import os
import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from dljob.linux.plain_files import bounded_lines, open_plain
from dljob.runtime.journal.sample_rows import (
    Columns,
    DamagedRowError,
    Merge,
    Same,
    SampleRow,
    Segment,
    encode,
    keep_each,
    merges,
    rows,
    same_span,
    thinned,
)

FOLDER = "samples"
MOST_BYTES = 20_000_000
"""Most bytes of a job's samples."""
OPEN_ROWS, OPEN_BYTES = 600, 2**20
"""A segment with so many rows, or bytes, is closed."""
SPARE = 3 * OPEN_BYTES
"""Part of MOST_BYTES for the open segment, one that is being closed, and a merge's output beside its inputs."""
_OPEN = re.compile(r"(\d{6,})\.jsonl$")
_CLOSED = re.compile(r"(\d{6,})-(\d{6,})\.([\d.]+)\.(\d+)\.(\d+)\.z$")
_PIECE = 2**16
LINE_BYTES = 16 * 2**20
"""Longest line that is read: a row of 10,000 ranks has less than 1 MB."""
TRIES = 5
"""Times that a reader begins again since the writer replaced a file."""

ACCOUNTS = {
    "queue": "q",
    "schedule": "s",
    "init": "i",
    "productive": "p",
    "detect": "d",
    "decide": "w",
    "replace": "r",
    "rendezvous": "v",
    "recompute": "c",
    "stalled": "t",
    "stale": "l",
    "wait": "a",
    "idle": "e",
    "spare": "x",
}
"""Letter of each account in the `accounts` columns; `-`: the rank is absent."""
ABSENT = "-"
CALLS = ("sent", "parked", "again", "lost", "underWay", "tookMs")
"""The numbers in the `calls` columns."""


# -- writing


class SampleWriter:
    """Writes one master's samples. Blocking, for one thread; each call may raise OSError, and the next one goes on."""

    def __init__(self, folder: Path, most: int = MOST_BYTES) -> None:
        self._folder = folder / FOLDER
        self._most = most
        self._path: Path | None = None
        """The open segment. Its file is opened for each row: a killed master leaves nothing but whole rows."""
        self._rows = self._bytes = 0
        self._last: Columns | None = None
        self._at = 0.0

    def append(self, row: SampleRow) -> None:
        """Append a row; one that is not later than the last one is dropped."""
        if row.at <= self._at:
            return
        line = encode(row, None if self._path is None else self._last).encode("utf-8", "backslashreplace")
        try:
            if self._path is None:
                self._path = self._claim()
            # Not made anew: a successor of this master may have closed the segment and removed the file.
            with self._path.open("r+b") as file:
                file.seek(0, os.SEEK_END)
                file.write(line)
        except OSError:
            # Half of the line may be on disk: the segment ends there, and the next row begins another.
            self._path = None
            raise
        self._last, self._at = row.columns, row.at
        self._rows, self._bytes = self._rows + 1, self._bytes + len(line)
        if self._rows >= OPEN_ROWS or self._bytes >= OPEN_BYTES:
            self.close()

    def close(self) -> None:
        """Close the segment, compress it, and thin older ones."""
        self._path = None
        compact(self._folder, self._at, self._most - min(SPARE, self._most // 4))

    def _claim(self) -> Path:
        """Return a new segment of this writer's own."""
        self._folder.mkdir(parents=True, exist_ok=True)
        numbers = [closed_segment.last for closed_segment in _closed(self._folder)] + list(listed(self._folder))
        number, self._rows, self._bytes = max(numbers, default=0) + 1, 0, 0
        while True:
            path = self._folder / f"{number:06d}.jsonl"
            try:
                path.open("xb").close()
            except FileExistsError:  # of another master, which begins at this moment
                number += 1
            else:
                return path


def compact(folder: Path, now: float, most: int) -> None:
    """Compress all open segments, then thin by age until all take at most `most` bytes; for a folder's only writer."""
    for number, path in listed(folder).items():
        _write(folder, (number, number), 1.0, _rows_of(path, []))
        path.unlink(missing_ok=True)
    for merge in merges(_closed(folder), now, most):
        _merge(folder, merge)
    # What a merge covers and its death left; and files of writes that were cut off.
    closed_names = {_name(segment) for segment in _closed(folder)}
    for path in folder.glob("*.z"):
        if path.name not in closed_names:
            path.unlink(missing_ok=True)
    for path in folder.glob(".part*"):
        path.unlink(missing_ok=True)


def _merge(folder: Path, merge: Merge) -> None:
    same = same_span(merge.seconds)
    merged_rows = itertools.chain.from_iterable(
        _rows_of(folder / _name(segment), [], same) for segment in merge.segments
    )
    _write(folder, (merge.segments[0].first, merge.segments[-1].last), merge.seconds, thinned(merged_rows, same))
    for segment in merge.segments:
        (folder / _name(segment)).unlink(missing_ok=True)


def _write(folder: Path, numbers: tuple[int, int], seconds: float, sample_rows: Iterable[SampleRow]) -> None:
    """Write a closed segment; none where there is no row."""
    part = folder / f".part.{os.getpid()}"
    packer, last, count, at = zlib.compressobj(6), None, 0, 0.0
    try:
        with part.open("wb") as file:
            for row in sample_rows:
                file.write(packer.compress(encode(row, last).encode("utf-8", "backslashreplace")))
                last, count, at = row.columns, count + 1, row.at
            file.write(packer.flush())
        if count:
            part.replace(folder / _name(Segment(*numbers, seconds, count, at, 0)))
    finally:
        part.unlink(missing_ok=True)


def _name(segment: Segment) -> str:
    return f"{segment.first:06d}-{segment.last:06d}.{segment.seconds:g}.{segment.rows}.{segment.until:.0f}.z"


def listed(folder: Path) -> dict[int, Path]:
    """Return number -> path of the segments that are not closed."""
    matches = ((_OPEN.match(path.name), path) for path in _files(folder))
    return {int(match[1]): path for match, path in matches if match}


def _closed(folder: Path) -> list[Segment]:
    """Return the closed segments in their order, without those that a merge covers."""
    segments: list[Segment] = []
    for path in _files(folder):
        if match := _CLOSED.match(path.name):
            with suppress(OSError, ValueError):  # a merge removed it meanwhile
                first, last, seconds, count, until = match.groups()
                size = path.stat().st_size
                segments.append(Segment(int(first), int(last), float(seconds), int(count), float(until), size))
    # The widest of those that begin at the same number comes first, and covers the others.
    segments.sort(key=lambda segment: (segment.first, -segment.last))
    uncovered: list[Segment] = []
    for segment in segments:
        if not uncovered or segment.first > uncovered[-1].last:
            uncovered.append(segment)
    return uncovered


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _rows_of(path: Path, damaged: list[str], same: Same = keep_each) -> Iterator[SampleRow]:
    """Return the rows of a segment; `damaged` takes what is wrong with the rest of it."""
    try:
        yield from rows(_lines(path, damaged), same)
    except FileNotFoundError:
        raise
    except (DamagedRowError, OSError, zlib.error, RecursionError) as error:
        damaged.append(f"{path.name}: {error}")


def _lines(path: Path, damaged: list[str]) -> Iterator[bytes]:
    """Return the lines of a segment, with their ends; `damaged` takes what is wrong behind the last one."""
    with open_plain(path) as file:
        if path.suffix != ".z":
            for line in bounded_lines(file, LINE_BYTES):
                yield _short_enough(line)
            return
        unpacker, rest = zlib.decompressobj(), b""
        # Behind its end the unpacker would copy all that it has got so far with each piece.
        while not unpacker.eof and (piece := unpacker.unconsumed_tail or file.read(_PIECE)):
            *lines, rest = (rest + unpacker.decompress(piece, LINE_BYTES)).split(b"\n")
            yield from (line + b"\n" for line in lines)
            _short_enough(rest)
        if not unpacker.eof:
            raise zlib.error("the file is cut off")
        if unpacker.unused_data or file.read(1):
            damaged.append(f"{path.name}: damaged behind the end of its rows, which are all read")


def _short_enough(line: bytes) -> bytes:
    if len(line) >= LINE_BYTES:
        raise DamagedRowError(f"a line is longer than {LINE_BYTES >> 20} MiB")
    return line


# -- reading


@dataclass(frozen=True)
class Samples:
    """A job's samples. All series are as long as `times`; None stands where nothing was known."""

    times: list[float] = field(default_factory=list[float])
    """Unix seconds, rising."""
    steps: dict[str, list[list[int | None]]] = field(default_factory=dict[str, list[list[int | None]]])
    """Role -> by rank: the last step."""
    accounts: dict[str, list[str | None]] = field(default_factory=dict[str, list[str | None]])
    """Role -> at each time a letter a rank (`ACCOUNTS`)."""
    progress: dict[str, list[float | None]] = field(default_factory=dict[str, list[float | None]])
    """Metric of the driver role -> the value that its first rank reported last."""
    memory: dict[str, list[list[int | None]]] = field(default_factory=dict[str, list[list[int | None]]])
    """Role -> by rank: bytes of resident memory of the rank's process."""
    peak: dict[str, list[list[int | None]]] = field(default_factory=dict[str, list[list[int | None]]])
    """Role -> by rank: the most bytes that the rank and the processes that it started had resident so far."""
    cpu: dict[str, list[list[int | None]]] = field(default_factory=dict[str, list[list[int | None]]])
    """Role -> by rank: hundredths of a second of CPU time, of the processes that it started, too. A rank's next process
    begins at 0."""
    saves: dict[str, list[list[int | None]]] = field(default_factory=dict[str, list[list[int | None]]])
    """Role -> by rank: checkpoints that the rank's process saved; its next process begins at 0."""
    saving: dict[str, list[list[int | None]]] = field(default_factory=dict[str, list[list[int | None]]])
    """Role -> by rank: milliseconds that it waited for them."""
    served: dict[str, list[list[int | None]]] = field(default_factory=dict[str, list[list[int | None]]])
    """Role -> by rank: milliseconds in which the rank's process ran calls of others; its next process begins at 0."""
    waited: dict[str, dict[str, list[list[int | None]]]] = field(
        default_factory=dict[str, dict[str, list[list[int | None]]]]
    )
    """Role -> role that it calls -> by rank: milliseconds for which threads of the rank's process stood still for
    answers; its next process begins at 0."""
    device: dict[str, list[list[int | None]]] = field(default_factory=dict[str, list[list[int | None]]])
    """Role -> by rank: bytes of device memory that torch has reserved; ranks that call `progress` alone."""
    calls: dict[str, dict[str, list[int | None]]] = field(default_factory=dict[str, dict[str, list[int | None]]])
    """`caller>callee.method` -> `CALLS` -> number. `underWay`, calls that have not ended, and `parked`, those of them
    that wait for their callee, are of the moment; the others are sums since the job's start, or since a restart of
    PrimeMaster: then they begin at 0 again. `tookMs`: milliseconds that the ended ones took."""
    queues: dict[str, dict[str, list[int | None]]] = field(default_factory=dict[str, dict[str, list[int | None]]])
    """Queue -> `items` that wait, and its `capacity`."""
    weights: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Weight channel -> `published`: the newest version, and `held`: role -> by rank: the version that it has."""
    unrecorded: tuple[str, ...] = ()
    """What could not be read, and why."""

    def data(self) -> dict[str, Any]:
        """Return the `samples` key of a page's data (ADR 75)."""
        return {
            data_field.name: getattr(self, data_field.name)
            for data_field in fields(self)
            if data_field.name != "unrecorded"
        }


def read(folder: Path, most: int | None = None) -> Samples:
    """Read the samples of a job from its folder, or a copy of it; also while the job runs.

    Args:
        folder: The job's folder.
        most: The most points in time: evenly spread over the job's time, from the first to the last row; None for all.
    """
    samples_folder = folder / FOLDER
    if not samples_folder.is_dir():
        return Samples(unrecorded=("samples: none were recorded",))
    for _ in range(TRIES):
        damaged: list[str] = []
        with suppress(FileNotFoundError):  # the writer closed or merged a segment: its rows are in another one now
            return _columns(
                list(_read_rows(samples_folder, most, damaged)), tuple(f"samples: {problem}" for problem in damaged)
            )
    return Samples(unrecorded=(f"samples: the files in {samples_folder} change faster than they can be read",))


def last_columns(folder: Path) -> Columns:
    """Return the columns of the last row in a job's folder; none without one."""
    row = last_row(folder)
    return {} if row is None else row.columns


def last_row(folder: Path) -> SampleRow | None:
    """Return the last row in a job's folder."""
    samples_folder = folder / FOLDER
    for path in reversed(_paths(samples_folder) if samples_folder.is_dir() else []):
        with suppress(FileNotFoundError):  # another writer merged it: the one before tells nearly the same
            for row in deque(_rows_of(path, []), maxlen=1):
                return row
    return None


def _read_rows(folder: Path, most: int | None, damaged: list[str]) -> Iterator[SampleRow]:
    """Return rows in their order, each later than the one before it, at most `most` of them."""
    same = keep_each
    if most is not None:
        first, last = _span(folder)
        # A hair wider than even, so that the last row falls into the last span.
        same = same_span((last - first) / most * (1 + 1e-9) or 1.0, first)
    return thinned(itertools.chain.from_iterable(_rows_of(path, damaged, same) for path in _paths(folder)), same)


def _paths(folder: Path) -> list[Path]:
    """Return the segments in their order, each row in one of them."""
    closed = _closed(folder)
    paths = [(segment.first, folder / _name(segment)) for segment in closed]
    for number, path in listed(folder).items():
        if not any(segment.first <= number <= segment.last for segment in closed):
            paths.append((number, path))
    return [path for _, path in sorted(paths)]


def _span(folder: Path) -> tuple[float, float]:
    """Return the times of the first row and of the last one, about."""
    paths = _paths(folder)
    firsts = (row.at for path in paths if (row := next(_rows_of(path, []), None)) is not None)
    first = next(firsts, 0.0)
    # The time in a name is rounded.
    lasts = [segment.until + 1 for segment in _closed(folder)]
    lasts += [row.at for path in paths if path.suffix != ".z" for row in _rows_of(path, [])]
    return first, max([first, *lasts])


def _columns(sample_rows: Sequence[SampleRow], unrecorded: tuple[str, ...]) -> Samples:
    samples = Samples([row.at for row in sample_rows], unrecorded=unrecorded)
    # A dict, not a set: columns keep the order in which they first came.
    for column in dict.fromkeys(name for row in sample_rows for name in row.columns):
        kind, _, name = column.partition("/")
        series = [row.columns.get(column) for row in sample_rows]
        match kind:
            case "accounts" | "progress":
                getattr(samples, kind)[name] = series
            case "steps" | "cpu" | "saves" | "saving" | "served":
                getattr(samples, kind)[name] = _by_rank(series)
            case "memory" | "peak" | "device":
                getattr(samples, kind)[name] = [[_bytes(mib) for mib in rank] for rank in _by_rank(series)]
            case "waited":
                role, _, callee = name.partition("/")
                samples.waited.setdefault(role, {})[callee] = _by_rank(series)
            case "calls":
                samples.calls[name] = dict(zip(CALLS, _by_rank(series), strict=False))
            case "queues":
                samples.queues[name] = dict(zip(("items", "capacity"), _by_rank(series), strict=False))
            case "published":
                samples.weights.setdefault(name, {"published": [], "held": {}})["published"] = series
            case "held":
                role, _, channel = name.partition("/")
                channel_series = samples.weights.setdefault(channel, {"published": [None] * len(series), "held": {}})
                channel_series["held"][role] = _by_rank(series)
            case _:  # of a later version
                pass
    return samples


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib << 20


def _by_rank(series: Sequence[list[Any] | None]) -> list[list[Any]]:
    """Return lists over ranks as one list over time for each rank; a role may grow, and may begin late."""
    width = max(len(ranks or ()) for ranks in series)
    nothing: list[Any] = [None] * width
    padded_rows = (nothing if ranks is None else [*ranks, *nothing[len(ranks) :]] for ranks in series)
    return [list(rank) for rank in zip(*padded_rows, strict=True)]
