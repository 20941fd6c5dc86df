"""DLRover's builders: the same methods and defaults; what they give is a DLJob of `models`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, Self, TypeVar

from pydantic import model_validator

from dljob.compat.dlrover_api.draft import check
from dljob.compat.dlrover_api.models import (
    DLJob,
    DLStreamType,
    DLWorkloadEnv,
    ElasticWorkloadDesc,
    InternalDLWorkloadRole,
    NodeGroupFailoverDesc,
    ResourceDesc,
    RLRoleType,
    SimpleWorkloadDesc,
    WorkloadDesc,
)
from dljob.compat.dlrover_api.notes import tell_once
from dljob.compat.dlrover_api.wrong_job import wrong_job
from dljob.errors import UsageError

T_co = TypeVar("T_co", bound="DLJobBuilder", covariant=True)
_DEVICES = ("accelerator", "acc", "gpu", "npu", "tpu")
_KNOWN = (*_DEVICES, "cpu", "memory", "mem", "disk", "user_defined", "ud_resource")


class RoleBuilder(Generic[T_co]):
    """A role under construction; methods of the job's builder may follow."""

    def __init__(self, parent: T_co, role: str, entrypoint: str) -> None:
        self.role_name = role
        self.entrypoint = entrypoint
        self._parent = parent
        self._more: dict[str, Any] = {}
        self._num = 1
        self._per_group = 1
        self._env: dict[str, str] = {}
        self._resource: dict[str, Any] = {}
        self._sub_stage: list[str] = []

    def total(self, num: int = 1) -> Self:
        """Set the number of workers."""
        self._num = num
        return self

    def per_group(self, num: int = 1) -> Self:
        """Set the number of workers of a group, which are placed together."""
        self._per_group = num
        return self

    def env(self, env: Mapping[str, str] | None = None) -> Self:
        """Add environment variables."""
        self._env.update(env or {})
        return self

    @wrong_job()
    def resource(self, *positional: float, **named: Any) -> Self:
        """Set resources of one worker: cpu, memory and disk in MB, accelerator (or gpu, npu, acc), user_defined.

        Raises:
            WrongJobError: for an unknown keyword, or two that mean the same.
        """
        call = f".resource() of role {self.role_name!r}"
        given_resources = {**dict(zip(("cpu", "memory", "disk", "accelerator"), positional, strict=False)), **named}
        if unknown := [key for key in given_resources if key not in _KNOWN]:
            raise UsageError(f"{call} has no keyword {unknown[0]!r}", hint=f"there are {', '.join(_KNOWN)}")
        for same in (_DEVICES, ("memory", "mem"), ("user_defined", "ud_resource")):
            synonyms_given = [key for key in same if key in given_resources]
            if len([key for key in synonyms_given if given_resources[key]]) > 1:
                raise UsageError(f"{call} says one thing twice: {', '.join(synonyms_given)}", hint="keep one of them")
            for key in synonyms_given:
                if given_resources[key] or same[0] not in self._resource:
                    self._resource[same[0]] = given_resources[key]
                if key in ("npu", "tpu") and given_resources[key]:
                    self._parent.suppose_devices(key.upper())
        self._resource.update({key: given_resources[key] for key in ("cpu", "disk") if key in given_resources})
        return self

    def disable_ray_auto_visible_device(self) -> Self:
        """Let workers see all devices of their machine."""
        self._env.update(DLWorkloadEnv.RAY_NOSET_VISIBLE_DEVICES_ENVS)
        return self

    def max_restart(self, num: int) -> Self:
        """Set how often one worker may restart; DLRover's scripts set the field of the built job."""
        self._more["max_restart"] = num
        return self

    def not_driver(self) -> Self:
        """Let the job end without waiting for this role."""
        self._more["is_driver"] = False
        return self

    def enable_node_group_failover(self, group_label_key: str, timeout: int = 300) -> Self:
        """Keep the setting, which has no effect here."""
        self._more["node_group_failover"] = NodeGroupFailoverDesc(
            enabled=True, group_label_key=group_label_key, timeout=timeout
        )
        tell_once("enable_node_group_failover", "machines are left one by one, each for its own fault")
        return self

    def sub_stage(self, sub_stage: list[str] | None = None) -> Self:
        """Keep the value, which DLRover reads nowhere either."""
        self._sub_stage = sub_stage or []
        tell_once("sub_stage", "DLRover reads it nowhere either")
        return self

    def end(self) -> T_co:
        """Return the job's builder."""
        return self._parent

    def built(self) -> WorkloadDesc:
        """Return the role's description."""
        return SimpleWorkloadDesc.model_validate(self._fields())

    def _fields(self) -> dict[str, Any]:
        return {
            "entry_point": self.entrypoint,
            "envs": self._env,
            "resource": ResourceDesc.get_or_default(self._resource),
            "total": self._num,
            "per_group": self._per_group,
            **self._more,
        }

    def __getattr__(self, name: str) -> Any:
        parent = self.__dict__.get("_parent")
        if parent is None or name.startswith("_") or not hasattr(parent, name):
            raise AttributeError(f"neither {type(self).__name__} nor its DLJobBuilder has {name!r}")
        return getattr(parent, name)


