"""The small values that events, actions and state share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from dljob.plan.model import Resources

ENDS = {"stop": "stopped", "suspend": "suspended"}
"""Commands that end the job here, and how it then is; a suspended one goes on in its next attempt."""


class Level(StrEnum):
    """What is restarted, from least to most."""

    IN_PROCESS = "InProcess"
    """The survivors of a torch group keep their processes and meet again, with a new process for who is gone."""
    PROCESS = "Process"
    ROLE_GROUP = "RoleGroup"
    ROLE = "Role"
    JOB = "Job"
    NODE = "Node"
    MASTER = "Master"


class Reason(StrEnum):
    """Why a process ended, as far as anybody can know."""

    USER_ERROR = "UserError"
    IMPORT_ERROR = "ImportError"
    NODE_LOST = "NodeLost"
    NODE_FROZEN = "NodeFrozen"
    """Its node stopped answering, which no process of it survives: one that wakes up ends itself."""
    OOM_KILLED = "OOMKilled"
    """Somebody ended it for its memory: the kernel, a container, or Ray's monitor; never an exception of its own."""
    DEVICE_ERROR = "DeviceError"
    PREEMPTED = "Preempted"
    """Its machine, or its pod, was taken away on purpose."""
    NETWORK = "Network"
    """A connection to a peer broke, and nobody knows of a peer that failed."""
    HANG = "Hang"
    """It stood still, and was ended for it."""
    STRAGGLER = "Straggler"
    """It was much slower than its role, and a rule had it ended for it."""
    IMAGE_PULL = "ImagePull"
    KILLED = "Killed"
    """SIGKILL ended it, and nobody knows who sent that."""
    UNKNOWN = "Unknown"
    """It vanished, and nobody could learn how: to Ray all ends of a process look alike."""


@dataclass(frozen=True, slots=True)
class Clue:
    """A line of evidence beside what a process said itself. `source` is one of `telemetry.evidence.Source`."""

    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a rank's process ended.

    `code` is its exit code (128+n for signal n), None when nobody could learn it. `fatal` marks what must repeat:
    a failed import, an entrypoint that cannot be called, an exception in `__init__` or `setup`.
    """

    ok: bool
    reason: Reason | None = None
    code: int | None = None
    error_type: str = ""
    frame: str = ""
    """"file.py:12 in f": the user's innermost frame."""
    message: str = ""
    detail: str = ""
    """Traceback or log tail, at most 8 KiB."""
    fatal: bool = False
    step: int | None = None
    """The last `progress()` step of that process."""
    metrics: tuple[tuple[str, float], ...] = ()
    """What came with that step."""
    result: str = ""
    """What user code returned, as JSON of at most 8 KiB; rank 0 of the first driver role makes the job's result."""
    advanced: float | None = None
    """When a role of the job last told a higher step than ever before (unix seconds); None: nobody knows of any."""
    clues: tuple[Clue, ...] = ()
    """What others saw of the end: the kernel, the container, the pod."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A live node as the backend sees it. `free` counts only what no placement group holds."""

    id: str
    total: Resources
    free: Resources
    labels: tuple[tuple[str, str], ...]
    ip: str = ""
    head: bool = False
    """The head of a cluster whose head carries no ranks."""
    leaving: float | None = None
    """It is drained, and gone by then (unix seconds; 0: nobody said when). None: it is not."""


@dataclass(frozen=True, slots=True)
class AskedGroup:
    """What a role's own Ray driver asked for and Ray has not placed, or has to place again.

    A placement group, or actors outside of one that take the same: a bundle for each.
    """

    id: str
    name: str
    """Empty: it has none."""
    owner: str
    """"<role>/<rank>", whose driver made it."""
    strategy: str
    """PACK | SPREAD | STRICT_PACK | STRICT_SPREAD."""
    bundles: tuple[Resources, ...]
    kind: Literal["placement group", "actor"] = "placement group"


@dataclass(frozen=True, slots=True)
class HostId:
    """A worker host: for a thread host `index` is the rank, for a fork host the role group; -1 is the role's store."""

    role: str
    index: int

    def __str__(self) -> str:
        return f"{self.role}/{self.index}" if self.index >= 0 else f"{self.role}/store"
