"""The whole state of a job as frozen data: all that PrimeMaster knows, and all that its journal rebuilds.

Per-rank tables are persistent maps, and counts per role and phase are updated with each change instead of being counted
when asked for, so an event costs the same at 16 ranks and at 10,000.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from immutables import Map

from dljob.master.state.actions import Action
from dljob.master.state.checkpoint_ids import Saves
from dljob.master.state.cuts import Cuts
from dljob.master.state.faults import Departure, DomainMove, FaultRecord, HeldEnd, Notice, PeerInquiry
from dljob.master.state.job import Job
from dljob.master.state.ledger import Ledger
from dljob.master.state.memory_overrides import MemoryOverrides
from dljob.master.state.pairing import RoleCheck
from dljob.master.state.problems import StandingProblem
from dljob.master.state.shard_table import ShardTable
from dljob.master.state.sizing import Sizing
from dljob.master.state.stalls import Stall
from dljob.master.state.views import HostId, Level, NodeView
from dljob.master.state.weight_versions import PublishedWeights, RankWeights
from dljob.telemetry import reasons

DERIVED = {"derived": True}
"""Metadata of a field that follows from other fields: it is recomputed when a state is read, and never written."""

RankKey: TypeAlias = tuple[str, int]
"""(role, rank)."""
WHOLE_WORLD = -1
"""Stands for a rank in the key of a failure that counts for all ranks of a torch world."""
SpareKey: TypeAlias = tuple[str, str, int]
"""(role, node, slot)."""


class Phase(StrEnum):
    """Phase of the job; the last four are final."""

    PENDING = "Pending"
    """No unit is reserved yet; the job waits for room."""
    SCHEDULING = "Scheduling"
    """Units are being reserved, or the first processes are starting."""
    RUNNING = "Running"
    """All roles of the first wave were ready, and no restart is under way."""
    RECOVERING = "Recovering"
    """The job was running, and at least one rank is being restarted."""
    STOPPING = "Stopping"
    """The verdict is known; processes and reservations are being released."""
    SUCCEEDED = "Succeeded"
    """All driver roles completed."""
    FAILED = "Failed"
    """A failure ended the job: a budget, a rule, a deadline, or an error that would repeat."""
    STOPPED = "Stopped"
    """A user or a program stopped the job, which is no failure."""
    SUSPENDED = "Suspended"
    """This attempt is released; the job goes on in its next attempt when it is resumed."""

    @property
    def final(self) -> bool:
        """Whether the job is over; for a suspended job, whether this attempt is."""
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED, Phase.SUSPENDED)

    @property
    def active(self) -> bool:
        """Whether ranks may be started and restarted."""
        return self in (Phase.SCHEDULING, Phase.RUNNING, Phase.RECOVERING)


class RankPhase(StrEnum):
    """Phase of a rank."""

    WAITING = "Waiting"
    """The rank has no process and is to get one."""
    STARTING = "Starting"
    """Its start is ordered, but `setup()` has not returned."""
    READY = "Ready"
    """Its `setup()` returned, or its script was started; user code runs."""
    STOPPING = "Stopping"
    """Its process was asked to end, or to leave its torch group, in order to start again."""
    SUCCEEDED = "Succeeded"
    """Its user code returned; the rank is done unless its role or the job restarts."""
    FAILED = "Failed"
    """It failed, and a rule with the action Ignore leaves it so."""
    STOPPED = "Stopped"
    """It was ended because the job ends."""
    ABSENT = "Absent"
    """Its role shrank: the rank number exists no more until the role grows again."""

    @property
    def live(self) -> bool:
        """Whether the rank has a process."""
        return self in (RankPhase.STARTING, RankPhase.READY, RankPhase.STOPPING)


class HostPhase(StrEnum):
    """Phase of a worker host."""

    DOWN = "Down"
    """The host has no process, or its process was ordered to be killed."""
    SPAWNING = "Spawning"
    """Its actor is ordered and has not answered yet."""
    READY = "Ready"
    """Its actor answered, or a spare took its place: ranks can start in it."""


class UnitPhase(StrEnum):
    """Phase of a unit's reservation."""

    UNPLACED = "Unplaced"
    """The unit never had a node, or the first reservations of the job were given back."""
    RESERVING = "Reserving"
    """A placement group for it is ordered on a node."""
    HELD = "Held"
    """Its placement group exists."""
    LOST = "Lost"
    """It lost its node, or was given back, after the job was admitted; it moves when a node can take it."""
    ABSENT = "Absent"
    """Its role shrank, and none of the remaining ranks lives in it."""

    @property
    def settled(self) -> bool:
        """Whether the unit needs no place: it has one, or has no ranks."""
        return self in (UnitPhase.HELD, UnitPhase.ABSENT)

    @property
    def nowhere(self) -> bool:
        """Whether the unit neither holds nor awaits a reservation."""
        return self in (UnitPhase.UNPLACED, UnitPhase.LOST, UnitPhase.ABSENT)


