"""Admission: reserving all units of a job or none, and finding new nodes for units that lost theirs.

Holding a part of a job while waiting for the rest could block another job that does the same. After admission a lost
unit alone is reserved again.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from itertools import filterfalse
from operator import attrgetter

from dljob.master.failure import ending, failover, moving
from dljob.master.failure.policy import Restart, own_level
from dljob.master.placement import resizing
from dljob.master.placement.exclusions import with_domains
from dljob.master.placement.failure_domains import domains
from dljob.master.start import checks
from dljob.master.start.assign import Assignment, Refusal, assign, roomy, spare_nodes
from dljob.master.start.local_ranks import seats_of
from dljob.master.start.reservations import assigned_units, reserve, tell_domains, unit_hosts
from dljob.master.start.spares import forget_node
from dljob.master.start.starting import completed, ensure_host, start_roles
from dljob.master.state import limits, memory_overrides
from dljob.master.state.actions import Unreserve
from dljob.master.state.events import NodesSeen, UnitRefused, UnitReserved
from dljob.master.state.evolve import evolve
from dljob.master.state.state import Phase, Search, UnitPhase, UnitState
from dljob.master.state.transaction import NodeDeparture, StateTransaction
from dljob.master.state.views import Level, Outcome, Reason
from dljob.plan.quota import quota_units
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted

_ID = attrgetter("id")


def nodes_seen(d: StateTransaction, event: NodesSeen) -> None:
    """Handle a changed list of nodes: give up the units of lost ones, and look for room."""
    labels = domains(d, d.nodes)
    # An equal list must not make a new version of the state.
    if event.nodes != d.nodes or not d.nodes_seen:
        d.nodes, d.nodes_seen = event.nodes, True
    if d.ending:
        return
    there = frozenset(map(_ID, event.nodes))
    # A node that is gone may have held spares without units: after a role shrank, or as a node that stands by.
    forget_node(d, frozenset(node for _, node, _ in d.spares) - there)
    # One pass in C: usually no node with units is gone, and no set of all of them is made.
    gone = frozenset(filterfalse(there.__contains__, d.housed))
    if gone:
        outcome = Outcome(ok=False, reason=Reason.NODE_LOST, message=f"{d.node_title(*gone)} is gone from Ray")
        d.note(reasons.NODE_LOST, "job", f"lost: {d.node_title(*gone)}")
        # Excluded nodes have been counted, and those that were announced to go did not fail.
        failed = gone.difference(d.exclusions, d.departures)
        also = with_domains(d, failed, {**labels, **domains(d, d.nodes)})
        leave(d, gone | also, outcome)
    try_to_place(d)


def try_to_place(d: StateTransaction, *, last: bool = False) -> None:
    """Try to place all units without a node, unless a backoff is under way.

    Units whose ranks have all ended come last: they reserve room that no other unit wants, in case they restart.

    `last`: the search ends with this attempt, so excluded nodes are used, even if the operator may still add others.
    """
    if not d.nodes_seen or d.ending:
        return
    if not last and d.search.retry_at is not None and d.now < d.search.retry_at:
        return
    if d.search.retry_at is not None:
        d.search = evolve(d.search, retry_at=None)
    excluded = frozenset(d.exclusions).union(d.departures)
    # Before admission all units are placed together or not at all; after it each lost unit is placed again.
    first = d.phase is Phase.PENDING
    names = tuple(name for name, own in d.units.items() if own.phase is UnitPhase.UNPLACED) if first else lost_units(d)
    if names:
        _place(d, names, excluded, last=last)
    if not first and d.held < d.job.unit_count:
        _leftover(d, excluded)


def lost_units(d: StateTransaction) -> tuple[str, ...]:
    """Return the units that lost their nodes and have unfinished ranks."""
    return tuple(n for n in d.homeless if d.units[n].phase is UnitPhase.LOST and ending.inhabited(d, n))


def _leftover(d: StateTransaction, excluded: frozenset[str]) -> None:
    """Place units whose ranks have ended, if all other units have a node and no role waits to grow."""
    names = tuple(name for name in d.homeless if d.units[name].phase is UnitPhase.LOST)
    short = any(own.size < own.want and not completed(d, role) for role, own in d.sizes.items())
    if not names or short or any(ending.inhabited(d, name) for name in names):
        return
    found = _room(d, names, excluded)
    if isinstance(found, Assignment):
        tell_domains(d, found.domains)
        reserve(d, {name: found.nodes[name] for name in sorted(names)})


def _place(d: StateTransaction, names: tuple[str, ...], excluded: frozenset[str], *, last: bool) -> None:
    """Reserve nodes for units, or wait for room."""
    found = _fitting(d, names, excluded)
    # Excluded nodes are a last resort: used at once on a cluster that nobody adds nodes to, else only at the end of the
    # wait. Silent, fenced and bad nodes, and those that are about to go, stay out even then.
    if isinstance(found, Refusal) and (last or not d.job.own_nodes):
        unfit = frozenset(
            n for n, own in d.exclusions.items() if own.silent or own.fence is not None or checks.barred(d, n)
        ).union(d.departures)
        again = _fitting(d, names, unfit) if unfit < excluded else found
        if isinstance(again, Assignment):
            _readmit(d, excluded.intersection(again.nodes.values()))
            found = again
    # Then a whole role may move to another topology domain.
    if isinstance(found, Refusal):
        found = moving.to_another_domain(d, names, excluded) or found
    elif moving.finished(d):
        d.moving = None
    if isinstance(found, Assignment):
        tell_domains(d, found.domains)
        reserve(d, {name: found.nodes[name] for name in sorted(found.nodes) if name in d.units})
    else:
        _no_room(d, found)


def _fitting(d: StateTransaction, names: tuple[str, ...], excluded: frozenset[str]) -> Assignment | Refusal:
    """Return an assignment of units with their raised memory, or where that finds no room, with the plan's memory.

    More memory must never keep a job from going on (docs/adr/0034).
    """
    found, full = _room(d, names, excluded), d.grants
    d.grants = memory_overrides.without(full, names)
    if isinstance(found, Assignment) or d.grants is full:
        d.grants = full
        return found
    less = _room(d, names, excluded)
    # Before admission, nodes as large as the job wants them may still be coming.
    waits = d.phase is Phase.PENDING and d.job.own_nodes and not _complete(d)
    if isinstance(less, Assignment) and not waits:
        d.note(
            reasons.MEMORY_INCREASE_SKIPPED, "job", f"there is no room for more memory than the spec says: {found.why}"
        )
        return less
    d.grants = full
    return found if waits else less


def _room(d: StateTransaction, names: tuple[str, ...], excluded: frozenset[str]) -> Assignment | Refusal:
    """Return an assignment of units, with their present memory, to nodes that are not excluded."""
    plan = d.job.plan
    units = memory_overrides.units_of(plan, d.grants, names)
    if d.phase is Phase.PENDING:
        # Spares stay free at admission only, since they exist for units that lose their nodes. Quotas likewise: later a
        # framework has taken its own.
        units = (*units, *quota_units(plan.roles))
        return assign(units, d.nodes, excluded=excluded, reserve_nodes=spare_nodes(plan))
    # The quick attempt looks at nodes with room and at units whose effect `free` does not show. Only if it fails, all
    # nodes and units are examined, for the words of the refusal.
    near = assign(units, roomy(d.nodes, units), excluded=excluded, taken=assigned_units(d, every=False))
    return near if isinstance(near, Assignment) else assign(units, d.nodes, excluded=excluded, taken=assigned_units(d))


def _readmit(d: StateTransaction, nodes: frozenset[str]) -> None:
    """End the exclusion of nodes that are needed."""
    for name in sorted(nodes):
        d.exclusions = d.exclusions.delete(name)
        d.note(reasons.NODE_READMITTED, f"node/{name}", "no other node has room for units that need one")


def _no_room(d: StateTransaction, refusal: Refusal) -> None:
    """Wait for nodes to change, or fail the job (or start it with fewer ranks) where waiting cannot help."""
    first = d.phase is Phase.PENDING
    since = d.search.since if d.search.since is not None else d.now
    never = first and refusal.never
    # At the job's start nodes may still be joining, so the verdict that they can never hold the job waits a little.
    final_at = since + limits.NODES_S if never and not d.job.own_nodes else None
    waited = never and final_at is not None and d.now >= final_at
    if waited or (never and _complete(d)):
        if d.sizes and resizing.start_with_fewer(d, refusal.why):
            return
        # On a RayCluster of somebody else's the operator sees whether KubeRay still starts workers, and ends the job.
        if d.job.spec.ray_cluster_ref is None:
            ending.fail(d, reasons.NEVER_FITS, refusal.why)
            return
        final_at = None
    why = refusal.why + checks.describe_excluded(d)
    if why != d.search.why:
        d.note(reasons.NO_ROOM, "job", why)
    search = evolve(d.search, why=why, since=since, final_at=final_at, never=waited, deadline=_deadline(d))
    if search != d.search:
        d.search = search
        for at in (final_at, search.deadline):
            if at is not None:
                d.wake_at(at)


def _complete(d: StateTransaction) -> bool:
    """Whether all nodes of the plan have joined; never on a RayCluster that is not the job's own."""
    planned = sum(group.replicas for group in d.job.plan.node_groups.values())
    return d.job.spec.ray_cluster_ref is None and sum(not node.head for node in d.nodes) >= planned


