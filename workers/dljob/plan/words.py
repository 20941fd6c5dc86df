"""Amounts as text for users."""

from __future__ import annotations

import re
from functools import lru_cache

from dljob.plan.model import Amount, Resources
from dljob.spec.quantity import show, show_memory


def resource_text(name: str, amount: Amount) -> str:
    """Return one resource as text: "8 GPU", "64Gi memory"."""
    return f"{show_memory(amount) if name == 'memory' else show(amount)} {name}"


def resources_text(resources: Resources) -> str:
    """Return resources as text, devices last as Ray sorts them; "nothing" for none."""
    return ", ".join(resource_text(name, amount) for name, amount in resources) or "nothing"


def ranges(numbers: list[int]) -> str:
    """Return sorted whole numbers as text, with runs as `0-7,9`."""
    parts: list[str] = []
    start = 0
    for i, number in enumerate(numbers):
        if i + 1 == len(numbers) or numbers[i + 1] != number + 1:
            parts.append(f"{numbers[start]}-{number}" if start != i else str(number))
            start = i + 1
    return ",".join(parts)


# Cached: the names of nodes and units are sorted again in each search for room.
@lru_cache(maxsize=1 << 14)
def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that puts `train-10` after `train-9`."""
    # Numbers compare by value and come before words.
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"([0-9]+)", text))
