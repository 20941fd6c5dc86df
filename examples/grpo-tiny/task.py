"""The task (copy four digits), and the messages between the roles. Plain Python, no torch."""

from __future__ import annotations

import random
from dataclasses import dataclass

DIGITS = 4
"""Number of digits of a prompt, and of its answer."""
SAMPLES = 16
"""Number of answers to each prompt: the group within which GRPO compares answers."""

Tokens = list[int]
"""Digits 0 to 9."""


@dataclass(frozen=True)
class Samples:
    """The output of rollouts: one row per answer; the SAMPLES answers to a prompt are adjacent."""

    prompts: list[Tokens]
    answers: list[Tokens]
    logprobs: list[list[float]]
    """Log-probability of each digit of the answers, under the weights that sampled them."""


def prompts(seed: int, iteration: int, rank: int, count: int) -> list[Tokens]:
    """Return the prompts of a rank in an iteration: always the same ones, so that a restarted rank repeats them."""
    rng = random.Random(f"{seed}/{iteration}/{rank}")  # noqa: S311 - exercises, not secrets
    return [[rng.randrange(10) for _ in range(DIGITS)] for _ in range(count)]


def reward(prompt: Tokens, answer: Tokens) -> float:
    """Return the share of right digits, 0 to 1."""
    return sum(p == a for p, a in zip(prompt, answer, strict=True)) / DIGITS


def moving_average(rewards: list[float]) -> float:
    """Return the mean of the last five."""
    last = rewards[-5:]
    return sum(last) / len(last)