def _deadline(d: StateTransaction) -> float | None:
    """Return when the search for lost units ends (unix seconds); None before admission: other deadlines count then."""
    if not d.seats or d.search.deadline is not None:
        return d.search.deadline
    return d.now + d.job.fault_tolerance.node.pending_timeout_seconds


def _ends(d: StateTransaction) -> tuple[tuple[str, float], ...]:
    """Return (unit, when its search ends): a unit that is lost while others are looks for as long as they did.

    Otherwise a large job on nodes that come and go, in which some unit always looks for a node, would fail one day.
    """
    own = d.search
    begun = dict(own.until)
    # The units with which the search began share its deadline.
    at = d.now + d.job.fault_tolerance.node.pending_timeout_seconds if begun else own.deadline
    return tuple((name, begun.get(name, at or d.now)) for name in sorted(d.homeless) if ending.inhabited(d, name))


def give_up_waiting(d: StateTransaction) -> None:
    """Begin the search of the units anew whose time was over: they found a place, or their role goes on without."""
    until = tuple(each for each in d.search.until if each[1] > d.now)
    d.search = evolve(d.search, until=until, deadline=min((at for _, at in until), default=None))


def look_on(d: StateTransaction) -> None:
    """Look on, beyond the end of the search, for as long as servers finish whose units go to another domain."""
    own, by = d.search, d.moving.by if d.moving is not None and d.moving.by is not None else d.now
    d.search = evolve(own, until=tuple((name, max(at, by)) for name, at in own.until), deadline=by)


