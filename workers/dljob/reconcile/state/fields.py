"""Typed reads of nested fields of Kubernetes objects; a missing field reads as empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, cast

from dljob.raycluster.pod_security import Object

_MAPPINGS: tuple[type[Any], ...] = (dict, Mapping)  # dict first: asking the abstract class costs ten times as much

MOST = 2**53
"""The largest whole number that every reader of JSON takes exactly."""


def field(value: object, *path: str) -> object:
    """Return the value at `path`; None where there is none."""
    node: Any = value  # not a cast per key: a pass of the operator reads hundreds of fields
    for key in path:
        if not isinstance(node, _MAPPINGS):
            return None
        node = node.get(key)
    return node


def part(value: object, *path: str) -> Object:
    """Return the mapping at `path`; empty where there is none."""
    mapping = field(value, *path)
    return cast("Object", mapping) if isinstance(mapping, _MAPPINGS) else {}


def items(value: object, *path: str) -> Sequence[Object]:
    """Return the mappings in the list at `path`; empty where there is none."""
    values = field(value, *path)
    if not isinstance(values, list | tuple):
        return ()
    return [cast("Object", item) for item in cast("Sequence[object]", values) if isinstance(item, _MAPPINGS)]


def texts(value: object, *path: str) -> list[str]:
    """Return the strings in the list at `path`; empty where there is none."""
    values = field(value, *path)
    if not isinstance(values, list | tuple):
        return []
    return [item for item in cast("Sequence[object]", values) if isinstance(item, str)]


def text(value: object, *path: str) -> str:
    """Return the string at `path`; empty where there is none."""
    string = field(value, *path)
    return string if isinstance(string, str) else ""


def number(value: object, *path: str) -> int:
    """Return the whole number at `path`; 0 where there is none."""
    count = field(value, *path)
    return count if count is not None and is_whole(count) else 0  # most that a pass asks for is not there


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number that the API server takes as one, also in a sum: no boolean, nothing huge."""
    return type(value) is int and -MOST <= value <= MOST


def bounded(words: str, size: int = 1024) -> str:
    """Return at most `size` characters of `words`; an ellipsis stands for what was cut off."""
    return words if len(words) <= size else words[: size - 1] + "…"
