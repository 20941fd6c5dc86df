"""Splitting the arguments of a call into shards, evenly or not, and removing the padding from its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dljob.calls import rows
from dljob.errors import UsageError
from dljob.telemetry.wording import counted

Pad = Literal["uneven", "auto", "error"]
PADS: tuple[Pad, ...] = ("uneven", "auto", "error")
"""Handling of rows that do not divide evenly: shards that differ by one row, repeated rows, or an error."""

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Shares:
    """Number of rows of the batch, rows of each shard, and how many rows at the end are padding."""

    rows: int
    each: tuple[int, ...]
    padding: int = 0


def shares(count: int, shards: int, pad: Pad, what: str = "the batch") -> Shares:
    """Divide `count` rows among `shards` shards.

    Raises:
        UsageError: rows do not divide evenly and `pad` is "error"; or `pad` is "auto" and there is no row to repeat.
    """
    base, over = divmod(count, shards)
    if pad == "uneven" or not over:
        # No rows also divide evenly, but "auto" has no row to repeat for the shards.
        if pad == "auto" and not count:
            raise UsageError(f"{what} has no rows to give to {shards} shards", hint="pad='uneven' sends empty shards")
        return Shares(count, tuple(base + (shard < over) for shard in range(shards)))
    if pad == "error":
        raise UsageError(
            f"{what} has {counted(count, 'row')}, which {counted(shards, 'shard')} cannot share evenly",
            hint="pad='auto' repeats rows and takes them off the joined answer; pad='uneven' sends uneven shards",
        )
    # All padding is at the end of the batch, so `unpad` can cut it off the end of the answer.
    return Shares(count, (base + 1,) * shards, (base + 1) * shards - count)


def count_rows(args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str] = ()) -> int:
    """Return the number of rows that the arguments have in common.

    Raises:
        UsageError: no argument has rows, or two have different numbers of them.
    """
    # By the names of the method's parameters where they are known, so that an error names what the user wrote.
    named = [(names[n] if n < len(names) else f"argument {n + 1}", value) for n, value in enumerate(args)]
    found = [one for name, value in [*named, *kwargs.items()] for one in rows.counts(value, name)]
    if not found:
        raise UsageError(
            "dispatch='shard': no argument has rows to split",
            hint="lists, arrays, tensors, TensorDicts and dicts or tuples of them do, and what register_rows knows",
        )
    # Shards are cut by the same indices from every argument, so all must have the same number of rows.
    for where, count in found:
        if count != found[0][1]:
            raise UsageError(
                f"dispatch='shard': {found[0][0]} has {found[0][1]} rows, but {where} has {count}",
                hint="all that is split has as many rows; whole(value) sends a value as it is to every shard",
            )
    return found[0][1]


def split(args: Sequence[Any], kwargs: Mapping[str, Any], shared: Shares) -> list[Arguments]:
    """Return the arguments of each shard. Padding repeats the rows from the first on."""
    made: list[Arguments] = []
    begin = 0
    for count in shared.each:
        take = _taker(begin, begin + count, shared.rows)
        one = tuple(rows.change(value, take) for value in args)
        made.append((one, {name: rows.change(value, take) for name, value in kwargs.items()}))
        begin += count
    return made


def _taker(begin: int, end: int, total: int) -> Callable[[rows.RowType, Any], Any]:
    """Return a function that cuts the rows [begin, end); indices beyond the last row wrap around to the first."""

    def take(kind: rows.RowType, value: Any) -> Any:
        at, pieces = begin, list[Any]()
        while at < end:
            # Modulo: padding continues with the first row; with fewer rows than shards it goes round several times.
            first = at % total
            last = min(total, first + end - at)
            pieces.append(kind.cut(value, first, last))
            at += last - first
        # An empty shard: cut from the value, so that it keeps the type, and an array its other dimensions.
        if not pieces:
            return kind.cut(value, 0, 0)
        # Rows without padding are one piece, which needs no join (for arrays and tensors a copy).
        return pieces[0] if len(pieces) == 1 else kind.join(pieces)

    return take


def unpad(joined: Any, shared: Shares, what: str) -> Any:
    """Remove the rows of the padding from a joined answer, which may have several rows for each row of the batch.

    Raises:
        UsageError: the rows of the answer are no multiple of the rows of the batch.
    """
    if not shared.padding:
        return joined
    total = shared.rows + shared.padding

    def off(kind: rows.RowType, part: Any) -> Any:
        have = kind.count(part) or 0
        # Only with as many answers for each row is it known which of them belong to the padding.
        if have % total:
            raise UsageError(
                f"{what} answered {have} rows for {total}, so those of the {shared.padding} padded rows are unknown",
                hint="answer as many rows for each row, or use pad='uneven'",
            )
        return kind.cut(part, 0, have // total * shared.rows)

    return rows.change(joined, off)
