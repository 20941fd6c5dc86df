"""Two small networks that read a prompt and the answer so far: one predicts the next digit, one its value."""

from __future__ import annotations

import torch
from task import DIGITS
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 128
ABSENT = 10
"""The token of a digit that is not sampled yet; tokens 0 to 9 are the digits."""


class Net(nn.Module):
    """Computes `outputs` numbers for each digit of an answer, from the prompt and the digits before it."""

    def __init__(self, seed: int, outputs: int) -> None:
        super().__init__()
        torch.manual_seed(seed)  # the same random weights in every process
        self.layers = nn.Sequential(
            nn.Linear(2 * DIGITS * (ABSENT + 1), WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
        )
        self.heads = nn.Linear(WIDTH, DIGITS * outputs)
        self.outputs = outputs

    def forward(self, prompts: Tensor, answers: Tensor) -> Tensor:
        """Map prompts and answers, (batch, DIGITS) each, to (batch, DIGITS, outputs); output i sees digits before i."""
        seen = torch.ones(DIGITS, DIGITS, dtype=torch.bool).tril(-1)  # (at, said)
        said = torch.where(seen, answers.unsqueeze(1), ABSENT)  # (batch, at, DIGITS)
        read = torch.cat([prompts.unsqueeze(1).expand_as(said), said], dim=2)
        out = self.heads(self.layers(functional.one_hot(read, ABSENT + 1).flatten(2).float()))
        at = torch.arange(DIGITS)
        return out.view(len(prompts), DIGITS, DIGITS, self.outputs)[:, at, at]


def policy(seed: int) -> Net:
    """Returns the logits of each digit."""
    return Net(seed, 10)


def values(critic: nn.Module, prompts: Tensor, answers: Tensor) -> Tensor:
    """Returns the estimated remaining return at each digit, (batch, DIGITS)."""
    return critic(prompts, answers).squeeze(2)


def answer_logprobs(net: nn.Module, prompts: Tensor, answers: Tensor) -> Tensor:
    """Return the log-probability of each digit of the answers, (batch, DIGITS)."""
    return functional.log_softmax(net(prompts, answers), dim=-1).gather(2, answers.unsqueeze(2)).squeeze(2)


@torch.no_grad()
def sample(net: nn.Module, prompts: Tensor, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return one answer to each prompt and the log-probability of its digits, both (batch, DIGITS)."""
    answers = torch.zeros_like(prompts)
    for at in range(DIGITS):
        chances = functional.softmax(net(prompts, answers)[:, at], dim=-1)
        answers[:, at] = torch.multinomial(chances, 1, generator=chance).squeeze(1)
    return answers, answer_logprobs(net, prompts, answers)
