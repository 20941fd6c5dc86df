"""Rows of a job's samples: their text, and which of them are kept. No I/O; docs/adr/0076 has the format.

A row is a time (unix seconds) and columns: `<kind>/<name>` -> value. A value is a number, a text, or a list by rank. In
a segment only the first row is whole; a later one holds the columns that changed, and lists of whole numbers as their
differences, a character a rank where these are small. So a rank that goes on by a step costs a byte before compression,
and a world whose ranks go on together costs a few bytes for all of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from dljob.errors import DLJobError

Columns: TypeAlias = Mapping[str, Any]
Same: TypeAlias = Callable[[float, float], bool]
"""Whether the row of a time may be passed over, since that of a later time stands for it."""

FORMAT = 1
"""Version of the format, in the first line of each segment."""
AGES = ((3600.0, 1.0), (86400.0, 10.0), (math.inf, 60.0))
"""(age up to, seconds between two rows), youngest first."""
ROWS = 300
"""Rows that a thinned segment has at least, unless room is short: fewer, larger files compress better."""
_ZERO, _LEAST, _MOST = 60, -25, 31
"""A small difference is the character with the code _ZERO + difference: printable, and neither `"` nor `\\`."""


class DamagedRowError(DLJobError):
    """A line is no row, or does not fit to the one before it."""


class SampleRow(NamedTuple):
    """One sample."""

    at: float
    columns: Columns


# -- the text of a row


def encode(row: SampleRow, before: Columns | None) -> str:
    """Return a row's line; `before`: the columns of the row before it in the segment, None for the first."""
    line: dict[str, Any] = {"t": round(row.at, 2)}
    if before is None:
        line["f"] = FORMAT
    whole_columns: dict[str, Any] = {}
    deltas: dict[str, Any] = {}
    for name, value in row.columns.items():
        last = None if before is None else before.get(name)
        # Identity first: a column of thousands of ranks is often the very object of the last row.
        if value is last or value == last:
            continue
        delta = _delta(last, value)
        if delta is None:
            whole_columns[name] = value
        else:
            deltas[name] = delta
    line |= {key: part for key, part in (("c", whole_columns), ("d", deltas)) if part}
    return json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n"


def _delta(last: Any, value: Any) -> int | str | list[int] | None:
    """Return the difference of two lists; None where the value has to be written whole."""
    if not isinstance(value, list) or not isinstance(last, list) or len(value) != len(last):
        return None
    try:
        changes = [new - old for new, old in zip(value, last, strict=True)]
    except TypeError:  # a rank without a number: a second, slower look
        if any((new is None) is not (old is None) for new, old in zip(value, last, strict=True)):
            return None
        changes = [0 if new is None else new - old for new, old in zip(value, last, strict=True)]
    least, most = min(changes), max(changes)
    if least == most:
        return least
    if least >= _LEAST and most <= _MOST:
        return bytes([_ZERO + change for change in changes]).decode("ascii")
    return changes


def keep_each(_early: float, _late: float) -> bool:
    """Pass no row over."""
    return False


class _Segment:
    """The present row of a segment that is read. Differences are added up only once a row is asked for."""

    def __init__(self) -> None:
        self.at: float | None = None
        self._values: dict[str, Any] = {}
        self._open: dict[str, list[Sequence[int]]] = {}
        """Column -> its differences by rank since its value was made; `_offsets` has what all ranks share."""
        self._offsets: dict[str, int] = {}

    def apply(self, line_fields: Mapping[str, Any]) -> None:
        """Go on to the next row."""
        if self.at is None and line_fields.get("f") != FORMAT:
            raise DamagedRowError(f"a segment of format {line_fields.get('f')}, this version reads {FORMAT}")
        whole_columns = line_fields.get("c", {})
        self._values.update(whole_columns)
        for name in self._open.keys() & whole_columns.keys():
            del self._open[name], self._offsets[name]
        for name, delta in line_fields.get("d", {}).items():
            differences = self._open.setdefault(name, [])
            if isinstance(delta, int):
                self._offsets[name] = self._offsets.get(name, 0) + delta
                continue
            differences.append(delta.encode("ascii") if isinstance(delta, str) else delta)
            self._offsets[name] = self._offsets.get(name, 0) - (_ZERO if isinstance(delta, str) else 0)
            if len(differences[-1]) != len(self._values[name]):
                raise ValueError(f"{len(differences[-1])} differences of {len(self._values[name])} values")
        self.at = float(line_fields["t"])

    def row(self) -> SampleRow:
        """Return the present row."""
        for name, differences in self._open.items():
            last, offset = self._values[name], self._offsets[name]
            # `zip` and `sum` walk in C: most rows of a day are passed over, and only added up.
            sums = map(sum, zip(*differences, strict=True)) if differences else [0] * len(last)
            self._values[name] = [
                None if old is None else old + change + offset for old, change in zip(last, sums, strict=True)
            ]
        self._open, self._offsets = {}, {}
        return SampleRow(self.at or 0.0, dict(self._values))


