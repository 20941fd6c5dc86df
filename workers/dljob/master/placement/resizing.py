"""Resizing: the number of ranks that a role can have on the present nodes, and the restart that gives it to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dljob.master.failure import ending
from dljob.master.failure.policy import own_level_or_process
from dljob.master.failure.restart import RestartOrder, begin_restart, kill_host, leave_restarts
from dljob.master.ledger.rules import micros
from dljob.master.placement import gaps
from dljob.master.start.assign import AssignedUnit, Assignment, Refusal, assign, nodes_with_room, spare_nodes
from dljob.master.start.local_ranks import seats_of
from dljob.master.start.reservations import assigned_units, note_domain_choices, reserve, unit_hosts, without_unit
from dljob.master.start.starting import is_role_completed
from dljob.master.state import ledger, memory_overrides
from dljob.master.state.actions import Unreserve
from dljob.master.state.evolve import evolve
from dljob.master.state.job import Job, RoleFacts
from dljob.master.state.sizing import Sizing
from dljob.master.state.state import HostState, Phase, RankKey, RankPhase, RankState, UnitPhase, UnitState
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Level
from dljob.plan.domains import Choice
from dljob.plan.quota import quota_units
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted

RESIZED = "Resized"
"""Restart reason of ranks whose world changed its size."""


@dataclass(frozen=True, slots=True)
class Resize:
    """New numbers of ranks by role, and the nodes of the units that have none yet."""

    sizes: Mapping[str, int]
    nodes: Mapping[str, str]
    domains: tuple[Choice, ...] = ()
    """Topology domains of these nodes that users are told of."""


def largest_sizes(tx: StateTransaction, roles: Sequence[str], *, spares: bool = False) -> Resize | Refusal:
    """Return the largest sizes of these roles with which every unit without a node finds one.

    All roles begin at their minimum, and are then enlarged by bisection in the given order: the first keep most.
    """
    sizes = {role: tx.facts(role).plan.min_replicas for role in roles}
    assignment = assign_resized(tx, sizes, spares=spares)
    for role in roles if isinstance(assignment, Assignment) else ():
        group = tx.facts(role).plan.group_size
        low, high = sizes[role] // group, tx.facts(role).plan.groups
        # Where a size fits, each smaller one does, so bisection finds the largest.
        while low < high:
            middle = (low + high + 1) // 2
            result = assign_resized(tx, {**sizes, role: middle * group}, spares=spares)
            if isinstance(result, Assignment):
                low, assignment = middle, result
            else:
                high = middle - 1
        sizes[role] = low * group
    return assignment if isinstance(assignment, Refusal) else Resize(sizes, assignment.nodes, assignment.domains)


def largest_size(tx: StateTransaction, role: str, upto: int) -> Resize:
    """Return the largest size of a role, up to `upto` ranks, that there is room for; found by bisection."""
    facts = tx.facts(role)
    group, low, high = facts.plan.group_size, facts.plan.groups, upto // facts.plan.group_size
    best = Resize({role: facts.plan.replicas}, {})
    # A fleet that lacks machines is asked at each change of any node, mostly without any room: a search for room looks
    # at all units of the job, this does not.
    if low >= high or not _has_roomy_node(tx, role):
        return best
    step = 1
    while low < high:
        # At first by steps that double: often there is room for one group, as one machine joined.
        middle = min(low + step, (low + high + 1) // 2)
        step *= 2
        tried = assign_grown(tx, role, middle * group)
        if tried is not None:
            low, best = middle, Resize({role: middle * group}, tried.nodes, tried.domains)
        else:
            high = middle - 1
    return best


def _has_roomy_node(tx: StateTransaction, role: str) -> bool:
    """Whether any node has enough free for one more group of a role, by sums of its resources alone."""
    facts = tx.facts(role)
    nodes = [node for node in tx.nodes if node.id not in tx.exclusions and node.id not in tx.departures]
    return bool(nodes_with_room(nodes, [tx.job.plan.units[f"{facts.series}/{facts.groups[0]}"]]))


def assign_grown(tx: StateTransaction, role: str, size: int) -> Assignment | None:
    """Return the nodes for a role that grows to `size` ranks; None: there is no room."""
    tried = assign_resized(tx, {role: size}, spares=True)
    return tried if isinstance(tried, Assignment) and _leaves_quotas(tx, {role: size}, tried) else None


def assign_resized(tx: StateTransaction, sizes: Mapping[str, int], *, spares: bool = False) -> Assignment | Refusal:
    """Return the nodes for all units that lack one, if roles had these sizes. `spares`: whether spare nodes stay free.

    A job that has not started also leaves room for its quotas, as at admission. A lost unit of another role whose ranks
    have all ended needs no node.
    """
    plan = gaps.resized_job(tx, sizes).plan
    quotas = quota_units(plan.roles) if tx.phase is Phase.PENDING else ()
    dropped_units = frozenset(name for role in sizes for name in _dropped_units(tx, role, sizes[role]))
    lacking = [name for name in plan.units if _lacks_node(tx, name, sizes)]
    barred = frozenset(tx.exclusions).union(tx.departures)
    nodes = {node.id: node for node in tx.nodes}
    # Units that the smaller size gives back make room on their nodes, which Ray's `free` does not show yet.
    for name in dropped_units:
        unit = tx.units[name]
        if unit.phase is UnitPhase.HELD and unit.node in nodes:
            holds = memory_overrides.unit_with_memory(
                tx.job.plan, name, memory_overrides.overrides_of_unit(tx.memory_overrides, name)
            )
            nodes[unit.node] = without_unit(nodes[unit.node], holds)
    result = assign(
        (*memory_overrides.units_with_memory(plan, tx.memory_overrides, lacking), *quotas),
        nodes.values(),
        excluded=barred,
        placed_units=[holder for holder in assigned_units(tx) if holder.unit.name not in dropped_units],
        reserve_nodes=spare_nodes(plan) if spares else None,
    )
    if isinstance(result, Refusal):
        return result
    return replace(result, nodes={name: result.nodes[name] for name in lacking})


def _lacks_node(tx: StateTransaction, name: str, sizes: Mapping[str, int]) -> bool:
    """Whether a unit needs a node when these roles are resized. All their ranks start anew, even finished ones."""
    phase = tx.units[name].phase if name in tx.units else UnitPhase.ABSENT
    if phase is not UnitPhase.LOST:
        return phase.nowhere
    return ending.has_unfinished_rank(tx, name) or any(role in sizes for role, _ in tx.job.plan.units[name].members)


def _leaves_quotas(tx: StateTransaction, sizes: Mapping[str, int], assignment: Assignment) -> bool:
    """Whether growing roles leave the quotas that frameworks (placement groups of their own) count on.

    A framework may or may not have taken its quota already, and `free` does not tell which. So the question is whether
    all quotas and all units would fit together on empty nodes.
    """
    quotas = {
        name: unit.plan for name, unit in tx.job.roles.items() if unit.plan.quota and not is_role_completed(tx, name)
    }
    if not quotas:
        return True
    plan = gaps.resized_job(tx, sizes).plan
    # On empty nodes every unit must be counted: those that are held, and those that are about to be.
    new = [
        AssignedUnit(unit, assignment.nodes[unit.name])
        for unit in memory_overrides.units_with_memory(plan, tx.memory_overrides, tuple(assignment.nodes))
    ]
    left_over = assign(
        quota_units(quotas),
        [replace(node, free=node.total) for node in tx.nodes],
        excluded=frozenset(tx.departures),
        placed_units=[replace(holder, counted=False) for holder in (*assigned_units(tx), *new)],
        reserve_nodes=spare_nodes(plan),
    )
    return isinstance(left_over, Assignment)


def _dropped_units(tx: StateTransaction, role: str, size: int) -> Iterable[str]:
    """Return the units that a role gives back when it has so many ranks."""
    facts = tx.facts(role)
    return gaps.units_without(facts, facts.groups, gaps.group_numbers(tx, role, size))


def start_with_fewer(tx: StateTransaction, reason: str) -> bool:
    """Admit a job that lacks room with fewer ranks of its elastic roles; return whether that is possible."""
    roles = [role for role in tx.job.roles if role in tx.sizes]
    change = largest_sizes(tx, roles, spares=True)
    before = {role: tx.facts(role) for role in roles}
    if isinstance(change, Refusal) or all(change.sizes[role] == facts.plan.replicas for role, facts in before.items()):
        return False
    # Units beyond the new size are given back by the old plan; then the smaller plan is the job's.
    after = gaps.resized_job(tx, change.sizes)
    for role, facts in before.items():
        _give_up_units(tx, facts, after.roles[role])
    tx.job = after
    for role, facts in before.items():
        new_size, old_size = change.sizes[role], facts.plan.replicas
        sizing = evolve(tx.sizes[role], size=new_size, shrink_at=None, resized=tx.now)
        sizing = evolve(sizing, left_groups=tx.facts(role).plan.gone)
        tx.sizes = tx.sizes.set(role, sizing)
        if new_size != old_size:
            tx.ledger = ledger.resize_role(tx.ledger, role, old_size, new_size, micros(tx, tx.now))
            message = f"it starts with {counted(new_size, 'rank')} instead of {old_size}: {reason}"
            tx.note(reasons.RESIZED, role, message)
    note_domain_choices(tx, change.domains)
    reserve(tx, dict(change.nodes))
    return True


def resize(tx: StateTransaction, change: Resize, reason: str, *, anew: bool) -> None:
    """Restart roles with other numbers of ranks; ranks of a fleet come or go alone, and the others run on.

    `anew`: it continues the restart that a loss began.
    """
    before = {role: tx.facts(role) for role, size in change.sizes.items() if size != tx.facts(role).plan.replicas}
    # The order matters: units are given back by the old plan, ranks and units are added by the new one, and the new
    # units are reserved before the restarts ask for their hosts.
    after = gaps.resized_job(tx, {role: change.sizes[role] for role in before})
    left_out = {role: _give_up_units(tx, facts, after.roles[role]) for role, facts in before.items()}
    tx.job = after
    for role, facts in before.items():
        _add_ranks(tx, role, facts)
        tx.ledger = ledger.resize_role(tx.ledger, role, facts.plan.replicas, change.sizes[role], micros(tx, tx.now))
    note_domain_choices(tx, change.domains)
    reserve(tx, dict(change.nodes))
    for role, facts in before.items():
        new_size, old_size = change.sizes[role], facts.plan.replicas
        sizing = tx.sizes[role]
        grown = tx.now if new_size > old_size else sizing.grown
        # The loss of a node is not put off by those who come or leave meanwhile: other units may come and go all day.
        shrink_at = sizing.shrink_at if facts.fleet and not anew else None
        coming = _coming_groups(sizing, facts, tx.facts(role))
        sizing = evolve(sizing, size=new_size, shrink_at=shrink_at, target=0, move_at=None, save_by=None, calls=())
        sizing = evolve(sizing, resized=tx.now, left_groups=tx.facts(role).plan.gone, coming=coming, grown=grown)
        tx.sizes = tx.sizes.set(role, evolve(sizing, all_leave_user_code=False, leaving=(), leave_by=None))
        tx.seats = tx.seats.set(role, seats_of(tx, role))
        dropped = f"; gone: {', '.join(f'{name}/{rank}' for name, rank in left_out[role])}" if left_out[role] else ""
        words = f"{counted(new_size, 'rank')} instead of {old_size}: {reason}{dropped if facts.fleet else ''}"
        tx.note(reasons.RESIZED, role, words)
        # Dropped ranks leave their incidents, which would otherwise wait for them for ever.
        if tx.facts(role).fleet:
            leave_restarts(tx, left_out[role])
        else:
            level = level_of(tx.job, role)
            begin_restart(
                tx, RestartOrder(level, role, (), RESIZED, words, dropped_ranks=left_out[role], is_continuation=anew)
            )
        for key in left_out[role]:
            tx.set_rank(key, evolve(tx.ranks[key], incident=0))
        if tx.facts(role).fleet:
            ending.advance_role_and_job(tx, role)


def leave_user_code(tx: StateTransaction, role: str, reason: str) -> None:
    """Have all ranks of a role leave user code and keep their processes; the new size is decided once all have left."""
    cause = f"all its ranks leave user code: {reason}"
    begin_restart(tx, RestartOrder(Level.IN_PROCESS, role, (), RESIZED, cause, decides_size_later=True))


def stay_in_size(tx: StateTransaction, role: str) -> None:
    """Restart, in its old size, a role whose ranks left for another size that has no room any longer."""
    begin_restart(
        tx,
        RestartOrder(Level.IN_PROCESS, role, (), RESIZED, "there is no room for more any longer", is_continuation=True),
    )


def level_of(job: Job, role: str) -> Level:
    """Return the restart level of a resize: InProcess for roles that also fail over so, else Role."""
    return Level.IN_PROCESS if own_level_or_process(job.roles[role]) is Level.IN_PROCESS else Level.ROLE


def _coming_groups(sizing: Sizing, before: RoleFacts, after: RoleFacts) -> tuple[int, ...]:
    """Return the groups of a fleet that no node has held yet, among them those that it just got."""
    if not after.fleet:
        return ()
    old_groups, coming = frozenset(before.groups), frozenset(sizing.coming)
    return tuple(group for group in after.groups if group not in old_groups or group in coming)


def _give_up_units(tx: StateTransaction, facts: RoleFacts, after: RoleFacts) -> tuple[RankKey, ...]:
    """Give up the units of a role that it has no longer; return the ranks that it drops."""
    for name in gaps.units_without(facts, facts.groups, after.groups):
        unit = tx.units[name]
        tx.do(Unreserve(name, unit.token))
        for host in unit_hosts(tx, name):
            kill_host(tx, host)
        # The token stays: a unit that comes back must not be mistaken for its earlier reservation.
        tx.set_unit(name, UnitState(UnitPhase.ABSENT, unit.token))
    stays = frozenset(after.ranks)
    keys = tuple((facts.plan.name, rank) for rank in facts.ranks if rank not in stays)
    # The ranks stay in the state: late events of theirs then match no later incarnation (ADR 42).
    for key in keys:
        tx.set_rank(key, evolve(tx.ranks[key], phase=RankPhase.ABSENT, pid=0))
    return keys


def _add_ranks(tx: StateTransaction, role: str, before: RoleFacts) -> None:
    """Add ranks to a role; a rank that it had before keeps its counts, so that old events stay stale."""
    facts = tx.facts(role)
    old_ranks = frozenset(before.ranks)
    for rank in [rank for rank in facts.ranks if rank not in old_ranks]:
        key, host = (role, rank), facts.host_of(rank)
        if key in tx.ranks:  # its incarnation goes on counting
            tx.set_rank(key, evolve(tx.ranks[key], phase=RankPhase.WAITING))
        else:
            tx.ranks = tx.ranks.set(key, RankState())
            tx.set_role(role, evolve(tx.roles[role], waiting_count=tx.roles[role].waiting_count + 1))
            tx.changes.ranks.add(key)
        if host not in tx.hosts:
            tx.hosts = tx.hosts.set(host, HostState())
    for name in gaps.units_without(facts, facts.groups, before.groups):
        token = tx.units[name].token if name in tx.units else 0
        tx.put_unit(name, UnitState(UnitPhase.LOST, token))
