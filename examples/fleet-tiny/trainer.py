"""The trainer, the driver: it trains on groups of answers as they come, and publishes weights after each step."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import grpo
import torch
from model import Policy
from task import BATCH, LENGTH, Group, moving_average, reward

from dljob import DataQueue, WeightChannel, Worker, checkpoint, progress, shards

AHEAD = 3
"""Steps for which prompts are handed out before they are trained."""
LOGS = ("trained", "rewards", "lag", "wrong", "resumed", "cuts")


class Trainer(Worker):
    """Hands out prompts, trains on their answers, and asks for a cut of the job every few steps.

    The cut has, as of one moment, what is saved here, the position in the prompts, and the items of both queues, those
    included that the prompter works at. After any loss all of it goes back together, so each prompt is trained once.
    """

    def setup(self) -> None:
        """Create weights, optimizer and log, or take them from the last cut if there is one."""
        torch.set_num_threads(1)
        self.policy = Policy(self.config["seed"])
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), grpo.LEARNING_RATE)
        self.record: dict[str, list[Any]] = {name: [] for name in LOGS}
        self.prompts = DataQueue("prompts")
        self.groups = DataQueue("groups", max_items=BATCH)
        self.numbers = shards("prompts", self.config["steps"] * BATCH, shard=BATCH, wait=False)
        found = checkpoint.load()
        if found is not None:
            _, saved = found
            self.policy.load_state_dict(saved["policy"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.record = saved["record"]
        # Numbers below those of before tell dljob that engines hold weights of steps that are discarded.
        self.weights = WeightChannel("policy")
        self.weights.publish(len(self.record["rewards"]), self.policy.state_dict())
        if found is None:
            for _ in range(AHEAD):
                self.hand_out()

    def run(self) -> dict[str, Any]:
        """Train; the return value is the job's result."""
        steps, record = self.config["steps"], self.record
        steps_made = Path(self.context.job_dir, "steps").open("ab", buffering=0)  # noqa: SIM115 - held to the end
        while (step := len(record["rewards"])) < steps:
            # By what the queue lacks the engines scale: none of them waits for the trainer, nor it for them.
            lacks = BATCH - self.groups.qsize()
            groups = self.groups.get_batch(BATCH)
            if groups[0].number in record["trained"]:
                continue  # before the first cut a process goes on from its last save, and gets its last groups again
            self.train(step, groups)
            self.hand_out()
            steps_made.write(b".")  # a byte for each step, which is not taken back
            checkpoint.save(step + 1, self.state(), persist=False)
            self.weights.publish(step + 1, self.policy.state_dict())
            lag = max(record["lag"][-len(groups) :])
            progress(step + 1, reward=record["rewards"][-1], lag=lag, lacks=lacks)
            if (step + 1) % self.config["cutEvery"] == 0 and step + 1 < steps:
                record["cuts"].append(self.context.job.checkpoint())
        self.prompts.close()
        Path(self.context.job_dir, "record.json").write_text(json.dumps(record))
        return self.result()

    def hand_out(self) -> None:
        """Put the numbers of the next prompts into the queue, from which the prompter takes them."""
        for number in next(self.numbers, ()):
            self.prompts.put(number, key=str(number))

    def state(self) -> dict[str, Any]:
        """Return what goes back with the rest of the job."""
        return {"policy": self.policy.state_dict(), "optimizer": self.optimizer.state_dict(), "record": self.record}

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
            "cuts_asked": len(set(record["cuts"]) - {None}),
            "steps_made_again": Path(self.context.job_dir, "steps").stat().st_size - len(record["rewards"]),
            "lag_max": max(record["lag"]),
            "lag_mean": round(sum(record["lag"]) / len(record["lag"]), 2),
        }
