"""A causal transformer of about 100,000 parameters, and how to sample from it."""

from __future__ import annotations

import torch
from task import DIGITS
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, LAYERS = 64, 4, 2
SEPARATOR = 10
"""The separator token between prompt and answer; tokens 0 to 9 are the digits."""
LENGTH = 2 * DIGITS
"""Number of tokens that the model reads: the prompt, the separator, and the answer without its last digit."""


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.mlp(self.norm2(x))


class Policy(nn.Module):
    """Reads digits, and returns the log-probability of each next digit."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)  # the same random weights in every process
        self.token, self.position = nn.Embedding(SEPARATOR + 1, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (batch, tokens) to log-probabilities (batch, tokens, 10)."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return functional.log_softmax(self.head(self.norm(self.blocks(x))), dim=-1)


def answer_logprobs(policy: nn.Module, prompts: Tensor, answers: Tensor) -> Tensor:
    """Return the log-probability of each digit of the answers, (batch, DIGITS)."""
    separator = prompts.new_full((len(prompts), 1), SEPARATOR)
    logprobs = policy(torch.cat([prompts, separator, answers[:, :-1]], dim=1))
    return logprobs[:, DIGITS:].gather(2, answers.unsqueeze(2)).squeeze(2)


@torch.no_grad()
def sample(policy: nn.Module, prompts: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return one answer to each prompt and the log-probability of its digits, both (batch, DIGITS)."""
    tokens = torch.cat([prompts, prompts.new_full((len(prompts), 1), SEPARATOR)], dim=1)
    logprobs: list[Tensor] = []
    for _ in range(DIGITS):
        chances = policy(tokens)[:, -1]
        digit = torch.multinomial(chances.exp(), 1, generator=generator)
        logprobs.append(chances.gather(1, digit))
        tokens = torch.cat([tokens, digit], dim=1)
    return tokens[:, -DIGITS:], torch.cat(logprobs, dim=1)
