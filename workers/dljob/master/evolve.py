"""A changed copy of a frozen value: `dataclasses.replace`, at a third of its cost, on the core's hottest path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, cast

T = TypeVar("T")


@cache
def _shape(kind: type) -> tuple[tuple[str, ...], Callable[[object], tuple[Any, ...]]]:
    """The names of a dataclass's fields, and what reads them all at once."""
    names = tuple(field.name for field in fields(kind))
    return names, cast("Callable[[object], tuple[Any, ...]]", attrgetter(*names))


def evolve(value: T, **changes: object) -> T:
    """A copy of a dataclass instance with some of its fields changed; it must have two fields or more."""
    kind = type(value)
    names, read = _shape(kind)
    new = kind(*map(changes.pop, names, read(value)))
    if changes:
        raise TypeError(f"{kind.__name__} has no {', '.join(changes)}")
    return new