class SparePhase(StrEnum):
    """Phase of a process spare."""

    SPAWNING = "Spawning"
    """Its process is ordered and has not answered yet."""
    READY = "Ready"
    """Its process has imported the role's modules and waits."""
    TAKEN = "Taken"
    """It became a host, or was dismissed; the slot is free for another spare."""
    LOST = "Lost"
    """It failed to come up several times in a row; no other is ordered for this slot."""

    @property
    def alive(self) -> bool:
        """Whether the spare is, or is about to be, a waiting process."""
        return self in (SparePhase.SPAWNING, SparePhase.READY)


CLUSTER_NOT_GIVEN_YET = "-"
"""`RankState.cluster` of a task whose address is known, and which was not given those of all others yet."""


@dataclass(frozen=True, slots=True)
class OwnFailure:
    """A failure of a rank's process that is its own. Items that it held may pay for it. `at` in unix seconds."""

    incarnation: int
    at: float
    cause: str


@dataclass(frozen=True, slots=True)
class RankState:
    """State of one rank. `process_ordered_at` is when its present process was ordered (unix seconds)."""

    phase: RankPhase = RankPhase.WAITING
    incarnation: int = 0
    pid: int = 0
    process_ordered_at: float = 0.0
    restart_reason: str = ""
    """Why the rank was restarted; empty before the first restart."""
    incident: int = 0
    """Number of the incident that restarts the rank; 0: none."""
    goal: int | None = None
    """Step that an earlier process reached and this one has yet to reach; None: no work is being repeated."""
    stepped: bool = False
    """Whether the present process reported a step below `goal`."""
    has_worked: bool = False
    """Whether the present process was heard to have done a step, a call or an item."""
    ready_at: float = 0.0
    """When the present process became ready (unix seconds); 0: it is not ready yet."""
    ended_at: float = 0.0
    """When the user code of the process that ended last ended well (unix seconds)."""
    end_step: int | None = None
    """Last step that this process reported; None: it reported none."""
    addresses: tuple[tuple[str, str], ...] = ()
    """(port name, host:port) of the present process, else of the last one."""
    serving: bool = False
    """Whether the present process gets requests, as far as its probes say."""
    cluster: str = ""
    """For a task of TensorFlow: the checksum of the cluster that its process was given; CLUSTER_NOT_GIVEN_YET before
    that, and empty until its own address is known."""
    hung_at: float = 0.0
    """When it was found to hang last (unix seconds): it is left standing where `hang.action` does not restart it."""
    calls_held: int = 0
    """How often its processes were told to keep calls of others waiting, as their weights are stale, and to serve them
    again, one after the other: an odd number while calls wait."""
    weights: RankWeights | None = None
    """The weights of the present process, for a role whose weights dljob loads; None: it has not loaded any."""
    own_failure: OwnFailure | None = None
    """The last failure of its own in a job with queues; None: there was none."""
    serves_after_end: bool = False
    """Whether its process, whose user code has ended well, goes on serving calls of other ranks."""

    @property
    def holds_calls(self) -> bool:
        """Whether calls of others wait, as its weights are stale."""
        return self.calls_held % 2 == 1


