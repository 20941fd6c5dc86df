"""A mutable copy of the state for one transition: the one place where counts are kept in step with what they count."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import compress
from operator import attrgetter, is_not
from types import NoneType
from typing import cast

from immutables import Map

from dljob.master.state.actions import Action, Note
from dljob.master.state.checkpoint_ids import Saves
from dljob.master.state.cuts import Cuts
from dljob.master.state.evolve import evolve
from dljob.master.state.faults import Departure, DomainMove, Failure, FaultRecord, HeldEnd, Notice, PeerInquiry
from dljob.master.state.job import Job, RoleFacts
from dljob.master.state.ledger import Ledger
from dljob.master.state.memory_overrides import MemoryOverrides
from dljob.master.state.node_names import in_words, node_targets
from dljob.master.state.pairing import RoleCheck
from dljob.master.state.problems import StandingProblem
from dljob.master.state.shard_table import ShardTable
from dljob.master.state.sizing import Sizing
from dljob.master.state.stalls import Stall
from dljob.master.state.state import (
    BudgetMark,
    ErrorMemory,
    Exclusion,
    HostPhase,
    HostState,
    Incident,
    JobState,
    Phase,
    RankKey,
    RankPhase,
    RankState,
    RoleState,
    Search,
    Seat,
    SpareKey,
    SpareState,
    UnitPhase,
    UnitState,
    Verdict,
)
from dljob.master.state.views import HostId, Level, NodeView

_COUNTER = {
    RankPhase.WAITING: "waiting_count",
    RankPhase.STARTING: "starting_count",
    RankPhase.READY: "ready_count",
    RankPhase.STOPPING: "stopping_count",
    RankPhase.SUCCEEDED: "succeeded_count",
    RankPhase.FAILED: "failed_count",
    RankPhase.STOPPED: "stopped_count",
    RankPhase.ABSENT: "absent_count",
}
# The status shows these; older faults are in the timeline only.
_RECENT_FAULTS = 10
_FIELDS = tuple(entry.name for entry in fields(JobState))
_values: Callable[[object], tuple[object, ...]] = attrgetter(*_FIELDS)
# The slots' own setters: a frozen dataclass's `__init__` takes twice as long for as many fields.
_PUTS = tuple(getattr(JobState, name).__set__ for name in _FIELDS)
_put_version: Callable[[JobState, int], None] = _PUTS[_FIELDS.index("version")]
# Fields whose change is no new version: a timer alone is none, and the last three follow from other fields.
_SILENT = frozenset(("job", "started_at", "version", "wake", "homeless", "housed", "stalled"))
_PLAIN = (str, int, float, NoneType)


@dataclass(frozen=True, slots=True)
class NodeDeparture:
    """A rule's order to leave a node for the failure of a rank there."""

    failure: Failure
    culprit_name: str
    """Name of what failed: the rank, or its role's torch store."""
    explanation: str
    """The failure in one line, and the rule."""
    uses_budget: bool
    """Whether the restarts that follow from it use up budgets."""


@dataclass(frozen=True, slots=True)
class TransactionChanges:
    """The ranks, roles and spares whose ledger account may have changed in this transition.

    It bounds the ledger's work by what an event touched, not by the size of the job.
    """

    ranks: set[RankKey] = field(default_factory=set[RankKey])
    roles: set[str] = field(default_factory=set[str])
    spares: set[SpareKey] = field(default_factory=set[SpareKey])
    resumed_ranks: set[RankKey] = field(default_factory=set[RankKey])
    """Ranks of a stall that ended by itself: what it took goes back to the account that they had before it."""
    first_work_at: dict[RankKey, float] = field(default_factory=dict[RankKey, float])
    """Rank -> when its process did its first work (unix seconds), where this transition learns of it."""


