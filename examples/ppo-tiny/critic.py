"""The critic: says before each digit of an answer what is still to come, and learns from what came."""

from __future__ import annotations

import ppo
import task
import torch
from model import Net, values

from dljob import Worker, checkpoint, rpc


class Critic(Worker):
    """One torch rank, on the device of an actor."""

    def setup(self) -> None:
        """Weights and optimizer, from the checkpoint if there is one."""
        torch.set_num_threads(1)
        self.net, self.done = Net(self.config["seed"], 1), 0
        self.optimizer = torch.optim.Adam(self.net.parameters(), ppo.LEARNING_RATE)
        found = checkpoint.load()
        if found:
            self.done = found[0]
            self.net.load_state_dict(found[1]["net"])
            self.optimizer.load_state_dict(found[1]["optimizer"])

    @rpc(dispatch="rank0", idempotent=True)
    @torch.no_grad()
    def values(self, batch: task.Batch) -> task.Rows:
        """A number for each digit of each answer."""
        return values(self.net, torch.tensor(batch["prompts"]), torch.tensor(batch["answers"])).tolist()

    @rpc(dispatch="rank0", idempotent=True, concurrency=1)
    def train(self, iteration: int, batch: task.Batch) -> float:
        """One iteration; nothing if the checkpoint already has it. The loss."""
        if iteration < self.done:
            return 0.0
        loss, self.done = ppo.regress(self.net, self.optimizer, batch), iteration + 1
        state = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
        checkpoint.save(self.done, state, persist=False)
        return loss
