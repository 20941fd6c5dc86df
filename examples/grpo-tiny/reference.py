"""The reference: the initial policy, frozen. The KL penalty keeps the trained policy close to it."""

from __future__ import annotations

import torch
from model import Policy, answer_logprobs
from task import Samples

from dljob import Worker, rpc


class Reference(Worker):
    """Returns log-probabilities of answers under the initial weights."""

    def setup(self) -> None:
        """Create the initial weights, which depend only on the seed."""
        self.policy = Policy(self.config["seed"])

    @rpc(idempotent=True)
    @torch.no_grad()
    def logprobs(self, batch: Samples) -> list[list[float]]:
        """Return the log-probability of each digit of each answer."""
        return answer_logprobs(self.policy, torch.tensor(batch.prompts), torch.tensor(batch.answers)).tolist()
