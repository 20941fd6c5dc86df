"""The same training in one process, without DLJob: run `python alone.py` to compare."""

from __future__ import annotations

import ppo
import task
import torch
from model import Net, answer_logprobs, policy, sample, values

KL_WEIGHT = 0.005


def train(iterations: int, seed: int = 0, count: int = 256) -> list[float]:
    """Train from random weights, and return the mean score of each iteration."""
    torch.set_num_threads(1)
    actor, critic, reference = policy(seed), Net(seed, 1), policy(seed)
    actor_steps = torch.optim.Adam(actor.parameters(), ppo.LEARNING_RATE)
    critic_steps = torch.optim.Adam(critic.parameters(), ppo.LEARNING_RATE)
    history: list[float] = []
    for iteration in range(iterations):
        prompts = torch.tensor(task.prompts(seed, iteration, count))
        answers, logprobs = sample(actor, prompts, torch.Generator().manual_seed(seed * 1000 + iteration))
        batch = {"prompts": prompts.tolist(), "answers": answers.tolist(), "logprobs": logprobs.tolist()}
        with torch.no_grad():
            expected = answer_logprobs(reference, prompts, answers).tolist()
            worth = values(critic, prompts, answers).tolist()
        scores = [task.score(p, a) for p, a in zip(batch["prompts"], batch["answers"], strict=True)]
        batch = task.estimated(batch, expected, worth, scores, KL_WEIGHT)
        ppo.regress(critic, critic_steps, batch)
        ppo.improve(actor, actor_steps, batch)
        history.append(sum(scores) / len(scores))
    return history


if __name__ == "__main__":
    for number, value in enumerate(train(60)):
        print(f"{number:3d} {value:.3f}")
