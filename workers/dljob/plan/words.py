"""Amounts as people write them."""

from __future__ import annotations

import re

from dljob.plan.model import Amount, Resources
from dljob.spec.quantity import show, show_memory


def resource_text(name: str, amount: Amount) -> str:
    """One resource: "8 GPU", "64Gi memory"."""
    return f"{show_memory(amount) if name == 'memory' else show(amount)} {name}"


def resources_text(resources: Resources) -> str:
    """Several resources in a line, devices last as Ray sorts them; "nothing" for none."""
    return ", ".join(resource_text(name, amount) for name, amount in resources) or "nothing"


def ranges(numbers: list[int]) -> str:
    """Sorted whole numbers, runs as `0-7,9`."""
    parts: list[str] = []
    start = 0
    for i, number in enumerate(numbers):
        if i + 1 == len(numbers) or numbers[i + 1] != number + 1:
            parts.append(f"{numbers[start]}-{number}" if start != i else str(number))
            start = i + 1
    return ",".join(parts)


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that puts `train-10` after `train-9`."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"([0-9]+)", text))
