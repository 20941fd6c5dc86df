"""Rows of traced calls: which calls are sampled, the text of a row, and which rows a full file keeps. No I/O.

A file belongs to one process of a rank. Its first line says whose it is; each later one is a row: of a call that the
rank made (`CallerRow`), of one that it ran (`CalleeRow`), or a remark about rows that are missing (`RowsDropped`).

Which calls are sampled follows from their numbers alone: a call of level n is also one of each lower level. So caller
and callee keep the same calls whatever level each has reached, and the arrow between them stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast, get_type_hints

FORMAT = 1
"""Version of the format, in the first line of each file."""
RATE = 50
"""Rows a second and process from which a smaller share of the calls is sampled."""
LEVELS = 24
"""The highest level: one call in 16 million."""
PARKED_S = 0.05
"""Seconds without a callee from which a call is recorded whether it is sampled or not."""
_GOLDEN = 0x9E3779B1
_BITS = 32
OK = "ok"
"""The outcome of a call that was answered with a value."""


class CallerRow(NamedTuple):
    """A call as its caller saw it."""

    id: str
    """The caller's process and the number of the call there: `ab12cd34:17`."""
    role: str
    rank: int
    method: str
    start: float
    """Unix seconds, as all times here."""
    parked: float
    """Seconds that the call waited for its callee to be there."""
    seconds: float
    """Seconds until the answer, or the error."""
    sends: int
    sent: float
    """When it was last sent; 0: never."""
    outcome: str
    """`ok`, or the type of the error that the caller got."""
    level: int
    """One of 2 ** level calls was sampled."""
    argument_bytes: int
    answer_bytes: int


class CalleeRow(NamedTuple):
    """A call as its callee saw it."""

    caller: str
    """The calling rank: `trainer/0`."""
    id: str
    method: str
    start: float
    """When it arrived."""
    waited: float
    """Seconds that it waited for `setup`, or for its turn."""
    seconds: float
    """Seconds until the answer was made."""
    outcome: str
    """`ok`, or the type of the error that was answered, or why it was not run."""


class RowsDropped(NamedTuple):
    """Rows that are missing since there was no room for them."""

    calls: int


TracedRow: TypeAlias = CallerRow | CalleeRow | RowsDropped
_KINDS: dict[str, type[TracedRow]] = {"c": CallerRow, "s": CalleeRow, "d": RowsDropped}
_DENSE = json.JSONEncoder(separators=(",", ":"))
_TYPES = {
    kind: tuple((int, float) if wanted is float else wanted for wanted in get_type_hints(kind).values())
    for kind in _KINDS.values()
}
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}


# -- which calls are sampled


def is_sampled(number: int, level: int) -> bool:
    """Return whether the call of a number is sampled at a level.

    Fibonacci hashing: consecutive numbers are spread evenly, also of each n-th call alone, such as every fourth one of
    a loop that makes four calls.
    """
    return not ((number * _GOLDEN) & 0xFFFFFFFF) >> (_BITS - level)


def next_level(level: int, floor: int, sampled: int, seconds: float) -> int:
    """Return the level of the next seconds, by the number of rows of the last ones; `floor` is the lowest allowed."""
    rate = sampled / seconds
    while rate > RATE and level < LEVELS:
        rate, level = rate / 2, level + 1
    # A quarter: the rate at the lower level would be half of what is allowed, so the level does not go up and down.
    return max(floor, level - 1) if rate < RATE / 4 else max(floor, level)


def number_of(call: str) -> int:
    """Return the number in the id of a call."""
    return int(call.rpartition(":")[2])


# -- the text of a file


def header(role: str, rank: int) -> str:
    """Return the first line of a file."""
    return json.dumps({"f": FORMAT, "role": role, "rank": rank}) + "\n"


def encode(row: TracedRow) -> str:
    """Return the line of a row."""
    values = (round(value, 6) if isinstance(value, float) else value for value in row)
    return _DENSE.encode([_LETTERS[type(row)], *values]) + "\n"


class TracedFile(NamedTuple):
    """The content of a file."""

    role: str
    rank: int
    rows: list[TracedRow]
    damaged: int
    """Lines that are no rows: a process that is killed, or a full disk, may leave half of one."""


def decode(lines: Iterable[bytes]) -> TracedFile | None:
    """Return the content of a file's lines; None without a first line that this version can read."""
    whose: tuple[str, int] | None = None
    rows, damaged = list[TracedRow](), 0
    for line in lines:
        try:
            said: Any = json.loads(line)
            if isinstance(said, dict):
                # Again where a file was lost under its writer, and begun anew.
                whose = _whose(cast("dict[str, Any]", said))
            else:
                rows.append(_row(said))
        except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError):
            damaged += bool(line.strip())
    return None if whose is None else TracedFile(*whose, rows, damaged)


def _whose(said: dict[str, Any]) -> tuple[str, int]:
    if said["f"] != FORMAT:
        raise ValueError(f"format {said['f']}")
    return str(said["role"]), int(said["rank"])


def _row(said: Sequence[Any]) -> TracedRow:
    kind = _KINDS[said[0]]
    # A line of another shape must not fail a reader of the whole.
    if not all(map(isinstance, said[1:], _TYPES[kind])):
        raise TypeError(f"no row of {kind.__name__}")
    return kind(*said[1:])


# -- which rows a full file keeps


def is_notable(row: TracedRow) -> bool:
    """Return whether a row tells trouble: it was recorded though its call may not have been sampled."""
    return isinstance(row, CallerRow) and (row.sends > 1 or row.parked >= PARKED_S or row.outcome != OK)


def thinned(rows: Sequence[TracedRow], floor: int, most: int) -> tuple[list[TracedRow], int]:
    """Return rows whose lines take at most `most` bytes, and the level at which they are sampled.

    Each level drops half of the calls without trouble, down to a quarter of the room; then the oldest rows go.
    """
    kept = [(row, len(encode(row))) for row in rows if not isinstance(row, RowsDropped)]
    dropped = len(kept) + sum(row.calls for row in rows if isinstance(row, RowsDropped))
    level = floor
    while _size(kept) > most and _size([own for own in kept if not is_notable(own[0])]) > most / 4 and level < LEVELS:
        level += 1
        kept = [(row, size) for row, size in kept if is_notable(row) or is_sampled(number_of(row.id), level)]
    first, total = 0, _size(kept)
    while total > most:
        total, first = total - kept[first][1], first + 1
    left: list[TracedRow] = [row for row, _ in kept[first:]]
    return [RowsDropped(dropped - len(left)), *left], level


def _size(kept: Sequence[tuple[TracedRow, int]]) -> int:
    return sum(size for _, size in kept)
