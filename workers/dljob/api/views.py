"""Types of the answers of a job's handle: the status and the timeline; and how a field that may be missing is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, NotRequired, Required, TypedDict, cast

Json = dict[str, Any]


# A status may be of another version, or damaged: what is not of the expected kind counts as missing.


def nested(value: Mapping[str, Any], key: str) -> Json:
    """Return an object within an object; empty when it is missing."""
    part = value.get(key)
    return cast("Json", part) if isinstance(part, Mapping) else {}


def entries(value: Mapping[str, Any], key: str) -> list[Json]:
    """Return a list within an object; empty when it is missing."""
    part = value.get(key)
    rows = cast("list[object]", part) if isinstance(part, list | tuple) else []
    return [cast("Json", row) for row in rows if isinstance(row, Mapping)]


class RoleStatus(TypedDict, total=False):
    """Counts of one role's ranks."""

    name: Required[str]
    desired: Required[int]
    ready: int
    running: int
    succeeded: int
    failed: int
    restarts: int
    wanted: int
    """Number of ranks that an Elastic role wants; absent for other roles."""
    servedLagSeconds: float
    """Age of the earliest event of a source that its weights had last learned from, when a rank had loaded them."""


class ServerStatus(TypedDict):
    """Ready servers of one role with ports."""

    role: str
    ready: int
    desired: int
    addresses: list[dict[str, str]]
    """Port name -> host:port of the first ready ranks, at most 20."""


class RankStatus(TypedDict):
    """State of one rank."""

    role: str
    rank: int
    phase: str
    incarnation: int
    """Number of the rank's process, from 1."""
    node: str
    pid: int | None
    actor: str
    step: int | None
    """Last step that it reported by `progress`."""
    log: str
    """Path of its log in the job's folder, on its node."""
    heartbeatAge: NotRequired[float]
    """Seconds since the last heartbeat of its host, of a live rank."""
    secondsPerStep: NotRequired[float]
    """Time of its last step, in seconds; absent while unknown, like the following."""
    memoryMib: NotRequired[int]
    deviceMib: NotRequired[int]
    """Memory of its device, as its framework tells."""


class Fault(TypedDict, total=False):
    """A failure, and the recovery from it."""

    level: Required[str]
    """Level of the restart: Process, RoleGroup, Role, Job, Node, Master."""
    reason: Required[str]
    target: Required[str]
    firstCause: Required[str]
    """The first failure, in its own words."""
    rule: str
    """Rule of evidence that recognized it; absent where none did."""
    evidence: list[str]
    followed: list[str]
    """Causes of the failures that followed from it."""
    detectedAt: str | None
    """RFC 3339."""
    recoveredAt: str | None
    seconds: float | None
    lostSteps: int | None


class Progress(TypedDict, total=False):
    """Progress of the job."""

    step: int | None
    stepTime: str
    """Time (RFC 3339) of the latest step that the first driver role reported; absent before its first."""
    secondsPerStep: float
    """Median time between its recent steps, in seconds; absent while unknown."""
    metrics: Any
    """Metrics of the last step: name -> number on a Ray, [{"name", "value"}] on Kubernetes."""
    goodputPermille: int | None
    lastCheckpointStep: int | None
    lastCheckpointTime: str | None


class JobStatus(TypedDict, total=False):
    """Status of a job, on a Ray or on Kubernetes, where a field is absent until the operator has written it."""

    phase: Required[str]
    """Pending, Scheduling, Running, Recovering, Succeeded, Failed, ..."""
    reason: str
    """Reason of the phase: one CamelCase word."""
    message: str
    """Reason of the phase, in words."""
    startTime: str | None
    completionTime: str | None
    roles: list[RoleStatus]
    restarts: dict[str, int]
    """Number of restarts by level."""
    progress: Progress
    nodes: dict[str, Any]
    lastFault: Fault | None
    recentFaults: list[Fault]
    placement: dict[str, Any]
    name: str
    """This field and the following ones exist only on a Ray."""
    uid: str
    seconds: float
    epoch: int
    """Number of the job's PrimeMaster, from 1."""
    version: int
    masterNode: str
    """Ray's id of the node that PrimeMaster is, or was, on."""
    host: str
    """Another host on which it may run; present while nothing of it can be seen from this one."""
    ranks: list[RankStatus]
    endpoints: list[ServerStatus]
    """Absent from jobs whose roles have no ports."""
    units: list[dict[str, Any]]
    ledger: dict[str, Any]
    """Time account of the ranks: productive, starting, restarting, waiting."""
    result: str | None
    """Value that rank 0 of the first driver role returned, as JSON."""
    attempt: int
    """This field and the following ones exist only on Kubernetes. Number of the job's RayCluster, from 1."""
    conditions: list[dict[str, Any]]
    rolesReady: str
    restartsTotal: int
    submissionId: str
    rayCluster: dict[str, Any]
    master: dict[str, Any]


class Suspension(NamedTuple):
    """Answer to `suspend` and `resume`."""

    before: bool
    """Whether the spec asked for suspension before the call."""
    status: JobStatus
    """Status after the call, or after the wait for its effect."""


class JobEvent(TypedDict):
    """One line of a job's timeline."""

    time: float
    """Unix seconds."""
    reason: str
    target: str
    """The job, a role, a rank ("rollout/2"), or a node."""
    message: str
    level: NotRequired[str]
    seconds: NotRequired[float | None]
    """Duration of a process that takes time."""
    seq: NotRequired[int]
    """Number of the note, for entries of PrimeMaster."""
    type: NotRequired[str]
    """Normal or Warning, for Events of Kubernetes."""
    count: NotRequired[int]
    """Number of repetitions, for Events of Kubernetes."""
