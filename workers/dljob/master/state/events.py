"""What PrimeMaster is told. Each is journaled before it is acted upon; late and doubled ones are harmless.

`life` counts the actors that have been a host, `incarnation` the processes that have been a rank: an event whose count
is not the current one is of the past and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from dljob.master.state.checkpoint_ids import CheckpointId, Committed, RunId
from dljob.master.state.pairing import NodeFacts, TeamFacts
from dljob.master.state.shard_table import ShardTable
from dljob.master.state.views import Clue, HostId, NodeView, Outcome
from dljob.plan.model import Amount


@dataclass(frozen=True, slots=True)
class MasterStarted:
    """A master took the job in hand; epoch 1 is the first, later ones re-attach."""

    epoch: int
    cause: str = ""
    journal: str = ""
    """What is to be said of a journal that another version of dljob wrote; empty: this one wrote it."""
    anew: bool = False
    """Whether the state in it could not be taken over, so that all ranks start again."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What the last attempt of the job handed on (`carry.carried` reads it); only the first one counts."""

    attempt: int
    """The attempt that told it."""
    restarts: tuple[tuple[str, int], ...] = ()
    """By level."""
    roles: tuple[tuple[str, int], ...] = ()
    """Restarts by role."""
    marks: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """What budgets count, by key: unix seconds, oldest first."""
    step: int | None = None
    """The last step that it came to, as far as anybody heard."""
    why: str = ""
    """Why it cannot be used; empty: it can."""
    saves: tuple[tuple[str, Committed], ...] = ()
    """The last checkpoint by world."""
    feeds: tuple[tuple[str, ShardTable], ...] = ()
    """Data sets, by name."""
    memory: tuple[tuple[str, Amount], ...] = ()
    """Of a rank, by role: more than the spec says."""


@dataclass(frozen=True, slots=True)
class NodesSeen:
    """The live nodes, sent when they differ from what was sent last."""

    nodes: tuple[NodeView, ...]
    silent: tuple[tuple[str, float], ...] = ()
    """(node, when something of the job there was last heard, unix seconds), of nodes that are gone."""


@dataclass(frozen=True, slots=True)
class NodeFrozen:
    """A node answers no more; its processes may still live."""

    node: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class NodeThawed:
    """A node that was frozen answers again."""

    node: str


@dataclass(frozen=True, slots=True)
class CopiesSaved:
    """What ranks had copied is on disk, for the sake of a node that is to be taken away."""

    node: str
    why: str = ""
    """Why not all of it is; empty: it is."""


@dataclass(frozen=True, slots=True)
class RelaunchTold:
    """Whoever replaces nodes was told of one."""

    node: str
    trouble: str = ""
    """Why it was not; empty: it was."""


@dataclass(frozen=True, slots=True)
class UnitReserved:
    """A unit's placement group is held on a node; `token` counts the reservations of that unit."""

    unit: str
    token: int
    node: str


@dataclass(frozen=True, slots=True)
class UnitRefused:
    """A unit could not be had on the node chosen for it."""

    unit: str
    token: int
    why: str


@dataclass(frozen=True, slots=True)
class GroupAsked:
    """A placement group of a role's own Ray driver waits, or waits no longer."""

    group: str
    """Ray's id of it."""
    owner: str
    """"<role>/<rank>", whose driver made it."""
    why: str
    """What it needs and what nodes have, in words; once it waits no longer, what became of it."""
    waits: bool = True


@dataclass(frozen=True, slots=True)
class JournalReported:
    """The journal has something to tell: writes waited for room, or superseded parts were dropped."""

    reason: str
    """JOURNAL_STALLED or JOURNAL_TRIMMED."""
    message: str


@dataclass(frozen=True, slots=True)
class HostReady:
    """A host actor answered: it can start its ranks (a store host: it serves at `address`)."""

    host: HostId
    life: int
    node: str
    pid: int
    actor: str
    """The actor's name."""
    devices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(Ray resource, device ids), of all its bundles, as Ray assigned them."""
    log: str = ""
    address: str = ""
    """host:port of the store, for a store host."""
    slots: tuple[tuple[str, ...], ...] = ()
    """Of the role's kind of device, the ids in the bundle of each of its ranks, in order; empty for a role without."""


