"""RLJobBuilder: the roles of reinforcement learning by name, beside any others."""

from __future__ import annotations

from enum import Enum
from typing import Self

from dljob.api.builder import DLJobBuilder
from dljob.api.job import Workload
from dljob.api.role import RoleBuilder


class RLRoleType(Enum):
    """The usual roles; `RLRoleType.REWARD.name` and `.value` are both taken as a role's name."""

    TRAINER = "trainer"
    ACTOR = "actor"
    CRITIC = "critic"
    ROLLOUT = "rollout"
    REFERENCE = "reference"
    REWARD = "reward"


_SERVERS = {r.value for r in RLRoleType} - {RLRoleType.TRAINER.value}


class RLRoleBuilder(RoleBuilder["RLJobBuilder"]):
    """A role of an RL job; the presets begin the next one."""

    def trainer(self, entrypoint: str) -> RLRoleBuilder:
        """The trainer: see RLJobBuilder.trainer."""
        return self.end().trainer(entrypoint)

    def actor(self, entrypoint: str) -> RLRoleBuilder:
        """The policy: see RLJobBuilder.actor."""
        return self.end().actor(entrypoint)

    def critic(self, entrypoint: str) -> RLRoleBuilder:
        """The value model: see RLJobBuilder.critic."""
        return self.end().critic(entrypoint)

    def rollout(self, entrypoint: str) -> RLRoleBuilder:
        """The inference engines: see RLJobBuilder.rollout."""
        return self.end().rollout(entrypoint)

    def reference(self, entrypoint: str) -> RLRoleBuilder:
        """The frozen policy: see RLJobBuilder.reference."""
        return self.end().reference(entrypoint)

    def reward(self, entrypoint: str) -> RLRoleBuilder:
        """The judge: see RLJobBuilder.reward."""
        return self.end().reward(entrypoint)


class RLJobBuilder(DLJobBuilder):
    """A DLJobBuilder whose job ends with its trainer: the other RL roles serve, unless `.driver()` says otherwise."""

    def trainer(self, entrypoint: str) -> RLRoleBuilder:
        """The driver of the job: one plain rank."""
        return self.role(RLRoleType.TRAINER.value).run(entrypoint)

    def actor(self, entrypoint: str) -> RLRoleBuilder:
        """The policy, as torch ranks."""
        return self.role(RLRoleType.ACTOR.value).train(entrypoint)

    def critic(self, entrypoint: str) -> RLRoleBuilder:
        """The value model, as torch ranks."""
        return self.role(RLRoleType.CRITIC.value).train(entrypoint)

    def rollout(self, entrypoint: str) -> RLRoleBuilder:
        """The inference engines, each for itself."""
        return self.role(RLRoleType.ROLLOUT.value).run(entrypoint)

    def reference(self, entrypoint: str) -> RLRoleBuilder:
        """The frozen policy, each rank for itself."""
        return self.role(RLRoleType.REFERENCE.value).run(entrypoint)

    def reward(self, entrypoint: str) -> RLRoleBuilder:
        """The judge, each rank for itself."""
        return self.role(RLRoleType.REWARD.value).run(entrypoint)

    def role(self, name: str) -> RLRoleBuilder:
        """Begin a role; the RL roles but the trainer are no drivers."""
        super().role(name)
        assert isinstance(self._open, RLRoleBuilder)  # noqa: S101 - _role_builder makes no other
        return self._open

    def workload(self, name: str, entrypoint: str) -> RLRoleBuilder:
        """`.role(name).run(entrypoint)` in one."""
        return self.role(name).run(entrypoint)

    def _role_builder(self, workload: Workload) -> RoleBuilder[Self]:
        workload.driver = workload.name not in _SERVERS
        return RLRoleBuilder(self, workload)  # pyright: ignore[reportReturnType] - Self is at least RLJobBuilder

    def _exempt(self) -> frozenset[str]:
        """A trainer on CPU shares no device."""
        trainer = self._roles.get(RLRoleType.TRAINER.value)
        return super()._exempt() | frozenset({trainer.name} if trainer and not trainer.accelerator else ())
