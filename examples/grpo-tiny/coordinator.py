"""The driver, which calls the other roles in each iteration. Its state is in the trainers' checkpoint."""

from __future__ import annotations

from itertools import chain
from typing import Any

from task import Samples, moving_average

from dljob import RoleGroup, Worker, progress

DEADLINE_S = 60
"""Timeout in seconds of every call, which includes waiting for a callee that restarts."""


class Coordinator(Worker):
    """Runs the iterations by calls to the other roles."""

    def run(self) -> dict[str, Any]:
        """Train; the return value is the job's result."""
        rollout, reference, reward = RoleGroup("rollout"), RoleGroup("reference"), RoleGroup("reward")
        trainer = RoleGroup("trainer")
        history: list[float] = trainer.call_rank0("rewards_so_far").result(DEADLINE_S)
        for iteration in range(len(history), self.config["iterations"]):
            batch = join(rollout.call("generate", iteration).result(DEADLINE_S))
            expected = reference.call_rank0("logprobs", batch)
            rewards = reward.call_rank0("score", batch).result(DEADLINE_S)
            trainer.call("train", iteration, batch, rewards, expected.result(DEADLINE_S)).result(DEADLINE_S)
            history.append(sum(rewards) / len(rewards))
            progress(iteration + 1, reward=history[-1])
        return {"reward": round(moving_average(history), 4), "iterations": len(history)}


def join(parts: list[Samples]) -> Samples:
    """Return the samples of all rollouts, in rank order."""
    return Samples(
        list(chain.from_iterable(p.prompts for p in parts)),
        list(chain.from_iterable(p.answers for p in parts)),
        list(chain.from_iterable(p.logprobs for p in parts)),
    )
