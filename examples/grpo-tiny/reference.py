"""The reference: the policy as it was at the start, frozen; it keeps the trained one from straying."""

from __future__ import annotations

import torch
from model import Policy, answer_logprobs
from task import Samples

from dljob import Worker, rpc


class Reference(Worker):
    """Says how likely answers were under the first weights."""

    def setup(self) -> None:
        """The first weights follow from the seed alone."""
        self.policy = Policy(self.config["seed"])

    @rpc(idempotent=True)
    @torch.no_grad()
    def logprobs(self, batch: Samples) -> list[list[float]]:
        """The log-probability of each digit of each answer."""
        return answer_logprobs(self.policy, torch.tensor(batch.prompts), torch.tensor(batch.answers)).tolist()
