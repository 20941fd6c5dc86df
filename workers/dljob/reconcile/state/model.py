"""What the operator sees and what it does: frozen data between the shell and `reconcile`.

    observe (shell) -> Observed -> reconcile(observed, settings, now) [pure] -> Outcome -> execute (shell)

The order within a pass is fixed: actions first, in their order and only until one fails, then Events, then the status,
written with the resourceVersion that was observed. What must survive a crash is therefore decided in two passes:
the first writes it to the status, the second acts on what the status says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from dljob.raycluster.pod_security import PodPolicy

Object: TypeAlias = Mapping[str, Any]
"""A Kubernetes object as JSON gives it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's configuration, as far as decisions need it."""

    version: str
    """dljob's own."""
    image: str
    """The runtime image of jobs that name none; `{rayVersion}` is replaced."""
    ray_version: str
    """Ray's version of jobs that name none."""
    init_image: str
    """The image of the init container that brings dljob into user images; empty: images must have it."""
    pods: PodPolicy = field(default_factory=PodPolicy)
    """What the pods of jobs may ask for."""
    progress_seconds: float = 15.0
    """Progress reaches the status at most that often; changes of state at once."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of the job's RayCluster, digested."""

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
    """containerID of the Ray container: another one is another process tree."""
    restarts: int = 0
    leaving: bool = False
    """It has a deletionTimestamp."""
    ends: float | None = None
    """Which is so many unix seconds: its grace is over then."""
    made: float = 0.0
    """When it was made, in unix seconds."""
    away: tuple[str, ...] = ()
    """The Kubernetes nodes that it keeps away from."""
    machine: str = ""
    """What the API server says of its Kubernetes node, when it is to be gone and is not: Ready, NotReady, Gone, or
    Unknown to one who may not look; empty: not asked."""
    trouble: str = ""
    """The kubelet's or scheduler's own words when it does not get on: reason and message."""
    trouble_reason: str = ""
    """ImagePullBackOff, ErrImagePull, CreateContainerConfigError, CrashLoopBackOff, Unschedulable, OOMKilled, ..."""
    end: str = ""
    """Why it ends, or its Ray container ended last: reason and message; empty: nothing ended."""
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    """Those under `dljob.io/`."""


@dataclass(frozen=True, slots=True)
class MasterView:
    """What PrimeMaster last said through the gateway."""

    snapshot: Object
    """`GET /v1/jobs/<uid>/status`; empty until the first answer."""
    placement: tuple[Object, ...] = ()
    """`GET /v1/jobs/<uid>/placement`: {"pod", "node", "units", "ranks"} of each Ray node that holds units."""
    age: float = 0.0
    """Seconds since the last answer."""
    error: str = ""
    """Why the last question got none; empty when it did."""
    misbehaves: bool = False
    """Whether that is so since it answered what no head of ours does: it is left alone for a while."""


@dataclass(frozen=True, slots=True)
class RayJobView:
    """What Ray's Job API says of the submission: a hint; PrimeMaster's word counts."""

    id: str
    status: str
    """PENDING | RUNNING | STOPPED | SUCCEEDED | FAILED | MISSING (404) | "" (not asked yet)."""
    message: str = ""
    exit_code: int | None = None
    spec: str = ""
    """The digest of the spec that it was submitted with; empty: not told."""
    refusal: Mapping[str, str] = field(default_factory=dict[str, str])
    """The launcher's last word when it refused: {"reason", "message", "hint"}."""
    tail: str = ""
    """The last lines of its log, when it failed."""
    session: str = ""
    """Ray's session: another one means that the head lost its state."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Trouble:
    """The last failure of an action, until it succeeds."""

    action: str
    """What `label` calls it, such as CreateRayCluster."""
    code: int
    """HTTP status; 0 when nothing answered."""
    message: str
    """The API's own words."""
    count: int
    """How often in a row."""
    since: float = 0.0
    """When the first of them was, in unix seconds."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that is known of one DLJob at one moment."""

    job: Object
    """The DLJob as the API server gave it, whole: metadata, spec, status."""
    cluster: Object | None = None
    """The RayCluster that spec or status names, or that the name of the attempt names; without managedFields."""
    pods: tuple[Pod, ...] = ()
    """Of that RayCluster, the head first, then by name."""
    master: MasterView | None = None
    ray_job: RayJobView | None = None
    troubles: tuple[Trouble, ...] = ()
    logs_saved: bool = False
    """Whether the tails of the ranks' logs are in their ConfigMap."""
    locked: str = ""
    """Why the token of a RayCluster that is not the job's cannot be had, and what to do; empty: it is known, or not
    needed."""
    objection: tuple[str, str] = ("", "")
    """Reason and words of the last Warning about a RayCluster that KubeRay has written nothing to."""
    kuberay: Literal["", "missing", "old"] = ""
    """Whether the RayCluster CRD is not served, or lacks fields that are needed."""
    commands: tuple[str, ...] = ()
    """Ids of commands that PrimeMaster took in this life of the operator."""


