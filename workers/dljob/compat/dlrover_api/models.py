"""DLRover's data classes, in its spelling and with its aliases: descriptions of workloads and jobs, infos, enums."""

from __future__ import annotations

import re
import time
from argparse import Namespace
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias, cast

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from dljob.api.values import plain
from dljob.compat.dlrover_api.config import config_object
from dljob.compat.dlrover_api.notes import refuse

JOB_OPTIONS_ENV_PREFIX = "DLROVER_UNIFIED_"


class MasterStage(str, Enum):  # noqa: UP042 - formatted as DLRover's
    """Stage of a job."""

    INIT = "INIT"
    READY = "READY"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"


class DiagnosticInfoType(str, Enum):  # noqa: UP042
    """Kind of a diagnosis."""

    NORMAL = "NORMAL"
    FATAL = "FATAL"
    ERROR = "ERROR"
    WARNING = "WARNING"


class DiagnosticResponsibility(int, Enum):
    """Part of a worker in its abnormal end."""

    ROOT_CAUSE = 0
    RELATED = 1
    BE_AFFECTED = 2
    UNKNOWN = 3


class ExecutionResultType(str, Enum):  # noqa: UP042
    """End of a worker."""

    SUCCESS = "SUCCESS"
    FAIL = "FAIL"


class ACCELERATOR_TYPE(str, Enum):  # noqa: N801, UP042 - DLRover's name
    """Kinds of devices; DLRover has the first three."""

    CPU = "CPU"
    GPU = "GPU"
    TPU = "TPU"
    NPU = "NPU"
    HPU = "HPU"
    NEURON = "Neuron"

    @classmethod
    def _missing_(cls, value: object) -> ACCELERATOR_TYPE | None:
        return next((kind for kind in cls if kind.value.lower() == str(value).lower()), None)


class DLStreamType(Enum):
    """Stream of a job, which nothing depends on."""

    TASK_STREAM = "TASK_STREAM"
    DATA_STREAM = "DATA_STREAM"


class RLRoleType(str, Enum):  # noqa: UP042
    """Roles of reinforcement learning."""

    TRAINER = "TRAINER"
    ACTOR = "ACTOR"
    ROLLOUT = "ROLLOUT"
    REFERENCE = "REFERENCE"
    REWARD = "REWARD"
    CRITIC = "CRITIC"


class MasterStateBackendType(Enum):
    """Home of the master's state in DLRover."""

    RAY_INTERNAL = "RAY_INTERNAL"
    HDFS = "HDFS"
    IN_MEMORY = "IN_MEMORY"


class WorkloadEntrypointType(str, Enum):  # noqa: UP042
    """Form of an entrypoint."""

    MODULE_FUNC = "MODULE_FUNC"
    PY_CMD = "PY_CMD"


class InternalDLWorkloadRole:
    """Names of roles that DLRover gives."""

    ELASTIC_ROLE = "ELASTIC"
    GLOBAL_ROLE = "GLOBAL"


class DLWorkloadEnv:
    """Names of environment variables."""

    JOB = "JOB"
    NAME = "NAME"
    ROLE = "ROLE"
    RANK = "RANK"
    WORLD_SIZE = "WORLD_SIZE"
    LOCAL_RANK = "LOCAL_RANK"
    LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE"
    MASTER_ADDR = "MASTER_ADDR"
    MASTER_PORT = "MASTER_PORT"
    WORKING_DIR = "DLROVER_WORKING_DIR"
    DEVICE_COLLOCATION_GROUP = "DEVICE_COLLOCATION_GROUP"
    RAY_NOSET_VISIBLE_DEVICES_ENVS = {  # noqa: RUF012 - DLRover's form
        f"RAY_EXPERIMENTAL_NOSET_{variable}": "true"
        for variable in (
            *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES"),
            *("NEURON_RT_VISIBLE_CORES", "TPU_VISIBLE_CHIPS", "ONEAPI_DEVICE_SELECTOR"),
        )
    }


def get_entrypoint_type(entry_point: str) -> WorkloadEntrypointType | None:
    """Return the form of an entrypoint: a script with its arguments, or a dotted path; None for neither."""
    words = entry_point.split()
    if words and (words[0].endswith(".py") or "/" in entry_point):
        return WorkloadEntrypointType.PY_CMD
    dotted = re.fullmatch(r"[a-zA-Z_]\w*(\.[a-zA-Z_]\w*)+", entry_point.strip(), re.ASCII)
    return WorkloadEntrypointType.MODULE_FUNC if dotted else None


