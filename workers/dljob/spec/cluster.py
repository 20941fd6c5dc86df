"""The models of machines, head, master and code: what a job is made of on the side of Ray and Kubernetes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from dljob.spec import cel, scalars
from dljob.spec.policy import Attempts
from dljob.spec.scalars import (
    AbsolutePath,
    Config,
    Cpu,
    GroupName,
    LabelKey,
    LabelValue,
    Memory,
    Model,
    ObjectName,
    Path,
    RayName,
)

AcceleratorType = Literal["GPU", "NPU", "TPU", "HPU", "Neuron", "Custom"]


class NodeAccelerator(Model):
    """The devices of one machine."""

    type: AcceleratorType
    """Kind of device; Custom needs resourceName and rayResource."""
    count: Annotated[int, Field(ge=1, le=1024)] = 1
    """How many each machine has."""
    resource_name: Annotated[str | None, Field(max_length=253, pattern=scalars.QUALIFIED_PATTERN)] = None
    """Kubernetes' extended resource, such as huawei.com/Ascend910; left out: the usual one of the type."""
    ray_resource: RayName | None = None
    """Ray's resource, for Custom."""


class NodeGroup(Model):
    """Machines of one kind (a KubeRay worker group; raylets on a laptop)."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.RESERVED_GROUP, cel.CUSTOM, cel.MACHINE_BOUNDS))

    name: GroupName
    """Name of the group: at most 20 lower-case letters, digits and '-'; not head or headgroup."""
    replicas: Annotated[int, Field(ge=1, le=100000)] = 1
    """How many machines."""
    min_replicas: Annotated[int | None, Field(ge=1, le=100000)] = None
    """The fewest machines, for roles with bounds; left out: as many as replicas."""
    max_replicas: Annotated[int | None, Field(ge=1, le=100000)] = None
    """The most machines, for roles with bounds; left out: as many as replicas."""
    cpu: Cpu = "1"
    """CPUs of one machine."""
    memory: Memory | None = None
    """Memory of one machine; left out: not counted."""
    shared_memory: Memory | None = None
    """Size of /dev/shm of one machine; left out: the platform's."""
    accelerator: NodeAccelerator | None = None
    """Devices of one machine; left out: none."""
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    """Labels of its machines, in Ray and Kubernetes."""
    template: Config = Field(default_factory=dict)
    """Part of a PodTemplateSpec, laid over the pod of each machine on Kubernetes: containers (Ray's is `ray-worker`),
    volumes, environment and ports are merged by name, mounts by path, mappings key by key, other lists are replaced,
    null takes a value away. What the platform needs is refused. A laptop ignores it."""


class Journal(Model):
    """Where PrimeMaster's journal lives."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.JOURNAL))

    path: Path | None = None
    """A folder on a volume that outlives PrimeMaster; left out: the job's folder."""
    claim_name: ObjectName | None = None
    """The PersistentVolumeClaim that is mounted at path, in the head's pod on Kubernetes; a laptop ignores it."""


class Master(Model):
    """PrimeMaster, the process that commands the job."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.MASTER_JOURNAL))

    cpu: Cpu = "500m"
    """CPUs of PrimeMaster on Kubernetes, added to the head's."""
    memory: Memory = "1Gi"
    """Memory of PrimeMaster on Kubernetes, added to the head's."""
    max_restarts: Attempts = 10
    """Restarts of PrimeMaster within the window of faultTolerance before the job fails."""
    create_timeout_seconds: Annotated[int, Field(ge=1, le=86400)] = 600
    """How many seconds its creation may take."""
    journal: Journal = Journal()
    """The journal, from which a new PrimeMaster takes over."""
    placement: Literal["Auto", "Head", "Worker"] = "Auto"
    """Where PrimeMaster lives on Kubernetes. Auto: on the head; with gcsFaultTolerance on a worker, where it outlives
    the head. On a worker it begins when the first one is there, its journal is in Ray's own store, and journal.path is
    refused. A laptop ignores it."""


class Code(Model):
    """Where user code comes from when not in the image."""

    config_map: ObjectName | None = None
    """The ConfigMap with the user code on Kubernetes, in the job's namespace: each key is a file, `dljob-code.zip` a
    whole folder. `dljob submit` makes one; on a laptop the folder counts."""
    working_dir: Path | None = None
    """The folder that `dljob run` and `dljob submit` take, relative to the file; left out: the file's own folder."""


