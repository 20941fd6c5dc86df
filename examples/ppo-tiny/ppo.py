"""PPO: a clipped ratio for the policy, and squared errors for the critic."""

from __future__ import annotations

from collections.abc import Callable

import torch
from model import answer_logprobs, values
from task import Batch
from torch import Tensor, nn

EPOCHS = 4
"""Steps of the optimizer on each batch."""
LEARNING_RATE = 5e-3
CLIP = 0.2


def policy_loss(new: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
    """Return the loss; all arguments have the shape (batch, DIGITS)."""
    ratio = (new - old).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()


def improve(net: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    """Take EPOCHS steps of a policy on a batch, and return its last loss. DDP averages the gradients of all ranks."""
    prompts, answers = torch.tensor(batch["prompts"]), torch.tensor(batch["answers"])
    old, advantages = torch.tensor(batch["logprobs"]), torch.tensor(batch["advantages"])
    return _descend(optimizer, lambda: policy_loss(answer_logprobs(net, prompts, answers), old, advantages))


def regress(net: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    """Take EPOCHS steps of a critic on a batch, and return its last loss."""
    prompts, answers, returns = (torch.tensor(batch[key]) for key in ("prompts", "answers", "returns"))
    return _descend(optimizer, lambda: (values(net, prompts, answers) - returns).pow(2).mean())


def _descend(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> float:
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        found = loss()
        found.backward()
        optimizer.step()
    return float(found.detach())
