"""The actor: the trained policy, one torch world. Each iteration ends with a checkpoint in memory."""

from __future__ import annotations

import time

import ppo
import task
import torch
import torch.distributed as dist
from model import policy
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from dljob import Worker, checkpoint, rpc


class Policy(Worker):
    """Trains on its rows of each batch; DDP averages the gradients of all ranks."""

    def setup(self) -> None:
        """Create weights, optimizer and scores, or load them from the checkpoint if there is one."""
        torch.set_num_threads(1)
        self.net = policy(self.config["seed"])
        self.optimizer = torch.optim.Adam(self.net.parameters(), ppo.LEARNING_RATE)
        self.scores: list[float] = []
        found = checkpoint.load()
        if found:
            self.net.load_state_dict(found[1]["net"])
            self.optimizer.load_state_dict(found[1]["optimizer"])
            self.scores = found[1]["scores"]
        self.ddp = DistributedDataParallel(self.net)

    @rpc(dispatch="shard", collect="mean", idempotent=True, concurrency=1)
    def train(self, iteration: int, batch: task.Batch, score: float) -> float:
        """Train one iteration, unless the checkpoint already contains it, and return the loss."""
        if iteration < len(self.scores):
            return 0.0
        try:
            loss = ppo.improve(self.ddp, self.optimizer, batch)
            self.scores.append(score)
            state = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), "scores": self.scores}
            checkpoint.save(iteration + 1, state, persist=False)
            dist.barrier()  # answer only once all have saved: a restart must not find half the answers
        except RuntimeError:
            time.sleep(10)  # another rank died: the group will restart, and the caller sends this call again
            raise
        return loss

    @rpc(dispatch="rank0", idempotent=True)
    def weights(self) -> tuple[int, dict[str, Tensor]]:
        """Return the number of iterations behind the weights, and the weights."""
        return len(self.scores), self.net.state_dict()

    @rpc(dispatch="rank0", idempotent=True)
    def history(self) -> list[float]:
        """Return the mean score of each completed iteration."""
        return self.scores
