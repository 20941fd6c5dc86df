"""Inputs and outputs of a reconcile: frozen data between the shell and `reconcile`.

    observe (shell) -> Observed -> reconcile(observed, settings, now) [pure] -> ReconcileResult -> execute (shell)

The order within a pass is fixed: actions first, in their order and only until one fails, then Events, then the status,
written with the resourceVersion that was observed. What must survive a crash therefore takes two passes: the first
writes it to the status, the second acts on what the status says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from dljob.raycluster.pod_security import PodPolicy
from dljob.raycluster.taints import TOLERATION_SECONDS

Object: TypeAlias = Mapping[str, Any]
"""A Kubernetes object as JSON gives it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The part of the operator's configuration that decisions depend on."""

    version: str
    """The version of dljob that the operator runs."""
    image: str
    """The runtime image of jobs that name none; `{rayVersion}` in it is replaced."""
    ray_version: str
    """The Ray version of jobs that name none."""
    init_image: str
    """The image of the init container that copies dljob into user images; empty: images must contain dljob."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets of each job's namespace that its images may be pulled with, beside its own."""
    pods: PodPolicy = field(default_factory=PodPolicy)
    """Limits on the pods of jobs."""
    toleration_seconds: int = TOLERATION_SECONDS
    """Seconds that pods of jobs stay on a Kubernetes node whose kubelet is silent."""
    pre_running_deadline: int = 3600
    """Seconds after which a job fails whose pods cannot start without help, and that has no deadline; 0: never."""
    progress_seconds: float = 15.0
    """The shortest time in seconds between two writes of progress to the status; changes of state are written at once.
    """


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of the job's RayCluster, reduced to what decisions need."""

    name: str
    uid: str
    head: bool
    group: str
    phase: str
    """Pending | Running | Succeeded | Failed | Unknown."""
    ready: bool
    ip: str = ""
    node: str = ""
    container: str = ""
    """The containerID of the Ray container: a different id means a different process tree."""
    restarts: int = 0
    ended_start: float = 0.0
    """When the Ray container that ended last had started, in unix seconds; 0: none has ended."""
    leaving: bool = False
    """Whether the pod has a deletionTimestamp."""
    ends: float | None = None
    """The deletionTimestamp in unix seconds, which is when the pod's grace is over; None: the pod is not being deleted.
    """
    created: float = 0.0
    """When the pod was created, in unix seconds."""
    away: tuple[str, ...] = ()
    """The Kubernetes nodes that the pod's node affinity excludes."""
    machine: str = ""
    """The API server's word on the Kubernetes node of a pod that should be gone and is not, or of a head that is not
    ready for long: Ready, NotReady or Gone;
    Unknown: the operator may not read nodes; empty: not read.
    """
    trouble: str = ""
    """Why the pod does not start or run, in the words of the kubelet or the scheduler: reason and message."""
    trouble_reason: str = ""
    """ImagePullBackOff, ErrImagePull, CreateContainerConfigError, CrashLoopBackOff, Unschedulable, OOMKilled, ..."""
    end: str = ""
    """Why the pod ends, or why its Ray container ended last: reason and message; empty: nothing ended."""
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    """The annotations under `dljob.io/`."""
    image: ImageVersions | None = None
    """The versions in its image, as its check told them; None: it told nothing, or has no check."""


@dataclass(frozen=True, slots=True)
class ImageVersions:
    """The versions in the image of a pod; empty for what is not installed there."""

    python: str
    ray: str
    dljob: str


@dataclass(frozen=True, slots=True)
class MasterView:
    """PrimeMaster's last report through the gateway."""

    snapshot: Object
    """The answer of `GET /v1/jobs/<uid>/status`; empty until the first answer."""
    placement: tuple[Object, ...] = ()
    """The answer of `GET /v1/jobs/<uid>/placement`:

    {"pod", "node", "units", "ranks"} of each Ray node that holds units.
    """
    age: float = 0.0
    """Seconds since the last answer."""
    error: str = ""
    """Why the last request failed; empty when it was answered."""
    misbehaves: bool = False
    """Whether it failed because the head answers what no head of ours would: the operator leaves it alone for a while.
    """
    endpoints: Mapping[str, tuple[Object, ...]] | None = None
    """Role -> its ready ranks ({"rank", "ip", "ports"}), where a role has a Service; None: not heard yet."""