@dataclass(frozen=True, slots=True)
class HostLost:
    """A host's process is gone, or could not be made."""

    host: HostId
    life: int
    outcome: Outcome
    seen: float | None = None
    """When it was last heard (unix seconds); None: nobody knows."""


@dataclass(frozen=True, slots=True)
class SpareReady:
    """A process spare of a role waits on a node."""

    role: str
    node: str
    slot: int
    life: int
    actor: str
    pid: int
    log: str = ""


@dataclass(frozen=True, slots=True)
class SpareLost:
    """A spare died or could not be made."""

    role: str
    node: str
    slot: int
    life: int


@dataclass(frozen=True, slots=True)
class NodesChecked:
    """A round of checks before the start of a role came to its end; `number` counts the rounds of that role."""

    role: str
    number: int
    nodes: tuple[NodeFacts, ...]
    teams: tuple[TeamFacts, ...]


@dataclass(frozen=True, slots=True)
class RankReady:
    """A rank's `setup()` returned (a script: it was started)."""

    role: str
    rank: int
    incarnation: int
    pid: int
    goal: int | None = None
    """The highest step that earlier processes of the rank told; None: they told none."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """A restarted rank told its first step, or one that no earlier process of it had passed."""

    role: str
    rank: int
    incarnation: int
    step: int


@dataclass(frozen=True, slots=True)
class RankEnded:
    """A rank's user code ended, and how."""

    role: str
    rank: int
    incarnation: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class HangFound:
    """A rank stands still, or is slow (`kind`: Hang | Straggler), as far as its steps and its node tell."""

    role: str
    rank: int
    incarnation: int
    kind: str
    why: str
    stacks: str = ""
    """The file with the stacks of all ranks of the role; empty: there is none."""
    whole: bool = False
    """The role stands still as a whole; the rank only stands for it."""
    silent_s: float = 0.0
    """How long ago it told its last step."""


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """All parts of a checkpoint of a world (an Elastic role, `trainer`, or an Actor rank, `w/3`) are on disk."""

    world: str
    mark: CheckpointId


@dataclass(frozen=True, slots=True)
class CheckpointDecided:
    """A life of a world goes on from a checkpoint; None: from nothing."""

    world: str
    life: RunId
    chosen: CheckpointId | None
    reached: int | None = None
    """The highest step that earlier processes told; None: they told none."""
    damaged: tuple[str, ...] = ()
    """Checkpoints and decisions on disk that were passed over because they cannot be trusted, each with its reason."""


@dataclass(frozen=True, slots=True)
class ShardsTold:
    """A rank's process says what it has done of a data set, and of how many shards it wants to hold the leases."""

    name: str
    size: int
    shard: int
    epochs: int
    world: str
    role: str
    rank: int
    incarnation: int
    life: RunId
    saves: bool = False
    """Whether it saves or loads checkpoints."""
    done: tuple[tuple[int, int, int | None], ...] = ()
    """(start, end, the last step that it had saved when it had done it; -1: none; None: it saves nothing)."""
    want: int = 0


@dataclass(frozen=True, slots=True)
class CauseLearned:
    """Evidence that came by another way than the end itself. `target`: "<role>/<rank>" or "node/<Ray's node id>"."""

    target: str
    clues: tuple[Clue, ...]
    incarnation: int = 0
    """Of the rank's process that it is about; 0: its last."""


@dataclass(frozen=True, slots=True)
class Commanded:
    """Somebody outside ordered something; `id` makes it happen once. `target` follows the grammar of targets."""

    id: str
    kind: str
    """restart | stop | scale."""
    target: str = "job"
    by: str = ""
    count: int = 0
    """Of scale: how many ranks."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; nothing else happened."""


@dataclass(frozen=True, slots=True)
class Released:
    """Nothing of the job is left: no actor, no placement group."""


Event = (
    MasterStarted
    | Carried
    | NodesSeen
    | NodeFrozen
    | NodeThawed
    | CopiesSaved
    | RelaunchTold
    | UnitReserved
    | UnitRefused
    | GroupAsked
    | JournalReported
    | HostReady
    | HostLost
    | SpareReady
    | SpareLost
    | NodesChecked
    | RankReady
    | Stepped
    | RankEnded
    | CheckpointCommitted
    | CheckpointDecided
    | ShardsTold
    | HangFound
    | CauseLearned
    | Commanded
    | Tick
    | Released
)
