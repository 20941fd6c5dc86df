"""The critic: estimates at each digit of an answer the return that remains, and learns from the actual returns."""

from __future__ import annotations

import ppo
import task
import torch
from model import Net, values

from dljob import Worker, checkpoint, rpc


class Critic(Worker):
    """One torch rank, on the device of an actor."""

    def setup(self) -> None:
        """Create weights and optimizer, or load them from the checkpoint if there is one."""
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
        """Return the estimated value at each digit of each answer."""
        return values(self.net, torch.tensor(batch["prompts"]), torch.tensor(batch["answers"])).tolist()

    @rpc(dispatch="rank0", idempotent=True, concurrency=1)
    def train(self, iteration: int, batch: task.Batch) -> float:
        """Train one iteration, unless the checkpoint already contains it, and return the loss."""
        if iteration < self.done:
            return 0.0
        loss, self.done = ppo.regress(self.net, self.optimizer, batch), iteration + 1
        state = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
        checkpoint.save(self.done, state, persist=False)
        return loss
