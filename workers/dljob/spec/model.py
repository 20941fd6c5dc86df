"""The spec's models: frozen, camelCase outside, snake_case inside, every field described, unknown keys refused."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from dljob.spec import cel, scalars
from dljob.spec.cluster import (
    AcceleratorType,
    Checkpoint,
    Code,
    EnvFrom,
    EnvObject,
    GcsFaultTolerance,
    Head,
    Journal,
    Master,
    NetworkPolicy,
    NodeAccelerator,
    NodeGroup,
    ObjectRef,
    Scheduling,
)
from dljob.spec.collectives import CollectiveBackend, CollectiveGroup, Collectives
from dljob.spec.policy import (
    Backoff,
    FaultTolerance,
    KnownCause,
    NodePolicy,
    OutOfMemory,
    RestartLevel,
    RestartPolicy,
    Rule,
    RuleAction,
    RuleReason,
    Spares,
)
from dljob.spec.rank import Comm, Entrypoint, EnvVar, RoleAccelerator, RoleResources
from dljob.spec.scalars import (
    MAP_BY_NAME,
    MAP_BY_ROLE,
    SET,
    Config,
    GroupName,
    LabelKey,
    LabelValue,
    Model,
    Name,
    RoleName,
    Text,
)

__all__ = [
    "AcceleratorType",
    "Backend",
    "Backoff",
    "Checkpoint",
    "Code",
    "CollectiveBackend",
    "CollectiveGroup",
    "Collectives",
    "Collocation",
    "CollocationLevel",
    "Comm",
    "DLJobManifest",
    "DLJobSpec",
    "Dependency",
    "Entrypoint",
    "EnvFrom",
    "EnvObject",
    "EnvVar",
    "FaultTolerance",
    "Head",
    "Journal",
    "KnownCause",
    "Master",
    "Metadata",
    "Model",
    "NodeAccelerator",
    "NodeGroup",
    "NodePolicy",
    "ObjectRef",
    "OutOfMemory",
    "RestartLevel",
    "RestartPolicy",
    "Role",
    "RoleAccelerator",
    "RoleName",
    "RoleResources",
    "RoleType",
    "Rule",
    "RuleAction",
    "RuleReason",
    "Scheduling",
    "Spares",
]

RoleType = Literal["Actor", "Elastic"]
CollocationLevel = Literal["Device", "Host", "Separate"]


class Dependency(Model):
    """A role that must have come so far first."""

    role: RoleName
    """The role waited for."""
    condition: Literal["Ready", "Complete"] = "Ready"
    """Ready: all its ranks are set up. Complete: all of them ended well."""


class Role(Model):
    """A named kind of process."""

    model_config = ConfigDict(json_schema_extra=cel.schema(*cel.ROLE))

    name: RoleName
    """Name of the role: at most 24 lower-case letters, digits and '-'; not job, master or node."""
    type: RoleType = "Actor"
    """Actor: independent ranks. Elastic: the ranks form one torch world, as torchrun's do."""
    entrypoint: Entrypoint
    """What each rank runs."""
    args: Annotated[tuple[Text, ...], Field(max_length=256)] = ()
    """Arguments of a module or command; sys.argv[1:] of a class or function."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=256, json_schema_extra=MAP_BY_NAME)] = ()
    """Environment of each rank, laid over the job's."""
    config: Config = Field(default_factory=dict)
    """Free object, laid over the job's config; read as `current_worker().config`."""
    replicas: Annotated[int, Field(ge=1, le=100000)] = 1
    """How many ranks."""
    replicas_per_group: Annotated[int, Field(ge=1, le=1024)] = 1
    """Ranks of one role group, which live on one host and restart together. Divides replicas."""
    min_replicas: Annotated[int | None, Field(ge=1, le=100000)] = None
    """For Elastic: the fewest ranks with which it starts where there is no room for more, and goes on when nodes are
    lost; left out: as many as replicas."""
    max_replicas: Annotated[int | None, Field(ge=1, le=100000)] = None
    """For Elastic: the most ranks that replicas may be set to while it runs; left out: as many as replicas."""
    accelerator: RoleAccelerator | None = None
    """Devices of each rank; left out: none."""
    resources: RoleResources = RoleResources()
    """CPU, memory and other resources of each rank."""
    node_group: GroupName | None = None
    """The node group its ranks live on; left out: any that fits."""
    driver: bool = True
    """The job ends when its drivers have ended; the others serve until then."""
    depends_on: Annotated[tuple[Dependency, ...], Field(max_length=32, json_schema_extra=MAP_BY_ROLE)] = ()
    """Roles that must be ready or complete before this one starts."""
    comm: Comm = Comm()
    """Torch process group, for Elastic."""
    restart_policy: RestartPolicy = RestartPolicy()
    """Level and budget of restarts."""
    reserve: Literal["Placement", "Quota"] = "Placement"
    """Placement: each rank holds what it takes. Quota: the job starts when that much is free, and holds nothing of it:
    what a rank runs is a Ray driver, which makes placement groups and actors of its own."""
    annotations: Annotated[dict[LabelKey, Text], Field(max_length=16)] = Field(default_factory=dict)
    """Placement in another spelling, which may not contradict a typed field: `scheduling.dljob.io/accelerator: NPU` and
    `/accelerator-count: "0.5"`; `/placement-group: x`: the roles of one value share a unit, so a host, and devices when
    they take shares; `/collocate-with: actor`: the same by its name; `/strategy: STRICT_SPREAD`: a node for each group;
    `/topology-key: rack`: one value of that label on its nodes; `/label-selector: '{"rack": "in(a,b)"}'`, or !v."""


