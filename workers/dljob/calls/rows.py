"""What can be cut along its first dimension and joined again: lists, and the types that libraries register.

A dict and a tuple hold such values and are cut value by value; anything else goes whole to every shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from dljob.errors import UsageError


@dataclass(frozen=True, slots=True)
class Rows:
    """A type with rows. `count` gives None for a value that has none after all, as an array of no dimension."""

    count: Callable[[Any], int | None]
    cut: Callable[[Any, int, int], Any]
    join: Callable[[Sequence[Any]], Any]
    maximum: Callable[[Any, Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    """An argument that is not to be cut; see `whole`."""

    value: Any


_LIST = Rows(len, lambda value, a, b: value[a:b], lambda parts: list(chain.from_iterable(parts)))
_known: dict[str, Rows] = {"builtins.list": _LIST}


def whole(value: Any) -> Any:
    """What goes as it is to every shard, though it could be cut; around an argument of a call."""
    return Whole(value)


def bare(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments without `whole` around them, where nothing is cut."""
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
        kind: the type, or its dotted name, so that nothing need be imported.
        count: how many rows a value has; None: it has none, and goes whole.
        cut: the rows from the second to before the third argument, as a value of its own.
        join: one value of several, in their order.
        maximum: the larger of two, row by row; for `collect="max"`.
    """
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    _known[name] = Rows(count, cut, join, maximum)


def kind_of(value: Any) -> Rows | None:
    """What is registered for a value's type, or one that it derives from."""
    for kind in type(value).__mro__:
        found = _known.get(f"{kind.__module__}.{kind.__qualname__}")
        if found is not None:
            return found
    return None


def rows_of(value: Any) -> Rows | None:
    """How a value is cut; None for one that has no rows."""
    found = kind_of(value)
    return found if found is not None and found.count(value) is not None else None


def counts(value: Any, where: str) -> Iterator[tuple[str, int]]:
    """(where, rows) of all that would be cut in a value."""
    if isinstance(value, Whole):
        return
    if rows := rows_of(value):
        yield where, rows.count(value) or 0
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from counts(item, f"{where}[{key!r}]")
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from counts(item, f"{where}[{number}]")


def change(value: Any, how: Callable[[Rows, Any], Any]) -> Any:
    """A value with everything in it that has rows changed; the rest, and what is `whole`, as it is."""
    if isinstance(value, Whole):
        return value.value
    if rows := rows_of(value):
        return how(rows, value)
    if isinstance(value, dict):
        return {key: change(item, how) for key, item in value.items()}
    if isinstance(value, tuple):
        return _tuple_like(value, [change(item, how) for item in value])
    return value


def join(parts: Sequence[Any], what: str) -> Any:
    """One value of several, along the first dimension; dicts and tuples value by value; None of nothing but None.

    Raises:
        UsageError: they cannot be joined.
    """
    first = parts[0]
    if rows := rows_of(first):
        if all(rows_of(part) is not None for part in parts):
            return rows.join(parts)
    elif isinstance(first, dict) and all(isinstance(part, dict) and part.keys() == first.keys() for part in parts):
        return {key: join([part[key] for part in parts], f"{what}[{key!r}]") for key in first}
    elif isinstance(first, tuple) and all(isinstance(part, tuple) and len(part) == len(first) for part in parts):
        return _tuple_like(first, [join([part[n] for part in parts], f"{what}[{n}]") for n in range(len(first))])
    elif all(part is None for part in parts):
        return None
    kinds = ", ".join(sorted({type(part).__name__ for part in parts}))
    raise UsageError(
        f"collect='concat': {what} cannot be joined: {kinds}",
        hint="lists, arrays, tensors and what register_rows knows can, also in dicts with the same keys and in tuples",
    )


def _tuple_like(value: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    """A tuple of the same kind: a named one stays named."""
    made = getattr(type(value), "_make", None)
    return made(items) if made else tuple(items)