@dataclass(frozen=True, slots=True)
class HostState:
    """State of one worker host.

    `actor` names its present process; `previous_actor` names the last one that answered, in case it is killed late.
    `unconfirmed` lists replaced processes, as (incarnation, actor), whose kills are not yet proven to be carried out:
    the next epoch orders each of them again.
    """

    phase: HostPhase = HostPhase.DOWN
    incarnation: int = 0
    process_ordered_at: float = 0.0
    """When the present process was ordered (unix seconds)."""
    node: str = ""
    pid: int = 0
    actor: str = ""
    previous_actor: str = ""
    devices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    address: str = ""
    slots: tuple[tuple[str, ...], ...] = ()
    """Device ids of each rank, as in HostReady."""
    unconfirmed: tuple[tuple[int, str], ...] = ()

    @property
    def replaced(self) -> tuple[tuple[int, str], ...]:
        """The value of `unconfirmed` once another process replaces the present one."""
        return (*self.unconfirmed, (self.incarnation, self.actor)) if self.incarnation else ()


@dataclass(frozen=True, slots=True)
class UnitState:
    """State of one unit's reservation."""

    phase: UnitPhase = UnitPhase.UNPLACED
    token: int = 0
    """Count of reservations ordered for the unit; it tells a late answer from a current one."""
    node: str = ""
    """Node that holds it or is asked to."""


def homeless_units(units: Map[str, UnitState]) -> Map[str, bool]:
    """Return the units that need a place: neither held nor absent. An index, so that no event scans all units."""
    return Map({name: True for name, unit in units.items() if not unit.phase.settled})


def housed_units(units: Map[str, UnitState]) -> Map[str, tuple[str, ...]]:
    """Return node -> the units that it holds or is asked to. An index, so that no event scans all units."""
    units_by_node: dict[str, list[str]] = {}
    for name, unit in units.items():
        if unit.node:
            units_by_node.setdefault(unit.node, []).append(name)
    return Map({node: tuple(sorted(names)) for node, names in units_by_node.items()})


@dataclass(frozen=True, slots=True)
class SpareState:
    """State of one process spare. `failures` counts the consecutive attempts to create it that failed."""

    phase: SparePhase
    incarnation: int
    actor: str = ""
    pid: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class RoleState:
    """State of one role: the number of its ranks in each phase, and the progress of its start."""

    waiting_count: int
    starting_count: int = 0
    ready_count: int = 0
    stopping_count: int = 0
    succeeded_count: int = 0
    failed_count: int = 0
    stopped_count: int = 0
    absent_count: int = 0
    ready_host_count: int = 0
    """Number of hosts that can start ranks; the store host is not counted."""
    hosts_ordered: bool = False
    """Whether its hosts were ordered."""
    was_ready: bool = False
    """Whether all its ranks were ready at once, or it completed: the condition of `dependsOn: Ready`."""
    incidents_in_backoff: int = 0
    """Number of incidents that wait out their backoff; a torch world does not start while there is one."""
    generation: int = 0
    """Count of the starts of the role as a whole: of its torch world, or of an Elastic role without one."""
    restarts: int = 0
    newest: PublishedWeights | None = None
    """The newest version of the weights that its ranks load; None: none was published, or it loads none."""
    served_lag_s: float | None = None
    """Age of the earliest event new in the version that was loaded last, when its first rank had loaded it."""
    unserved: tuple[tuple[float, float], ...] = ()
    """(when it was published, the earliest time of its new events) of versions that no rank has loaded yet."""
    weights_left_at: float = 0.0
    """When the newest of the versions was published that were left when the job went back to a cut (unix seconds)."""
    failing_items_text: str = ""
    """Why its budget pays for failures of ranks that hold items, in words: a queue's items fail one after the other."""
    stop_by: float | None = None
    """Deadline of ranks that finish their requests before the role begins anew (unix seconds); None: there are none."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A restart under way. It ends when all members are ready again, or when a later incident takes them over.

    Times are unix seconds.
    """

    level: Level
    role: str
    """Role that restarts; empty at job level."""
    target: str
    """Target of the restart, as messages name it: "job", a role, or "<role>/<rank>"."""
    reason: str
    members: tuple[RankKey, ...]
    unready_count: int
    """Number of members that are not ready again and belong to no later incident."""
    detected_at: float
    backoff_until: float
    """End of the backoff, when the restart is launched."""
    deadline: float
    """When the restart counts as failed and the next larger level is tried."""
    replaces_hosts: bool
    """Whether hosts whose process lives are replaced as well."""
    is_backoff_over: bool = False
    """Whether the backoff is over and the members may start."""
    stop_by: float | None = None
    """When hosts are killed whose ranks were asked to end and did not."""
    fault_numbers: tuple[int, ...] = ()
    """Numbers of the faults that count as recovered when it ends."""


