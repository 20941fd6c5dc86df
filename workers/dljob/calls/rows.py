"""Types with rows, which can be cut along their first dimension and joined again: lists, and registered types.

Dicts and tuples are cut value by value; values of other types go uncut to every shard.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

from dljob.errors import UsageError


@dataclass(frozen=True, slots=True)
class RowType:
    """A type with rows: the functions of `register_rows`. `count`, `cut` and `join` raise UsageError where these fail.

    Sparse and nested tensors are tensors, and torch can neither slice nor join most of them.
    """

    count_function: Callable[[Any], int | None]
    cut_function: Callable[[Any, int, int], Any]
    join_function: Callable[[Sequence[Any]], Any]
    maximum: Callable[[Any, Any], Any] | None = None

    def count(self, value: Any) -> int | None:
        """Return the number of rows of a value; None for one without rows, such as an array of no dimension."""
        with _explain_errors(value, "counted"):
            return self.count_function(value)

    def cut(self, value: Any, begin: int, end: int) -> Any:
        """Return some rows of a value."""
        with _explain_errors(value, "cut into shards"):
            return self.cut_function(value, begin, end)

    def join(self, parts: Sequence[Any], target: str = "one value") -> Any:
        """Return one value of several; `target` names it in errors."""
        with _explain_errors(parts[0], f"joined into {target}"):
            return self.join_function(parts)


@contextmanager
def _explain_errors(value: Any, action: str) -> Generator[None]:
    """Turn an error of a value's library into a UsageError: rows of this kind of value cannot be e.g. "counted"."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        layout = "" if getattr(value, "layout", None) is None else f" of layout {value.layout}"
        nested = "nested " if getattr(value, "is_nested", False) else ""
        reason = str(error).partition("\n")[0][:200]
        kind = f"{nested}{type(value).__name__}{layout}"
        raise UsageError(
            f"the rows of a {kind} cannot be {action}: {type(error).__name__}: {reason}",
            hint="whole(value) sends it uncut to every shard; or send a list of its parts, or a dense tensor",
        ) from error


@dataclass(frozen=True, slots=True)
class Whole:
    """Wrapper of an argument that must not be cut; see `whole`."""

    value: Any


_LIST = RowType(len, lambda value, begin, end: value[begin:end], lambda parts: list(chain.from_iterable(parts)))
# By dotted name, not by type: so nothing needs to import NumPy or torch to know their rows.
_row_types: dict[str, RowType] = {"builtins.list": _LIST}


def whole(value: Any) -> Any:
    """Wrap an argument of a call so that it goes uncut to every shard, though its type has rows."""
    return Whole(value)


def unwrap_whole(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments without the wrapper of `whole`, for dispatches that cut nothing."""
    plain_args = tuple(value.value if isinstance(value, Whole) else value for value in args)
    return plain_args, {name: value.value if isinstance(value, Whole) else value for name, value in kwargs.items()}


def register_rows(
    kind: type | str,
    *,
    count: Callable[[Any], int | None],
    cut: Callable[[Any, int, int], Any],
    join: Callable[[Sequence[Any]], Any],
    maximum: Callable[[Any, Any], Any] | None = None,
) -> None:
    """Teach `shard` and `concat` a type, and its subclasses.

    Args:
        kind: the type, or its dotted name, which saves the import of its module.
        count: returns the number of rows of a value; None for a value without rows, which goes whole.
        cut: takes a value, a first and an end index; returns these rows as a value of its own.
        join: makes one value of several, in their order.
        maximum: returns the larger of two values, element by element; for `collect="max"`.
    """
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    _row_types[name] = RowType(count, cut, join, maximum)


def registered_type(value: Any) -> RowType | None:
    """Return the RowType registered for a value's type or for a base class of it, else None."""
    # In the order of the bases: a registered subclass goes before its registered base.
    names = (f"{base.__module__}.{base.__qualname__}" for base in type(value).__mro__)
    return next((_row_types[name] for name in names if name in _row_types), None)


def splittable_type(value: Any) -> RowType | None:
    """Return the RowType of a value that has rows, else None."""
    row_type = registered_type(value)
    return row_type if row_type is not None and row_type.count(value) is not None else None


def row_counts(value: Any, path: str) -> Iterator[tuple[str, int]]:
    """Yield (path, number of rows) of each part of a value that would be cut, as in ("batch['ids']", 32)."""
    if isinstance(value, Whole):
        return
    # Registered types before dicts and tuples: a subclass of these may have rows of its own.
    if row_type := splittable_type(value):
        yield path, row_type.count(value) or 0
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from row_counts(item, f"{path}[{key!r}]")
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from row_counts(item, f"{path}[{number}]")


def map_rows(value: Any, function: Callable[[RowType, Any], Any]) -> Any:
    """Return a value with `function(type, part)` for each part that has rows; all other parts stay as they are."""
    if isinstance(value, Whole):
        return value.value
    if row_type := splittable_type(value):
        return function(row_type, value)
    if isinstance(value, dict):
        return {key: map_rows(item, function) for key, item in value.items()}
    if isinstance(value, tuple):
        return _tuple_like(value, [map_rows(item, function) for item in value])
    # A text is not cut either: its letters are no rows.
    return value


def join_values(values: Sequence[Any], path: str) -> Any:
    """Join several values along the first dimension; dicts and tuples value by value; only None values give None.

    `path` names the values in errors, as in "the answer of trainer.step".

    Raises:
        UsageError: the values cannot be joined.
    """
    first = values[0]
    if row_type := splittable_type(first):
        # Otherwise some rank answered with another type, which the error below names.
        if all(splittable_type(value) is not None for value in values):
            return row_type.join(values, path)
    elif isinstance(first, dict) and all(isinstance(value, dict) and value.keys() == first.keys() for value in values):
        return {key: join_values([value[key] for value in values], f"{path}[{key!r}]") for key in first}
    elif isinstance(first, tuple) and all(isinstance(value, tuple) and len(value) == len(first) for value in values):
        items = [join_values([value[n] for value in values], f"{path}[{n}]") for n in range(len(first))]
        return _tuple_like(first, items)
    # All answers of a method without a return value: there is nothing to join.
    elif all(value is None for value in values):
        return None
    kinds = ", ".join(sorted({type(value).__name__ for value in values}))
    raise UsageError(
        f"collect='concat': {path} cannot be joined: {kinds}",
        hint="lists, arrays, tensors and what register_rows knows can, also in dicts with the same keys and in tuples",
    )


def _tuple_like(value: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    """Return a tuple of the same type as `value`: a named tuple stays a named tuple."""
    make_named_tuple = getattr(type(value), "_make", None)
    return make_named_tuple(items) if make_named_tuple else tuple(items)
