"""The trainer, the driver: it trains on groups of answers as they come, and publishes weights after each step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import grpo
import torch
from model import Policy
from task import BATCH, LENGTH, Group, moving_average, reward

from dljob import DataQueue, WeightChannel, Worker, progress, rpc


class Trainer(Worker):
    """Has its weights, its optimizer and the numbers of all trained prompts in one checkpoint, made in each step.

    The queue delivers the groups of the last get again if this process dies before its next get, so they are trained
    again if the checkpoint lacks them, and left out if it has them: once in any case.
    """

    def setup(self) -> None:
        """Create weights, optimizer and log, or load them from the checkpoint if there is one."""
        torch.set_num_threads(1)
        self.checkpoint = Path(self.context.job_dir, "checkpoint.pt")
        self.policy = Policy(self.config["seed"])
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), grpo.LEARNING_RATE)
        self.record: dict[str, list[Any]] = {"trained": [], "rewards": [], "lag": [], "wrong": [], "resumed": []}
        if self.checkpoint.exists():
            saved = torch.load(self.checkpoint)
            self.policy.load_state_dict(saved["policy"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.record = saved["record"]
        self.weights = WeightChannel("policy")
        self.weights.publish(len(self.record["rewards"]), self.policy.state_dict())

    def run(self) -> dict[str, Any]:
        """Train; the return value is the job's result."""
        queue: DataQueue[Group] = DataQueue("groups", max_items=BATCH)
        steps, record = self.config["steps"], self.record
        while (step := len(record["rewards"])) < steps:
            # By what the queue lacks the engines scale: none of them waits for the trainer, nor it for them.
            lacks = BATCH - queue.qsize()
            groups = [group for group in queue.get_batch(BATCH) if group.number not in record["trained"]]
            if not groups:
                continue
            self.train(step, groups)
            self.save()
            self.weights.publish(step + 1, self.policy.state_dict())
            lag = max(record["lag"][-len(groups) :])
            progress(step + 1, reward=record["rewards"][-1], lag=lag, lacks=lacks)
        queue.close()
        return self.result()

    def train(self, step: int, groups: list[Group]) -> None:
        """Take a step on some groups, and note what they were."""
        rewards = [[reward(group.prompt, answer.tokens) for answer in group.answers] for group in groups]
        grpo.update(self.policy, self.optimizer, groups, rewards)
        mean = sum(map(sum, rewards)) / sum(map(len, rewards))
        self.record["rewards"].append(mean)
        for group in groups:
            oldest = min(segment.version for answer in group.answers for segment in answer.segments)
            self.record["trained"].append(group.number)
            self.record["lag"].append(step - oldest)
            self.record["resumed"].append(sum(len(answer.segments) > 1 for answer in group.answers))
            self.record["wrong"].append(sum(len(answer.tokens) != LENGTH for answer in group.answers))

    @rpc(idempotent=True)
    def trained(self) -> list[int]:
        """Return the numbers of the prompts that were trained."""
        return self.record["trained"]

    def save(self) -> None:
        """Write a second file, then rename it, so that a kill at any point leaves a complete checkpoint."""
        state = {"policy": self.policy.state_dict(), "optimizer": self.optimizer.state_dict(), "record": self.record}
        beside = self.checkpoint.with_suffix(".new")
        torch.save(state, beside)
        beside.replace(self.checkpoint)

    def result(self) -> dict[str, Any]:
        """Return what became of each token and each prompt."""
        record, times = self.record, Counter(self.record["trained"])
        made = sum(file.stat().st_size for file in Path(self.context.job_dir, "made").iterdir())
        kept = len(record["trained"]) * LENGTH * grpo.SAMPLES
        return {
            "reward": round(moving_average(record["rewards"]), 4),
            "steps": len(record["rewards"]),
            "prompts_trained": len(times),
            "prompts_trained_twice": sum(number > 1 for number in times.values()),
            "tokens": kept,
            "tokens_lost": sum(record["wrong"]),
            "tokens_generated": made,
            "streams_resumed": sum(record["resumed"]),
            "lag_max": max(record["lag"]),
            "lag_mean": round(sum(record["lag"]) / len(record["lag"]), 2),
        }
