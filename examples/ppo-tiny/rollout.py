"""The rollouts: each rank holds one version of the policy's weights, and answers its share of the prompts."""

from __future__ import annotations

import torch
from model import policy, sample
from task import Batch

from dljob import RoleGroup, Worker, rpc


class Rollout(Worker):
    """Samples answers. A restarted rank has no weights, and fetches them at its first call."""

    def setup(self) -> None:
        """Create the policy into which weights are loaded."""
        torch.set_num_threads(1)
        self.net, self.version = policy(self.config["seed"]), -1

    @rpc(dispatch="shard", collect="concat", idempotent=True, concurrency=1)
    def generate(self, prompts: list[list[int]], iteration: int) -> Batch:
        """Return an answer to each prompt, the same one in every incarnation, so the call is idempotent."""
        if self.version < iteration:
            self.version, weights = RoleGroup("actor").weights()
            self.net.load_state_dict(weights)
        chance = torch.Generator().manual_seed(1_000_000 * self.config["seed"] + 100 * iteration + self.rank)
        answers, logprobs = sample(self.net, torch.tensor(prompts), chance)
        return {"prompts": prompts, "answers": answers.tolist(), "logprobs": logprobs.tolist()}
