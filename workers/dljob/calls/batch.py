"""Splitting the arguments of a call into shards, evenly or not, and removing the padding from its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from dljob.calls import rows
from dljob.errors import UsageError
from dljob.telemetry.wording import counted

Pad = Literal["uneven", "auto", "error"]
PADS: tuple[Pad, ...] = ("uneven", "auto", "error")
"""Handling of rows that do not divide evenly: shards that differ by one row, repeated rows, or an error."""

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
"""(args, kwargs) of a call."""


@dataclass(frozen=True, slots=True)
class ShardSizes:
    """Number of rows of the batch, rows of each shard, and how many rows at the end are padding."""

    total_rows: int
    rows_per_shard: tuple[int, ...]
    padding_rows: int = 0


def divide_rows(row_count: int, shard_count: int, pad: Pad) -> ShardSizes:
    """Divide the rows of a batch among shards.

    Raises:
        UsageError: rows do not divide evenly and `pad` is "error"; or `pad` is "auto" and there is no row to repeat.
    """
    base, remainder = divmod(row_count, shard_count)
    if pad == "uneven" or not remainder:
        # No rows also divide evenly, but "auto" has no row to repeat for the shards.
        if pad == "auto" and not row_count:
            message = f"the batch has no rows to give to {counted(shard_count, 'shard')}"
            raise UsageError(message, hint="pad='uneven' sends empty shards")
        return ShardSizes(row_count, tuple(base + (shard < remainder) for shard in range(shard_count)))
    if pad == "error":
        raise UsageError(
            f"the batch has {counted(row_count, 'row')}, which {counted(shard_count, 'shard')} cannot share evenly",
            hint="pad='auto' repeats rows and takes them off the joined answer; pad='uneven' sends uneven shards",
        )
    # All padding is at the end of the batch, so `remove_padding` can cut it off the end of the answer.
    return ShardSizes(row_count, (base + 1,) * shard_count, (base + 1) * shard_count - row_count)


def count_rows(args: Sequence[Any], kwargs: Mapping[str, Any], parameter_names: Sequence[str] = ()) -> int:
    """Return the number of rows that the arguments have in common.

    Errors name an argument as its parameter in `parameter_names`, else "argument 1" and so on.

    Raises:
        UsageError: no argument has rows, or two have different numbers of them.
    """
    names = [*parameter_names[: len(args)], *(f"argument {n + 1}" for n in range(len(parameter_names), len(args)))]
    arguments = [*zip(names, args, strict=True), *kwargs.items()]
    path_counts = [path_count for name, value in arguments for path_count in rows.row_counts(value, name)]
    if not path_counts:
        raise UsageError(
            "dispatch='shard': no argument has rows to split",
            hint="lists, arrays, tensors, TensorDicts and dicts or tuples of them do, and what register_rows knows",
        )
    first_path, first_count = path_counts[0]
    # Shards are cut by the same indices from every argument, so all must have the same number of rows.
    for path, count in path_counts:
        if count != first_count:
            raise UsageError(
                f"dispatch='shard': {first_path} has {counted(first_count, 'row')}, but {path} has {count}",
                hint="all that is split has as many rows; whole(value) sends a value as it is to every shard",
            )
    return first_count


def split_arguments(args: Sequence[Any], kwargs: Mapping[str, Any], sizes: ShardSizes) -> list[Arguments]:
    """Return the arguments of each shard. Padding repeats the rows from the first on."""
    shard_arguments: list[Arguments] = []
    begin = 0
    for count in sizes.rows_per_shard:
        cut = partial(_cut_rows, begin, begin + count, sizes.total_rows)
        shard_args = tuple(rows.map_rows(value, cut) for value in args)
        shard_arguments.append((shard_args, {name: rows.map_rows(value, cut) for name, value in kwargs.items()}))
        begin += count
    return shard_arguments


def _cut_rows(begin: int, end: int, total_rows: int, row_type: rows.RowType, value: Any) -> Any:
    """Return the rows [begin, end) of a value; indices beyond the last row wrap around to the first."""
    position, pieces = begin, list[Any]()
    while position < end:
        # Modulo: padding continues with the first row; with fewer rows than shards it goes round several times.
        piece_begin = position % total_rows
        piece_end = min(total_rows, piece_begin + end - position)
        pieces.append(row_type.cut(value, piece_begin, piece_end))
        position += piece_end - piece_begin
    # An empty shard: cut from the value, so that it keeps the type, and an array its other dimensions.
    if not pieces:
        return row_type.cut(value, 0, 0)
    # Rows without padding are one piece, which needs no join (for arrays and tensors a copy).
    return pieces[0] if len(pieces) == 1 else row_type.join(pieces)


def remove_padding(answer: Any, sizes: ShardSizes, call_name: str) -> Any:
    """Remove the rows of the padding from a joined answer, which may have several rows for each row of the batch.

    Raises:
        UsageError: the rows of the answer are no multiple of the rows of the batch.
    """
    if not sizes.padding_rows:
        return answer
    padded_rows = sizes.total_rows + sizes.padding_rows

    def cut_off_padding(row_type: rows.RowType, part: Any) -> Any:
        part_rows = row_type.count(part) or 0
        # Only with as many answers for each row is it known which of them belong to the padding.
        if part_rows % padded_rows:
            raise UsageError(
                f"{call_name} answered {counted(part_rows, 'row')} for {padded_rows}, so it is unknown which are "
                f"those of the {counted(sizes.padding_rows, 'padded row')}",
                hint="answer as many rows for each row, or use pad='uneven'",
            )
        return row_type.cut(part, 0, part_rows // padded_rows * sizes.total_rows)

    return rows.map_rows(answer, cut_off_padding)
