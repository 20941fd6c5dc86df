"""The whole state of a job, as frozen data: what PrimeMaster knows, and all that its journal rebuilds.

Per-rank tables are persistent maps, and what would need a walk over all ranks (counts per role and phase) is kept as it
changes, so an event costs the same at 16 ranks and at 10,000.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from immutables import Map

from dljob.master.state.actions import Action
from dljob.master.state.checkpoint_ids import Saves
from dljob.master.state.faults import Departure, FaultRecord, Notice
from dljob.master.state.job import Job
from dljob.master.state.ledger import Ledger
from dljob.master.state.memory_overrides import Grants
from dljob.master.state.pairing import RoleCheck
from dljob.master.state.shard_table import ShardTable
from dljob.master.state.sizing import Sizing
from dljob.master.state.views import HostId, Level, NodeView
from dljob.telemetry import reasons

DERIVED = {"derived": True}
"""Metadata of a field that follows from others: it is computed where a state is read, and written nowhere."""

RankKey: TypeAlias = tuple[str, int]
"""(role, rank)."""
SpareKey: TypeAlias = tuple[str, str, int]
"""(role, node, slot)."""


class Phase(StrEnum):
    """Where the job stands; the last four are final."""

    PENDING = "Pending"
    """Nothing is reserved yet."""
    SCHEDULING = "Scheduling"
    """Units are being reserved, or the first processes started."""
    RUNNING = "Running"
    RECOVERING = "Recovering"
    """At least one rank is being restarted."""
    STOPPING = "Stopping"
    """The verdict is known; processes and reservations go."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"
    """A person or a program ended the job: no failure."""
    SUSPENDED = "Suspended"
    """Nothing of this attempt is left; whoever suspended the job makes the next one."""

    @property
    def final(self) -> bool:
        """Whether the job is over, here at least."""
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED, Phase.SUSPENDED)

    @property
    def active(self) -> bool:
        """Whether ranks are started and restarted."""
        return self in (Phase.SCHEDULING, Phase.RUNNING, Phase.RECOVERING)


