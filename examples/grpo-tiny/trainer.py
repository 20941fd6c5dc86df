"""The trainers: one torch world. Each iteration ends with a checkpoint, and a restart resumes from the last one."""

from __future__ import annotations

import time
from pathlib import Path

import grpo
import torch
import torch.distributed as dist
from model import Policy
from task import Samples
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from dljob import Worker, rpc


class Trainer(Worker):
    """Trains on its share of each batch; DDP averages the gradients of both ranks."""

    def setup(self) -> None:
        """Create weights, optimizer and rewards, or load them from the checkpoint if there is one."""
        self.checkpoint = Path(self.context.job_dir) / "checkpoint.pt"
        self.policy = Policy(self.config["seed"])
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), grpo.LEARNING_RATE)
        self.rewards: list[float] = []
        if self.checkpoint.exists():
            saved = torch.load(self.checkpoint)
            self.policy.load_state_dict(saved["policy"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.rewards = saved["rewards"]
        self.ddp = DistributedDataParallel(self.policy)

    @rpc(idempotent=True, concurrency=1)
    def train(self, iteration: int, batch: Samples, rewards: list[float], reference: list[list[float]]) -> None:
        """Train one iteration, unless the checkpoint already contains it."""
        if iteration < len(self.rewards):
            return
        size = len(rewards) // self.world_size
        share = slice(self.rank * size, (self.rank + 1) * size)
        try:
            grpo.update(self.ddp, self.optimizer, batch, rewards, reference, share=share)
            self.rewards.append(sum(rewards) / len(rewards))
            if self.rank == 0:
                self.save()
            dist.barrier()  # answer only once the checkpoint exists: a restart must not find half the answers
        except RuntimeError:
            time.sleep(10)  # the other trainer died: the group will restart, and the caller sends this call again
            raise

    @rpc(idempotent=True)
    def weights(self) -> tuple[int, dict[str, Tensor]]:
        """Return the number of iterations behind the weights, and the weights."""
        return len(self.rewards), self.policy.state_dict()

    @rpc(idempotent=True)
    def rewards_so_far(self) -> list[float]:
        """Return the mean reward of each completed iteration."""
        return self.rewards

    def save(self) -> None:
        """Write a second file, then rename it, so that a kill at any point leaves a complete checkpoint."""
        state = {"policy": self.policy.state_dict(), "optimizer": self.optimizer.state_dict(), "rewards": self.rewards}
        beside = self.checkpoint.with_suffix(".new")
        torch.save(state, beside)
        beside.replace(self.checkpoint)
