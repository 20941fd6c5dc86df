"""The trainer: the driver, which calls the other roles in each iteration of PPO. Plain Python, no torch, no state."""

from __future__ import annotations

from typing import Any

import task

from dljob import RoleGroup, Worker, progress


class PPOTrainer(Worker):
    """Runs the iterations: sample, score, estimate advantages, train."""

    def run(self) -> dict[str, Any]:
        """Train; the return value is the job's result."""
        actor, rollout = RoleGroup("actor"), RoleGroup("rollout")
        history: list[float] = actor.history()
        for iteration in range(len(history), self.config["iterations"]):
            asked = task.prompts(self.config["seed"], iteration, self.config["prompts"])
            batch, scores, strayed = self.estimated(rollout.generate(asked, iteration))
            learning = RoleGroup("critic").call("train", iteration, batch)
            history.append(task.mean(scores))
            loss = actor.train(iteration, batch, history[-1])
            progress(iteration + 1, score=history[-1], kl=strayed, loss=loss, value_loss=learning.result())
        return {"score": round(task.mean(history[-5:]), 4), "iterations": len(history)}

    def estimated(self, batch: task.Batch) -> tuple[task.Batch, list[float], float]:
        """Return the batch with advantages, the scores of its answers, and their KL divergence from the reference."""
        values = RoleGroup("critic").call("values", batch)  # a future: three roles work concurrently
        scores = RoleGroup("reward").call("score", batch)
        weight = self.config["init_kl_coef"]
        reference = RoleGroup("reference").logprobs(batch) if weight else batch["logprobs"]  # no penalty: not needed
        judged = scores.result()
        return task.estimated(batch, reference, values.result(), judged, weight), judged, task.kl(batch, reference)
