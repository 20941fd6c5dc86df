"""What PrimeMaster orders its shell to do. Each is idempotent: a master that re-attaches may order it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dljob.master.state.views import HostId

if TYPE_CHECKING:
    from dljob.master.state.memory_overrides import Given  # it reads the spec's models, which no rank is to load


@dataclass(frozen=True, slots=True)
class Reserve:
    """Hold a unit on a node by a placement group of its own; answer UnitReserved or UnitRefused."""

    unit: str
    token: int
    node: str
    deadline_s: float
    given: Given = ()
    """Memory beyond what the plan says."""


@dataclass(frozen=True, slots=True)
class Unreserve:
    """Give a unit's placement group back."""

    unit: str
    token: int


@dataclass(frozen=True, slots=True)
class SpawnHost:
    """Make a host actor in its unit's placement group; answer HostReady or HostLost."""

    host: HostId
    life: int
    unit: str
    token: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class SpawnSpare:
    """Make a process spare of a role on a node, outside every placement group; answer SpareReady or SpareLost."""

    role: str
    node: str
    slot: int
    life: int


@dataclass(frozen=True, slots=True)
class RankStart:
    """One rank to start: numbers as torchrun defines them, `local_rank` on the host."""

    rank: int
    incarnation: int
    local_rank: int
    local_world_size: int
    node_rank: int
    restart_reason: str = ""
    """Empty at the first start."""
    devices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(Ray resource, ids) of the devices that it may see."""
    device_index: int = 0
    """Which of them is its own, or the first of its own."""
    nodes: int = 1
    """On how many nodes its role is: with groups of two on three nodes, two may share one."""


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Start ranks on a ready host (which may just have been a spare); answers RankReady, then RankEnded."""

    host: HostId
    life: int
    actor: str
    ranks: tuple[RankStart, ...]
    world_size: int
    generation: int
    store: str
    """host:port, empty when the role has no store."""


@dataclass(frozen=True, slots=True)
class StopRanks:
    """Ask ranks to shut down and end them after `grace_s`; answers RankEnded."""

    host: HostId
    life: int
    ranks: tuple[int, ...]
    grace_s: float
    reason: str
    incarnations: tuple[int, ...] = ()
    """Of these ranks, in the same order: of a later one nothing is asked. Empty: it is meant whichever it is."""


@dataclass(frozen=True, slots=True)
class CheckPlace:
    """A node to be checked for a role: a reservation of it there, and what of the node is the role's."""

    node: str
    unit: str
    token: int
    memory: int
    """Bytes that must be free."""
    devices: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class CheckNodes:
    """Check nodes in processes that are thrown away, then let these teams do an all-reduce; answer NodesChecked."""

    role: str
    number: int
    places: tuple[CheckPlace, ...]
    teams: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Take a rank out of its torch group and of its user code, and keep its process; answers RankEnded."""

    host: HostId
    life: int
    actor: str
    rank: int
    incarnation: int
    """Of a later one nothing is asked."""
    reason: str
    parts: bool = False
    """Its role is to have it no more: it is shut down as at the end of the job, and its process ended after."""


@dataclass(frozen=True, slots=True)
class KillHost:
    """End a host's process at once, by every means; no answer is awaited."""

    host: HostId
    life: int
    actor: str


@dataclass(frozen=True, slots=True)
class KillSpare:
    """End a spare."""

    role: str
    node: str
    slot: int
    life: int
    actor: str


@dataclass(frozen=True, slots=True)
class SaveCopies:
    """Bring to disk what ranks of the job have copied, since a node is to be taken away; answer CopiesSaved."""

    node: str
    within_s: float


@dataclass(frozen=True, slots=True)
class RelaunchNode:
    """Have a node replaced that was left, or is gone, by whoever the spec names; answer RelaunchTold."""

    node: str
    reason: str
    why: str
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Note:
    """A line of the job's timeline: what `dljob events` shows. Not executed, only written down."""

    reason: str
    """A name of `telemetry.reasons`."""
    target: str
    message: str
    level: str = ""
    """The restart level, for a restart."""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """End every actor, then every placement group of the job; answer Released."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over: write the result, close the journal, leave."""

    ok: bool
    reason: str
    message: str


Action = (
    Reserve
    | Unreserve
    | SpawnHost
    | SpawnSpare
    | CheckNodes
    | StartRanks
    | StopRanks
    | LeaveGroup
    | KillHost
    | KillSpare
    | SaveCopies
    | RelaunchNode
    | Note
    | Release
    | Finish
)
