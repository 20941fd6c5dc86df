"""Values of a record that may be damaged, or of another version: what is not of the expected kind counts as missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

_LARGE = 1e15
"""Numbers beyond it are damage."""


def mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping; an empty one for anything else."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def rows(value: object) -> list[Mapping[str, Any]]:
    """Return the mappings of a list."""
    items = cast("list[object]", value) if isinstance(value, list | tuple) else []
    return [cast("Mapping[str, Any]", row) for row in items if isinstance(row, Mapping)]


def number(value: object) -> float:
    """Return a number from 0 on; 0 for anything else."""
    return float(value) if isinstance(value, int | float) and 0 <= value < _LARGE else 0.0