class StateTransaction:
    """A mutable copy of a state for the length of one transition, with the actions decided so far."""

    # The fields of JobState, with its types: `__init__` copies them, and `freeze` makes the next state of them.
    job: Job
    started_at: float
    phase: Phase
    search: Search
    roles: Map[str, RoleState]
    ranks: Map[RankKey, RankState]
    hosts: Map[HostId, HostState]
    units: Map[str, UnitState]
    spares: Map[SpareKey, SpareState]
    seats: Map[str, tuple[Seat, ...]]
    nodes: tuple[NodeView, ...]
    nodes_seen: bool
    exclusions: Map[str, Exclusion]
    replaced: int
    held_unit_count: int
    live_rank_count: int
    incidents: Map[int, Incident]
    marks: Map[str, tuple[BudgetMark, ...]]
    last_errors: Map[RankKey, ErrorMemory]
    commands: Map[str, str]
    restarts: Map[str, int]
    notices: Map[str, Notice]
    faults: tuple[FaultRecord, ...]
    held_ends: Map[RankKey, HeldEnd]
    inquiries: Map[str, PeerInquiry]
    serial: int
    carried: bool
    verdict: Verdict | None
    running_at: float | None
    ended_at: float | None
    result: str
    epoch: int
    wake: float | None
    ledger: Ledger
    checks: Map[str, RoleCheck]
    saves: Map[str, Saves]
    cuts: Cuts
    feeds: Map[str, ShardTable]
    departures: Map[str, Departure]
    domain_move: DomainMove | None
    memory_overrides: MemoryOverrides
    sizes: Map[str, Sizing]
    groups: Map[str, tuple[str, str]]
    stalls: tuple[Stall, ...]
    problems: tuple[StandingProblem, ...]
    homeless: Map[str, bool]
    housed: Map[str, tuple[str, ...]]
    stalled: Map[RankKey, float]
    version: int

    def __init__(self, state: JobState, now: float) -> None:
        self._before = _values(state)
        self.__dict__.update(zip(_FIELDS, self._before, strict=True))
        self.base = state
        self.now = now
        self.actions: list[Action] = []
        self.reasons: list[str] = []
        self.node_departures: dict[str, NodeDeparture] = {}
        """Nodes that a rule says to leave. They are left once, after the event's handler (`nodes.leave_by_rule`)."""
        self.changes = TransactionChanges()
        self._mutated = False

    def freeze(self) -> JobState:
        """Return the new state; the old object itself when nothing changed. A timer alone is no new version."""
        values = _values(self)
        changed = self._changed(values)
        if not changed and self.wake == self.base.wake:
            return self.base
        state = object.__new__(JobState)
        for put_field, value in zip(_PUTS, values, strict=True):
            put_field(state, value)
        if changed:
            _put_version(state, self.base.version + 1)
        return state

    def _changed(self, values: tuple[object, ...]) -> bool:
        """Whether anything but a timer changed. A changed table is another object; a scalar may be an equal one."""
        # Nearly all fields are the same object in each event: no Python code runs for these.
        others = compress(zip(_FIELDS, self._before, values, strict=True), map(is_not, self._before, values))
        return any(name not in _SILENT and (not isinstance(new, _PLAIN) or old != new) for name, old, new in others)

    @property
    def ending(self) -> bool:
        """Whether the verdict is known, so that nothing is to be started any more."""
        return self.verdict is not None

    @property
    def was_admitted(self) -> bool:
        """Whether all units had a place at once: the job has seats from then on."""
        return bool(self.seats)

    def facts(self, role: str) -> RoleFacts:
        """Return the constants of a role."""
        return self.job.roles[role]

    def do(self, *actions: Action) -> None:
        """Append actions to the orders of this transition."""
        self.actions.extend(actions)

    def note(self, reason: str, target: str, message: str, *, level: str = "", seconds: float | None = None) -> None:
        """Add a line to the timeline, and to PrimeMaster's log."""
        target = self.shown_target(target)
        self.actions.append(Note(reason, target, message, level, seconds))
        self.reasons.append(f"{reason} {target}: {message}")

    def shown_target(self, target: str) -> str:
        """Return the target of an event as users know it: `node/<Ray's id>` becomes that node's pod or name."""
        kind, _, node = target.partition("/")
        return self._node_targets(node)[node] if kind == "node" else target

    def node_title(self, *nodes: str) -> str:
        """Return nodes in words as users know them, the lost ones of this transition included: `pod a, b`."""
        return in_words(self._node_targets(*nodes).values())

    def node_names(self, nodes: Iterable[str]) -> list[str]:
        """Return the names by which users know these nodes, in this order."""
        ids = tuple(nodes)
        targets = self._node_targets(*ids)
        return [targets[node].partition("/")[2] for node in ids]

    def _node_targets(self, *nodes: str) -> dict[str, str]:
        views = self.nodes if self.nodes is self.base.nodes else (*self.base.nodes, *self.nodes)
        return node_targets(nodes, views, self.base.exclusions)

    def because(self, explanation: str) -> None:
        """Record why something was decided in PrimeMaster's log only, not in the timeline."""
        self.reasons.append(explanation)

    def wake_at(self, deadline: float) -> None:
        """Ask for a Tick at this time (unix seconds) at the latest."""
        if self.wake is None or deadline < self.wake:
            self.wake = deadline

    @contextmanager
    def batch_changes(self) -> Generator[None]:
        """Batch changes of ranks and hosts into one mutation of each map: a third of the cost of single changes.

        Inside, the maps can be read by key and set, but not iterated.
        """
        if self._mutated:  # the outermost block finishes the mutation
            yield
            return
        self._mutated = True
        # A mutation is no Map, hence the casts: inside the block only the methods that both have are called.
        ranks, hosts = self.ranks.mutate(), self.hosts.mutate()
        self.ranks = cast("Map[RankKey, RankState]", ranks)
        self.hosts = cast("Map[HostId, HostState]", hosts)
        yield
        self.ranks, self.hosts, self._mutated = ranks.finish(), hosts.finish(), False

    def set_rank(self, key: RankKey, new_state: RankState) -> None:
        """Replace a rank, and update its role's counts and the count of live ranks."""
        old_state = self.ranks[key]
        if old_state.phase is not new_state.phase:
            role = self.roles[key[0]]
            old_counter, new_counter = _COUNTER[old_state.phase], _COUNTER[new_state.phase]
            counts = {old_counter: getattr(role, old_counter) - 1, new_counter: getattr(role, new_counter) + 1}
            self.roles = self.roles.set(key[0], evolve(role, **counts))
            self.live_rank_count += new_state.phase.live - old_state.phase.live
        self.ranks = self.ranks.set(key, new_state) or self.ranks  # `MapMutation.set` returns None and changes in place
        self.changes.ranks.add(key)

    def set_host(self, host: HostId, new: HostState) -> None:
        """Replace a host, and update its role's count of ready hosts."""
        if host.index >= 0:
            for rank in self.job.roles[host.role].ranks_of(host.index):
                self.changes.ranks.add((host.role, rank))
        change = (new.phase is HostPhase.READY) - (self.hosts[host].phase is HostPhase.READY)
        if change and host.index >= 0:
            role = self.roles[host.role]
            self.roles = self.roles.set(host.role, evolve(role, ready_host_count=role.ready_host_count + change))
        self.hosts = self.hosts.set(host, new) or self.hosts

    def set_unit(self, name: str, new: UnitState) -> None:
        """Replace a unit, and update the count of held units and the index of those without a place."""
        self.held_unit_count += (new.phase is UnitPhase.HELD) - (self.units[name].phase is UnitPhase.HELD)
        self.put_unit(name, new)
        # Before admission the account of a rank does not depend on its own unit.
        if self.was_admitted:
            for role, group in self.job.plan.units[name].members:
                self.changes.ranks.update((role, rank) for rank in self.job.roles[role].group_ranks(group))

    def put_unit(self, name: str, new: UnitState) -> None:
        """Replace a unit, or add one that is not held, and update the indices: units without a place, and by node."""
        old = self.units.get(name)
        self.units = self.units.set(name, new)
        old_node = "" if old is None else old.node
        if old_node != new.node:
            self._move(name, old_node, new.node)
        if new.phase.settled == (name in self.homeless):
            self.homeless = self.homeless.delete(name) if new.phase.settled else self.homeless.set(name, True)

    def _move(self, unit: str, old_node: str, new_node: str) -> None:
        """Update the index of units by node."""
        if old_node:
            others = tuple(name for name in self.housed[old_node] if name != unit)
            self.housed = self.housed.set(old_node, others) if others else self.housed.delete(old_node)
        if new_node:
            self.housed = self.housed.set(new_node, tuple(sorted((*self.housed.get(new_node, ()), unit))))

    def set_role(self, role: str, new: RoleState) -> None:
        """Replace a role's own fields."""
        self.changes.roles.add(role)
        self.roles = self.roles.set(role, new)

    def set_spare(self, key: SpareKey, new: SpareState | None) -> None:
        """Replace a spare; None: forget it."""
        self.spares = self.spares.delete(key) if new is None else self.spares.set(key, new)
        self.changes.spares.add(key)

    def next_serial(self) -> int:
        """Return a number that no incident and no fault had before."""
        self.serial += 1
        return self.serial

    def add_fault(self, level: Level, reason: str, target: str, cause: str) -> int:
        """Record a fault and return its number."""
        number = self.next_serial()
        self.append_fault(FaultRecord(number, level.value, reason, target, cause, self.now))
        return number

    def append_fault(self, fault: FaultRecord) -> None:
        """Record a fault, and forget the oldest one beyond the limit."""
        self.faults = (*self.faults, fault)[-_RECENT_FAULTS:]

    def recover_faults(self, numbers: Iterable[int]) -> None:
        """Mark faults as recovered now."""
        fault_numbers = frozenset(numbers)
        if not fault_numbers:
            return  # an equal tuple would count as a change of the state
        self.faults = tuple(evolve(f, recovered_at=self.now) if f.id in fault_numbers else f for f in self.faults)

    def count_restart(self, level: Level, *roles: str) -> None:
        """Count a restart of a level once, and for each of the roles whose ranks restart, where they are named."""
        self.restarts = self.restarts.set(level.value, self.restarts.get(level.value, 0) + 1)
        for role in roles:
            state = self.roles[role]
            self.set_role(role, evolve(state, restarts=state.restarts + 1))
