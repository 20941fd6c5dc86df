"""Actions: the orders that a transition gives to PrimeMaster's shell, which answers with events.

Every action is idempotent, because a new epoch repeats the orders that were never answered (`placement.reissue`).
`incarnation`, `host_incarnation` and `token` name the exact process or reservation that an action is about, so that a
late order cannot touch its successor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dljob.master.state.views import HostId

if TYPE_CHECKING:
    # Importing it at run time would load the spec's pydantic models into every rank.
    from dljob.master.state.memory_overrides import Overrides


@dataclass(frozen=True, slots=True)
class Reserve:
    """Reserve a unit on a node with a placement group of its own. Answers: UnitReserved or UnitRefused."""

    unit: str
    token: int
    node: str
    deadline_s: float
    """Seconds after which the shell gives up and answers UnitRefused."""
    memory: Overrides = ()
    """Memory per rank and role where it exceeds the plan's."""


@dataclass(frozen=True, slots=True)
class Unreserve:
    """Remove a unit's placement group. No answer is awaited."""

    unit: str
    token: int


@dataclass(frozen=True, slots=True)
class SpawnHost:
    """Create a host actor in its unit's placement group. Answers: HostReady or HostLost."""

    host: HostId
    incarnation: int
    unit: str
    token: int
    """The reservation that the actor must live in; an older one may still be on its way out."""
    deadline_s: float


@dataclass(frozen=True, slots=True)
class SpawnSpare:
    """Create a process spare of a role on a node, outside every placement group. Answers: SpareReady or SpareLost."""

    role: str
    node: str
    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class RankStart:
    """One rank to start. The numbers are torchrun's: `local_rank` counts the role's ranks on one machine."""

    rank: int
    incarnation: int
    local_rank: int
    local_world_size: int
    node_rank: int
    restart_reason: str = ""
    """Cause of the restart, as user code sees it; empty at the first start."""
    devices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(Ray resource, device ids) that the rank may see."""
    device_index: int = 0
    """Index, among the visible devices of the role's kind, of the rank's own (first) device."""
    ports: tuple[tuple[str, int], ...] = ()
    """(port name, number) that the rank had in its last process."""
    nodes: int = 1
    """Number of nodes that the role spans. It cannot be computed from group counts: groups may share a node."""
    calls_held: int = 0
    """Number of the order about its calls that holds at its start (`HoldCalls.number`)."""
    hold_reason: str = ""
    """Why its calls wait; empty: they are served."""


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Start ranks on a ready host, which may have been a spare until now. Answers per rank: RankReady, RankEnded."""

    host: HostId
    incarnation: int
    actor: str
    ranks: tuple[RankStart, ...]
    world_size: int
    generation: int
    store: str
    """host:port of the role's torch store; empty when the role has none."""


@dataclass(frozen=True, slots=True)
class StopRanks:
    """Ask ranks to shut down, and end them after `grace_s` seconds. Answer per rank: RankEnded."""

    host: HostId
    host_incarnation: int
    ranks: tuple[int, ...]
    grace_s: float
    reason: str
    incarnations: tuple[int, ...] = ()
    """Incarnation of each rank, in the order of `ranks`; a newer process ignores the order. Empty: any incarnation."""
    leaves: bool = False
    """Whether their role goes on without them: they finish their calls first, within `grace_s`."""


@dataclass(frozen=True, slots=True)
class CheckPlace:
    """A node to check for a role: one of the role's reservations there, and the role's share of the node."""

    node: str
    unit: str
    token: int
    memory: int
    """Bytes of memory that must be free."""
    devices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    name: str = ""
    """By which users know the node."""


@dataclass(frozen=True, slots=True)
class CheckNodes:
    """Check nodes in short-lived processes, then run an all-reduce in each team. Answer: NodesChecked."""

    role: str
    number: int
    """Number of the round, which the answer repeats."""
    places: tuple[CheckPlace, ...]
    teams: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Take a rank out of its torch group and its user code, but keep its process. Answer: RankEnded."""

    host: HostId
    host_incarnation: int
    actor: str
    rank: int
    incarnation: int
    """A newer process of the rank ignores the order."""
    reason: str
    drops_rank: bool = False
    """Whether the shrinking role drops this rank: it shuts down as at the job's end, then its process ends."""


@dataclass(frozen=True, slots=True)
class LoadWeights:
    """Have a rank load a published version. Answer: WeightsLoaded. A rank that holds it already answers at once."""

    host: HostId
    host_incarnation: int
    actor: str
    rank: int
    incarnation: int
    """A newer process of the rank ignores the order."""
    version: int
    at: float
    """When the version was published (unix seconds)."""


@dataclass(frozen=True, slots=True)
class HoldCalls:
    """Have a rank keep calls of others waiting, or serve them again. No answer is awaited."""

    host: HostId
    host_incarnation: int
    actor: str
    rank: int
    incarnation: int
    """A newer process of the rank ignores the order."""
    number: int
    """Of two orders that overtake each other the one with the higher number counts (`RankState.calls_held`)."""
    reason: str
    """Why calls wait; empty: they are served."""


@dataclass(frozen=True, slots=True)
class KillHost:
    """Kill a host's process at once, by every means. No answer is awaited."""

    host: HostId
    incarnation: int
    actor: str


@dataclass(frozen=True, slots=True)
class KillSpare:
    """Kill a process spare. No answer is awaited."""

    role: str
    node: str
    slot: int
    incarnation: int
    actor: str


@dataclass(frozen=True, slots=True)
class SaveCopies:
    """Flush all in-memory checkpoint copies to disk, before a node or a world's size goes. Answer: CopiesSaved."""

    node: str
    """Node that leaves; empty when a role is about to grow or shrink."""
    within_s: float


@dataclass(frozen=True, slots=True)
class RelaunchNode:
    """Ask the spec's relauncher to replace a node that is excluded or lost. Answer: RelaunchTold."""

    node: str
    reason: str
    """Machine-readable reason, such as NodeLost."""
    explanation: str
    """The same in a sentence."""
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Note:
    """A line of the job's timeline, as `dljob events` shows it. It is recorded, not executed."""

    reason: str
    """A name of `telemetry.reasons`."""
    target: str
    message: str
    level: str = ""
    """Restart level, for a restart."""
    seconds: float | None = None
    """Duration of what ended, where the line is about one."""


@dataclass(frozen=True, slots=True)
class Release:
    """End every actor of the job, then remove every placement group. Answer: Released."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Write the result, close the journal, and end PrimeMaster: the job is over."""

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
    | LoadWeights
    | HoldCalls
    | KillHost
    | KillSpare
    | SaveCopies
    | RelaunchNode
    | Note
    | Release
    | Finish
)
