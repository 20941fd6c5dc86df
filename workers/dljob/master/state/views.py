"""Values that events, actions and state share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from dljob.errors import ErrorOrigin
from dljob.plan.labels import NODE_NAME
from dljob.plan.model import Resources

ENDS = {"stop": "stopped", "suspend": "suspended"}
"""Commands that end this attempt -> the word for the job afterwards. A suspended job goes on in its next attempt."""


class Level(StrEnum):
    """Scope of a restart, from the smallest to the largest."""

    IN_PROCESS = "InProcess"
    """The survivors of a torch group keep their processes and form it anew, with new processes for the lost ranks."""
    PROCESS = "Process"
    """The process of the failed rank is replaced; its peers go on."""
    ROLE_GROUP = "RoleGroup"
    """All ranks of the failed rank's group restart."""
    ROLE = "Role"
    """All ranks of the role restart."""
    JOB = "Job"
    """All roles restart, in the order of their dependencies."""
    NODE = "Node"
    """The units of a node move to other nodes. It is counted beside the restarts of the ranks that moved."""
    MASTER = "Master"
    """PrimeMaster itself restarted; ranks went on meanwhile."""


class Reason(StrEnum):
    """Reason why a process ended, as far as evidence shows."""

    USER_ERROR = "UserError"
    """User code raised, exited with a code, or crashed."""
    IMPORT_ERROR = "ImportError"
    """The user's module or entrypoint could not be imported."""
    NODE_LOST = "NodeLost"
    """Its node is gone."""
    NODE_FROZEN = "NodeFrozen"
    """Its node stopped answering. Its processes are lost with it: one that wakes up ends itself."""
    OOM_KILLED = "OOMKilled"
    """The kernel, the container's limit or Ray's monitor killed it for its memory. A MemoryError is a UserError."""
    DEVICE_ERROR = "DeviceError"
    """Its accelerator failed, or its node failed a check."""
    DRIVER_MISMATCH = "DriverMismatch"
    """The CUDA of its image does not fit the driver or the GPU of its node."""
    PREEMPTED = "Preempted"
    """Its machine or pod was taken away on purpose."""
    NETWORK = "Network"
    """A route or an interface to a peer is gone, as the kernel says, and no peer is known to have failed."""
    DISK = "Disk"
    """A disk that it writes to is full, read-only or broken."""
    PORT_TAKEN = "PortTaken"
    """Another process has the port that it wants to serve on."""
    PROCESS_LIMIT = "ProcessLimit"
    """Its control group or user may have no more processes and threads."""
    HANG = "Hang"
    """It made no progress, and was killed for it."""
    STRAGGLER = "Straggler"
    """It was much slower than the other ranks of its role, and a rule had it restarted."""
    SILENT_CORRUPTION = "SilentCorruption"
    """A detector says that it computes wrong results without an error."""
    UNHEALTHY = "Unhealthy"
    """Its startup or liveness probe failed, and its host ended it."""
    IMAGE_PULL = "ImagePull"
    """Its pod's image could not be pulled."""
    KILLED = "Killed"
    """SIGKILL ended it, and the sender is unknown."""
    UNKNOWN = "Unknown"
    """It vanished, and its exit status could not be learned: to Ray all ends of a process look alike."""


@dataclass(frozen=True, slots=True)
class Clue:
    """A line of evidence from outside the process. `source` is one of `telemetry.evidence.Source`."""

    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a rank's process ended.

    `code` is its exit code (128+n for signal n), None if unknown. `fatal` marks a failure that would
    repeat: a failed import, an entrypoint that cannot be called, an exception in `__init__` or `setup`.
    """

    ok: bool
    reason: Reason | None = None
    code: int | None = None
    error_type: str = ""
    frame: str = ""
    """Innermost frame of user code, "file.py:12 in f"."""
    message: str = ""
    detail: str = ""
    """Traceback or log tail, at most 8 KiB."""
    fatal: bool = False
    step: int | None = None
    """Last step that the process reported by `progress()`."""
    metrics: tuple[tuple[str, float], ...] = ()
    """Metrics that it reported with that step."""
    result: str = ""
    """Return value of user code, as JSON of at most 8 KiB; rank 0 of the first driver role gives the job's result."""
    advanced: float | None = None
    """When any role of the job last reported its highest step so far (unix seconds); None: unknown."""
    finished: int = 0
    """Of a hang: number of steps, calls and items that the process had finished."""
    clues: tuple[Clue, ...] = ()
    """Evidence of the end from the kernel, the container, the pod or a monitor."""
    origin: ErrorOrigin | None = None
    """Where its error began, if that was in the code of a rank that it called."""
    serves: bool = False
    """Of a good end: whether its object goes on serving calls of other ranks (`Worker.serves_after_run`)."""


@dataclass(frozen=True, slots=True)
class PeerSample:
    """A living rank of a torch world, looked at because peers have reported that one of them is gone."""

    rank: int
    incarnation: int
    absence_text: str = ""
    """What it does outside of the collective that its peers were in, such as "it works in user code at a.py:3 in f"."""
    stacks: str = ""
    """Path of the file with its stacks."""
    failure: Outcome | None = None
    """What its host has of its failure already, where the process has not ended yet; None: nothing."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A live node as the backend reports it. `free` is what no placement group holds."""

    id: str
    total: Resources
    free: Resources
    labels: tuple[tuple[str, str], ...]
    ip: str = ""
    head: bool = False
    """Whether it is the head of a cluster whose head carries no ranks."""
    leaving: float | None = None
    """Deadline of its drain (unix seconds; 0: no deadline is known); None: it is not being drained."""
    pod: str = ""
    """The name of its pod on Kubernetes."""

    @property
    def name(self) -> str:
        """The name by which users know it: of its pod, of `dljob plan` on an embedded Ray, or else Ray's id."""
        return self.pod or dict(self.labels).get(NODE_NAME, self.id)

    @property
    def target(self) -> str:
        """The node as the target of an event: `pod/<name>`, or `node/<name>` where it is no pod."""
        return f"{'pod' if self.pod else 'node'}/{self.name}"


@dataclass(frozen=True, slots=True)
class AskedGroup:
    """A pending request of a role's own Ray driver: a placement group, or actors outside of one with equal demands.

    Actors are written as a group with one bundle for each. Tasks of equal demands on a Ray of the job's own, whoever
    started them, are written as a group with the bundle of one of them.
    """

    id: str
    name: str
    """Name that the driver gave it; empty: none."""
    owner: str
    """"<role>/<rank>" whose driver made the request; "job" where that is unknown."""
    strategy: str
    """PACK | SPREAD | STRICT_PACK | STRICT_SPREAD."""
    bundles: tuple[Resources, ...]
    kind: Literal["placement group", "actor", "task"] = "placement group"


@dataclass(frozen=True, slots=True)
class HostId:
    """Name of a worker host. `index` is the rank of a thread host, the group of a fork host, or -1 for the store."""

    role: str
    index: int

    def __str__(self) -> str:
        return f"{self.role}/{self.index}" if self.index >= 0 else f"{self.role}/store"


Labels = tuple[tuple[str, str], ...]
"""Labels of a metric's sample, sorted."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a witness says on one node, with the sample's labels."""

    witness: str
    value: float
    labels: Labels = ()
    held_s: float = 0.0
    """Seconds since it began to say so."""
