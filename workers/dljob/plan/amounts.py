"""Quantities of resources: exact integers, by name."""

from __future__ import annotations

from typing import TypeAlias

Amount: TypeAlias = int
"""A quantity of a resource in ten-thousandths (Ray's own grain): 1 CPU = 10_000; memory likewise, in bytes x 10_000."""

GRAIN = 10_000

Resources: TypeAlias = tuple[tuple[str, Amount], ...]
"""Resource name as Ray spells it (CPU, memory, GPU, NPU, ...) -> amount; sorted by name, no zeros."""


LEAST: Resources = (("memory", GRAIN),)
"""Content of a bundle whose ranks take nothing: one byte of memory, since Ray refuses an empty bundle."""


def add_up(*parts: Resources) -> Resources:
    """Return the sum of amounts by name, sorted, without zeros."""
    total: dict[str, Amount] = {}
    for part in parts:
        for name, amount in part:
            total[name] = total.get(name, 0) + amount
    # Sorted and without zeros, so that equal amounts are equal values.
    return tuple(sorted((name, amount) for name, amount in total.items() if amount))
