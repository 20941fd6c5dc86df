"""Values of a simulated world, all frozen: cloning a world then only copies its tables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from dljob.master.state.actions import Action, SpawnHost, SpawnSpare
from dljob.master.state.events import Event, HostLost, RankEnded, RankReady, RankServes, SpareLost, WeightsLoaded
from dljob.master.state.views import HostId, NodeView, Outcome

STALL_S, GO_ON_S = 1.0, 2.0
"""Seconds for which a rank has stood still when its stall is reported, and when it goes on by itself."""
HANG_S = 3.0
"""Seconds for which a rank has made no step when the hang is detected."""


class Silence(StrEnum):
    """Reason why a node does not answer."""

    NONE = ""
    """The node answers."""
    FROZEN = "frozen"
    """The node's processes are stopped."""
    CUT = "cut"
    """A network partition: the node's processes run on, unreachable."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine. `view.free` are the resources that no reservation holds."""

    view: NodeView
    silence: Silence = Silence.NONE
    since: float = 0.0
    """Time at which the node stopped answering."""
    listed: bool = True
    """Whether the cluster still lists the node; a removed node never returns under its name."""


@dataclass(frozen=True, slots=True)
class SpareKey:
    """A process spare of a role on a node."""

    role: str
    node: str
    slot: int


Who: TypeAlias = HostId | SpareKey


@dataclass(frozen=True, slots=True)
class Running:
    """A rank that runs in a process."""

    role: str
    rank: int
    incarnation: int
    generation: int


@dataclass(frozen=True, slots=True)
class Process:
    """A live process. `reports` are its unacknowledged reports about its ranks."""

    actor: str
    node: str
    occupant: Who
    incarnation: int
    group: tuple[str, int] | None = None
    """(unit, token) of the process's reservation; None for a spare."""
    up: bool = False
    """Whether the process has started, so that it answers calls."""
    ranks: tuple[Running, ...] = ()
    begun: tuple[tuple[int, int], ...] = ()
    """(rank, incarnation) of each rank that the process ever started: it starts none of them twice."""
    reports: tuple[RankReady | RankEnded | RankServes | WeightsLoaded, ...] = ()
    condemned: bool = False
    """Whether a kill was ordered while the process was unreachable: it ends once it is reachable."""
    deaf: bool = False
    """Whether its user code ignores the request to leave a torch group."""
    held_versions: tuple[tuple[int, int, int], ...] = ()
    """(rank, incarnation, version) of the weights that its ranks hold."""
    holds: tuple[tuple[int, int, int, bool], ...] = ()
    """(rank, incarnation, number, whether calls wait) of the last order about the calls of each rank."""


@dataclass(frozen=True, slots=True)
class Watched:
    """An actor that PrimeMaster watches or creates: its host or spare, and its node."""

    occupant: Who
    incarnation: int
    node: str


def host_actor(host: HostId, incarnation: int) -> str:
    """Return the name of a host's actor."""
    return f"{host}/{incarnation}"


def spare_actor(role: str, node: str, slot: int, incarnation: int) -> str:
    """Return the name of a spare's actor."""
    return f"{role}/spare-{node}-{slot}/{incarnation}"


def made_by(action: Action) -> str:
    """Return the actor that an action creates; empty when it creates none."""
    match action:
        case SpawnHost():
            return host_actor(action.host, action.incarnation)
        case SpawnSpare():
            return spare_actor(action.role, action.node, action.slot, action.incarnation)
        case _:
            return ""


def lost(occupant: Who, incarnation: int, outcome: Outcome) -> HostLost | SpareLost:
    """Return the event that reports the loss of an actor."""
    if isinstance(occupant, HostId):
        return HostLost(occupant, incarnation, outcome)
    return SpareLost(occupant.role, occupant.node, occupant.slot, incarnation)


# -- pending items: each takes effect once, sooner or later


@dataclass(frozen=True, slots=True)
class Arrive:
    """An event reaches PrimeMaster; `actor` is the actor that reported it, if any."""

    event: Event
    actor: str = ""


@dataclass(frozen=True, slots=True)
class Carry:
    """An action of PrimeMaster takes effect."""

    action: Action


@dataclass(frozen=True, slots=True)
class Up:
    """A created process answers for the first time."""

    actor: str


@dataclass(frozen=True, slots=True)
class SetUp:
    """A rank's `setup()` returns."""

    actor: str
    running: Running


@dataclass(frozen=True, slots=True)
class Done:
    """A rank's user code ends."""

    actor: str
    running: Running
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Probed:
    """The readiness probe of a server succeeds again."""

    actor: str
    running: Running


@dataclass(frozen=True, slots=True)
class Drained:
    """The last requests of a server that is to stop are done."""

    actor: str
    running: Running


@dataclass(frozen=True, slots=True)
class ReportHang:
    """PrimeMaster's hang detection finds a rank that hangs."""

    actor: str
    running: Running


@dataclass(frozen=True, slots=True)
class ReportStalls:
    """PrimeMaster's stall watch looks at who waits for whom, and reports what has changed."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """A rank that stood still goes on by itself."""

    running: Running


@dataclass(frozen=True, slots=True)
class PollNodes:
    """PrimeMaster polls the list of nodes."""


@dataclass(frozen=True, slots=True)
class Boot:
    """The next PrimeMaster starts."""


@dataclass(frozen=True, slots=True)
class Break:
    """The pending calls of a cut node's processes break."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeOverdue:
    """The heartbeat of a node is overdue."""

    node: str


@dataclass(frozen=True, slots=True)
class StrikeOff:
    """The cluster removes a silent node from its list."""

    node: str


@dataclass(frozen=True, slots=True)
class Depart:
    """A machine goes, as its departure announced."""

    node: str


@dataclass(frozen=True, slots=True)
class Heal:
    """A silent node answers again."""

    node: str


@dataclass(frozen=True, slots=True)
class AskIfKnown:
    """A process asks PrimeMaster whether it is known; one that is not ends itself."""

    actor: str


@dataclass(frozen=True, slots=True)
class Lapse:
    """Leases run out: of a cut node's processes, or of all (`node` empty) while there is no PrimeMaster."""

    node: str
    epoch: int


Item: TypeAlias = (
    Arrive
    | Carry
    | Up
    | SetUp
    | Done
    | Probed
    | Drained
    | ReportHang
    | ReportStalls
    | GoOn
    | PollNodes
    | Boot
    | Break
    | NodeOverdue
    | StrikeOff
    | Depart
    | Heal
    | Lapse
    | AskIfKnown
)


@dataclass(frozen=True, slots=True)
class Pending:
    """A pending item; it takes effect at `least` (virtual seconds) or later."""

    item: Item
    least: float


# -- moves


@dataclass(frozen=True, slots=True)
class Happen:
    """The pending item of this number takes effect; PrimeMaster folds the arrivals `more` in the same batch."""

    number: int
    more: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Wake:
    """PrimeMaster's timer is due."""


@dataclass(frozen=True, slots=True)
class FaultMove:
    """A fault. `pick` chooses among the possible victims, `value` is its strength or duration."""

    kind: str
    pick: int = 0
    value: float = 0.0
    text: str = ""


Move: TypeAlias = Happen | Wake | FaultMove