class Collocation(Model):
    """Roles that share a device, share a host, or never share one."""

    name: Name
    """Name of the collocation."""
    roles: Annotated[tuple[RoleName, ...], Field(min_length=2, max_length=8, json_schema_extra=SET)]
    """The roles in it; a role is in one collocation at most."""
    level: CollocationLevel
    """Device: share one device by fractions. Host: same machine, own devices. Separate: never the same machine."""


class Backend(Model):
    """The distributed backend."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=scalars.NAME_PATTERN)] = "ray"
    """ray, or the name of an entry point in `dljob.backends`."""
    options: Config = Field(default_factory=dict)
    """Options of that backend."""


class DLJobSpec(Model):
    """A deep-learning job made of different processes."""

    model_config = ConfigDict(json_schema_extra=cel.schema(*cel.SPEC))

    image: Annotated[str | None, Field(min_length=1, max_length=1024, pattern=scalars.IMAGE_PATTERN)] = None
    """The runtime image; left out: the configured one."""
    ray_version: Annotated[str | None, Field(max_length=32, pattern=scalars.VERSION_PATTERN)] = None
    """Ray's version in the image, x.y.z; left out: the configured one."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When Kubernetes pulls the images; left out: its own rule, Always for the tag latest, else IfNotPresent."""
    image_pull_secrets: Annotated[tuple[ObjectRef, ...], Field(max_length=16, json_schema_extra=MAP_BY_NAME)] = ()
    """Secrets with which Kubernetes pulls the images."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=256, json_schema_extra=MAP_BY_NAME)] = ()
    """Environment of every role."""
    env_from: Annotated[tuple[EnvFrom, ...], Field(max_length=32)] = ()
    """Environment of the Ray containers on Kubernetes, which every role inherits under its own; a laptop ignores it."""
    runtime_env: Config = Field(default_factory=dict)
    """Ray's runtime environment of the whole job on Kubernetes: pip, env_vars, working_dir (a URI) and so on, as Ray
    takes it. A laptop ignores it."""
    config: Config = Field(default_factory=dict)
    """Free object that every role reads as `current_worker().config`."""
    code: Code = Code()
    """Where user code comes from."""
    backend: Backend | None = None
    """The distributed backend; left out: `DISTRIBUTED_BACKEND`, else ray."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1, max_length=32, json_schema_extra=MAP_BY_NAME)]
    """The roles: which processes, and how many of each."""
    collocations: Annotated[tuple[Collocation, ...], Field(max_length=16, json_schema_extra=MAP_BY_NAME)] = ()
    """Which roles share devices or hosts, or never do."""
    node_groups: Annotated[tuple[NodeGroup, ...], Field(max_length=16, json_schema_extra=MAP_BY_NAME)] = ()
    """The machines; left out: derived from the roles."""
    ray_cluster_ref: ObjectRef | None = None
    """A RayCluster of the job's namespace that is there already, to run on; its image has dljob. It is left as it is
    and stays when the job ends, whatever cleanupPolicy says. What would make or change pods is refused beside it.
    Cannot be changed. A laptop ignores it."""
    head: Head = Head()
    """The head of the RayCluster."""
    ray_cluster_template: Config = Field(default_factory=dict)
    """Part of a RayCluster (metadata.labels, metadata.annotations, spec), the last to be laid over it on Kubernetes;
    worker groups are merged by groupName. What the platform needs is refused. A laptop ignores it."""
    master: Master = Master()
    """PrimeMaster."""
    fault_tolerance: FaultTolerance = FaultTolerance()
    """Budgets and rules of restarts."""
    gcs_fault_tolerance: GcsFaultTolerance | None = None
    """Keeps what Ray's head knows, so that the loss of the head restarts nothing but the head on Kubernetes; left out:
    a lost head is a lost attempt, and the next one resumes from what was saved. A laptop ignores it."""
    checkpoint: Checkpoint | None = None
    """Where user code saves. On a laptop path and claim are ignored: `dljob.checkpoint` saves in the job's folder."""
    collectives: Collectives = Collectives()
    """Collectives across roles: their backends and groups."""
    scheduling: Scheduling = Scheduling()
    """Queue and gang scheduling of the RayCluster; a laptop ignores it."""
    network_policy: NetworkPolicy = NetworkPolicy()
    """Who reaches the job's pods on Kubernetes; a laptop ignores it."""
    suspend: bool = False
    """Suspends the job on Kubernetes: what is in memory is saved, its attempt stops, and nothing of it is left but the
    DLJob. Set to false again, the next attempt goes on from the last checkpoint, with the spec as it is then; startTime
    begins anew, and deadlines with it. A laptop does not run a suspended job."""
    managed_by: Literal["dljob.io/operator", "kueue.x-k8s.io/multikueue"] | None = None
    """Whose job it is on Kubernetes; left out: dljob.io/operator. With another the operator leaves it alone."""
    cleanup_policy: Literal["DeleteCluster", "Retain"] = "DeleteCluster"
    """What becomes of the RayCluster on Kubernetes when the job has ended; retained, it goes on holding its quota."""
    ttl_seconds_after_finished: Annotated[int | None, Field(ge=0, le=31536000)] = None
    """The DLJob deletes itself from Kubernetes so many seconds after its end; left out: it stays."""
    active_deadline_seconds: Annotated[int | None, Field(ge=1, le=31536000)] = None
    """The job fails when it has run for so many seconds."""
    pre_running_deadline_seconds: Annotated[int | None, Field(ge=1, le=31536000)] = None
    """The job fails when it is not running after so many seconds; left out: it waits for room."""


class Metadata(Model):
    """Name of the job, and what is kept with it."""

    name: Annotated[str, Field(max_length=47, pattern=scalars.NAME_PATTERN)]
    """Name of the job: at most 47 lower-case letters, digits and '-', a letter first (DNS-1035)."""
    namespace: Name | None = None
    """Kubernetes namespace; left out: the current one."""
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=64)] = Field(default_factory=dict)
    """Labels of the job."""
    annotations: Annotated[dict[LabelKey, Text], Field(max_length=64)] = Field(default_factory=dict)
    """Annotations of the job."""


class DLJobManifest(Model):
    """The whole document: apiVersion, kind, metadata, spec."""

    model_config = ConfigDict(json_schema_extra=cel.schema(*cel.ROOT))

    api_version: Literal["dljob.io/v1alpha1"] = "dljob.io/v1alpha1"
    """The version of this page: dljob.io/v1alpha1."""
    kind: Literal["DLJob"] = "DLJob"
    """Always DLJob."""
    metadata: Metadata
    """Name of the job, and what is kept with it."""
    spec: DLJobSpec
    """The job: its roles, its machines, and what is done when a part fails."""