# -- actions


@dataclass(frozen=True, slots=True)
class Create:
    """POST an object; one that is there already is fine when its owner is the job, else the action fails."""

    kind: Literal["RayCluster", "ConfigMap", "NetworkPolicy"]
    body: Object


@dataclass(frozen=True, slots=True)
class CreateToken:
    """POST the Secret of the RayCluster's token, which the shell derives from its key, the uid and the name."""

    name: str
    cluster: str
    owner: str
    """The ConfigMap that owns it, made earlier in the same pass: the garbage collector deletes the Secret with it."""
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE a child, or the DLJob, by name and uid, in the background; gone already is fine."""

    kind: Literal["RayCluster", "DLJob", "Pod", "ConfigMap"]
    name: str
    uid: str
    """Empty: whichever; of objects whose name holds the job's uid."""
    grace: int | None = None
    """Seconds that a pod's containers may take; 0: nobody is waited for. None: as the pod says."""
    version: str = ""
    """The resourceVersion that it was decided from: one that has changed since stays. Empty: whichever."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Another number of pods of a worker group; fewer means those that are named."""

    group: str
    replicas: int
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PatchCluster:
    """Change the RayCluster of this name and uid where it is not so already; what others put there stays.

    By JSON Patch, with tests of what it was decided from (`reconcile.children.patches`).
    """

    name: str
    uid: str
    excluded: tuple[str, ...] | None = None
    """Kubernetes nodes that its new pods keep away from; None: as it is."""
    scales: tuple[Scale, ...] = ()


@dataclass(frozen=True, slots=True)
class Annotate:
    """Merge annotations into an object; a value None removes one."""

    kind: Literal["DLJob", "RayCluster", "Pod"]
    name: str
    annotations: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Finalize:
    """Hold the DLJob by our finalizer, or let it go; those of others stay."""

    on: bool


@dataclass(frozen=True, slots=True)
class Submit:
    """POST the launcher to Ray's Job API of the head; a duplicate id is adopted."""

    id: str
    cluster: str
    address: str
    """Host of the head."""
    argv: tuple[str, ...]
    runtime_env: Object
    metadata: Mapping[str, str]
    head: tuple[str, str] = ("", "")
    """(pod, container) that it is meant for: another one gets nothing. An unknown container: whichever answers."""
    packages: Mapping[str, str] = field(default_factory=dict[str, str])
    """What Ray keeps for the launcher: name -> text. A RayCluster of the job's own has it in a volume."""
    session: str = ""
    """Ray's session that it is meant for: a head without that memory gets nothing. Empty: whichever."""
    spec_map: str = ""
    """The ConfigMap with the spec that the attempt runs, whose runtimeEnv it is posted with; empty: `runtime_env`."""


@dataclass(frozen=True, slots=True)
class Command:
    """POST a command to PrimeMaster through the gateway; the same id happens once."""

    id: str
    cluster: str
    address: str
    kind: Literal["restart", "scale", "stop", "suspend", "cause"]
    target: str
    by: str
    """Who orders it; of a cause, what is known."""


@dataclass(frozen=True, slots=True)
class SaveLogs:
    """Fetch the tails of the ranks' logs through the gateway into a ConfigMap of this name."""

    name: str
    cluster: str
    address: str
    owner: Object
    labels: Mapping[str, str]


Action: TypeAlias = Create | CreateToken | Delete | PatchCluster | Annotate | Finalize | Submit | Command | SaveLogs


def label(action: Action) -> str:
    """What an action is called where its failure is told.

    With a name where another one of the kind may follow, and the first is not made again: its failure is none of that.
    """
    match action:
        case Create() | Annotate():
            return f"{type(action).__name__}{action.kind}"
        case Delete():
            return f"Delete{action.kind} {action.name}"
        case Command():
            return f"Command {action.id}"
        case _:
            return type(action).__name__


@dataclass(frozen=True, slots=True)
class Watch:
    """Keep asking the gateway and Ray's Job API of this head, and bring the key back when something changed."""

    cluster: str
    address: str
    job: str
    """The job's uid, 32 hex digits."""
    submission: str


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event about the DLJob; equal ones are counted, not repeated."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    action: str = "Reconcile"


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """What to do now."""

    reason: str
    """Why, in a sentence: for the log, and for tests."""
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    status: Object | None = None
    """The whole status to write; None: it is right as it is."""
    watch: Watch | None = None
    """What to keep asking; None: ask nothing (any more)."""
    requeue: float | None = None
    """Seconds until the next look when nothing else happens."""
    left: int = 0
    """Actions that wait for the next passes; as long as they grow fewer, passes in a row are work and no loop."""
    written_first: bool = False
    """Whether the status is written before the actions, which rest on it: nothing is done when it cannot be."""
