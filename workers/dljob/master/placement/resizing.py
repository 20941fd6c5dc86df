"""Resizing: the number of ranks that a role can have on the present nodes, and the restart that gives it to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dljob.master.failure import ending
from dljob.master.failure.policy import own_level
from dljob.master.failure.restart import RestartOrder, begin, kill, leave
from dljob.master.ledger.rules import micros
from dljob.master.placement import gaps
from dljob.master.start.assign import AssignedUnit, Assignment, Refusal, assign, roomy, spare_nodes
from dljob.master.start.local_ranks import seats_of
from dljob.master.start.reservations import assigned_units, reserve, tell_domains, unit_hosts, without_unit
from dljob.master.start.starting import completed
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


def fewer(d: StateTransaction, roles: Sequence[str], *, spares: bool = False) -> Resize | Refusal:
    """Return the largest sizes of these roles with which every unit without a node finds one.

    All roles begin at their minimum, and are then enlarged by bisection in the given order: the first keep most.
    """
    sizes = {role: d.facts(role).plan.min_replicas for role in roles}
    found = placed(d, sizes, spares=spares)
    for role in roles if isinstance(found, Assignment) else ():
        group = d.facts(role).plan.group_size
        low, high = sizes[role] // group, d.facts(role).plan.groups
        # Where a size fits, each smaller one does, so bisection finds the largest.
        while low < high:
            middle = (low + high + 1) // 2
            tried = placed(d, {**sizes, role: middle * group}, spares=spares)
            if isinstance(tried, Assignment):
                low, found = middle, tried
            else:
                high = middle - 1
        sizes[role] = low * group
    return found if isinstance(found, Refusal) else Resize(sizes, found.nodes, found.domains)


def more(d: StateTransaction, role: str, upto: int) -> Resize:
    """Return the largest size of a role, up to `upto` ranks, that there is room for; found by bisection."""
    facts = d.facts(role)
    group, low, high = facts.plan.group_size, facts.plan.groups, upto // facts.plan.group_size
    best = Resize({role: facts.plan.replicas}, {})
    # A fleet that lacks machines is asked at each change of any node, mostly without any room: a search for room looks
    # at all units of the job, this does not.
    if low >= high or not _has_roomy_node(d, role):
        return best
    step = 1
    while low < high:
        # At first by steps that double: often there is room for one group, as one machine joined.
        middle = min(low + step, (low + high + 1) // 2)
        step *= 2
        tried = fits(d, role, middle * group)
        if tried is not None:
            low, best = middle, Resize({role: middle * group}, tried.nodes, tried.domains)
        else:
            high = middle - 1
    return best


def _has_roomy_node(d: StateTransaction, role: str) -> bool:
    """Whether any node has enough free for one more group of a role, by sums of its resources alone."""
    facts = d.facts(role)
    nodes = [node for node in d.nodes if node.id not in d.exclusions and node.id not in d.departures]
    return bool(roomy(nodes, [d.job.plan.units[f"{facts.series}/{facts.groups[0]}"]]))


def fits(d: StateTransaction, role: str, size: int) -> Assignment | None:
    """Return the nodes for a role that grows to `size` ranks; None: there is no room."""
    tried = placed(d, {role: size}, spares=True)
    return tried if isinstance(tried, Assignment) and _leaves_quotas(d, {role: size}, tried) else None


def placed(d: StateTransaction, sizes: Mapping[str, int], *, spares: bool = False) -> Assignment | Refusal:
    """Return the nodes for all units that lack one, if roles had these sizes. `spares`: whether spare nodes stay free.

    A job that has not started also leaves room for its quotas, as at admission. A lost unit of another role whose ranks
    have all ended needs no node.
    """
    plan = gaps.sized(d, sizes).plan
    quotas = quota_units(plan.roles) if d.phase is Phase.PENDING else ()
    gone = frozenset(name for role in sizes for name in _dropped(d, role, sizes[role]))
    lacking = [name for name in plan.units if _lacks(d, name, sizes)]
    barred = frozenset(d.exclusions).union(d.departures)
    nodes = {node.id: node for node in d.nodes}
    # Units that the smaller size gives back make room on their nodes, which Ray's `free` does not show yet.
    for name in gone:
        own = d.units[name]
        if own.phase is UnitPhase.HELD and own.node in nodes:
            holds = memory_overrides.unit_of(d.job.plan, name, memory_overrides.given(d.grants, name))
            nodes[own.node] = without_unit(nodes[own.node], holds)
    found = assign(
        (*memory_overrides.units_of(plan, d.grants, lacking), *quotas),
        nodes.values(),
        excluded=barred,
        taken=[held for held in assigned_units(d) if held.unit.name not in gone],
        reserve_nodes=spare_nodes(plan) if spares else None,
    )
    return found if isinstance(found, Refusal) else replace(found, nodes={name: found.nodes[name] for name in lacking})


def _lacks(d: StateTransaction, name: str, sizes: Mapping[str, int]) -> bool:
    """Whether a unit needs a node when these roles are resized. All their ranks start anew, even finished ones."""
    phase = d.units[name].phase if name in d.units else UnitPhase.ABSENT
    if phase is not UnitPhase.LOST:
        return phase.nowhere
    return ending.inhabited(d, name) or any(role in sizes for role, _ in d.job.plan.units[name].members)


def _leaves_quotas(d: StateTransaction, sizes: Mapping[str, int], found: Assignment) -> bool:
    """Whether growing roles leave the quotas that frameworks (placement groups of their own) count on.

    A framework may or may not have taken its quota already, and `free` does not tell which. So the question is whether
    all quotas and all units would fit together on empty nodes.
    """
    quotas = {name: own.plan for name, own in d.job.roles.items() if own.plan.quota and not completed(d, name)}
    if not quotas:
        return True
    plan = gaps.sized(d, sizes).plan
    # On empty nodes every unit must be counted: those that are held, and those that are about to be.
    new = [
        AssignedUnit(unit, found.nodes[unit.name])
        for unit in memory_overrides.units_of(plan, d.grants, tuple(found.nodes))
    ]
    left_over = assign(
        quota_units(quotas),
        [replace(node, free=node.total) for node in d.nodes],
        excluded=frozenset(d.departures),
        taken=[replace(held, counted=False) for held in (*assigned_units(d), *new)],
        reserve_nodes=spare_nodes(plan),
    )
    return isinstance(left_over, Assignment)


def _dropped(d: StateTransaction, role: str, size: int) -> Iterable[str]:
    """Return the units that a role gives back when it has so many ranks."""
    facts = d.facts(role)
    return gaps.units(facts, facts.groups, gaps.numbers(d, role, size))


def start_with_fewer(d: StateTransaction, why: str) -> bool:
    """Admit a job that lacks room with fewer ranks of its elastic roles; return whether that is possible."""
    roles = [role for role in d.job.roles if role in d.sizes]
    made = fewer(d, roles, spares=True)
    before = {role: d.facts(role) for role in roles}
    if isinstance(made, Refusal) or all(made.sizes[role] == facts.plan.replicas for role, facts in before.items()):
        return False
    # Units beyond the new size are given back by the old plan; then the smaller plan is the job's.
    after = gaps.sized(d, made.sizes)
    for role, facts in before.items():
        _give_up_units(d, facts, after.roles[role])
    d.job = after
    for role, facts in before.items():
        have, had = made.sizes[role], facts.plan.replicas
        own = evolve(d.sizes[role], size=have, shrink_at=None, resized=d.now, gone=d.facts(role).plan.gone)
        d.sizes = d.sizes.set(role, own)
        if have != had:
            d.ledger = ledger.resized(d.ledger, role, had, have, micros(d, d.now))
            d.note(reasons.RESIZED, role, f"it starts with {counted(have, 'rank')} instead of {had}: {why}")
    tell_domains(d, made.domains)
    reserve(d, dict(made.nodes))
    return True


def resize(d: StateTransaction, made: Resize, why: str, *, anew: bool) -> None:
    """Restart roles with other numbers of ranks; ranks of a fleet come or go alone, and the others run on.

    `anew`: it continues the restart that a loss began.
    """
    before = {role: d.facts(role) for role, size in made.sizes.items() if size != d.facts(role).plan.replicas}
    # The order matters: units are given back by the old plan, ranks and units are added by the new one, and the new
    # units are reserved before the restarts ask for their hosts.
    after = gaps.sized(d, {role: made.sizes[role] for role in before})
    left_out = {role: _give_up_units(d, facts, after.roles[role]) for role, facts in before.items()}
    d.job = after
    for role, facts in before.items():
        _add(d, role, facts)
        d.ledger = ledger.resized(d.ledger, role, facts.plan.replicas, d.facts(role).plan.replicas, micros(d, d.now))
    tell_domains(d, made.domains)
    reserve(d, dict(made.nodes))
    for role, facts in before.items():
        have, had = d.facts(role).plan.replicas, facts.plan.replicas
        own = d.sizes[role]
        grown = d.now if have > had else own.grown
        # The loss of a node is not put off by those who come or leave meanwhile: other units may come and go all day.
        shrink_at = own.shrink_at if facts.fleet and not anew else None
        settled = evolve(own, size=have, shrink_at=shrink_at, target=0, move_at=None, save_by=None, resized=d.now)
        settled = evolve(settled, gone=d.facts(role).plan.gone, calls=(), coming=_coming(own, facts, d.facts(role)))
        d.sizes = d.sizes.set(role, evolve(settled, grown=grown, parting=False, leaving=(), leave_by=None))
        d.seats = d.seats.set(role, seats_of(d, role))
        words = f"{counted(have, 'rank')} instead of {had}: {why}{_told(left_out[role]) if facts.fleet else ''}"
        d.note(reasons.RESIZED, role, words)
        # Dropped ranks leave their incidents, which would otherwise wait for them for ever.
        if d.facts(role).fleet:
            leave(d, left_out[role])
        else:
            level = level_of(d.job, role)
            begin(d, RestartOrder(level, role, (), RESIZED, words, leaving=left_out[role], without_fault=anew))
        for key in left_out[role]:
            d.set_rank(key, evolve(d.ranks[key], incident=0))
        if d.facts(role).fleet:
            ending.role_changed(d, role)


def leave_user_code(d: StateTransaction, role: str, why: str) -> None:
    """Have all ranks of a role leave user code and keep their processes; the new size is decided once all have left."""
    begin(d, RestartOrder(Level.IN_PROCESS, role, (), RESIZED, f"all its ranks leave user code: {why}", gathers=True))


def stay(d: StateTransaction, role: str) -> None:
    """Restart, in its old size, a role whose ranks left for another size that has no room any longer."""
    begin(
        d, RestartOrder(Level.IN_PROCESS, role, (), RESIZED, "there is no room for more any longer", without_fault=True)
    )


def level_of(job: Job, role: str) -> Level:
    """Return the restart level of a resize: InProcess for roles that also fail over so, else Role."""
    return Level.IN_PROCESS if own_level(job.roles[role]) is Level.IN_PROCESS else Level.ROLE


def _coming(own: Sizing, before: RoleFacts, after: RoleFacts) -> tuple[int, ...]:
    """Return the groups of a fleet that no node has held yet, among them those that it just got."""
    if not after.fleet:
        return ()
    had, coming = frozenset(before.groups), frozenset(own.coming)
    return tuple(group for group in after.groups if group not in had or group in coming)


def _told(gone: Sequence[RankKey]) -> str:
    """Return the ranks that are gone, in words."""
    return f"; gone: {', '.join(f'{role}/{rank}' for role, rank in gone)}" if gone else ""


def _give_up_units(d: StateTransaction, facts: RoleFacts, after: RoleFacts) -> tuple[RankKey, ...]:
    """Give up the units of a role that it has no longer; return the ranks that it drops."""
    for name in gaps.units(facts, facts.groups, after.groups):
        own = d.units[name]
        d.do(Unreserve(name, own.token))
        for host in unit_hosts(d, name):
            kill(d, host)
        # The token stays: a unit that comes back must not be mistaken for its earlier reservation.
        d.set_unit(name, UnitState(UnitPhase.ABSENT, own.token))
    stays = frozenset(after.ranks)
    keys = tuple((facts.plan.name, rank) for rank in facts.ranks if rank not in stays)
    # The ranks stay in the state: late events of theirs then match no later incarnation (ADR 42).
    for key in keys:
        d.set_rank(key, evolve(d.ranks[key], phase=RankPhase.ABSENT, pid=0))
    return keys


def _add(d: StateTransaction, role: str, before: RoleFacts) -> None:
    """Add ranks to a role; a rank that it had before keeps its counts, so that old events stay stale."""
    facts = d.facts(role)
    there = frozenset(before.ranks)
    for rank in [rank for rank in facts.ranks if rank not in there]:
        key, host = (role, rank), facts.host_of(rank)
        if key in d.ranks:  # its incarnation goes on counting
            d.set_rank(key, evolve(d.ranks[key], phase=RankPhase.WAITING))
        else:
            d.ranks = d.ranks.set(key, RankState())
            d.set_role(role, evolve(d.roles[role], waiting=d.roles[role].waiting + 1))
            d.touched.ranks.add(key)
        if host not in d.hosts:
            d.hosts = d.hosts.set(host, HostState())
    for name in gaps.units(facts, facts.groups, before.groups):
        token = d.units[name].token if name in d.units else 0
        d.put_unit(name, UnitState(UnitPhase.LOST, token))
