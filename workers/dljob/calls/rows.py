"""Types with rows, which can be cut along their first dimension and joined again: lists, and registered types.

Dicts and tuples are cut value by value; values of other types go whole to every shard.
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
        with _explained(value, "counted"):
            return self.count_function(value)

    def cut(self, value: Any, begin: int, end: int) -> Any:
        """Return some rows of a value."""
        with _explained(value, "cut into shards"):
            return self.cut_function(value, begin, end)

    def join(self, parts: Sequence[Any]) -> Any:
        """Return one value of several."""
        with _explained(parts[0], "joined"):
            return self.join_function(parts)


@contextmanager
def _explained(value: Any, action: str) -> Generator[None]:
    """Raise a UsageError that names the kind of value whose rows cannot be treated so, in place of its library's."""
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


_LIST = RowType(len, lambda value, a, b: value[a:b], lambda parts: list(chain.from_iterable(parts)))
# By dotted name, not by type: so nothing needs to import NumPy or torch to know their rows.
_known: dict[str, RowType] = {"builtins.list": _LIST}


def whole(value: Any) -> Any:
    """Wrap an argument of a call so that it goes uncut to every shard, though its type has rows."""
    return Whole(value)


def bare(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments without the wrapper of `whole`, for dispatches that cut nothing."""
    plain = tuple(value.value if isinstance(value, Whole) else value for value in args)
    return plain, {name: value.value if isinstance(value, Whole) else value for name, value in kwargs.items()}


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
    _known[name] = RowType(count, cut, join, maximum)


def kind_of(value: Any) -> RowType | None:
    """Return the RowType registered for a value's type or for a base class of it, else None."""
    # In the order of the bases: a registered subclass goes before its registered base.
    for kind in type(value).__mro__:
        found = _known.get(f"{kind.__module__}.{kind.__qualname__}")
        if found is not None:
            return found
    return None


def rows_of(value: Any) -> RowType | None:
    """Return the RowType of a value that has rows, else None."""
    found = kind_of(value)
    return found if found is not None and found.count(value) is not None else None


def counts(value: Any, where: str) -> Iterator[tuple[str, int]]:
    """Yield (path, number of rows) of each part of a value that would be cut."""
    if isinstance(value, Whole):
        return
    # Registered types before dicts and tuples: a subclass of these may have rows of its own.
    if rows := rows_of(value):
        yield where, rows.count(value) or 0
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from counts(item, f"{where}[{key!r}]")
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from counts(item, f"{where}[{number}]")


def change(value: Any, how: Callable[[RowType, Any], Any]) -> Any:
    """Return a value with `how` applied to each part that has rows; other parts and `whole` ones stay as they are."""
    if isinstance(value, Whole):
        return value.value
    if rows := rows_of(value):
        return how(rows, value)
    if isinstance(value, dict):
        return {key: change(item, how) for key, item in value.items()}
    if isinstance(value, tuple):
        return _tuple_like(value, [change(item, how) for item in value])
    # Also a text: its letters are no rows.
    return value


def join(parts: Sequence[Any], what: str) -> Any:
    """Join several values along the first dimension; dicts and tuples value by value; only None values give None.

    Raises:
        UsageError: the values cannot be joined.
    """
    first = parts[0]
    if rows := rows_of(first):
        # Otherwise some rank answered with another type, which the error below names.
        if all(rows_of(part) is not None for part in parts):
            return rows.join(parts)
    elif isinstance(first, dict) and all(isinstance(part, dict) and part.keys() == first.keys() for part in parts):
        return {key: join([part[key] for part in parts], f"{what}[{key!r}]") for key in first}
    elif isinstance(first, tuple) and all(isinstance(part, tuple) and len(part) == len(first) for part in parts):
        return _tuple_like(first, [join([part[n] for part in parts], f"{what}[{n}]") for n in range(len(first))])
    # All answers of a method without a return value: there is nothing to join.
    elif all(part is None for part in parts):
        return None
    kinds = ", ".join(sorted({type(part).__name__ for part in parts}))
    raise UsageError(
        f"collect='concat': {what} cannot be joined: {kinds}",
        hint="lists, arrays, tensors and what register_rows knows can, also in dicts with the same keys and in tuples",
    )


def _tuple_like(value: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    """Return a tuple of the same type as `value`: a named tuple stays a named tuple."""
    made = getattr(type(value), "_make", None)
    return made(items) if made else tuple(items)