class _DescModel(BaseModel):
    """Base of the models; a misspelt field is an error, where DLRover ignores it."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class ResourceDesc(_DescModel):
    """Resources of one worker; memory and disk in MB."""

    cpu: float = Field(default=0.0, ge=0)
    memory: int = Field(default=0, ge=0, validation_alias=AliasChoices("memory", "mem"))
    disk: int = Field(default=0, ge=0)
    accelerator: float = Field(default=0.0, ge=0, validation_alias=AliasChoices("accelerator", "acc", "gpu"))
    user_defined: dict[str, float] = Field(
        default_factory=dict[str, float], validation_alias=AliasChoices("user_defined", "ud_resource")
    )

    @classmethod
    def get_or_default(cls, resource: dict[str, Any]) -> ResourceDesc:
        """Return the description; one device where nothing is asked for."""
        description = cls.model_validate(resource)
        return ResourceDesc(accelerator=1) if description.is_empty() else description

    def is_empty(self) -> bool:
        """Whether it asks for nothing that is scheduled."""
        return not (self.cpu or self.accelerator or self.user_defined)

    def __add__(self, addend: ResourceDesc) -> ResourceDesc:
        both = self.user_defined.keys() | addend.user_defined.keys()
        return ResourceDesc(
            cpu=self.cpu + addend.cpu,
            memory=self.memory + addend.memory,
            disk=self.disk + addend.disk,
            accelerator=self.accelerator + addend.accelerator,
            user_defined={key: self.user_defined.get(key, 0) + addend.user_defined.get(key, 0) for key in both},
        )

    def __mul__(self, factor: float) -> ResourceDesc:
        return ResourceDesc(
            cpu=self.cpu * factor,
            memory=int(self.memory * factor),
            disk=int(self.disk * factor),
            accelerator=self.accelerator * factor,
            user_defined={key: value * factor for key, value in self.user_defined.items()},
        )


class NodeGroupFailoverDesc(_DescModel):
    """Failover of the nodes with one label, which has no effect here."""

    enabled: bool = False
    group_label_key: str = ""
    timeout: int = Field(default=300, ge=30)


class BaseWorkloadDesc(_DescModel):
    """One role."""

    total: int = Field(default=1, ge=0, validation_alias=AliasChoices("total", "num", "number"))
    resource: ResourceDesc = Field(default_factory=ResourceDesc, validation_alias=AliasChoices("resource", "res"))
    envs: dict[str, str] = Field(
        default_factory=dict[str, str], validation_alias=AliasChoices("env", "environment", "envs")
    )
    per_node_max_failure: int = 3
    max_restart: int = 10
    group: str | None = None
    per_group: int = Field(default=1, ge=1)
    entry_point: str = Field(validation_alias=AliasChoices("entry_point", "entrypoint"))
    config: dict[str, Any] = Field(default_factory=dict[str, Any])
    rank_based_gpu_selection: bool = False
    is_driver: bool = True
    node_group_failover: NodeGroupFailoverDesc = Field(default_factory=NodeGroupFailoverDesc)

    @field_serializer("config")
    def _config_as_json(self, value: dict[str, Any]) -> object:
        return plain(value)

    @field_validator("entry_point", mode="before")
    @classmethod
    def _with_dots(cls, value: object) -> object:
        return value.strip().replace("::", ".") if isinstance(value, str) else value

    @field_validator("entry_point")
    @classmethod
    def _has_a_form(cls, value: str) -> str:
        if value and get_entrypoint_type(value) is None:
            raise ValueError(f"{value!r} is neither a dotted path (pkg.module.function) nor a script (train.py --lr 1)")
        return value

    @field_validator("resource", mode="before")
    @classmethod
    def _asks_for_something(cls, value: object) -> object:
        # A dict without amounts is a workload without a resource that was dumped, and is loaded again.
        if isinstance(value, ResourceDesc) and value.is_empty():
            raise ValueError("Resource must not be empty: give cpu, accelerator or user_defined, or no resource")
        return value

    @model_validator(mode="after")
    def _groups_are_whole(self) -> BaseWorkloadDesc:
        if self.total % self.per_group:
            raise ValueError(f"total {self.total} must be divisible by per_group {self.per_group}")
        if self.rank_based_gpu_selection and (self.per_group == 1 or self.resource.accelerator > 1):
            raise ValueError(
                f"rank_based_gpu_selection needs a per_group above 1 and at most one accelerator for each worker; "
                f"here per_group is {self.per_group} and accelerator {self.resource.accelerator:g}"
            )
        return self

    @property
    def entry_point_type(self) -> WorkloadEntrypointType | None:
        """The form of the entrypoint."""
        return get_entrypoint_type(self.entry_point)


class ElasticWorkloadDesc(BaseWorkloadDesc):
    """A role of torch ranks."""

    backend: Literal["elastic"] = "elastic"
    comm_pre_check: bool = True
    comm_auto_setup_process_group: bool = True
    comm_backend: str = "auto"
    comm_timeout_s: int | None = Field(default=None, ge=0)


class SimpleWorkloadDesc(BaseWorkloadDesc):
    """A role of independent ranks."""

    backend: Literal["simple"] = "simple"


class CustomWorkloadDesc:
    """A role whose actor class is the user's, which is refused."""

    def __init__(self, **fields: object) -> None:
        refuse(
            f"CustomWorkloadDesc({', '.join(fields)})", "name a class as entrypoint, and derive it from dljob.Worker"
        )


