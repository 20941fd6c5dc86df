"""The reference: the initial policy, frozen, for the KL penalty."""

from __future__ import annotations

import torch
from model import answer_logprobs, policy
from task import Batch, Rows

from dljob import Worker, rpc


class Reference(Worker):
    """Returns log-probabilities of answers under the initial weights."""

    def setup(self) -> None:
        """Create the initial weights, which depend only on the seed."""
        torch.set_num_threads(1)
        self.net = policy(self.config["seed"])

    @rpc(dispatch="shard", collect="concat", idempotent=True)
    @torch.no_grad()
    def logprobs(self, batch: Batch) -> Rows:
        """Return the log-probability of each digit of each answer."""
        return answer_logprobs(self.net, torch.tensor(batch["prompts"]), torch.tensor(batch["answers"])).tolist()