class Head(Model):
    """The head of the RayCluster; ranks never live there."""

    cpu: Cpu = "1"
    """CPUs that the head asks for on Kubernetes; it may use more when the machine has them to spare."""
    memory: Memory = "4Gi"
    """Memory of the head on Kubernetes."""
    template: Config = Field(default_factory=dict)
    """Part of a PodTemplateSpec, laid over the head's pod as nodeGroups[].template over a machine's; Ray's container is
    `ray-head`."""


class SecretKey(Model):
    """One key of a Secret of the job's namespace."""

    name: ObjectName
    """The Secret."""
    key: Annotated[str, Field(max_length=253, pattern=scalars.KEY_PATTERN)]
    """The key in it."""


class GcsFaultTolerance(Model):
    """Where Ray keeps what its head knows, so that the job outlives the head."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.GCS_BACKEND))

    backend: Literal["Redis", "RocksDB"]
    """RocksDB: files on a volume of the head. Redis: a server of yours."""
    redis_address: Annotated[str | None, Field(max_length=256, pattern=scalars.HOST_PORT_PATTERN)] = None
    """host:port of Redis."""
    redis_password_secret: SecretKey | None = None
    """Where Redis' password is; Kubernetes gives it to the pods, the operator never reads it."""
    claim_name: ObjectName | None = None
    """The PersistentVolumeClaim of RocksDB's files, mounted in the head's pod. Jobs may share it: each RayCluster has a
    folder of its own there."""


class ObjectRef(Model):
    """An object of the job's namespace."""

    name: ObjectName
    """Its name."""


class EnvObject(Model):
    """A ConfigMap or Secret whose keys become environment variables."""

    name: ObjectName
    """Its name, in the job's namespace."""
    optional: bool = False
    """Whether pods start without it."""


class EnvFrom(Model):
    """Environment from a ConfigMap or a Secret: exactly one of configMapRef and secretRef."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.ENV_FROM))

    prefix: Annotated[str, Field(max_length=256, pattern=scalars.ENV_PATTERN)] | None = None
    """Put before each key."""
    config_map_ref: EnvObject | None = None
    """The ConfigMap."""
    secret_ref: EnvObject | None = None
    """The Secret."""


class Checkpoint(Model):
    """Where user code, and `dljob.checkpoint` for it, saves what must outlive processes, pods and RayClusters."""

    path: AbsolutePath
    """An absolute path, the same in every pod; processes find it in DLJOB_CHECKPOINT."""
    claim_name: ObjectName | None = None
    """The PersistentVolumeClaim that is mounted there in every Ray pod, ReadWriteMany for more than one machine; left
    out: a template mounts something, or the image has the path."""
    save_on_exit: bool = True
    """Whether a copy that `checkpoint.save(..., persist=False)` made in memory alone goes to disk when its rank ends,
    however it ends. Copies with `persist` always do."""
    peer_copy: bool = True
    """Whether what a node has in memory and not yet on disk is copied into the memory of another node of the job that
    saves, where at most half of what is left is taken for it. Off saves that memory and the network between them; the
    loss of a node then costs what was not on disk."""
    grace_period_seconds: Annotated[int, Field(ge=1, le=86400)] = 120
    """How long bringing copies to disk may take when a rank, a node or the job ends. Pods have so long to end, and 30 s
    more."""


class NetworkPolicy(Model):
    """Who reaches the job's pods on Kubernetes."""

    enabled: bool = False
    """Whether each attempt gets a NetworkPolicy: its pods reach each other; from elsewhere only Ray's Job API and the
    gateway, which want the token, and the metrics are reached. The cluster's network keeps it, if it keeps any."""


class Scheduling(Model):
    """What a queue or gang scheduler reads from the labels of the RayCluster."""

    queue_name: Annotated[str, Field(max_length=63, pattern=scalars.LABEL_PATTERN)] | None = None
    """Kueue's LocalQueue: label kueue.x-k8s.io/queue-name."""
    priority_class_name: Annotated[str, Field(max_length=63, pattern=scalars.LABEL_PATTERN)] | None = None
    """Kueue's WorkloadPriorityClass: label kueue.x-k8s.io/priority-class."""
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    """Further labels of the RayCluster, such as those of Volcano, YuniKorn or KAI. Those that the DLJob itself carries
    under their prefixes are passed on anyway."""
