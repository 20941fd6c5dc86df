"""Rows of traced calls: which calls are sampled, the text of a row, and which rows a full file keeps. No I/O.

A file belongs to one process of a rank. Its first line names that rank; each later one is a row: of a call that the
rank made (`CallerRow`), of one that it ran (`CalleeRow`), or the number of rows that are missing (`RowsDropped`).

Which calls are sampled follows from their numbers alone: a call of level n is also one of each lower level. So caller
and callee keep the same calls whatever level each has reached, and the arrow between them stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast, get_type_hints

FORMAT = 1
"""Version of the format, in the first line of each file."""
MAX_RATE = 50
"""Rows a second and process from which a smaller share of the calls is sampled."""
MAX_LEVEL = 24
"""The highest level: one call in 16 million is sampled."""
PARKED_S = 0.05
"""Seconds without a callee from which a call is recorded whether it is sampled or not."""
_GOLDEN_RATIO = 0x9E3779B1
"""The golden ratio's fraction of 2 ** 32."""
_HASH_BITS = 32
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
    parked_s: float
    """Seconds that the call waited for its callee to start."""
    seconds: float
    """Seconds until the answer, or the error."""
    sends: int
    sent_at: float
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
    waited_s: float
    """Seconds that it waited for `setup`, or for its turn."""
    seconds: float
    """Seconds until the answer was made."""
    outcome: str
    """`ok`, or the type of the error that was answered, or why it was not run."""


class RowsDropped(NamedTuple):
    """Rows that are missing since there was no room for them."""

    calls: int


TracedRow: TypeAlias = CallerRow | CalleeRow | RowsDropped
_ROW_TYPES: dict[str, type[TracedRow]] = {"c": CallerRow, "s": CalleeRow, "d": RowsDropped}
"""The first element of a row's line -> its type."""
_LETTERS = {row_type: letter for letter, row_type in _ROW_TYPES.items()}
_FIELD_TYPES = {
    row_type: tuple(
        (int, float) if field_type is float else field_type for field_type in get_type_hints(row_type).values()
    )
    for row_type in _ROW_TYPES.values()
}
"""Type of a row -> types of its fields; a float may be written as a whole number."""
_DENSE_JSON = json.JSONEncoder(separators=(",", ":"))


# -- which calls are sampled


def is_sampled(number: int, level: int) -> bool:
    """Return whether the call of a number is sampled at a level.

    Fibonacci hashing: consecutive numbers are spread evenly, also of each n-th call alone, such as every fourth one of
    a loop that makes four calls.
    """
    return not ((number * _GOLDEN_RATIO) & 0xFFFFFFFF) >> (_HASH_BITS - level)


def next_level(level: int, min_level: int, row_count: int, seconds: float) -> int:
    """Return the level for the next seconds, after `row_count` rows in the last `seconds`."""
    rate = row_count / seconds
    while rate > MAX_RATE and level < MAX_LEVEL:
        rate, level = rate / 2, level + 1
    # A quarter: the rate at the lower level would be half of what is allowed, so the level does not go up and down.
    return max(min_level, level - 1) if rate < MAX_RATE / 4 else max(min_level, level)


def call_number(call_id: str) -> int:
    """Return the number in the id of a call."""
    return int(call_id.rpartition(":")[2])


# -- the text of a file


def header(role: str, rank: int) -> str:
    """Return the first line of a file."""
    return json.dumps({"f": FORMAT, "role": role, "rank": rank}) + "\n"


def encode(row: TracedRow) -> str:
    """Return the line of a row."""
    values = (round(value, 6) if isinstance(value, float) else value for value in row)
    return _DENSE_JSON.encode([_LETTERS[type(row)], *values]) + "\n"


class TracedFile(NamedTuple):
    """The content of a file."""

    role: str
    rank: int
    rows: list[TracedRow]
    damaged_lines: int
    """Number of lines that are no rows: a process that is killed, or a full disk, may leave half of one."""


def decode(lines: Iterable[bytes]) -> TracedFile | None:
    """Return the content of a file's lines; None without a first line that this version can read."""
    role_and_rank: tuple[str, int] | None = None
    rows, damaged_lines = list[TracedRow](), 0
    for line in lines:
        try:
            data: Any = json.loads(line)
            if isinstance(data, dict):
                # There is a second header where a file was deleted while its process wrote, and begun anew.
                role_and_rank = _read_header(cast("dict[str, Any]", data))
            else:
                rows.append(_read_row(data))
        except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError):
            damaged_lines += bool(line.strip())
    return None if role_and_rank is None else TracedFile(*role_and_rank, rows, damaged_lines)


def _read_header(data: dict[str, Any]) -> tuple[str, int]:
    if data["f"] != FORMAT:
        raise ValueError(f"format {data['f']}")
    return str(data["role"]), int(data["rank"])


def _read_row(data: Sequence[Any]) -> TracedRow:
    letter, *values = data
    row_type = _ROW_TYPES[letter]
    # A damaged line must not fail those who read the row.
    if not all(map(isinstance, values, _FIELD_TYPES[row_type])):
        raise TypeError(f"no row of {row_type.__name__}")
    return row_type(*values)


# -- which rows a full file keeps


def is_notable(row: TracedRow) -> bool:
    """Return whether a row is recorded even if its call is not sampled: it was sent again, waited, or failed."""
    return isinstance(row, CallerRow) and (row.sends > 1 or row.parked_s >= PARKED_S or row.outcome != OK)


def thin_rows(rows: Sequence[TracedRow], min_level: int, max_bytes: int) -> tuple[list[TracedRow], int]:
    """Return rows whose lines take at most `max_bytes`, and the level at which they are sampled.

    Each level drops half of the calls that are not notable, until these take a quarter of the bytes; then the oldest
    rows are dropped.
    """
    sized_rows = [(row, len(encode(row))) for row in rows if not isinstance(row, RowsDropped)]
    call_count = len(sized_rows) + sum(row.calls for row in rows if isinstance(row, RowsDropped))
    level = min_level
    while True:
        total_bytes = sum(size for _, size in sized_rows)
        ordinary_bytes = sum(size for row, size in sized_rows if not is_notable(row))
        if total_bytes <= max_bytes or ordinary_bytes <= max_bytes / 4 or level == MAX_LEVEL:
            break
        level += 1
        sized_rows = [
            (row, size) for row, size in sized_rows if is_notable(row) or is_sampled(call_number(row.id), level)
        ]
    total_bytes = sum(size for _, size in sized_rows)
    first = 0
    while total_bytes > max_bytes:
        total_bytes, first = total_bytes - sized_rows[first][1], first + 1
    newest_rows: list[TracedRow] = [row for row, _ in sized_rows[first:]]
    return [RowsDropped(call_count - len(newest_rows)), *newest_rows], level
