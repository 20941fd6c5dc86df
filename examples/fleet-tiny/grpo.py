"""GRPO: advantages relative to the group, and a clipped ratio to the weights that sampled, which may be older."""

from __future__ import annotations

import torch
from model import answer_logprobs
from task import SAMPLES, Group
from torch import Tensor, nn

EPOCHS = 2
"""Steps of the optimizer on each batch."""
LEARNING_RATE = 2e-3
CLIP = 0.2


def advantages(rewards: Tensor) -> Tensor:
    """Return how much better each answer is than the other answers to its prompt, in standard deviations."""
    groups = rewards.view(-1, SAMPLES)
    return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1)


def loss(new: Tensor, old: Tensor, rewards: Tensor) -> Tensor:
    """Return the loss; log-probabilities have the shape (batch, LENGTH), rewards (batch,)."""
    gain, ratio = advantages(rewards).unsqueeze(1), (new - old).exp()
    return -torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()


def update(
    policy: nn.Module, optimizer: torch.optim.Optimizer, groups: list[Group], rewards: list[list[float]]
) -> None:
    """Take EPOCHS steps on all answers of some groups."""
    rows = [(group.prompt, answer) for group in groups for answer in group.answers]
    prompts = torch.tensor([prompt for prompt, _ in rows])
    answers = torch.tensor([answer.tokens for _, answer in rows])
    old = torch.tensor([answer.logprobs for _, answer in rows])
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        loss(answer_logprobs(policy, prompts, answers), old, torch.tensor(rewards).flatten()).backward()
        optimizer.step()
