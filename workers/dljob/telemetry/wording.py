"""Counts in messages, singular or plural: `1 rank`, `2 ranks`; used by all packages."""

from __future__ import annotations


def counted(number: int, noun: str, *, plural: str = "") -> str:
    """Return a number with its noun: `1 rank`, `2 ranks`. `plural` is the plural that is not formed by an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def every(number: int, noun: str, *, one: str, many: str) -> str:
    """Return the whole of a number with its verb: `the only rank is ready`, `all 2 ranks are ready`."""
    return f"the only {noun} {one}" if number == 1 else f"all {number} {noun}s {many}"
