"""The models of machines, head, master, code and storage: the parts of a job in Ray and Kubernetes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from dljob.spec import cel, scalars
from dljob.spec.capabilities import Capability, Needs
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
    """Number of devices of each machine."""
    resource_name: Annotated[str | None, Field(max_length=253, pattern=scalars.QUALIFIED_PATTERN)] = None
    """Kubernetes' extended resource, such as huawei.com/Ascend910; left out: the usual one of the type."""
    ray_resource: RayName | None = None
    """Name of Ray's resource for the device, for Custom."""


class NodeGroup(Model):
    """Machines of one kind (a KubeRay worker group; raylets on a laptop)."""

    # The API server refuses by these rules in CEL; the loader has the same ones in Python (`spec.rules`).
    model_config = ConfigDict(json_schema_extra=cel.schema(cel.RESERVED_GROUP, cel.CUSTOM, cel.MACHINE_BOUNDS))

    name: GroupName
    """Name of the group: at most 20 lower-case letters, digits and '-'; not head or headgroup."""
    replicas: Annotated[int, Field(ge=1, le=100000)] = 1
    """Number of machines of the group."""
    # None and not a number: left out, the bounds follow `replicas`.
    min_replicas: Annotated[int | None, Field(ge=1, le=100000)] = None
    """The fewest machines, for roles with bounds; left out: as many as replicas."""
    max_replicas: Annotated[int | None, Field(ge=1, le=100000)] = None
    """The most machines, for roles with bounds; left out: as many as replicas."""
    cpu: Cpu | None = None
    """CPUs of one machine; left out: the need of its roles, rounded up to whole CPUs."""
    memory: Memory | None = None
    """Memory of one machine; left out: not counted."""
    shared_memory: Memory | None = None
    """Size of /dev/shm of one machine; left out: the platform's."""
    accelerator: Annotated[NodeAccelerator | None, Needs(Capability.DEVICES, "machines with devices")] = None
    """Devices of one machine; left out: none."""
    image: Annotated[str | None, Field(min_length=1, max_length=1024, pattern=scalars.IMAGE_PATTERN)] = None
    """Image of the group's pods; left out: the job's. It has the minor version of Python and the Ray of the job's
    image, which is checked before ranks start there. A laptop ignores it."""
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    """Labels of the machines, both in Ray and on their pods in Kubernetes."""
    # Free in the schema: `rules.templates` checks it against the fields that KubeRay serves.
    template: Config = Field(default_factory=dict)
    """Part of a PodTemplateSpec, merged over the pod of each machine on Kubernetes: containers (Ray's is `ray-worker`),
    volumes, environment and ports are merged by name, mounts by path, mappings key by key, other lists are replaced,
    null removes a value. Overrides of fields that dljob needs are refused. A laptop ignores it."""


class JournalLocation(Model):
    """Storage of PrimeMaster's journal."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.CLAIM_PATH))

    path: Path | None = None
    """A folder on a volume that outlives PrimeMaster; left out: the job's folder."""
    claim_name: ObjectName | None = None
    """The PersistentVolumeClaim to mount at path in the head's pod on Kubernetes; a laptop ignores it."""


class Master(Model):
    """PrimeMaster, the actor that controls the job."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.MASTER_JOURNAL))

    # `cel.REF_MASTER` repeats the defaults of cpu and memory: change them together.
    cpu: Cpu = "500m"
    """CPUs of PrimeMaster on Kubernetes, added to the head's."""
    memory: Memory = "1Gi"
    """Memory of PrimeMaster on Kubernetes, added to the head's."""
    max_restarts: Annotated[Attempts, Needs(Capability.MASTER_RESTARTS, "restarts of PrimeMaster")] = 10
    """Restarts of PrimeMaster within the window of faultTolerance before the job fails."""
    create_timeout_seconds: Annotated[int, Field(ge=1, le=86400)] = 600
    """Seconds that the creation of PrimeMaster may take before the job fails."""
    journal: JournalLocation = JournalLocation()
    """The journal, from which a restarted PrimeMaster recovers its state."""
    # The default depends on gcsFaultTolerance (`standing.on_worker`), so it has a name of its own.
    placement: Literal["Auto", "Head", "Worker"] = "Auto"
    """The pod that PrimeMaster runs in on Kubernetes. Auto: the head; with gcsFaultTolerance a worker, so that it
    survives the head. On a worker PrimeMaster starts when the first worker is ready, its journal is in Ray's own store,
    and journal.path is refused. A laptop ignores it."""
    standby: Annotated[
        Literal["Auto", "Always", "Never"],
        Needs(Capability.MASTER_RESTARTS, "a standby of PrimeMaster", values=("Always",)),
    ] = "Never"
    """A second PrimeMaster, which follows the journal and takes over when the first one is killed or answers nothing
    for 2 seconds. Never: Ray alone restarts PrimeMaster, once its process has ended or Ray has noticed that its node is
    lost; one that is only stopped is not replaced. Auto: a standby on a Ray of two machines or more. It takes some 150
    MiB, beside `memory`, on a worker if the journal is in Ray's own store, else on PrimeMaster's node."""


class Code(Model):
    """Source of user code that is not in the image."""

    # The name of a ConfigMap: the files themselves would have to fit into the DLJob.
    config_map: ObjectName | None = None
    """The ConfigMap with the user code on Kubernetes, in the job's namespace: each key is a file, `dljob-code.zip` a
    whole folder. `dljob submit` makes one; a laptop reads workingDir instead."""
    working_dir: Path | None = None
    """The folder of user code for `dljob run` and `dljob submit`, relative to the file; left out: the file's own
    folder."""


