"""The task (write four digits twice), and the messages between the roles. Plain Python, no torch."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field

DIGITS = 4
"""Number of digits of a prompt."""
LENGTH = 2 * DIGITS
"""Number of tokens of an answer."""
SEPARATOR = 10
"""The token between prompt and answer; tokens 0 to 9 are the digits."""
SAMPLES = 8
"""Number of answers to each prompt: the group within which GRPO compares answers."""
BATCH = 8
"""Number of prompts of one training step."""

Tokens = list[int]


@dataclass(frozen=True)
class Segment:
    """The part of an answer that one engine made with one version of the weights."""

    engine: str
    version: int
    count: int


@dataclass
class Answer:
    """The tokens of one stream, from one engine or from several after one another."""

    tokens: Tokens = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each token, under the weights that sampled it."""
    segments: list[Segment] = field(default_factory=list)


@dataclass
class Group:
    """A prompt with all its answers: what the trainer gets."""

    number: int
    """Number of the prompt in the job, by which the trainer knows that it has it already."""
    prompt: Tokens
    answers: list[Answer]


def prompt(seed: int, number: int) -> Tokens:
    """Return a prompt by its number: always the same one, so that a restarted rank repeats it."""
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 - exercises, not secrets
    return [rng.randrange(10) for _ in range(DIGITS)]


def chance(seed: str, position: int) -> float:
    """Return the random number of a position of an answer, 0 to 1: it depends on nothing else."""
    digest = hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=7).digest()
    return int.from_bytes(digest) / 2**56


def reward(question: Tokens, answer: Tokens) -> float:
    """Return the share of right digits, 0 to 1."""
    return sum(p == a for p, a in zip(question * 2, answer, strict=True)) / LENGTH


def moving_average(rewards: list[float]) -> float:
    """Return the mean of the last five."""
    last = rewards[-5:]
    return sum(last) / len(last)