def follow_move(d: StateTransaction) -> None:
    """Go on once the servers have finished whose units were to go to another domain, or let them stay."""
    if d.moving is None or d.ending or not moving.finished(d):
        return
    if lost_units(d):
        try_to_place(d)
    else:  # the lost units are being reserved without this move: its servers stay
        d.moving = None


def overdue(d: StateTransaction) -> tuple[str, ...]:
    """Return the units without a node whose search is over."""
    late = {name for name, at in d.search.until if at <= d.now}
    return tuple(name for name in lost_units(d) if name in late or not d.search.until)


def place_overdue(d: StateTransaction) -> None:
    """Try to place the units whose search is over without those that may look on: all together have found no room."""
    names = overdue(d)
    if names and len(names) < len(lost_units(d)):
        _place(d, names, frozenset(d.exclusions).union(d.departures), last=True)


def reserved(d: StateTransaction, event: UnitReserved) -> None:
    """Record a held unit; with the last one of the job, roles start."""
    unit = d.units.get(event.unit)
    if unit is None or event.token > unit.token:
        return
    # The answer is late: the unit was given up meanwhile, so what Ray now holds must be given back.
    if event.token < unit.token or unit.phase.nowhere:
        d.do(Unreserve(event.unit, event.token))
        return
    if unit.phase is UnitPhase.HELD or d.phase is Phase.STOPPING:
        return
    d.set_unit(event.unit, evolve(unit, phase=UnitPhase.HELD, node=event.node))
    if d.held == d.job.unit_count:
        d.search = Search()
    if not d.seats:  # still the first admission
        if d.held == d.job.unit_count:
            _admitted(d)
        return
    if not _is_first(d, event.unit):
        d.note(reasons.UNIT_RESCHEDULED, event.unit, f"held on {d.node_title(event.node)}")
    # A moved unit changes the local and node ranks of its roles' other groups, too.
    for role, _ in d.job.plan.units[event.unit].members:
        d.seats = d.seats.set(role, seats_of(d, role))
    for host in unit_hosts(d, event.unit):
        ensure_host(d, host)


def _is_first(d: StateTransaction, unit: str) -> bool:
    """Return whether a unit is new, with ranks that a fleet just got: nothing of it was lost, and nothing moves."""
    members = d.job.plan.units[unit].members
    return any(group in d.sizes[role].coming for role, group in members if role in d.sizes)


def _admitted(d: StateTransaction) -> None:
    """Start the job: all units are held, so the seats of all roles are known."""
    for role in d.job.roles:
        d.seats = d.seats.set(role, seats_of(d, role))
    nodes = {unit.node for unit in d.units.values()}
    d.note(reasons.ADMITTED, "job", f"{counted(d.held, 'unit')} held on {counted(len(nodes), 'node')}")
    start_roles(d)


def refused(d: StateTransaction, event: UnitRefused) -> None:
    """Handle a refused reservation: before admission all units are given back, later only this one; then try again."""
    unit = d.units.get(event.unit)
    if unit is None or event.token != unit.token or unit.phase is not UnitPhase.RESERVING or d.ending:
        return
    if d.seats:
        d.do(Unreserve(event.unit, unit.token))
        d.set_unit(event.unit, UnitState(UnitPhase.LOST, unit.token))
        _with_less(d, event)
    else:
        _give_all_back(d)
    _back_off(d, f"{event.unit}: {event.why}")


