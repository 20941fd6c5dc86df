"""What a simulated world is made of: frozen values, so that a copy of the world is a copy of its tables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from dljob.master.actions import Action
from dljob.master.events import Event, RankEnded, RankReady
from dljob.master.views import HostId, NodeView, Outcome


class Silence(StrEnum):
    """Why a node does not answer."""

    NONE = ""
    FROZEN = "frozen"
    """Its processes stand still."""
    CUT = "cut"
    """Its processes go on, and nobody reaches them."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine. `view.free` is what no reservation holds."""

    view: NodeView
    silence: Silence = Silence.NONE
    since: float = 0.0
    """When it fell silent."""
    listed: bool = True
    """Whether the cluster still counts it among its nodes; one that was struck off never comes back under its name."""


@dataclass(frozen=True, slots=True)
class SpareId:
    """A process spare of a role on a node."""

    role: str
    node: str
    slot: int


Who: TypeAlias = HostId | SpareId


@dataclass(frozen=True, slots=True)
class Running:
    """A rank at work in a process."""

    role: str
    rank: int
    incarnation: int
    generation: int


@dataclass(frozen=True, slots=True)
class Process:
    """A live process. `reports` are what it said of its ranks and nobody has acknowledged."""

    actor: str
    node: str
    who: Who
    life: int
    group: tuple[str, int] | None = None
    """(unit, token) of the reservation that it lives in; None for a spare."""
    up: bool = False
    """It has answered, or would."""
    ranks: tuple[Running, ...] = ()
    begun: tuple[tuple[int, int], ...] = ()
    """(rank, incarnation) of all that it ever started: it starts none of them twice."""
    reports: tuple[RankReady | RankEnded, ...] = ()
    condemned: bool = False
    """Its end was ordered while nobody reached it: it ends when it hears of it."""
    deaf: bool = False
    """Its user code does not let itself be taken out of a torch group."""


@dataclass(frozen=True, slots=True)
class Watched:
    """An actor that PrimeMaster hears, or is making: who it is, and on which node."""

    who: Who
    life: int
    node: str


def host_actor(host: HostId, life: int) -> str:
    """The name of a host's actor."""
    return f"{host}/{life}"


def spare_actor(role: str, node: str, slot: int, life: int) -> str:
    """The name of a spare's actor."""
    return f"{role}/spare-{node}-{slot}/{life}"


# -- what is on its way: each happens once, sooner or later


@dataclass(frozen=True, slots=True)
class Arrive:
    """An event reaches PrimeMaster; `actor` is whose report it is."""

    event: Event
    actor: str = ""


@dataclass(frozen=True, slots=True)
class Carry:
    """An order of PrimeMaster takes effect."""

    action: Action


@dataclass(frozen=True, slots=True)
class Up:
    """A process that was made answers for the first time."""

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
class Stall:
    """PrimeMaster's watch finds that a rank stands still."""

    actor: str
    running: Running


@dataclass(frozen=True, slots=True)
class Look:
    """PrimeMaster looks at the nodes."""


@dataclass(frozen=True, slots=True)
class Boot:
    """The next PrimeMaster starts."""


@dataclass(frozen=True, slots=True)
class Break:
    """The pending calls of a cut node's processes break."""

    node: str


@dataclass(frozen=True, slots=True)
class Notice:
    """PrimeMaster has heard nothing of a node for too long."""

    node: str


@dataclass(frozen=True, slots=True)
class StrikeOff:
    """The cluster gives a silent node up."""

    node: str


@dataclass(frozen=True, slots=True)
class Depart:
    """A machine is taken away, as it was announced."""

    node: str


@dataclass(frozen=True, slots=True)
class Heal:
    """A silent node answers again."""

    node: str


@dataclass(frozen=True, slots=True)
class Beacon:
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
    | Stall
    | Look
    | Boot
    | Break
    | Notice
    | StrikeOff
    | Depart
    | Heal
    | Lapse
    | Beacon
)


@dataclass(frozen=True, slots=True)
class Pending:
    """An item on its way; it happens at `least` (virtual seconds) or later."""

    item: Item
    least: float


# -- moves


@dataclass(frozen=True, slots=True)
class Happen:
    """The pending item of this number happens; `more` are arrivals that PrimeMaster takes in with it, in one batch."""

    number: int
    more: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Wake:
    """PrimeMaster's timer is due."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something goes wrong. `pick` chooses among those that it could happen to, `value` says how much."""

    kind: str
    pick: int = 0
    value: float = 0.0
    text: str = ""


Move: TypeAlias = Happen | Wake | Fault