class RankPhase(StrEnum):
    """Where a rank stands."""

    WAITING = "Waiting"
    """It has no process and shall have one."""
    STARTING = "Starting"
    """Its start is ordered; `setup()` has not returned."""
    READY = "Ready"
    STOPPING = "Stopping"
    """Its end is ordered, to be started again."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    """It ended badly and a rule says to leave it so."""
    STOPPED = "Stopped"
    """It was ended because the job ends."""
    ABSENT = "Absent"  # its role has fewer ranks now

    @property
    def live(self) -> bool:
        """Whether it has a process."""
        return self in (RankPhase.STARTING, RankPhase.READY, RankPhase.STOPPING)


class HostPhase(StrEnum):
    """Where a worker host stands."""

    DOWN = "Down"
    SPAWNING = "Spawning"
    READY = "Ready"


class UnitPhase(StrEnum):
    """Where the reservation of a unit stands."""

    UNPLACED = "Unplaced"
    RESERVING = "Reserving"
    HELD = "Held"
    LOST = "Lost"
    """Its node is gone; it moves when a node can take it."""
    ABSENT = "Absent"  # its role has fewer ranks now, none of them in it

    @property
    def settled(self) -> bool:
        """Whether no place is looked for or awaited."""
        return self in (UnitPhase.HELD, UnitPhase.ABSENT)


class SparePhase(StrEnum):
    """Where a process spare stands."""

    SPAWNING = "Spawning"
    READY = "Ready"
    TAKEN = "Taken"
    """It is a host now, or was dismissed."""
    LOST = "Lost"
    """It could not be made, several times in a row: given up."""

    @property
    def alive(self) -> bool:
        """Whether it is a process that waits, or will be one."""
        return self in (SparePhase.SPAWNING, SparePhase.READY)


@dataclass(frozen=True, slots=True)
class RankState:
    """A rank. `since` is when its present process was ordered (unix seconds)."""

    phase: RankPhase = RankPhase.WAITING
    incarnation: int = 0
    pid: int = 0
    since: float = 0.0
    restart_reason: str = ""
    """Why it is started again; empty before the first start."""
    incident: int = 0
    """The incident that restarts it; 0: none."""
    goal: int | None = None
    """The step that an earlier process of it reached and this one has yet to reach; None: nothing is repeated."""
    stepped: bool = False
    """Whether it has told a step on its way there."""
    ready_at: float = 0.0
    """When its present process became ready (unix seconds); 0: it was not yet."""


@dataclass(frozen=True, slots=True)
class HostState:
    """A worker host. `actor` names the process that is it now; `past`, for a late kill, the last one that answered.

    `unconfirmed` are the processes it replaced, as (life, actor), whose kills nothing has yet proved to be carried out:
    the next master orders each of them again.
    """

    phase: HostPhase = HostPhase.DOWN
    life: int = 0
    since: float = 0.0
    """When its present process was ordered (unix seconds)."""
    node: str = ""
    pid: int = 0
    actor: str = ""
    past: str = ""
    devices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    log: str = ""
    address: str = ""
    slots: tuple[tuple[str, ...], ...] = ()  # by rank, as in HostReady
    unconfirmed: tuple[tuple[int, str], ...] = ()

    @property
    def replaced(self) -> tuple[tuple[int, str], ...]:
        """What `unconfirmed` becomes when another process takes the place of this one."""
        return (*self.unconfirmed, (self.life, self.actor)) if self.life else ()


@dataclass(frozen=True, slots=True)
class UnitState:
    """A unit: where it is held, and how often it was asked for."""

    phase: UnitPhase = UnitPhase.UNPLACED
    token: int = 0
    node: str = ""


def homeless_units(units: Map[str, UnitState]) -> Map[str, bool]:
    """The names of units without a place: those neither held nor absent. An index, so that no event scans all units."""
    return Map({name: True for name, unit in units.items() if not unit.phase.settled})


@dataclass(frozen=True, slots=True)
class SpareState:
    """A process spare. `failures` counts the times in a row that it could not be made."""

    phase: SparePhase
    life: int
    actor: str = ""
    pid: int = 0
    log: str = ""
    failures: int = 0


@dataclass(frozen=True, slots=True)
class RoleState:
    """A role: counts of its ranks by phase, and how far its start has come."""

    waiting: int
    starting: int = 0
    ready: int = 0
    stopping: int = 0
    succeeded: int = 0
    failed: int = 0
    stopped: int = 0
    absent: int = 0
    hosts_ready: int = 0
    """Hosts that can start ranks; the store is not one of them."""
    spawned: bool = False
    """Its hosts were ordered."""
    was_ready: bool = False
    """All its ranks were ready at once, or it completed: what `dependsOn: Ready` waits for."""
    hold: int = 0
    """Incidents that wait out their backoff; a torch world does not start while there is one."""
    generation: int = 0
    """Counts the starts of its torch world."""
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Incident:
    """A restart under way. It ends when all its members are ready again, or something larger takes it over."""

    level: Level
    role: str
    """Empty at job level."""
    target: str
    reason: str
    members: tuple[RankKey, ...]
    pending: int
    """Members that are not ready again and belong to no later incident."""
    detected: float
    due: float
    """When the restart may begin (backoff)."""
    deadline: float
    """When the next higher level is tried."""
    fresh: bool
    """Whether hosts whose process lives are replaced as well."""
    launched: bool = False
    stop_by: float | None = None
    """When hosts whose ranks were asked to end, and did not, are killed."""
    faults: tuple[int, ...] = ()
    """The faults that are recovered with it."""


@dataclass(frozen=True, slots=True)
class BudgetMark:
    """A failure or restart in a window: when, and on which node."""

    at: float
    node: str = ""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a node gets no units, from when, and until when (unix seconds)."""

    reason: str
    since: float
    until: float
    fence: float | None
    """Until when (unix seconds) old processes of the job may live there: no unit goes there before. None: it passed."""
    silent: bool = False
    """It does not answer; while that is so nothing ends the exclusion."""
    check: str = ""
    """What it failed in a check; empty: it failed none."""


