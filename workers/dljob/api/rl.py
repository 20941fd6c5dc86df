"""RLJobBuilder: the roles of reinforcement learning by name, beside any others."""

from __future__ import annotations

from enum import Enum
from typing import Literal, Self

from dljob.api.builder import DLJobBuilder
from dljob.api.job import Workload
from dljob.api.role import RoleBuilder
from dljob.errors import UsageError


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

    def trainer(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """The trainer: see RLJobBuilder.trainer."""
        return self.end().trainer(entrypoint)

    def actor(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """The policy: see RLJobBuilder.actor."""
        return self.end().actor(entrypoint)

    def critic(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """The value model: see RLJobBuilder.critic."""
        return self.end().critic(entrypoint)

    def rollout(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """The inference engines: see RLJobBuilder.rollout."""
        return self.end().rollout(entrypoint)

    def reference(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """The frozen policy: see RLJobBuilder.reference."""
        return self.end().reference(entrypoint)

    def reward(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """The judge: see RLJobBuilder.reward."""
        return self.end().reward(entrypoint)


class RLJobBuilder(DLJobBuilder):
    """A DLJobBuilder whose job ends with its trainer: the other RL roles serve, unless `.driver()` says otherwise.

    `.actor("ppo.Actor")` and its like declare a role, `.actor()` goes on with one that is declared. `.ppo()`, `.grpo()`
    and `.dpo()` declare the roles of an algorithm at once; any other role may stand beside them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._builders: dict[str, RLRoleBuilder] = {}

    # --- an algorithm's roles

    def ppo(
        self, *, trainer: str, actor: str, critic: str, rollout: str, reward: str, reference: str | None = None
    ) -> Self:
        """The roles of PPO; without a reference where nothing is paid for straying from it."""
        self.trainer(trainer).actor(actor).critic(critic).rollout(rollout).reward(reward)
        return self._led(RLRoleType.TRAINER, reference)

    def grpo(
        self, *, trainer: str, actor: str, rollout: str, reward: str | None = None, reference: str | None = None
    ) -> Self:
        """The roles of GRPO: no critic; without a reward role where a rule in the trainer judges."""
        self.trainer(trainer).actor(actor).rollout(rollout)
        if reward is not None:
            self.reward(reward)
        return self._led(RLRoleType.TRAINER, reference)

    def dpo(self, *, actor: str, reference: str, trainer: str | None = None) -> Self:
        """The roles of DPO, which learns from pairs that are there: without a trainer the actor is the driver."""
        self.actor(actor)
        if trainer is None:
            self.actor().driver()
            return self._led(RLRoleType.ACTOR, reference)
        self.trainer(trainer)
        return self._led(RLRoleType.TRAINER, reference)

    def _led(self, leader: RLRoleType, reference: str | None) -> Self:
        """Add the reference, if any; the leader starts when all RL roles that it calls are ready."""
        if reference is not None:
            self.reference(reference)
        for role in sorted(self._builders.keys() & _SERVERS - {leader.value}):
            self._builders[leader.value].depends_on(role)
        return self

    # --- roles

    def trainer(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """The driver of the job: one plain rank."""
        return self._begun(RLRoleType.TRAINER, "run", entrypoint)

    def actor(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """The policy, as torch ranks."""
        return self._begun(RLRoleType.ACTOR, "train", entrypoint)

    def critic(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """The value model, as torch ranks."""
        return self._begun(RLRoleType.CRITIC, "train", entrypoint)

    def rollout(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """The inference engines, each for itself."""
        return self._begun(RLRoleType.ROLLOUT, "run", entrypoint)

    def reference(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """The frozen policy, each rank for itself."""
        return self._begun(RLRoleType.REFERENCE, "run", entrypoint)

    def reward(self, entrypoint: str | None = None) -> RLRoleBuilder:
        """The judge, each rank for itself."""
        return self._begun(RLRoleType.REWARD, "run", entrypoint)

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
        self._builders[workload.name] = RLRoleBuilder(self, workload)
        return self._builders[workload.name]  # pyright: ignore[reportReturnType] - Self is at least RLJobBuilder

    def _begun(self, role: RLRoleType, how: Literal["run", "train"], entrypoint: str | None) -> RLRoleBuilder:
        """A role of this type, declared; without an entrypoint, the one that is."""
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
        """A trainer on CPU shares no device."""
        trainer = self._roles.get(RLRoleType.TRAINER.value)
        return super()._exempt() | frozenset({trainer.name} if trainer and not trainer.accelerator else ())