@dataclass(frozen=True, slots=True)
class RayJobView:
    """The state of the submission at Ray's Job API. It is a hint: PrimeMaster's own report counts."""

    id: str
    status: str
    """PENDING | RUNNING | STOPPED | SUCCEEDED | FAILED | MISSING (HTTP 404) | "" (not asked yet)."""
    message: str = ""
    exit_code: int | None = None
    spec: str = ""
    """The digest of the spec that was submitted; empty: unknown."""
    refusal: Mapping[str, str] = field(default_factory=dict[str, str])
    """The last record of a launcher that refused the job: {"reason", "message", "hint"}."""
    tail: str = ""
    """The last lines of the launcher's log, when it failed."""
    session: str = ""
    """The id of Ray's session: a different one means that the head lost its state."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Trouble:
    """The last failure of an action; it disappears when the action succeeds."""

    action: str
    """The name that `label` gives the action, such as CreateRayCluster."""
    code: int
    """The HTTP status; 0 when nothing answered."""
    message: str
    """The API server's own words."""
    count: int
    """Number of consecutive failures of the action."""
    since: float = 0.0
    """When the first of these failures happened, in unix seconds."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that is known of one DLJob at one moment."""

    job: Object
    """The whole DLJob as the API server returned it: metadata, spec, status."""
    cluster: Object | None = None
    """The RayCluster that the spec, the status or the attempt names, without managedFields."""
    pods: tuple[Pod, ...] = ()
    """The pods of that RayCluster, the head first, then by name."""
    earlier: tuple[Pod, ...] = ()
    """The pods that outlive the RayClusters of earlier attempts, such as one whose node is lost."""
    strays: tuple[Object, ...] = ()
    """RayClusters of earlier attempts: a request that travelled for long made them after their attempt was given up."""
    master: MasterView | None = None
    ray_job: RayJobView | None = None
    troubles: tuple[Trouble, ...] = ()
    logs_saved: bool = False
    """Whether the ConfigMap with the tails of the ranks' logs exists."""
    locked: str = ""
    """Why the token of the RayCluster named by spec.rayClusterRef cannot be read, and what to do; empty:

    it is known, or not
    needed.
    """
    objection: tuple[str, str] = ("", "")
    """(reason, message) of the last Warning Event about a RayCluster to which KubeRay has written no status."""
    kuberay: Literal["", "missing", "old"] = ""
    """Whether the API server lacks the RayCluster CRD, or serves one without fields that jobs need."""
    resource_history: str | None = None
    """What ConfigMap `names.RESOURCE_USE` has about earlier jobs of the name, as JSON; None: it was not read."""
    commands: tuple[str, ...] = ()
    """Ids of the commands that PrimeMaster has accepted since this operator process became the leader."""
    services: Mapping[str, str] = field(default_factory=dict[str, str])
    """Kind/name of each Service and EndpointSlice that this operator process wrote or deleted -> the digest of what it
    wrote, empty for a deleted one."""


# -- actions


@dataclass(frozen=True, slots=True)
class Create:
    """POST an object. One that exists already counts as created when its owner is the job; else the action fails."""

    kind: Literal["RayCluster", "ConfigMap", "NetworkPolicy"]
    body: Object


@dataclass(frozen=True, slots=True)
class Serve:
    """Create a Service or EndpointSlice of the job, or change the one that exists; None for `body`: delete it.

    One of that name without the job's uid as label belongs to another, and stays as it is.
    """

    kind: Literal["Service", "EndpointSlice"]
    name: str
    body: Object | None
    digest: str = ""
    """The digest of the body, which `Observed.services` has once it is written."""


@dataclass(frozen=True, slots=True)
class CreateToken:
    """POST the Secret with the RayCluster's token. The shell derives the token from its key, the uid and the name."""

    name: str
    cluster: str
    owner: str
    """The ConfigMap that owns the Secret, created earlier in the same pass:

    the garbage collector deletes both together.
    """
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE a child, or the DLJob, by name and uid, in the background; one that is gone already counts as deleted."""

    kind: Literal["RayCluster", "DLJob", "Pod", "ConfigMap", "NetworkPolicy"]
    name: str
    uid: str
    """The uid that must match. Empty: any, which is safe for objects whose name contains the job's uid."""
    grace: int | None = None
    """Seconds of grace for a pod's containers; 0: delete without waiting for the kubelet. None: as the pod says."""
    version: str = ""
    """The resourceVersion that the decision rests on: an object that changed since is kept. Empty: any version."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A new number of pods for a worker group; when it shrinks, the pods that are to go."""

    group: str
    replicas: int
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PatchCluster:
    """Patch the RayCluster with this name and uid where it differs; fields that others set are kept.

    The patch is a JSON Patch with tests of what the decision rests on (`reconcile.children.patches`).

    """

    name: str
    uid: str
    excluded: tuple[str, ...] | None = None
    """Kubernetes nodes that new pods are kept away from; None: unchanged."""
    scales: tuple[Scale, ...] = ()