WorkloadDesc: TypeAlias = ElasticWorkloadDesc | SimpleWorkloadDesc


@dataclass
class WorkloadGroup:
    """Roles that share bundles."""

    name: str
    num: int
    workloads: list[str]
    resource: ResourceDesc


class DLConfig(_DescModel):
    """The roles of a job and what they share."""

    user_config: Any = Field(default_factory=dict)
    workloads: dict[str, ElasticWorkloadDesc | SimpleWorkloadDesc] = Field(min_length=1)
    global_envs: dict[str, str] = Field(default_factory=dict[str, str])
    node_number: int = Field(default=1, ge=1)
    accelerator_type: ACCELERATOR_TYPE = ACCELERATOR_TYPE.GPU
    device_per_node: int = Field(default=8, ge=1)

    @field_validator("workloads", mode="before")
    @classmethod
    def _by_backend(cls, value: object) -> object:
        """Let `backend` choose the class of a workload that is given as a dict; without one it is simple."""
        if not isinstance(value, dict):
            return value
        workloads: dict[str, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType] - pydantic checks what it holds
        for name, workload in workloads.items():
            if isinstance(workload, dict) and "backend" not in workload:
                kind: str = "elastic" if any(key.startswith("comm_") for key in workload) else "simple"  # pyright: ignore
                workloads[name] = {**workload, "backend": kind}
        return workloads

    @field_validator("user_config", mode="after")
    @classmethod
    def _as_ranks_find_it(cls, value: Any, info: ValidationInfo) -> Any:
        del info
        return config_object({} if value is None else _named(value))

    @field_serializer("user_config")
    def _as_json(self, value: Any) -> object:
        return plain(value)

    @property
    def workload_group(self) -> list[WorkloadGroup]:
        """The groups of the workloads."""
        groups: dict[str, WorkloadGroup] = {}
        for name, workload in self.workloads.items():
            key = workload.group or f"_group_{name}"
            group = groups.setdefault(key, WorkloadGroup(key, workload.total // workload.per_group, [], ResourceDesc()))
            if workload.total != group.num * workload.per_group:
                raise ValueError(
                    f"workload {name!r} has {workload.total} of {workload.per_group} each, its group {group.num}"
                )
            group.workloads.append(name)
            group.resource = group.resource + workload.resource * workload.per_group
        return list(groups.values())


def _named(value: Any) -> Any:
    return vars(value) if isinstance(value, Namespace | SimpleNamespace) else value


class DLJob(DLConfig):
    """A job, as `build()` returns it: edit `workloads`, then `submit`."""

    stream_type: DLStreamType = DLStreamType.TASK_STREAM
    collocations: list[set[str]] = Field(default_factory=list[set[str]])

    @model_validator(mode="after")
    def _share_devices(self) -> DLJob:
        """Put the roles of each collocation into a group, and give each an equal part of a device, as DLRover does.

        CPUs and memory, which DLRover drops, are kept. A role that is in the group already keeps its part: it may have
        been edited since.
        """
        for index, roles in enumerate(self.collocations):
            group = f"collocation_{index}"
            for role in sorted(roles):
                workload = self.workloads.get(role)
                if workload is None:
                    known_roles = ", ".join(self.workloads)
                    raise ValueError(
                        f"role {role!r} is not defined, but a collocation names it; there are {known_roles}"
                    )
                if workload.group == group:
                    continue
                if workload.group is not None:
                    raise ValueError(
                        f"role {role!r} has already been assigned to {workload.group}: it cannot be in {group}, too"
                    )
                workload.group = group
                workload.resource = workload.resource.model_copy(update={"accelerator": round(1 / len(roles), 2)})
        return self

    @property
    def node_num(self) -> int:
        """Number of nodes."""
        return self.node_number

    @property
    def device_type(self) -> ACCELERATOR_TYPE:
        """Kind of the devices."""
        return self.accelerator_type

    @property
    def config(self) -> Any:
        """Config of the user."""
        return self.user_config

    @property
    def env(self) -> dict[str, str]:
        """Environment variables of all roles."""
        return self.global_envs

    def get_workload(self, role: str) -> WorkloadDesc:
        """Return one role."""
        return self.workloads[role]

    def submit(self, job_name: str | None = None, blocking: bool = True, **kwargs: Any) -> int:  # noqa: FBT001, FBT002
        """Run the job, and return its exit code; with blocking=False return 0 at once.

        Options are those of JobConfig, over the variables DLROVER_UNIFIED_*; `job_name` is one of them.
        """
        # By name: a submission is made of these models, and stands above them.
        submission = import_module("dljob.compat.dlrover_api.submit")
        return submission.submit_job(
            self, {**kwargs, **({"job_name": job_name} if job_name else {})}, blocking=blocking
        )


class JobConfig(_DescModel):
    """A job with the options of its submission."""

    job_name: str
    dl_config: DLConfig
    master_cpu: int = 2
    master_mem: int = Field(default=4096, validation_alias=AliasChoices("master_memory", "master_mem"))
    master_create_timeout: float = Field(
        default=600.0, validation_alias=AliasChoices("master_create_timeout", "timeout")
    )
    master_state_backend_type: MasterStateBackendType = MasterStateBackendType.RAY_INTERNAL
    master_state_backend_config: dict[str, Any] = Field(default_factory=dict[str, Any])
    node_max_restart: int = 10
    job_max_restart: int = 10
    master_max_restart: int = 10
    failover_trigger_strategy: int = Field(default=2, ge=0, le=2)
    failover_exec_strategy: int = Field(default=1, ge=0, le=2)
    master_isolation_schedule_resource: str = ""
    worker_isolation_schedule_resource: str = ""

    @field_validator("dl_config", mode="before")
    @classmethod
    def _kept_whole(cls, value: object) -> object:
        """Make a DLJob of a dict that has collocations, so that they count."""
        if isinstance(value, dict) and "collocations" in value:
            return DLJob.model_validate(value)
        return cast("object", value)


@dataclass(frozen=True)
class JobInfo:
    """The job, as its workers see it."""

    name: str
    job_id: str
    user_config: Any
    accelerator_type: ACCELERATOR_TYPE


@dataclass(frozen=True)
class ActorInfo:
    """A worker, as others see it."""

    name: str
    role: str
    spec: WorkloadDesc
    sub_master: str | None = None
    rank: int = 0
    node_rank: int = 0
    local_rank: int = 0


@dataclass(frozen=True)
class NodeInfo:
    """A node."""

    id: str
    hostname: str | None = None
    ip_address: str | None = None
    envs: dict[str, str] = field(default_factory=dict[str, str], repr=False)


@dataclass
class DiagnosticInfo:
    """A diagnosis of a worker's end."""

    type: DiagnosticInfoType = DiagnosticInfoType.NORMAL
    responsibility: DiagnosticResponsibility = DiagnosticResponsibility.UNKNOWN
    code: int = 0
    reason: str = ""
    log_content: str = ""
    metric_content: dict[str, Any] = field(default_factory=dict[str, Any])


class ExecutionResult:
    """End of a worker: `ExecutionResult.SUCCESS` as in 0.6.1, `ExecutionResult(result=...)` as in main."""

    SUCCESS = ExecutionResultType.SUCCESS
    FAIL = ExecutionResultType.FAIL

    def __init__(
        self, result: ExecutionResultType | str = ExecutionResultType.SUCCESS, timestamp: int | None = None
    ) -> None:
        self.result = ExecutionResultType(result)
        self.timestamp = int(time.time()) if timestamp is None else timestamp

    @property
    def is_success(self) -> bool:
        """Whether it ended well."""
        return self.result is ExecutionResultType.SUCCESS

    @property
    def is_failure(self) -> bool:
        """Whether it failed."""
        return not self.is_success


@dataclass
class MasterStatus:
    """State of a job."""

    stage: MasterStage
    exit_code: int = 0
    job_restart_count: int = 0
