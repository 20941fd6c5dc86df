"""The spec's models: frozen, camelCase outside, snake_case inside, every field described, unknown keys refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

RoleType = Literal["Actor", "Elastic"]
CollocationLevel = Literal["Device", "Host", "Separate"]
AcceleratorType = Literal["GPU", "NPU", "TPU", "HPU", "Neuron", "Custom"]
RestartLevel = Literal["Process", "RoleGroup", "Role", "Job", "Never"]
RuleAction = Literal["RestartProcess", "RestartRoleGroup", "RestartRole", "RestartJob", "Fail", "Ignore"]
RuleReason = Literal["UserError", "ImportError", "NodeLost", "Unknown"]

RoleName = Annotated[str, Field(max_length=24, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
Quantity = Annotated[str, Field(max_length=32)]


class Model(BaseModel):
    """What all models share."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


class EnvVar(Model):
    """An environment variable."""

    name: Annotated[str, Field(max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name of the variable."""
    value: Annotated[str, Field(max_length=32768)] = ""
    """Its value, as it is."""


class Entrypoint(Model):
    """What a rank runs: exactly one of class, module, command."""

    class_: Annotated[str | None, Field(alias="class", max_length=512)] = None
    """Dotted path to a class (a `dljob.Worker` or any class with `run`) or to a function."""
    module: Annotated[str | None, Field(max_length=512)] = None
    """A module as `python -m` takes it, or a path ending in `.py`."""
    command: Annotated[tuple[str, ...] | None, Field(min_length=1, max_length=256)] = None
    """argv, run as it is, without a shell."""


class RoleAccelerator(Model):
    """The devices of one rank."""

    type: AcceleratorType | None = None
    """Kind of device; left out: that of the node group, else GPU."""
    count: Annotated[str, Field(pattern=r"^(0\.[0-9]{1,4}|[0-9]+)$", max_length=16)] = "1"
    """Devices of one rank: a whole number, or a share below one of at most four digits."""


class RoleResources(Model):
    """What one rank takes beside devices."""

    cpu: Quantity | None = None
    """CPUs of one rank, "500m" or "2"; left out: 1."""
    memory: Quantity | None = None
    """Memory of one rank, "8Gi"."""
    custom: Annotated[dict[str, Quantity], Field(max_length=16)] = Field(default_factory=dict)
    """Any other resource by Ray's name."""


class Dependency(Model):
    """A role that must have come so far first."""

    role: RoleName
    """The role waited for."""
    condition: Literal["Ready", "Complete"] = "Ready"
    """Ready: all its ranks are set up. Complete: all ended well."""


class Comm(Model):
    """The torch process group of an Elastic role."""

    backend: Literal["Auto", "nccl", "hccl", "gloo", "None"] = "Auto"
    """Auto: nccl on GPU, hccl on NPU, else gloo. None: no process group and no store."""
    timeout_seconds: Annotated[int, Field(ge=1, le=86400)] = 1800
    """How long a collective may wait."""
    init_process_group: bool = True
    """Whether a `class` entrypoint finds the group initialised; scripts call `init_process_group()` themselves."""


class RestartPolicy(Model):
    """How a role is restarted when no rule of faultTolerance says otherwise."""

    level: RestartLevel | None = None
    """Left out: RoleGroup for Elastic with one group, Role for Elastic with more, else Process."""
    max_restarts: Annotated[int, Field(ge=0, le=100000)] = 10
    """Restarts of this role within the window before the next higher level is tried."""


class Role(Model):
    """A named kind of process."""

    name: RoleName
    """Name of the role; not job, master or node."""
    type: RoleType = "Actor"
    """Actor: independent ranks. Elastic: the ranks form one torch world."""
    entrypoint: Entrypoint
    """What each rank runs."""
    args: Annotated[tuple[str, ...], Field(max_length=256)] = ()
    """Arguments of a module or command; sys.argv[1:] of a class or function."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=256)] = ()
    """Environment of each rank, over the job's."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Free object, laid over the job's config."""
    replicas: Annotated[int, Field(ge=1, le=100000)] = 1
    """How many ranks."""
    replicas_per_group: Annotated[int, Field(ge=1, le=1024)] = 1
    """Ranks of one role group: they live on one host. Divides replicas."""
    accelerator: RoleAccelerator | None = None
    """Devices of each rank; left out: none."""
    resources: RoleResources = RoleResources()
    """CPU, memory and other resources of each rank."""
    node_group: Annotated[str | None, Field(max_length=20)] = None
    """The node group its ranks live on; left out: any that fits."""
    driver: bool = True
    """The job ends with its drivers; others serve until then."""
    depends_on: Annotated[tuple[Dependency, ...], Field(max_length=32)] = ()
    """Roles that must be ready or complete before this one starts."""
    comm: Comm = Comm()
    """Torch process group, for Elastic."""
    restart_policy: RestartPolicy = RestartPolicy()
    """Level and budget of restarts."""


class Collocation(Model):
    """Roles that share a device, share a host, or never share one."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
    """Name of the collocation."""
    roles: Annotated[tuple[RoleName, ...], Field(min_length=2, max_length=8)]
    """The roles in it."""
    level: CollocationLevel
    """Device: share one device by fractions. Host: same machine, own devices. Separate: never the same machine."""


class NodeAccelerator(Model):
    """The devices of one machine."""

    type: AcceleratorType
    """Kind of device."""
    count: Annotated[int, Field(ge=1, le=1024)] = 1
    """How many each machine has."""
    resource_name: Annotated[str | None, Field(max_length=253)] = None
    """Kubernetes' extended resource, `huawei.com/Ascend910`; left out: the usual one of the type."""
    ray_resource: Annotated[str | None, Field(max_length=63)] = None
    """Ray's resource, for Custom."""


class NodeGroup(Model):
    """Machines of one kind (a KubeRay worker group; raylets on a laptop)."""

    name: Annotated[str, Field(max_length=20, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
    """Name of the group; not head or headgroup."""
    replicas: Annotated[int, Field(ge=1, le=100000)] = 1
    """How many machines."""
    cpu: Quantity = "1"
    """CPUs of one machine."""
    memory: Quantity | None = None
    """Memory of one machine."""
    shared_memory: Quantity | None = None
    """Size of /dev/shm."""
    accelerator: NodeAccelerator | None = None
    """Devices of one machine."""
    labels: Annotated[dict[str, str], Field(max_length=32)] = Field(default_factory=dict)
    """Labels of its machines, in Ray and Kubernetes."""


class Backoff(Model):
    """Waiting before a restart, from the second failure in a window on."""

    initial_seconds: Annotated[int, Field(ge=0, le=3600)] = 1
    """The first wait."""
    multiplier: Annotated[int, Field(ge=1, le=10)] = 2
    """Each wait is this many times the last."""
    max_seconds: Annotated[int, Field(ge=0, le=86400)] = 300
    """No wait is longer."""


class Spares(Model):
    """Processes or machines kept ready to take over."""

    processes_per_node: Annotated[int, Field(ge=0, le=64)] = 0
    """Pre-imported processes per node and role that runs there."""
    nodes: Annotated[int, Field(ge=0, le=1024)] = 0
    """Machines per node group kept free of ranks."""


class Rule(Model):
    """What to do about a failure; the first rule that matches decides."""

    name: Annotated[str, Field(max_length=63, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
    """Name of the rule, shown in events."""
    roles: Annotated[tuple[RoleName, ...], Field(max_length=32)] = ()
    """Roles it is about; empty: all."""
    on_reasons: Annotated[tuple[RuleReason, ...], Field(max_length=16)] = ()
    """Reasons it is about; empty: any."""
    on_exit_codes: Annotated[tuple[int, ...], Field(max_length=32)] = ()
    """Exit codes it is about; empty: any."""
    action: RuleAction
    """What is done."""
    max_attempts: Annotated[int | None, Field(ge=1, le=100000)] = None
    """How often within the window, before escalateTo."""
    escalate_to: RuleAction | None = None
    """What is done then; left out: the next higher level."""
    counts_towards_limit: bool = True
    """Whether its restarts use up the budgets."""


class FaultTolerance(Model):
    """Budgets and rules of restarts."""

    max_restarts: Annotated[int, Field(ge=0, le=100000)] = 10
    """Restarts of the whole job within the window."""
    window_seconds: Annotated[int, Field(ge=1, le=2592000)] = 3600
    """Budgets count failures of the last so many seconds."""
    lease_seconds: Annotated[int, Field(ge=5, le=3600)] = 30
    """A process that hears nothing from PrimeMaster for so long ends itself."""
    backoff: Backoff = Backoff()
    """Waits between restarts."""
    spares: Spares = Spares()
    """What is kept ready."""
    rules: Annotated[tuple[Rule, ...], Field(max_length=16)] = ()
    """First match wins."""


class Journal(Model):
    """Where PrimeMaster's journal lives."""

    path: Annotated[str | None, Field(max_length=1024)] = None
    """A folder on a volume; left out: the job's folder."""


class Master(Model):
    """PrimeMaster."""

    max_restarts: Annotated[int, Field(ge=0, le=100000)] = 10
    """Restarts of PrimeMaster within the window of faultTolerance before the job fails."""
    create_timeout_seconds: Annotated[int, Field(ge=1, le=86400)] = 600
    """How long its creation may take."""
    journal: Journal = Journal()
    """The journal."""


class Backend(Model):
    """The distributed backend."""

    name: Annotated[str, Field(max_length=63)] = "ray"
    """ray, or the name of an entry point in `dljob.backends`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of that backend."""


class Code(Model):
    """Where user code comes from when not in the image."""

    working_dir: Annotated[str | None, Field(max_length=1024)] = None
    """A folder, relative to the file; left out: the file's own folder."""


class Head(Model):
    """The head of the RayCluster; ranks never live there."""

    cpu: Quantity = "1"
    """CPUs of the head."""
    memory: Quantity = "4Gi"
    """Memory of the head."""


class DLJobSpec(Model):
    """A deep-learning job made of different processes."""

    image: Annotated[str | None, Field(max_length=1024)] = None
    """The runtime image; left out: the configured one."""
    ray_version: Annotated[str | None, Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$", max_length=32)] = None
    """Ray's version in the image; left out: the configured one."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=256)] = ()
    """Environment of every role."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Free object that every role reads as `current_worker().config`."""
    code: Code = Code()
    """Where user code comes from."""
    backend: Backend | None = None
    """The distributed backend; left out: `DISTRIBUTED_BACKEND`, else ray."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1, max_length=32)]
    """The roles."""
    collocations: Annotated[tuple[Collocation, ...], Field(max_length=16)] = ()
    """Which roles share devices or hosts, or never do."""
    node_groups: Annotated[tuple[NodeGroup, ...], Field(max_length=16)] = ()
    """The machines; left out: derived from the roles."""
    head: Head = Head()
    """The head of the RayCluster."""
    master: Master = Master()
    """PrimeMaster."""
    fault_tolerance: FaultTolerance = FaultTolerance()
    """Budgets and rules of restarts."""
    active_deadline_seconds: Annotated[int | None, Field(ge=1, le=31536000)] = None
    """The job fails when it has run so long."""
    pre_running_deadline_seconds: Annotated[int | None, Field(ge=1, le=31536000)] = None
    """The job fails when it has not been running after so long; left out: it waits for room."""


class Metadata(Model):
    """Name of the job."""

    name: Annotated[str, Field(max_length=47, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
    """At most 47 characters, DNS-1035."""
    namespace: Annotated[str | None, Field(max_length=63)] = None
    """Kubernetes namespace."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations."""


class DLJobManifest(Model):
    """The whole document: apiVersion, kind, metadata, spec."""

    api_version: Literal["dljob.io/v1alpha1"] = "dljob.io/v1alpha1"
    """dljob.io/v1alpha1."""
    kind: Literal["DLJob"] = "DLJob"
    """DLJob."""
    metadata: Metadata
    """Name and namespace."""
    spec: DLJobSpec
    """The job."""