def _with_less(d: StateTransaction, event: UnitRefused) -> None:
    """Drop the raised memory of a unit that was refused: it is reserved with the spec's memory next."""
    less = memory_overrides.without(d.grants, (event.unit,))
    if less is not d.grants:
        d.grants = less
        d.note(
            reasons.MEMORY_INCREASE_SKIPPED, event.unit, f"it is reserved with the spec's memory instead: {event.why}"
        )


def _give_all_back(d: StateTransaction) -> None:
    """Give back all units of a job that is not admitted."""
    for name, unit in sorted(d.units.items()):
        if unit.phase is not UnitPhase.ABSENT:
            d.do(Unreserve(name, unit.token))
            d.set_unit(name, UnitState(UnitPhase.UNPLACED, unit.token))
    d.phase = Phase.PENDING


def _back_off(d: StateTransaction, why: str) -> None:
    """Set the time of the next attempt: an exponential backoff with jitter."""
    attempt = d.search.attempt + 1
    wait = min(limits.ADMIT_BACKOFF_MAX_S, limits.ADMIT_BACKOFF_S * 2 ** min(attempt - 1, 10))
    wait *= 0.5 + _jitter(d.job.uid, attempt)
    d.search = evolve(d.search, attempt=attempt, retry_at=d.now + wait, why=why, deadline=_deadline(d))
    d.wake_at(d.now + wait)
    d.note(reasons.RESERVATION_REFUSED, "job", f"{why}; trying again in {wait:.1f} s")


def _jitter(uid: str, attempt: int) -> float:
    """Return a number from 0 to 1 that differs by job, so that jobs that block each other do not retry in step.

    It is a hash, because the core has no randomness: a replay must decide the same.
    """
    digest = blake2b(f"{uid}/{attempt}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") / 2**32


def leave(
    d: StateTransaction,
    gone: frozenset[str],
    outcome: Outcome,
    *,
    counts: bool | None = None,
    order: NodeDeparture | None = None,
) -> None:
    """Give up all units on nodes that are gone, frozen or replaced, and fail over their ranks.

    `counts`: whether the restarts use up budgets; None: the rules decide. `order`: the rule's order to leave, which
    says so itself.
    """
    forget_node(d, gone)
    names = sorted(name for node in gone for name in d.housed.get(node, ()))
    if not names:
        return
    # The job is not admitted: the gang is given back as a whole, and no rank has failed.
    if not d.seats:
        _give_all_back(d)
        _back_off(d, f"lost while reserving: {', '.join(sorted(gone))}")
        return
    d.replaced += len({d.units[name].node for name in names})
    # Asked for all roles before their ranks become WAITING below.
    begun = {role: failover.begun(d, role) for role in d.job.roles}
    lost = moving.give_up(d, names)
    if lost:
        d.count_restart(Level.NODE)
    if order is not None:
        _restart_by_rule(d, lost, order, begun)
        return
    for role in d.job.roles:
        if lost.get(role) and not d.ending:
            decided = None if counts is None else Restart(own_level(d.facts(role)), counts, "its node is left")
            ranks = tuple(lost[role])
            failover.failed(d, role, ranks, outcome, host_lost=True, begun=begun[role], decided=decided)


def _restart_by_rule(
    d: StateTransaction, lost: Mapping[str, list[int]], order: NodeDeparture, begun: Mapping[str, bool]
) -> None:
    """Restart the ranks (by role) whose node a rule said to leave. `begun`: the roles of which a rank had started."""
    culprit = order.failure.role, order.failure.rank
    # The culprit and its role come first: restarts of other roles follow from its fault.
    for role in sorted(d.job.roles, key=lambda name: name != culprit[0]):
        if lost.get(role) and not d.ending:
            ranks = tuple(sorted(lost[role], key=lambda rank: (role, rank) != culprit))
            failover.left(d, role, ranks, order, begun=begun[role])


def needed(d: StateTransaction) -> bool:
    """Whether a unit without a node has unfinished ranks."""
    return any(ending.inhabited(d, name) for name in d.homeless)


def follow(d: StateTransaction) -> None:
    """Update the search after an event: it ends when no rank needs a node, and begins when ended ranks start anew."""
    if not d.seats or d.ending or (d.units is d.base.units and d.incidents is d.base.incidents):
        return
    if d.search.deadline is None and lost_units(d):
        try_to_place(d)
    elif d.search.deadline is not None and (until := _ends(d)):
        if until != d.search.until:
            d.search = evolve(d.search, until=until, deadline=min(at for _, at in until))
            d.wake_at(min(at for _, at in until))
    elif not needed(d):
        own = d.search
        # With every unit held the backoff is over too; otherwise it goes on.
        rest = Search() if d.held == d.job.unit_count else Search(attempt=own.attempt, retry_at=own.retry_at)
        if own != rest:
            d.search = rest
