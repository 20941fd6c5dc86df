"""The models of the spec: frozen, camelCase in files, snake_case in Python, unknown keys refused.

The docstring of a field is also its description in the CRD (`kubectl explain`) and on the reference page.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from dljob.spec import cel, scalars
from dljob.spec.autoscale import Autoscale
from dljob.spec.capabilities import Capability, Needs
from dljob.spec.cluster import (
    AcceleratorType,
    Checkpoint,
    Code,
    EnvFrom,
    EnvObject,
    GcsFaultTolerance,
    Head,
    JournalLocation,
    Master,
    NetworkPolicy,
    NodeAccelerator,
    NodeGroup,
    ObjectRef,
    Scheduling,
)
from dljob.spec.collectives import CollectiveBackend, Collectives, GroupSpec
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
from dljob.spec.rank import AutoResources, Comm, Entrypoint, EnvVar, RoleAccelerator, RoleResources, TensorFlow
from dljob.spec.scalars import (
    MAP_BY_NAME,
    MAP_BY_ROLE,
    SET,
    Config,
    GroupName,
    LabelKey,
    LabelValue,
    MetricName,
    Model,
    Name,
    Option,
    RoleName,
    Text,
)
from dljob.spec.serving import Drain, Port, Probe, Weights, WeightsLoad, WeightsVerify

# The models are spread over several modules; all others import them from here.
__all__ = [
    "AcceleratorType",
    "AutoResources",
    "Autoscale",
    "BackendName",
    "Backoff",
    "Checkpoint",
    "Code",
    "CollectiveBackend",
    "Collectives",
    "Collocation",
    "CollocationLevel",
    "Comm",
    "DLJobManifest",
    "DLJobSpec",
    "Dependency",
    "Drain",
    "Entrypoint",
    "EnvFrom",
    "EnvObject",
    "EnvVar",
    "FaultTolerance",
    "GroupSpec",
    "Head",
    "JournalLocation",
    "KnownCause",
    "Master",
    "Metadata",
    "Model",
    "NodeAccelerator",
    "NodeGroup",
    "NodePolicy",
    "ObjectRef",
    "OutOfMemory",
    "Port",
    "Probe",
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
    "TensorFlow",
    "Weights",
    "WeightsLoad",
    "WeightsVerify",
]

RoleType = Literal["Actor", "Elastic"]
CollocationLevel = Literal["Device", "Host", "Separate"]


class Dependency(Model):
    """A role that must reach a condition before the dependent role starts."""

    role: RoleName
    """The role to wait for."""
    condition: Literal["Ready", "Complete"] = "Ready"
    """Ready: all its ranks are set up. Complete: all its ranks exited with success."""


class Role(Model):
    """Processes (ranks) that share one name, entrypoint and set of resources."""

    model_config = ConfigDict(json_schema_extra=cel.schema(*cel.ROLE))

    name: RoleName
    """Name of the role: at most 24 lower-case letters, digits and '-'; not job, master or node."""
    type: Annotated[RoleType, Needs(Capability.ELASTIC, "ranks that form one torch world", values=("Elastic",))] = (
        "Actor"
    )
    """Actor: independent ranks. Elastic: the ranks form one torch world, as torchrun's do."""
    entrypoint: Entrypoint
    """The program of each rank: a class or function, a module, or a command."""
    python: Annotated[str | None, Field(max_length=1024, pattern=scalars.PYTHON_PATTERN), Option("interpreter")] = None
    """The interpreter of the ranks: an absolute path, or a name that the node finds on its PATH. A module or command
    takes any Python from 3.11 to 3.13 and needs neither Ray nor dljob in it; its folder is first on PATH. A class, or
    reserve: Quota, takes one of the cluster's minor version with the cluster's Ray. One in which dljob of another minor
    version is installed is refused. Left out: that of the job."""
    args: Annotated[tuple[Text, ...], Field(max_length=256)] = ()
    """Arguments of a module or command of each rank, or sys.argv[1:] of its class or function; empty by default."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=256, json_schema_extra=MAP_BY_NAME)] = ()
    """Environment variables of each rank; they win over those of the job."""
    config: Config = Field(default_factory=dict)
    """Free object for user code, which reads it as `current_worker().config`; merged over the job's config."""
    replicas: Annotated[int, Field(ge=1, le=100000)] = 1
    """Number of ranks of the role."""
    replicas_per_group: Annotated[int, Field(ge=1, le=1024)] = 1
    """Ranks of one role group, which run on one host and restart together; must divide replicas."""
    # None and not a number: left out, the bounds follow `replicas`.
    min_replicas: Annotated[int | None, Field(ge=1, le=100000)] = None
    """The fewest ranks with which the role starts when there is no room for more, and continues when nodes are lost;
    left out: as many as replicas. For Elastic, whose ranks restart for another size, and for Actor with driver: false,
    where ranks come and go and the others run on."""
    max_replicas: Annotated[int | None, Field(ge=1, le=100000)] = None
    """The upper bound of replicas while the job runs; left out: as many as replicas."""
    autoscale: Autoscale | None = None
    """Scales the role by its load, for Actor roles with bounds; left out: its size is what `dljob scale` says."""
    accelerator: Annotated[RoleAccelerator | None, Needs(Capability.DEVICES, "ranks with devices of their own")] = None
    """Devices of each rank; left out: none."""
    # Models are frozen, so all jobs can share one default instance.
    resources: RoleResources = RoleResources()
    """CPU, memory and other resources of each rank; left out: one CPU."""
    nice: Annotated[int, Field(ge=-20, le=19), Option()] = 0
    """Added to the niceness of the ranks and of all that they start, which Ray's workers have from RAY_worker_niceness,
    15 by default; the sum is 19 at most. Above 0: other processes get the CPU first. Below 0: these ranks do, which
    needs CAP_SYS_NICE or RLIMIT_NICE on their node; without it the rank fails and names what is missing."""
    node_group: Annotated[GroupName | None, Option("name")] = None
    """The node group whose machines run the ranks; left out: any that fits."""
    driver: bool = True
    """Whether the job waits for this role: the job ends when all its driver roles have ended; other roles serve until
    then."""
    depends_on: Annotated[tuple[Dependency, ...], Field(max_length=32, json_schema_extra=MAP_BY_ROLE)] = ()
    """Roles that must be ready or complete before this one starts; empty: it starts at once."""
    comm: Comm = Comm()
    """Torch process group of the ranks; only for Elastic."""
    tf: Annotated[TensorFlow | None, Needs(Capability.ELASTIC, "processes that form one TensorFlow cluster")] = None
    """The task of the ranks in a cluster of TensorFlow's parameter servers; left out: none. For Actor roles with a
    module or command and a fixed number of ranks."""
    ports: Annotated[tuple[Port, ...], Field(max_length=16, json_schema_extra=MAP_BY_NAME)] = ()
    """Ports on which each rank listens, at the address in DLJOB_HOST: loopback on a laptop, that of the pod on
    Kubernetes; empty by default."""
    service: Annotated[bool, Option("enabled")] = False
    """On Kubernetes, a Service `<job>-<role>` that leads clients outside the job to the ranks that are ready. Its port
    is the number in `ports`; for port 0, 80 and so on in their order. A laptop ignores it."""
    startup_probe: Probe | None = None
    """The probe that must succeed before the other two begin; a rank whose startup probe has not succeeded after
    failureThreshold x periodSeconds is ended, and restarts as after a failure. Left out: they begin at once."""
    liveness_probe: Probe | None = None
    """The probe that ends a rank when it fails, which then restarts as after a failure (reason Unhealthy); left out:
    none."""
    readiness_probe: Probe | None = None
    """The probe that says whether a rank is ready; left out: it is ready once its script has started or its `setup` is
    done."""
    drain: Drain | None = None
    """What comes before SIGTERM when a rank is ended in order: a restart, a smaller role, a node that leaves, the end
    of the job. For a module or command; a class has `shutdown`. Left out: nothing does."""
    weights: Annotated[
        Weights | None,
        Needs(
            Capability.WEIGHTS,
            "versions of weights that dljob loads into ranks",
            hint="receive them in the rank, with a WeightChannel",
        ),
    ] = None
    """Weights that are loaded into each rank as other ranks publish them; left out: the ranks receive them by
    themselves, if they need any."""
    restart_policy: RestartPolicy = RestartPolicy()
    """Level and budget of restarts."""
    reserve: Annotated[
        Literal["Placement", "Quota"],
        Needs(Capability.DRIVERS, "a framework's own driver on Ray", values=("Quota",)),
    ] = "Placement"
    """Placement: a placement group reserves the resources of each rank. Quota: the job starts when these resources are
    free, but reserves none of them: each rank is a Ray driver, which makes placement groups and actors of its own."""
    annotations: Annotated[
        dict[LabelKey, Text], Field(max_length=16), Needs(Capability.PLACEMENT, "placement by annotations")
    ] = Field(default_factory=dict)
    """Placement by annotations with the prefix `scheduling.dljob.io/`; none may contradict a typed field.
    `accelerator: NPU` and `accelerator-count: "0.5"`: devices of a rank. `placement-group: x`: roles of one value share
    a unit, so a host, and devices if they take shares. `collocate-with: actor`: the same with the role of that name.
    `strategy: STRICT_SPREAD`: each group has a node of its own. `topology-key: rack`: all nodes of the role have the
    same value of that label. `preferred-topology-key: rack`: they have if there is room for that. `label-selector:
    '{"rack": "in(a,b)"}'`: labels that nodes must have, as v, !v, in(a,b) or !in(a,b)."""


