"""The driver: which role does what in an iteration. It keeps no state; the trainers' checkpoint has it all."""

from __future__ import annotations

from itertools import chain
from typing import Any

from task import Samples, moving_average

from dljob import RoleGroup, Worker, progress

DEADLINE_S = 60
"""For any call: a callee that restarts is waited for, this long."""


class Coordinator(Worker):
    """Leads the other roles through the iterations."""

    def run(self) -> dict[str, Any]:
        """Train; what it returns is the job's result."""
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
    """The samples of all rollouts, in rank order."""
    return Samples(
        list(chain.from_iterable(p.prompts for p in parts)),
        list(chain.from_iterable(p.answers for p in parts)),
        list(chain.from_iterable(p.logprobs for p in parts)),
    )
