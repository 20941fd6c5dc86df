"""The task (reverse four digits), and the messages between the roles. Plain Python, no torch."""

from __future__ import annotations

import random
from statistics import pstdev
from typing import Any

DIGITS = 4
"""Number of digits of a prompt, and of its answer."""
DISCOUNT, SMOOTHING = 1.0, 0.95
"""Gamma and lambda of GAE."""

Rows = list[list[float]]
"""One row per answer, one number per digit."""
Batch = dict[str, Any]
"""One row per answer under each key: prompts, answers, logprobs, later advantages and returns. Calls split the rows."""


def prompts(seed: int, iteration: int, count: int) -> list[list[int]]:
    """Return the prompts of an iteration, always the same ones."""
    rng = random.Random(f"{seed}/{iteration}")  # noqa: S311 - exercises, not secrets
    return [[rng.randrange(10) for _ in range(DIGITS)] for _ in range(count)]


def score(prompt: list[int], answer: list[int]) -> float:
    """Return the share of right digits, 0 to 1."""
    return sum(p == a for p, a in zip(reversed(prompt), answer, strict=True)) / DIGITS


def judged(logprobs: list[float], reference: list[float], value: float, kl_weight: float) -> list[float]:
    """Return the reward of each digit: the KL penalty at every digit, and the score at the last one."""
    rewards = [-kl_weight * (own - first) for own, first in zip(logprobs, reference, strict=True)]
    rewards[-1] += value
    return rewards


def gae(rewards: list[float], values: list[float]) -> list[float]:
    """Return the generalized advantage estimates of one answer, for each digit."""
    found, ahead, later = [0.0] * len(rewards), 0.0, 0.0
    for at in reversed(range(len(rewards))):
        ahead = rewards[at] + DISCOUNT * later - values[at] + DISCOUNT * SMOOTHING * ahead
        found[at], later = ahead, values[at]
    return found


def estimated(batch: Batch, reference: Rows, values: Rows, scores: list[float], kl_weight: float) -> Batch:
    """Return the batch with advantages (mean 0, deviation 1 over all digits) and the returns that the critic learns."""
    rows = zip(batch["logprobs"], reference, values, scores, strict=True)
    raw = [gae(judged(own, first, one, kl_weight), value) for own, first, value, one in rows]
    returns = [[a + v for a, v in zip(*row, strict=True)] for row in zip(raw, values, strict=True)]
    flat = [a for row in raw for a in row]
    middle, spread = mean(flat), pstdev(flat) + 1e-6
    return {**batch, "advantages": [[(a - middle) / spread for a in row] for row in raw], "returns": returns}


def mean(numbers: list[float]) -> float:
    """Return the mean."""
    return sum(numbers) / len(numbers)


def kl(batch: Batch, reference: Rows) -> float:
    """Return the KL divergence of the policy from the reference, in nats per digit."""
    return mean([mean(own) - mean(first) for own, first in zip(batch["logprobs"], reference, strict=True)])