class Collocation(Model):
    """Roles that share a device, share a host, or never share one."""

    name: Name
    """Name of the collocation."""
    roles: Annotated[tuple[RoleName, ...], Field(min_length=2, max_length=8, json_schema_extra=SET)]
    """The roles of the collocation; a role belongs to one collocation at most."""
    level: CollocationLevel
    """Device: share one device by fractions. Host: same machine, own devices. Separate: never the same machine."""


class BackendName(Model):
    """The distributed backend."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=scalars.NAME_PATTERN)] = "ray"
    """ray, or the name of an entry point in `dljob.backends`."""
    options: Config = Field(default_factory=dict)
    """Options of that backend, in its own format."""


class DLJobSpec(Model):
    """A deep-learning job made of different processes."""

    model_config = ConfigDict(json_schema_extra=cel.schema(*cel.SPEC))

    image: Annotated[str | None, Field(min_length=1, max_length=1024, pattern=scalars.IMAGE_PATTERN)] = None
    """The image of the job's pods; left out: the operator's --image. A laptop ignores it."""
    ray_version: Annotated[str | None, Field(max_length=32, pattern=scalars.VERSION_PATTERN)] = None
    """Version of Ray in the image, such as 2.60.0; only 2.60 runs. Left out: the operator's --ray-version."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When Kubernetes pulls the images; left out: the default of Kubernetes, Always for the tag latest, else
    IfNotPresent."""
    image_pull_secrets: Annotated[tuple[ObjectRef, ...], Field(max_length=16, json_schema_extra=MAP_BY_NAME)] = ()
    """Secrets that Kubernetes uses to pull the images."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=256, json_schema_extra=MAP_BY_NAME)] = ()
    """Environment variables of every role; those of a role win over them."""
    env_from: Annotated[tuple[EnvFrom, ...], Field(max_length=32)] = ()
    """Environment of the Ray containers on Kubernetes; every role inherits it, and `env` wins over it. A laptop ignores
    it."""
    runtime_env: Config = Field(default_factory=dict)
    """Ray's runtime environment of the whole job on Kubernetes, in Ray's own format: pip, env_vars, working_dir (a URI)
    and so on. A laptop ignores it."""
    config: Config = Field(default_factory=dict)
    """Free object for user code of every role, which reads it as `current_worker().config`."""
    code: Code = Code()
    """Source of the user code."""
    # None: the environment may name a backend, which a default here would hide.
    backend: Annotated[
        BackendName | None, Needs(Capability.JOBS, "a whole job, with its PrimeMaster and its hosts")
    ] = None
    """The distributed backend; left out: `DISTRIBUTED_BACKEND`, else ray."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1, max_length=32, json_schema_extra=MAP_BY_NAME)]
    """The roles: kinds of processes, and the number of each."""
    collocations: Annotated[
        tuple[Collocation, ...],
        Field(max_length=16, json_schema_extra=MAP_BY_NAME),
        Needs(Capability.PLACEMENT, "roles that share devices or hosts, or never do"),
    ] = ()
    """Roles that share devices or hosts, or must be on separate machines; a role in none is placed by itself."""
    node_groups: Annotated[
        tuple[NodeGroup, ...],
        Field(max_length=16, json_schema_extra=MAP_BY_NAME),
        Needs(
            Capability.SEVERAL_NODES,
            "more than one machine",
            hint="leave nodeGroups out",
            when=lambda groups: sum(group.replicas for group in groups) > 1,
        ),
    ] = ()
    """The machines; left out: derived from the roles."""
    ray_cluster_ref: ObjectRef | None = None
    """An existing RayCluster of the job's namespace to run the job on; its image must contain dljob. The operator
    neither changes it nor deletes it when the job ends, whatever cleanupPolicy says. Fields that would make or change
    pods are refused together with it. Cannot be changed. A laptop ignores it."""
    head: Head = Head()
    """The head of the RayCluster."""
    ray_cluster_template: Config = Field(default_factory=dict)
    """Part of a RayCluster (metadata.labels, metadata.annotations, spec), merged over the rendered RayCluster as the
    last step on Kubernetes; worker groups are merged by groupName. Overrides of fields that dljob needs are refused. A
    laptop ignores it."""
    master: Master = Master()
    """PrimeMaster, the actor that controls the job."""
    fault_tolerance: FaultTolerance = FaultTolerance()
    """Handling of failures: budgets and rules of restarts, spares, bad nodes, hangs."""
    gcs_fault_tolerance: GcsFaultTolerance | None = None
    """Persists the state of Ray's head (GCS), so that losing the head restarts only the head on Kubernetes; left out:
    a lost head ends the attempt, and the next attempt resumes from the last checkpoint. A laptop ignores it."""
    checkpoint: Annotated[Checkpoint | None, Needs(Capability.CHECKPOINTS, "savers of checkpoints on each node")] = None
    """Storage of checkpoints. A laptop ignores the claim, and saves in the job's folder if it cannot write the path."""
    progress_metrics: Annotated[tuple[MetricName, ...], Field(max_length=16, json_schema_extra=SET)] = ()
    """Names of metrics of `progress(step, NAME=...)` that Prometheus, TensorBoard files and installed metric sinks get:
    the values of the first driver role, from its lowest rank that reports them."""
    collectives: Annotated[Collectives, Needs(Capability.COLLECTIVES, "collectives across roles")] = Collectives()
    """Collectives across roles: their backends and groups."""
    scheduling: Scheduling = Scheduling()
    """Queue and gang scheduling of the RayCluster; a laptop ignores it."""
    network_policy: NetworkPolicy = NetworkPolicy()
    """Network access to the job's pods on Kubernetes; a laptop ignores it."""
    suspend: bool = False
    """Suspends the job on Kubernetes: checkpoints in memory go to disk, the attempt stops, and all its objects but the
    DLJob are deleted. When set to false again, the next attempt resumes from the last checkpoint with the spec of that
    time; startTime and the deadlines start anew. A laptop does not run a suspended job."""
    managed_by: Literal["dljob.io/operator", "kueue.x-k8s.io/multikueue"] | None = None
    """The controller of the job on Kubernetes; left out: dljob.io/operator. The operator ignores jobs of another
    controller."""
    cleanup_policy: Literal["DeleteCluster", "Retain"] = "DeleteCluster"
    """DeleteCluster: the operator deletes the RayCluster when the job has ended. Retain: the RayCluster stays, and
    continues to hold its quota."""
    ttl_seconds_after_finished: Annotated[int | None, Field(ge=0, le=31536000)] = None
    """Seconds after the end of the job until the operator deletes the DLJob from Kubernetes; left out: never."""
    active_deadline_seconds: Annotated[int | None, Field(ge=1, le=31536000)] = None
    """Seconds that the job may take from its start, with restarts; then it fails. Left out: no limit."""
    pre_running_deadline_seconds: Annotated[int | None, Field(ge=1, le=31536000)] = None
    """Seconds until the job must be running, or else it fails; left out: the job waits for room without a limit."""


class Metadata(Model):
    """Name, namespace, labels and annotations of the job."""

    # Also the CEL rule `NAME`, since the API server fixes the schema of metadata.
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

    # Rules that read metadata or the status must stand at the root.
    model_config = ConfigDict(json_schema_extra=cel.schema(*cel.ROOT))

    api_version: Literal["dljob.io/v1alpha1"] = "dljob.io/v1alpha1"
    """Version of the schema: dljob.io/v1alpha1."""
    kind: Literal["DLJob"] = "DLJob"
    """Always DLJob."""
    metadata: Metadata
    """Name, namespace, labels and annotations of the job."""
    spec: DLJobSpec
    """The job: its roles, its machines, and its handling of failures."""
