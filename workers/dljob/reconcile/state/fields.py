"""Reading Kubernetes objects: fields of nested mappings, typed, and empty where they are not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from dljob.reconcile.state.model import Object

_MAPPINGS = (dict, Mapping)  # dict first: asking the abstract class costs ten times as much


def field(value: object, *path: str) -> object:
    """What is there; None for nothing."""
    for key in path:
        if not isinstance(value, _MAPPINGS):
            return None
        value = cast("Mapping[str, object]", value).get(key)
    return value


def part(value: object, *path: str) -> Object:
    """A mapping; empty when there is none."""
    found = field(value, *path)
    return cast("Object", found) if isinstance(found, _MAPPINGS) else {}


def items(value: object, *path: str) -> Sequence[Object]:
    """The mappings of a list; empty when there is none."""
    found = field(value, *path)
    if not isinstance(found, list | tuple):
        return ()
    return [cast("Object", item) for item in cast("Sequence[object]", found) if isinstance(item, _MAPPINGS)]


def texts(value: object, *path: str) -> list[str]:
    """The texts of a list; empty when there is none."""
    found = field(value, *path)
    if not isinstance(found, list | tuple):
        return []
    return [item for item in cast("Sequence[object]", found) if isinstance(item, str)]


def text(value: object, *path: str) -> str:
    """A text; empty when there is none."""
    found = field(value, *path)
    return found if isinstance(found, str) else ""


def number(value: object, *path: str) -> int:
    """A whole number; 0 when there is none."""
    found = field(value, *path)
    return found if isinstance(found, int) else 0


def bounded(words: str, size: int = 1024) -> str:
    """At most `size` characters, the last one an ellipsis when some are missing."""
    return words if len(words) <= size else words[: size - 1] + "…"
