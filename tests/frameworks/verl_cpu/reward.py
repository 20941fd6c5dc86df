"""The reward: the share of words in an answer that have an even number."""

from __future__ import annotations

from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """Return the score of one answer."""
    numbers = [int(word[1:]) for word in solution_str.split() if word[1:].isdigit()]
    return sum(number % 2 == 0 for number in numbers) / max(len(numbers), 1)
