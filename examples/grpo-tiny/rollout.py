"""The rollouts: each rank holds one version of the policy's weights, and answers its share of the prompts."""

from __future__ import annotations

import torch
from model import Policy, sample
from task import SAMPLES, Samples, prompts

from dljob import RoleGroup, Worker, rpc


class Rollout(Worker):
    """Samples answers. A restarted rank has no weights, and fetches them at its first call."""

    def setup(self) -> None:
        """Create the policy into which weights are loaded."""
        self.policy = Policy(self.config["seed"])
        self.version = -1

    @rpc(idempotent=True, concurrency=1)
    def generate(self, iteration: int) -> Samples:
        """Return the samples of an iteration, which are the same in every incarnation, so the call is idempotent."""
        if self.version < iteration:
            self.version, weights = RoleGroup("trainer").call_rank0("weights").result(60)
            self.policy.load_state_dict(weights)
        seed, rank = self.config["seed"], self.rank
        asked = prompts(seed, iteration, rank, self.config["promptsPerRollout"])
        repeated = [prompt for prompt in asked for _ in range(SAMPLES)]
        chance = torch.Generator().manual_seed(1_000_000 * seed + 100 * iteration + rank)
        answers, logprobs = sample(self.policy, torch.tensor(repeated), chance)
        return Samples(repeated, answers.tolist(), logprobs.tolist())
