"""A changed copy of a frozen value: `dataclasses.replace`, at a fifth of its cost, on the core's hottest path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def _copier(kind: type) -> Callable[[object, dict[str, object]], Any]:
    """What copies a dataclass with slots field by field, the changes taken out of the dict.

    It is written for the class, as dataclasses write `__init__`: half of an event's time went into a loop over fields.
    """
    names = [field.name for field in fields(kind)]
    scope: dict[str, Any] = {f"put_{name}": getattr(kind, name).__set__ for name in names}
    scope |= {"make": object.__new__, "kind": kind}
    lines = (f"    put_{name}(new, pop({name!r}, value.{name}))" for name in names)
    head = "def copy(value, changes):", "    new, pop = make(kind), changes.pop"
    exec("\n".join((*head, *lines, "    return new")), scope)  # noqa: S102 - the names are those of our own fields
    return scope["copy"]


def evolve(value: T, **changes: object) -> T:
    """A copy of a dataclass instance with some of its fields changed; it must have slots, and no `__post_init__`."""
    new = _copier(type(value))(value, changes)
    if changes:
        raise TypeError(f"{type(value).__name__} has no {', '.join(changes)}")
    return new