@dataclass(frozen=True, slots=True)
class Annotate:
    """Merge annotations into an object; the value None removes one."""

    kind: Literal["DLJob", "RayCluster", "Pod"]
    name: str
    annotations: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Finalize:
    """Add our finalizer to the DLJob, or remove it; the finalizers of others stay."""

    on: bool


@dataclass(frozen=True, slots=True)
class Submit:
    """POST the launcher to Ray's Job API on the head; an id that Ray knows already counts as posted."""

    id: str
    cluster: str
    address: str
    """The address of the head."""
    argv: tuple[str, ...]
    runtime_env: Object
    metadata: Mapping[str, str]
    head: tuple[str, str] = ("", "")
    """(pod, container) that the launcher is meant for: it is not posted to any other. An empty container: any."""
    packages: Mapping[str, str] = field(default_factory=dict[str, str])
    """Files that Ray stores for the launcher, name -> text. Pods of the job's own RayCluster mount them instead."""
    session: str = ""
    """Ray's session that the launcher is meant for: a head of another session gets nothing. Empty: any."""
    spec_map: str = ""
    """The ConfigMap with the spec of the attempt, whose runtimeEnv the launcher gets; empty: `runtime_env` is used."""


@dataclass(frozen=True, slots=True)
class Command:
    """POST a command to PrimeMaster through the gateway. PrimeMaster performs the same id once."""

    id: str
    cluster: str
    address: str
    kind: Literal["restart", "scale", "checkpoint", "stop", "suspend", "cause"]
    target: str
    by: str
    """Author of the command; for kind `cause`, the known facts about the cause."""


@dataclass(frozen=True, slots=True)
class SaveLogs:
    """Fetch the tails of the ranks' logs through the gateway and store them in a ConfigMap of this name."""

    name: str
    cluster: str
    address: str
    owner: Object
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KeepResourceUse:
    """Write what the ranks of a job used into ConfigMap `names.RESOURCE_USE`, where later jobs of the name find it."""

    job: str
    value: str
    """The whole entry of the name, as JSON."""


_OnHead: TypeAlias = Submit | Command | SaveLogs
Action: TypeAlias = (
    Create | CreateToken | Serve | Delete | PatchCluster | Annotate | Finalize | KeepResourceUse | _OnHead
)


def label(action: Action) -> str:
    """Return the name of an action in a report of its failure.

    The name includes an object or id where another action of the same kind may follow and the first is not repeated: a
    later success or failure must not be taken for one of the first.
    """
    match action:
        case Create() | Annotate():
            return f"{type(action).__name__}{action.kind}"
        case Delete():
            return f"Delete{action.kind} {action.name}"
        case Serve():
            return f"Serve {action.kind}/{action.name}"
        case Command():
            return f"Command {action.id}"
        case _:
            return type(action).__name__


@dataclass(frozen=True, slots=True)
class Watch:
    """The head whose gateway and Job API the shell polls; a change there queues the job for another pass."""

    cluster: str
    address: str
    job: str
    """The job's uid as 32 hex digits."""
    submission: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event about the DLJob; the shell counts equal Events instead of repeating them."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    action: str = "Reconcile"


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The result of one pass."""

    reason: str
    """Why, in one sentence, for the log."""
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    status: Object | None = None
    """The whole status to write; None: no write is due."""
    watch: Watch | None = None
    """The head to poll from now on; None: no head."""
    requeue: float | None = None
    """Seconds until the next pass when nothing else triggers one."""
    postponed: int = 0
    """Actions left for the next passes. While their number shrinks, passes without a pause are progress, no hot loop.
    """
    written_first: bool = False
    """Whether the status is written before the actions, which rest on it: if the write fails, no action is taken."""
