"""The trainers: one torch world. Each iteration ends with a checkpoint, and a restart begins at the last one."""

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
    """Takes its share of each batch; DDP averages the gradients of both."""

    def setup(self) -> None:
        """Weights, optimizer and rewards so far, from the checkpoint if there is one."""
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
        """One iteration; nothing if the checkpoint already has it."""
        if iteration < len(self.rewards):
            return
        size = len(rewards) // self.world_size
        share = slice(self.rank * size, (self.rank + 1) * size)
        try:
            grpo.update(self.ddp, self.optimizer, batch, rewards, reference, share=share)
            self.rewards.append(sum(rewards) / len(rewards))
            if self.rank == 0:
                self.save()
            dist.barrier()  # nobody answers before the checkpoint is there, or a restart would find half the answers
        except RuntimeError:
            time.sleep(10)  # the other trainer died: the group is about to be restarted, and this call made again
            raise

    @rpc(idempotent=True)
    def weights(self) -> tuple[int, dict[str, Tensor]]:
        """How many iterations made these weights, and the weights."""
        return len(self.rewards), self.policy.state_dict()

    @rpc(idempotent=True)
    def rewards_so_far(self) -> list[float]:
        """The mean reward of each iteration done."""
        return self.rewards

    def save(self) -> None:
        """Write beside, then rename: a kill in the middle leaves the old checkpoint whole."""
        state = {"policy": self.policy.state_dict(), "optimizer": self.optimizer.state_dict(), "rewards": self.rewards}
        beside = self.checkpoint.with_suffix(".new")
        torch.save(state, beside)
        beside.replace(self.checkpoint)