class SimpleWorkloadBuilder(RoleBuilder[T_co]):
    """A role of independent workers."""


class ElasticTrainBuilder(RoleBuilder[T_co]):
    """A role of torch ranks."""

    def nnodes(self, num: int) -> Self:
        """Set the number of torch nodes."""
        self._num = num * self._per_group
        return self

    def nproc_per_node(self, num: int) -> Self:
        """Set the number of ranks on each torch node."""
        self._num = self._num // self._per_group * num
        self._per_group = num
        return self

    def built(self) -> WorkloadDesc:
        """Return the role's description."""
        return ElasticWorkloadDesc.model_validate(self._fields())


class DLJobBuilder:
    """Builder of a job."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._env: dict[str, str] = {}
        self._role_builders: dict[str, RoleBuilder[Any]] = {}
        self._collocations: list[tuple[str, ...] | _AllBut] = []
        self._last_role: str | None = None
        self._sets: dict[str, bool] = {}

    def add_role_builder(self, role: str, role_builder: RoleBuilder[Any]) -> None:
        """Add a role.

        Raises:
            ValueError: there is one of this name.
        """
        if role in self._role_builders:
            raise ValueError(f"role {role!r} is already defined; .role(NAME) before .run() or .train() names another")
        self._role_builders[role] = role_builder

    def no_setup_process_group(self) -> Self:
        """Leave the process group to the user's code."""
        self._sets["comm_auto_setup_process_group"] = False
        return self

    def skip_node_check(self) -> Self:
        """Skip the node check."""
        self._sets["comm_pre_check"] = False
        return self

    def as_task_stream(self) -> Self:
        """Do nothing: no code depends on it."""
        tell_once("as_task_stream", "DLRover reads it nowhere either")
        self._fields["stream_type"] = DLStreamType.TASK_STREAM
        return self

    def as_data_stream(self) -> Self:
        """Do nothing: no code depends on it."""
        tell_once("as_data_stream", "DLRover reads it nowhere either")
        self._fields["stream_type"] = DLStreamType.DATA_STREAM
        return self

    def node_num(self, num: int = 1) -> Self:
        """Set the number of nodes."""
        self._fields["node_number"] = num
        return self

    def device_per_node(self, num: int = 8) -> Self:
        """Set the number of devices of a node."""
        self._fields["device_per_node"] = num
        return self

    def suppose_devices(self, kind: str) -> None:
        """Take a kind of devices that a role names, where `device_type` says none."""
        self._fields.setdefault("accelerator_type", kind)

    def device_type(self, device_type: str = "GPU") -> Self:
        """Set the kind of devices."""
        self._fields["accelerator_type"] = device_type
        return self

    def config(self, config: Any) -> Self:
        """Set the config that all workers find."""
        self._fields["user_config"] = config
        return self

    def global_env(self, env: Mapping[str, str]) -> Self:
        """Add environment variables of all roles."""
        self._env.update(env)
        return self

    def workload(self, role: str, entrypoint: str) -> SimpleWorkloadBuilder[Self]:
        """Define a role of independent workers."""
        return self.role(role).run(entrypoint)

    def role(self, role: str) -> Self:
        """Name the next role."""
        self._last_role = role
        return self

    def run(self, entrypoint: str) -> SimpleWorkloadBuilder[Self]:
        """Define the named role, of independent workers.

        Raises:
            ValueError: no role is named, or it is defined already.
        """
        if self._last_role is None:
            raise ValueError(f".run({entrypoint!r}) without a role: .role(NAME).run(...) names it")
        workload_builder = SimpleWorkloadBuilder(self, self._last_role, entrypoint)
        self.add_role_builder(workload_builder.role_name, workload_builder)
        return workload_builder

    def train(self, entrypoint: str) -> ElasticTrainBuilder[Self]:
        """Define the named role, or one of DLRover's name, of torch ranks."""
        workload_builder = ElasticTrainBuilder(self, self._last_role or InternalDLWorkloadRole.ELASTIC_ROLE, entrypoint)
        self.add_role_builder(workload_builder.role_name, workload_builder)
        return workload_builder

    def with_collocation(self, *roles: str) -> Self:
        """Let roles share devices, or a machine where they ask for none."""
        self._collocations.append(roles)
        return self

    def with_collocation_all(self, *exclude_roles: str) -> Self:
        """Let all roles but these share; also those that are defined later."""
        self._collocations.append(_AllBut(exclude_roles))
        return self

    @wrong_job()
    def by_dlrover_run_cmd(self, cmd: str) -> Self:
        """Define the job by a command line of dlrover-run or torchrun, with all its arguments.

        Raises:
            WrongJobError: the line is no such command, or dljob cannot do what it asks.
        """
        from dljob.compat.dlrover_run import defined_by

        defined_by(self, cmd)
        return self

    def build(self) -> DLJob:
        """Return the job.

        Raises:
            ValueError: pydantic's, which names the wrong fields.
            WrongJobError: the job cannot be one of dljob's; the message says why.
            WrongSpecError: its spec is wrong.
        """
        workloads = {role: item.built() for role, item in self._role_builders.items()}
        for item in workloads.values():
            for key, value in self._sets.items() if isinstance(item, ElasticWorkloadDesc) else ():
                setattr(item, key, value)
        job = DLJob(
            global_envs=self._env,
            workloads=workloads,
            collocations=[self._collocated(item, workloads) for item in self._collocations],
            **self._fields,
        )
        check(job)
        return job

    def _collocated(self, names_given: tuple[str, ...] | _AllBut, workloads: Mapping[str, object]) -> set[str]:
        """Return the roles of one collocation, which may be named in any case."""
        by_case = {name.lower(): name for name in workloads}
        if isinstance(names_given, _AllBut):
            return set(workloads) - {by_case.get(name.lower(), name) for name in names_given.roles}
        return {by_case.get(name.lower(), name) for name in names_given}


