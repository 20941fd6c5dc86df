"""The same training in one process, without DLJob: run `python alone.py` to compare."""

from __future__ import annotations

import grpo
import task
import torch
from model import Policy, answer_logprobs, sample


def train(iterations: int, seed: int = 0) -> list[float]:
    """Train from random weights, and return the mean reward of each iteration."""
    torch.set_num_threads(1)
    policy, reference = Policy(seed), Policy(seed)
    optimizer = torch.optim.AdamW(policy.parameters(), grpo.LEARNING_RATE)
    history: list[float] = []
    for iteration in range(iterations):
        prompts = [p for p in task.prompts(seed, iteration, 0, 16) for _ in range(task.SAMPLES)]
        asked = torch.tensor(prompts)
        answers, logprobs = sample(policy, asked, torch.Generator().manual_seed(seed * 1000 + iteration))
        batch = task.Samples(prompts, answers.tolist(), logprobs.tolist())
        rewards = [task.reward(p, a) for p, a in zip(batch.prompts, batch.answers, strict=True)]
        with torch.no_grad():
            expected = answer_logprobs(reference, asked, answers)
        grpo.update(policy, optimizer, batch, rewards, expected.tolist())
        history.append(sum(rewards) / len(rewards))
    return history


if __name__ == "__main__":
    for number, value in enumerate(train(60)):
        print(f"{number:3d} {value:.3f}")