@dataclass(frozen=True, slots=True)
class ErrorMemory:
    """The last end of a rank or world that nobody else is to blame for."""

    error_type: str
    frame: str
    step: int | None
    code: int | None = None
    at: float = 0.0
    ready: bool = False
    """Whether that life was ready before it ended."""
    short_lives: int = 0
    """How many lives in a row ended soon after their start, this one included."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the job ends, and its first cause."""

    ok: bool
    reason: str
    message: str
    at: float
    suspends: bool = False
    """Whether only the attempt ends: the job is to go on in the next one."""
    kill_at: float | None = None
    """When ranks that were asked to leave are ended."""
    release_at: float | None = None
    """When everything was ordered to be released, last."""

    @property
    def phase(self) -> Phase:
        """The final phase of a job with this verdict."""
        if self.ok:
            return Phase.SUCCEEDED
        if self.suspends:
            return Phase.SUSPENDED
        return Phase.STOPPED if self.reason == reasons.STOPPED else Phase.FAILED


@dataclass(frozen=True, slots=True)
class Search:
    """Looking for room: how often it was tried, when next, why not, and until when (unix seconds)."""

    attempt: int = 0
    retry_at: float | None = None
    why: str = ""
    deadline: float | None = None
    since: float | None = None
    """When there was no room, first."""
    final_at: float | None = None
    """When a job that these nodes could never hold fails, unless more have joined."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a role group sits: its node's rank, the local rank of its first rank, and the role's ranks on that node."""

    node_rank: int
    local_base: int
    local_world_size: int
    nodes: int = 0  # that the role is on; 0: of a snapshot from before it was kept


@dataclass(frozen=True, slots=True)
class JobState:
    """Everything. `version` counts the events that changed something."""

    job: Job = field(compare=False, repr=False)
    phase: Phase
    started_at: float
    search: Search
    roles: Map[str, RoleState]
    ranks: Map[RankKey, RankState]
    hosts: Map[HostId, HostState]
    units: Map[str, UnitState]
    spares: Map[SpareKey, SpareState] = field(default_factory=Map[SpareKey, SpareState])
    seats: Map[str, tuple[Seat, ...]] = field(default_factory=Map[str, tuple[Seat, ...]])  # per role, by group
    nodes: tuple[NodeView, ...] = ()
    nodes_seen: bool = False
    exclusions: Map[str, Exclusion] = field(default_factory=Map[str, Exclusion])  # by node id
    replaced: int = 0  # nodes that units were moved away from
    held: int = 0  # units held
    live: int = 0  # ranks with a process
    incidents: Map[int, Incident] = field(default_factory=Map[int, Incident])
    marks: Map[str, tuple[BudgetMark, ...]] = field(
        default_factory=Map[str, tuple[BudgetMark, ...]]
    )  # for budgets, by key
    errors: Map[RankKey, ErrorMemory] = field(default_factory=Map[RankKey, ErrorMemory])
    commands: Map[str, str] = field(default_factory=Map[str, str])  # those seen: id -> kind and target
    restarts: Map[str, int] = field(default_factory=Map[str, int])  # by level
    notices: Map[str, Notice] = field(default_factory=Map[str, Notice])  # by node id, or by rank as role/rank
    faults: tuple[FaultRecord, ...] = ()  # the last few, oldest first
    serial: int = 0  # numbers incidents and faults
    carried: bool = False  # whether it was told what the last attempt handed on
    verdict: Verdict | None = None
    running_at: float | None = None
    ended_at: float | None = None
    result: str = ""
    epoch: int = 0
    version: int = 0
    wake: float | None = None  # no timer is due before this; None: there is no timer
    ledger: Ledger = field(default_factory=Ledger)  # where the time of all ranks went
    checks: Map[str, RoleCheck] = field(default_factory=Map[str, RoleCheck])  # of nodes, by role
    departures: Map[str, Departure] = field(default_factory=Map[str, Departure])  # by node id
    saves: Map[str, Saves] = field(default_factory=Map[str, Saves])  # by world
    feeds: Map[str, ShardTable] = field(default_factory=Map[str, ShardTable])  # data sets, by name
    grants: Grants = field(default_factory=Grants)  # more memory
    sizes: Map[str, Sizing] = field(default_factory=Map[str, Sizing])  # of roles that may have another number of ranks
    groups: Map[str, tuple[str, str]] = field(default_factory=Map[str, tuple[str, str]])  # waiting: owner, why
    homeless: Map[str, bool] = field(default_factory=Map[str, bool], metadata=DERIVED)  # as homeless_units tells


@dataclass(frozen=True, slots=True)
class Step:
    """What a transition gives: the new state, what to do about it, and why in words."""

    state: JobState
    actions: tuple[Action, ...] = ()
    reason: str = ""
