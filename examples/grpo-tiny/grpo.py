"""GRPO: advantages relative to the group, a clipped ratio, and a KL penalty towards the reference."""

from __future__ import annotations

import torch
from model import answer_logprobs
from task import SAMPLES, Samples
from torch import Tensor, nn

EPOCHS = 2
"""Steps of the optimizer on each batch."""
LEARNING_RATE = 1e-3
CLIP = 0.2
KL_WEIGHT = 0.001


def advantages(rewards: Tensor) -> Tensor:
    """Return how much better each answer is than the other answers to its prompt, in standard deviations."""
    groups = rewards.view(-1, SAMPLES)
    return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1)


def loss(new: Tensor, old: Tensor, reference: Tensor, rewards: Tensor) -> Tensor:
    """Return the loss; log-probabilities have the shape (batch, DIGITS), rewards (batch,)."""
    gain, ratio = advantages(rewards).unsqueeze(1), (new - old).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    kl = (reference - new).exp() - (reference - new) - 1
    return (KL_WEIGHT * kl - torch.minimum(ratio * gain, clipped * gain)).mean()


def update(
    policy: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Samples,
    rewards: list[float],
    reference: list[list[float]],
    *,
    share: slice = slice(None),
) -> None:
    """Take EPOCHS steps on the rows of `share`; DDP averages the gradients of all ranks."""
    prompts, answers = torch.tensor(batch.prompts[share]), torch.tensor(batch.answers[share])
    old, ref = torch.tensor(batch.logprobs[share]), torch.tensor(reference[share])
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        loss(answer_logprobs(policy, prompts, answers), old, ref, torch.tensor(rewards[share])).backward()
        optimizer.step()
