"""A causal transformer of about 100,000 parameters: for training all positions at once, for decoding one by one."""

from __future__ import annotations

import torch
from task import DIGITS, LENGTH, SEPARATOR, Tokens, chance
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, LAYERS = 64, 4, 2
POSITIONS = DIGITS + LENGTH
"""Tokens that the model reads: the prompt, the separator, and the answer without its last digit."""


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

    def step(self, x: Tensor, keys: Tensor, values: Tensor, position: int) -> Tensor:
        """Map one token (1, width), whose key and value join those of the tokens before."""
        q, keys[position], values[position] = self.qkv(self.norm1(x)).view(3, HEADS, -1).unbind()
        scores = torch.einsum("hd,phd->hp", q, keys[: position + 1]) * q.shape[1] ** -0.5
        heads = torch.einsum("hp,phd->hd", scores.softmax(dim=1), values[: position + 1])
        x = x + self.out(heads.reshape(1, WIDTH))
        return x + self.mlp(self.norm2(x))


class Policy(nn.Module):
    """Reads digits, and returns the log-probability of each next digit."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)  # the same random weights in every process
        self.token, self.position = nn.Embedding(SEPARATOR + 1, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (batch, tokens) to log-probabilities (batch, tokens, 10)."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.log_softmax(self.head(self.norm(x)), dim=-1)


class Decoder:
    """Reads one sequence token by token.

    The tokens of a prompt take the same steps as those of an answer, and no step sees another sequence. So the numbers
    depend neither on what else the engine is asked, nor on whether a token was made here or came with the request.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._caches = [torch.zeros(2, POSITIONS, HEADS, WIDTH // HEADS) for _ in policy.blocks]
        self._position = 0

    @torch.no_grad()
    def read(self, token: int) -> Tensor:
        """Read a token; return the log-probabilities of the next one, (10,)."""
        policy, position = self._policy, self._position
        x = policy.token.weight[token : token + 1] + policy.position.weight[position : position + 1]
        for block, (keys, values) in zip(policy.blocks, self._caches, strict=True):
            x = block.step(x, keys, values, position)  # pyright: ignore[reportCallIssue] - a ModuleList has Modules
        self._position += 1
        return functional.log_softmax(policy.head(policy.norm(x))[0], dim=-1)


def draw(logprobs: Tensor, seed: str, position: int) -> tuple[int, float]:
    """Draw a digit by the random number of its position; return it with its log-probability."""
    rest = chance(seed, position)
    for digit, logprob in enumerate(logprobs.tolist()):
        rest -= 2.718281828459045**logprob
        if rest < 0:
            return digit, logprob
    return digit, logprob


def answer_logprobs(policy: nn.Module, prompts: Tensor, answers: Tensor) -> Tensor:
    """Return the log-probability of each digit of the answers, (batch, LENGTH)."""
    separator = prompts.new_full((len(prompts), 1), SEPARATOR)
    logprobs = policy(torch.cat([prompts, separator, answers[:, :-1]], dim=1))
    return logprobs[:, DIGITS:].gather(2, answers.unsqueeze(2)).squeeze(2)


def sequence(question: Tokens, received: Tokens) -> Tokens:
    """Return what an engine reads before it makes the next token."""
    return [*question, SEPARATOR, *received]