class Head(Model):
    """The head of the RayCluster; ranks never live there."""

    cpu: Cpu = "1"
    """CPUs that the head requests on Kubernetes, without a limit: it may use more when the machine has free CPUs."""
    memory: Memory = "4Gi"
    """Memory of the head on Kubernetes."""
    template: Config = Field(default_factory=dict)
    """Part of a PodTemplateSpec, merged over the head's pod as nodeGroups[].template is over a machine's; Ray's
    container is `ray-head`."""


class SecretKey(Model):
    """One key of a Secret of the job's namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[str, Field(max_length=253, pattern=scalars.KEY_PATTERN)]
    """The key in the Secret."""


class GcsFaultTolerance(Model):
    """Storage of the state of Ray's head (GCS), so that the job survives the loss of the head."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.GCS_BACKEND))

    backend: Literal["Redis", "RocksDB"]
    """RocksDB: files on a volume of the head. Redis: an existing Redis server."""
    redis_address: Annotated[str | None, Field(max_length=256, pattern=scalars.HOST_PORT_PATTERN)] = None
    """Address of Redis as host:port."""
    # A reference: the password itself would be readable for everybody who may read DLJobs.
    redis_password_secret: SecretKey | None = None
    """The Secret with the password of Redis; Kubernetes passes it to the pods, the operator never reads it."""
    claim_name: ObjectName | None = None
    """The PersistentVolumeClaim of RocksDB's files, mounted in the head's pod. Jobs may share it: each RayCluster has a
    folder of its own there."""


class ObjectRef(Model):
    """A reference to an object of the job's namespace."""

    name: ObjectName
    """Name of the object."""


class EnvObject(Model):
    """A ConfigMap or Secret whose keys become environment variables."""

    name: ObjectName
    """Name of the object, in the job's namespace."""
    optional: bool = False
    """Whether pods start without the object."""


class EnvFrom(Model):
    """Environment from a ConfigMap or a Secret: exactly one of configMapRef and secretRef."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.ENV_FROM))

    prefix: Annotated[str, Field(max_length=256, pattern=scalars.ENV_PATTERN)] | None = None
    """Prefix of the variables, put before each key."""
    config_map_ref: EnvObject | None = None
    """The ConfigMap."""
    secret_ref: EnvObject | None = None
    """The Secret."""


class Checkpoint(Model):
    """Storage for checkpoints of user code and `dljob.checkpoint`, which outlives processes, pods and RayClusters."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.CLAIM_PATH))

    path: AbsolutePath | None = None
    """An absolute path, the same in every pod, where processes read it from DLJOB_CHECKPOINT. Left out, and on a laptop
    that cannot write there: checkpoints and cuts are in the job's folder, which on Kubernetes ends with the head's
    pod."""
    claim_name: ObjectName | None = None
    """The PersistentVolumeClaim to mount at path in every Ray pod, ReadWriteMany for more than one machine; left out: a
    template mounts a volume there, or the image has the path."""
    save_on_exit: bool = True
    """Whether a copy that `checkpoint.save(..., persist=False)` made only in memory goes to disk when its rank ends,
    however it ends. Copies with `persist` always do."""
    peer_copy: bool = True
    """Whether checkpoints in a node's memory that are not yet on disk are also copied into the memory of another node
    of the job that saves; they take at most half of the memory that is free there. Off saves this memory and network
    traffic; the loss of a node then loses the checkpoints that were not on disk."""
    grace_period_seconds: Annotated[int, Field(ge=1, le=86400)] = 120
    """Seconds for writing copies to disk when a rank, a node or the job ends; later copies are lost. Pods have a
    termination grace period that is 30 s longer."""
    every_steps: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    """Steps of rank 0 of the first driver role, as it reports them by progress(), after which the job takes a
    consistent cut of its roles and queues; left out: only when a rank calls job.checkpoint()."""
    cut_deadline_seconds: Annotated[int, Field(ge=1, le=86400)] = 600
    """Seconds for a consistent cut; one that is not complete then is given up, without harm, and the one before stays
    the last."""


class NetworkPolicy(Model):
    """Network access to the job's pods on Kubernetes."""

    enabled: bool = False
    """Whether each attempt gets a NetworkPolicy: its pods reach each other; other pods reach only Ray's Job API and the
    gateway, which require the token, and the metrics; those of the namespace also the ports of roles with `service`. It
    takes effect only if the cluster's network plugin enforces
    NetworkPolicies."""


class Scheduling(Model):
    """Labels of the RayCluster for queue and gang schedulers."""

    queue_name: Annotated[str, Field(max_length=63, pattern=scalars.LABEL_PATTERN)] | None = None
    """Kueue's LocalQueue: label kueue.x-k8s.io/queue-name."""
    priority_class_name: Annotated[str, Field(max_length=63, pattern=scalars.LABEL_PATTERN)] | None = None
    """Kueue's WorkloadPriorityClass: label kueue.x-k8s.io/priority-class."""
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    """Further labels of the RayCluster, such as those of Volcano, YuniKorn or KAI. Labels of the DLJob itself under
    the prefixes of these schedulers are copied to the RayCluster anyway."""