def rows(lines: Iterable[bytes], same: Same = keep_each) -> Iterator[SampleRow]:
    """Return the rows of a segment's lines. A last line without an end was cut off with its writer, and is left out.

    Args:
        lines: the lines, with their ends.
        same: which rows are passed over.

    Raises:
        DamagedRowError: A line in the middle is damaged; rows before it are good.
    """
    segment = _Segment()
    try:
        for line in lines:
            if not line.endswith(b"\n"):
                break
            line_fields = json.loads(line)
            if segment.at is not None and not same(segment.at, line_fields["t"]):
                yield segment.row()
            segment.apply(line_fields)
        if segment.at is not None:
            yield segment.row()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedRowError(f"no row of samples: {type(error).__name__}: {error}") from error


# -- which rows are kept


def same_span(seconds: float, first: float = 0.0) -> Same:
    """Return whether two times are in the same span of so many seconds, counted from `first`."""
    return lambda early, late: early < late and (early - first) // seconds == (late - first) // seconds


def thinned(sample_rows: Iterable[SampleRow], same: Same) -> Iterator[SampleRow]:
    """Return the last row of each span, and no row that is not later than the one before it."""
    last_row: SampleRow | None = None
    for row in sample_rows:
        # A clock that went back, or a master that was replaced and still wrote: time goes on in one direction.
        if last_row is not None and row.at <= last_row.at:
            continue
        if last_row is not None and not same(last_row.at, row.at):
            yield last_row
        last_row = row
    if last_row is not None:
        yield last_row


class Segment(NamedTuple):
    """A closed segment: its first and last number, seconds between its rows, their count, and the last one's time."""

    first: int
    last: int
    seconds: float
    rows: int
    until: float
    size: int


class Merge(NamedTuple):
    """Neighbouring segments that become one with `seconds` between its rows."""

    segments: tuple[Segment, ...]
    seconds: float


def merges(segments: Sequence[Segment], now: float, most: int) -> list[Merge]:
    """Return the merges that are due, oldest first, so that all segments take at most `most` bytes.

    Each age has its resolution (`AGES`). Where the bytes do not suffice all of them are doubled, as often as needed.
    """
    factor = 1.0
    while (
        sum(segment.size * min(1.0, segment.seconds / _wanted_seconds(segment, now, factor)) for segment in segments)
        > most
    ):
        factor *= 2
    due_merges: list[Merge] = []
    run: list[Segment] = []
    aim = 0.0
    for segment in segments:
        seconds = _wanted_seconds(segment, now, factor)
        if run and (seconds != aim or segment.seconds >= seconds):
            # Too few rows for a segment wait for younger neighbours, unless the next one is as coarse as they shall be.
            if factor > 1 or segment.seconds >= aim:
                due_merges.append(Merge(tuple(run), aim))
            run = []
        if segment.seconds < seconds:
            run, aim = [*run, segment], seconds
            if _rows_left(run, aim) >= ROWS:
                due_merges.append(Merge(tuple(run), aim))
                run = []
    return [*due_merges, Merge(tuple(run), aim)] if run and factor > 1 else due_merges


def _wanted_seconds(segment: Segment, now: float, factor: float) -> float:
    return factor * next(seconds for age, seconds in AGES if now - segment.until < age)


def _rows_left(run: Sequence[Segment], seconds: float) -> float:
    """Return about how many rows of a run are left with so many seconds between them."""
    return sum(segment.rows * segment.seconds / seconds for segment in run)