class _AllBut:
    """All roles but these, resolved when the job is built."""

    def __init__(self, roles: tuple[str, ...]) -> None:
        self.roles = roles


class RLJob(DLJob):
    """A job of reinforcement learning."""

    @model_validator(mode="after")
    def _has_a_policy(self) -> RLJob:
        if RLRoleType.ACTOR.name not in self.workloads:
            raise ValueError("an RL job needs its ACTOR role: .actor(entrypoint)")
        return self


class RLJobBuilder(DLJobBuilder):
    """Builder of a job whose roles, but for the trainer, only serve."""

    TRAINER_ROLE = RLRoleType.TRAINER.name
    ACTOR_ROLE = RLRoleType.ACTOR.name
    REF_ROLE = RLRoleType.REFERENCE.name
    REW_ROLE = RLRoleType.REWARD.name
    CRITIC_ROLE = RLRoleType.CRITIC.name
    ROLLOUT_ROLE = RLRoleType.ROLLOUT.name
    ROLES = (TRAINER_ROLE, ACTOR_ROLE, REF_ROLE, REW_ROLE, CRITIC_ROLE, ROLLOUT_ROLE)

    def trainer(self, entrypoint: str) -> SimpleWorkloadBuilder[Self]:
        """Define the trainer, the driver: one worker with 4 CPUs and 8192 MB."""
        return self.role(self.TRAINER_ROLE).run(entrypoint).resource(cpu=4, mem=8192)

    def actor(self, entrypoint: str) -> ElasticTrainBuilder[Self]:
        """Define the policy, as torch ranks."""
        return self.role(self.ACTOR_ROLE).train(entrypoint).not_driver()

    def critic(self, entrypoint: str) -> ElasticTrainBuilder[Self]:
        """Define the value model, as torch ranks."""
        return self.role(self.CRITIC_ROLE).train(entrypoint).not_driver()

    def rollout(self, entrypoint: str) -> SimpleWorkloadBuilder[Self]:
        """Define the inference engines."""
        return self.role(self.ROLLOUT_ROLE).run(entrypoint).not_driver()

    def reference(self, entrypoint: str) -> SimpleWorkloadBuilder[Self]:
        """Define the frozen policy."""
        return self.role(self.REF_ROLE).run(entrypoint).not_driver()

    def reward(self, entrypoint: str) -> SimpleWorkloadBuilder[Self]:
        """Define the reward model."""
        return self.role(self.REW_ROLE).run(entrypoint).not_driver()

    def with_collocation_all(self, *exclude_roles: str) -> Self:
        """Let all roles but the trainer share."""
        return super().with_collocation_all(self.TRAINER_ROLE, *exclude_roles)

    def build(self) -> RLJob:
        """Return the job.

        Raises:
            ValueError: pydantic's, also where there is no actor.
        """
        job = super().build()
        return RLJob.model_validate({name: getattr(job, name) for name in DLJob.model_fields})
