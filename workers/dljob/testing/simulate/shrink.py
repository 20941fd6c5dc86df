"""Delta debugging: a minimal subset of items for which a predicate still holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def fewest(things: tuple[T, ...], fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """Return a subset of `things`, in their order, that fails and of which no single item can be left out."""
    # Large pieces first: most items are irrelevant, and each try costs a whole simulation.
    size = len(things)
    while size:
        start, shorter = 0, False
        while start < len(things):
            tried = things[:start] + things[start + size :]
            if fails(tried):
                things, shorter = tried, True
            else:
                start += size
        # The same size again while it helps, then half of it.
        size = min(size, len(things)) if shorter and size <= len(things) else min(size, len(things)) // 2
    return things
