"""RLJobBuilder: a DLJobBuilder with the usual roles of reinforcement learning."""

from __future__ import annotations

from enum import Enum
from typing import Literal, Self

from dljob.api.builder import DLJobBuilder, RoleBuilder
from dljob.api.workload import Workload
from dljob.errors import UsageError


class RLRoleType(Enum):
    """The usual roles; both `RLRoleType.REWARD.name` and `.value` are accepted as a role's name."""

    TRAINER = "trainer"
    ACTOR = "actor"
    CRITIC = "critic"
    ROLLOUT = "rollout"
    REFERENCE = "reference"
    REWARD = "reward"


# They answer calls of the trainer and have no end of their own, so they are no drivers.
_SERVERS = {r.value for r in RLRoleType} - {RLRoleType.TRAINER.value}


class RLRoleBuilder(RoleBuilder["RLJobBuilder"]):
    """A role of an RL job; its presets begin the next role."""

    def trainer(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """Begin the trainer; see RLJobBuilder.trainer."""
        return self.end().trainer(entrypoint)

    def actor(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """Begin the policy; see RLJobBuilder.actor."""
        return self.end().actor(entrypoint)

    def critic(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """Begin the value model; see RLJobBuilder.critic."""
        return self.end().critic(entrypoint)

    def rollout(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """Begin the inference engines; see RLJobBuilder.rollout."""
        return self.end().rollout(entrypoint)

    def reference(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """Begin the frozen policy; see RLJobBuilder.reference."""
        return self.end().reference(entrypoint)

    def reward(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """Begin the reward model; see RLJobBuilder.reward."""
        return self.end().reward(entrypoint)


class RLJobBuilder(DLJobBuilder):
    """Builder of a job that ends with its trainer: other RL roles are servers, unless `.driver()` is called.

    `.actor("ppo.Actor")` and the like declare a role; `.actor()` returns to a declared one. `.ppo()`, `.grpo()` and
    `.dpo()` declare all roles of an algorithm at once. Any other role may be added.
    """

    def __init__(self) -> None:
        super().__init__()
        self._builders: dict[str, RLRoleBuilder] = {}

    # --- an algorithm's roles

    def ppo(
        self, *, trainer: str, actor: str, critic: str, rollout: str, reward: str, reference: str | None = None
    ) -> Self:
        """Declare the roles of PPO; without a reference when there is no KL penalty."""
        self.trainer(trainer).actor(actor).critic(critic).rollout(rollout).reward(reward)
        return self._led(RLRoleType.TRAINER, reference)

    def grpo(
        self, *, trainer: str, actor: str, rollout: str, reward: str | None = None, reference: str | None = None
    ) -> Self:
        """Declare the roles of GRPO, which has no critic; without a reward role when a rule in the trainer scores."""
        self.trainer(trainer).actor(actor).rollout(rollout)
        if reward is not None:
            self.reward(reward)
        return self._led(RLRoleType.TRAINER, reference)

    def dpo(self, *, actor: str, reference: str, trainer: str | None = None) -> Self:
        """Declare the roles of DPO, which learns from given pairs; without a trainer the actor is the driver."""
        self.actor(actor)
        if trainer is None:
            # An actor is a server by default; without a trainer nothing else would end the job.
            self.actor().driver()
            return self._led(RLRoleType.ACTOR, reference)
        self.trainer(trainer)
        return self._led(RLRoleType.TRAINER, reference)

    def _led(self, leader: RLRoleType, reference: str | None) -> Self:
        """Add the reference, if any, and let the leader start only when all RL roles that it calls are ready."""
        # Last, so that all servers are declared when the leader's dependencies are collected.
        if reference is not None:
            self.reference(reference)
        # Sorted, so that the same calls always give the same document.
        for role in sorted(self._builders.keys() & _SERVERS - {leader.value}):
            self._builders[leader.value].depends_on(role)
        return self

    # --- roles

    def trainer(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """Declare the trainer, the driver of the job: one plain rank."""
        return self._begun(RLRoleType.TRAINER, "run", entrypoint)

    def actor(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """Declare the policy, as torch ranks."""
        return self._begun(RLRoleType.ACTOR, "train", entrypoint)

    def critic(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """Declare the value model, as torch ranks."""
        return self._begun(RLRoleType.CRITIC, "train", entrypoint)

    def rollout(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """Declare the inference engines, as independent ranks."""
        return self._begun(RLRoleType.ROLLOUT, "run", entrypoint)

    def reference(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """Declare the frozen policy, as independent ranks."""
        return self._begun(RLRoleType.REFERENCE, "run", entrypoint)

    def reward(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """Declare the reward model, as independent ranks."""
        return self._begun(RLRoleType.REWARD, "run", entrypoint)

    def role(self, name: str) -> RLRoleBuilder:
        """Begin a role; of the RL roles only the trainer is a driver."""
        super().role(name)
        assert isinstance(self._open, RLRoleBuilder)  # noqa: S101 - _role_builder makes no other
        return self._open

    def workload(self, name: str, entrypoint: str) -> RLRoleBuilder:
        """Begin a role with its entrypoint: `.role(name).run(entrypoint)`."""
        return self.role(name).run(entrypoint)

    def _role_builder(self, workload: Workload) -> RoleBuilder[Self]:
        # Before the user's setters, which may say otherwise.
        workload.driver = workload.name not in _SERVERS
        self._builders[workload.name] = RLRoleBuilder(self, workload)
        return self._builders[workload.name]  # pyright: ignore[reportReturnType] - Self is at least RLJobBuilder

    def _begun(self, role: RLRoleType, how: Literal["run", "train"], entrypoint: str | None) -> RLRoleBuilder:
        """Declare a role of this type; without an entrypoint, return the declared one."""
        name = role.value
        if entrypoint is not None:
            begun = self.role(name)
            return begun.train(entrypoint) if how == "train" else begun.run(entrypoint)
        if name not in self._builders:
            raise UsageError(
                f".{name}() goes on with role {name!r}, which is not declared", hint=f'.{name}("module.Class")'
            )
        return self._builders[name]

    def _exempt(self) -> frozenset[str]:
        """Exempt a trainer on CPU from `with_collocation_all` as well: it shares no device."""
        trainer = self._roles.get(RLRoleType.TRAINER.value)
        return super()._exempt() | frozenset({trainer.name} if trainer and not trainer.accelerator else ())
