"""The reference: the policy as it was at the start, frozen; straying from it costs."""

from __future__ import annotations

import torch
from model import answer_logprobs, policy
from task import Batch, Rows

from dljob import Worker, rpc


class Reference(Worker):
    """Says how likely answers were under the first weights."""

    def setup(self) -> None:
        """The first weights follow from the seed alone."""
        torch.set_num_threads(1)
        self.net = policy(self.config["seed"])

    @rpc(dispatch="shard", collect="concat", idempotent=True)
    @torch.no_grad()
    def logprobs(self, batch: Batch) -> Rows:
        """The log-probability of each digit of each answer."""
        return answer_logprobs(self.net, torch.tensor(batch["prompts"]), torch.tensor(batch["answers"])).tolist()
