"""The task, copy four digits, and what the roles tell each other of it. Plain Python, no torch."""

from __future__ import annotations

import random
from dataclasses import dataclass

DIGITS = 4
"""Digits of a prompt, and of its answer."""
SAMPLES = 16
"""Answers to each prompt: the group that GRPO compares an answer with."""

Tokens = list[int]
"""Digits 0 to 9."""


@dataclass(frozen=True)
class Samples:
    """What rollouts made: one row per answer, the SAMPLES answers to a prompt in a row."""

    prompts: list[Tokens]
    answers: list[Tokens]
    logprobs: list[list[float]]
    """Of each digit of the answers, under the weights that made them."""


def prompts(seed: int, iteration: int, rank: int, count: int) -> list[Tokens]:
    """The prompts of a rank in an iteration: always the same, so that a restarted rank asks the same again."""
    rng = random.Random(f"{seed}/{iteration}/{rank}")  # noqa: S311 - exercises, not secrets
    return [[rng.randrange(10) for _ in range(DIGITS)] for _ in range(count)]


def reward(prompt: Tokens, answer: Tokens) -> float:
    """Share of the digits that are right, 0 to 1."""
    return sum(p == a for p, a in zip(prompt, answer, strict=True)) / DIGITS


def moving_average(rewards: list[float]) -> float:
    """The mean of the last five."""
    last = rewards[-5:]
    return sum(last) / len(last)