@dataclass(frozen=True, slots=True)
class BudgetMark:
    """A failure or restart that a budget counts: its time (unix seconds) and its node."""

    at: float
    node: str = ""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A node that gets no units. Times are unix seconds."""

    reason: str
    since: float
    until: float
    fence: float | None
    """Until when old processes of the job may live on the node: no unit goes there before. None: that time passed."""
    silent: bool = False
    """Whether the node still does not answer; as long as it does not, the exclusion does not end."""
    check: str = ""
    """Failed part of the node check; empty: the exclusion has another reason."""
    replaced: str = ""
    """Why the node is to be replaced, as the relauncher is told; empty: it may be used again, and is not replaced."""
    target: str = ""
    """How users know the node, which may be gone from the list of nodes: `pod/<name>`."""


@dataclass(frozen=True, slots=True)
class ErrorMemory:
    """The last failure of a rank or world that was its own, kept to recognize a repetition (`failure.repeats`)."""

    error_type: str
    frame: str
    step: int | None
    code: int | None = None
    at: float = 0.0
    was_ready: bool = False
    """Whether the process was ready before it ended."""
    short_incarnation_count: int = 0
    """Number of consecutive incarnations that ended soon after their start, this one included."""
    finished_count: int = 0
    """Of a hang: number of steps, calls and items that the process had finished."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of the job, with its first cause. Times are unix seconds."""

    ok: bool
    reason: str
    message: str
    at: float
    suspends: bool = False
    """Whether only this attempt ends and the job goes on in the next one."""
    kill_at: float | None = None
    """Deadline for ranks to leave, after which they are killed; None: no rank is waited for."""
    release_at: float | None = None
    """When the release was last ordered; None: not yet."""

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
    """The search for nodes with room. Times are unix seconds."""

    attempt: int = 0
    """Number of refused reservations, for the backoff."""
    retry_at: float | None = None
    """When the next attempt may be made; None: there is no backoff."""
    no_room_reason: str = ""
    """Why there is no room; empty: there is room, or no search is under way."""
    deadline: float | None = None
    """When the job fails because a lost unit found no room: the first of `until`."""
    since: float | None = None
    """When room was first found lacking."""
    final_at: float | None = None
    """When a job that the present nodes could never hold fails, unless more nodes join before."""
    never: bool = False
    """Whether that time is over, and the operator decides: it knows whether the RayCluster still gets nodes."""
    until: tuple[tuple[str, float], ...] = ()
    """(unit, when its own search ends) of each unit that was lost and is not held again."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Position of a role group among the role's nodes, in torchrun's terms."""

    node_rank: int
    local_base: int
    """Local rank of the group's first rank."""
    local_world_size: int
    """Number of the role's ranks on the group's node."""
    nodes: int
    """Number of nodes that the role spans."""


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of the job. `version` counts the events that changed anything but a timer.

    A comment beside a table names its key or says what it counts.
    """

    job: Job = field(compare=False, repr=False)
    phase: Phase
    started_at: float
    search: Search
    roles: Map[str, RoleState]
    # Ranks, hosts and units keep their rows when a role shrinks (phase Absent): their counts must go on.
    ranks: Map[RankKey, RankState]
    hosts: Map[HostId, HostState]
    units: Map[str, UnitState]
    spares: Map[SpareKey, SpareState] = field(default_factory=Map[SpareKey, SpareState])
    # Per role, by group; empty until the job is admitted.
    seats: Map[str, tuple[Seat, ...]] = field(default_factory=Map[str, tuple[Seat, ...]])
    nodes: tuple[NodeView, ...] = ()
    nodes_seen: bool = False
    exclusions: Map[str, Exclusion] = field(default_factory=Map[str, Exclusion])  # by node id
    replaced: int = 0  # count of nodes that units left, for the status
    held_unit_count: int = 0  # units held
    live_rank_count: int = 0  # ranks with a process
    incidents: Map[int, Incident] = field(default_factory=Map[int, Incident])
    marks: Map[str, tuple[BudgetMark, ...]] = field(
        default_factory=Map[str, tuple[BudgetMark, ...]]
    )  # failures and restarts that budgets count, by budget key
    last_errors: Map[RankKey, ErrorMemory] = field(
        default_factory=Map[RankKey, ErrorMemory]
    )  # of a torch world: rank -1
    # Every command seen, so that one that is sent again does nothing: id -> kind and target.
    commands: Map[str, str] = field(default_factory=Map[str, str])
    restarts: Map[str, int] = field(default_factory=Map[str, int])  # by level
    notices: Map[str, Notice] = field(default_factory=Map[str, Notice])  # by node id, or by rank as role/rank
    faults: tuple[FaultRecord, ...] = ()  # the last few, oldest first
    held_ends: Map[RankKey, HeldEnd] = field(default_factory=Map[RankKey, HeldEnd])  # of torch worlds
    inquiries: Map[str, PeerInquiry] = field(default_factory=Map[str, PeerInquiry])  # by role, one for its held ends
    serial: int = 0  # numbers incidents and faults
    carried: bool = False  # whether the state of the previous attempt was taken over
    verdict: Verdict | None = None
    running_at: float | None = None  # when the job first ran; it may be recovering now
    ended_at: float | None = None
    result: str = ""
    epoch: int = 0
    version: int = 0
    wake: float | None = None  # no timer is due before this; None: there is no timer
    ledger: Ledger = field(default_factory=Ledger)  # account of the time of all ranks
    checks: Map[str, RoleCheck] = field(default_factory=Map[str, RoleCheck])  # node checks, by role
    departures: Map[str, Departure] = field(default_factory=Map[str, Departure])  # by node id
    domain_move: DomainMove | None = None  # None: no servers finish before their units go to another domain
    saves: Map[str, Saves] = field(default_factory=Map[str, Saves])  # by world
    cuts: Cuts = field(default_factory=Cuts)
    feeds: Map[str, ShardTable] = field(default_factory=Map[str, ShardTable])  # data sets, by name
    memory_overrides: MemoryOverrides = field(default_factory=MemoryOverrides)  # memory raised above the spec's
    sizes: Map[str, Sizing] = field(default_factory=Map[str, Sizing])  # elastic roles, by role
    groups: Map[str, tuple[str, str]] = field(default_factory=Map[str, tuple[str, str]])  # by pending group: owner, why
    stalls: tuple[Stall, ...] = ()  # those that stand now, the oldest first
    problems: tuple[StandingProblem, ...] = ()  # those that stand now
    homeless: Map[str, bool] = field(default_factory=Map[str, bool], metadata=DERIVED)  # index, see homeless_units
    # Index, see housed_units.
    housed: Map[str, tuple[str, ...]] = field(default_factory=Map[str, tuple[str, ...]], metadata=DERIVED)
    stalled: Map[RankKey, float] = field(default_factory=Map[RankKey, float], metadata=DERIVED)  # see stalled_ranks


@dataclass(frozen=True, slots=True)
class Step:
    """Result of a transition: the new state, the actions to perform, and the reason in words, for the log."""

    state: JobState
    actions: tuple[Action, ...] = ()
    reason: str = ""
