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
from dljob.master.failure.policy import Restart, own_level_or_process
from dljob.master.placement import resizing
from dljob.master.placement.exclusions import with_domains
from dljob.master.placement.failure_domains import domains
from dljob.master.start import checks, spares
from dljob.master.start.assign import Assignment, Refusal, assign, nodes_with_room, spare_nodes
from dljob.master.start.local_ranks import seats_of
from dljob.master.start.reservations import assigned_units, note_domain_choices, reserve, unit_hosts
from dljob.master.start.starting import give_host_process_if_needed, is_role_completed, start_roles
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


def handle_seen_nodes(tx: StateTransaction, event: NodesSeen) -> None:
    """Handle a changed list of nodes: give up the units of lost ones, and look for room."""
    labels = domains(tx, tx.nodes)
    # An equal list must not make a new version of the state.
    if event.nodes != tx.nodes or not tx.nodes_seen:
        tx.nodes, tx.nodes_seen = event.nodes, True
    if tx.ending:
        return
    present_ids = frozenset(map(_ID, event.nodes))
    # A node that is gone may have held spares without units: after a role shrank, or as a node that stands by.
    spares.forget_spares_of_nodes(tx, frozenset(node for _, node, _ in tx.spares) - present_ids)
    # One pass in C: usually no node with units is gone, and no set of all of them is made.
    lost_nodes = frozenset(filterfalse(present_ids.__contains__, tx.housed))
    if lost_nodes:
        outcome = Outcome(ok=False, reason=Reason.NODE_LOST, message=f"{tx.node_title(*lost_nodes)} is gone from Ray")
        tx.note(reasons.NODE_LOST, "job", f"lost: {tx.node_title(*lost_nodes)}")
        # Excluded nodes have been counted, and those that were announced to go did not fail.
        failed = lost_nodes.difference(tx.exclusions, tx.departures)
        domain_mates = with_domains(tx, failed, {**labels, **domains(tx, tx.nodes)})
        leave_nodes(tx, lost_nodes | domain_mates, outcome)
    try_to_place(tx)


def try_to_place(tx: StateTransaction, *, last: bool = False) -> None:
    """Try to place all units without a node, unless a backoff is under way.

    Units whose ranks have all ended come last: they reserve room that no other unit wants, in case they restart.

    `last`: the search ends with this attempt, so excluded nodes are used, even if the operator may still add others.
    """
    if not tx.nodes_seen or tx.ending:
        return
    if not last and tx.search.retry_at is not None and tx.now < tx.search.retry_at:
        return
    if tx.search.retry_at is not None:
        tx.search = evolve(tx.search, retry_at=None)
    excluded = frozenset(tx.exclusions).union(tx.departures)
    # Before admission all units are placed together or not at all; after it each lost unit is placed again.
    is_admission = tx.phase is Phase.PENDING
    unplaced_units = (name for name, unit in tx.units.items() if unit.phase is UnitPhase.UNPLACED)
    names = tuple(unplaced_units) if is_admission else lost_units(tx)
    if names:
        _place(tx, names, excluded, last=last)
    if not is_admission and tx.held_unit_count < tx.job.unit_count:
        _place_finished_units(tx, excluded)


def lost_units(tx: StateTransaction) -> tuple[str, ...]:
    """Return the units that lost their nodes and have unfinished ranks."""
    return tuple(n for n in tx.homeless if tx.units[n].phase is UnitPhase.LOST and ending.has_unfinished_rank(tx, n))


def _place_finished_units(tx: StateTransaction, excluded: frozenset[str]) -> None:
    """Place units whose ranks have ended, if all other units have a node and no role waits to grow."""
    names = tuple(name for name in tx.homeless if tx.units[name].phase is UnitPhase.LOST)
    is_role_short = any(
        sizing.size < sizing.want and not is_role_completed(tx, role) for role, sizing in tx.sizes.items()
    )
    if not names or is_role_short or any(ending.has_unfinished_rank(tx, name) for name in names):
        return
    assignment = _assign_units(tx, names, excluded)
    if isinstance(assignment, Assignment):
        note_domain_choices(tx, assignment.domains)
        reserve(tx, {name: assignment.nodes[name] for name in sorted(names)})


def _place(tx: StateTransaction, names: tuple[str, ...], excluded: frozenset[str], *, last: bool) -> None:
    """Reserve nodes for units, or wait for room."""
    result = _assign_with_memory(tx, names, excluded)
    # Excluded nodes are a last resort: used at once on a cluster that nobody adds nodes to, else only at the end of the
    # wait. Silent, fenced and bad nodes, and those that are about to go, stay out even then.
    if isinstance(result, Refusal) and (last or not tx.job.own_nodes):
        silent_or_fenced = {node for node, entry in tx.exclusions.items() if entry.silent or entry.fence is not None}
        bad_nodes = {node for node in tx.exclusions if checks.is_barred(tx, node)}
        unusable_nodes = frozenset(silent_or_fenced | bad_nodes).union(tx.departures)
        retry = _assign_with_memory(tx, names, unusable_nodes) if unusable_nodes < excluded else result
        if isinstance(retry, Assignment):
            _readmit(tx, excluded.intersection(retry.nodes.values()))
            result = retry
    # Then a whole role may move to another topology domain.
    if isinstance(result, Refusal):
        result = moving.assign_whole_roles_to_another_domain(tx, names, excluded) or result
    elif moving.have_servers_finished(tx):
        tx.domain_move = None
    if isinstance(result, Assignment):
        note_domain_choices(tx, result.domains)
        reserve(tx, {name: result.nodes[name] for name in sorted(result.nodes) if name in tx.units})
    else:
        _wait_for_room(tx, result)


def _assign_with_memory(tx: StateTransaction, names: tuple[str, ...], excluded: frozenset[str]) -> Assignment | Refusal:
    """Return an assignment of units with their raised memory, or where that finds no room, with the plan's memory.

    More memory must never keep a job from going on (docs/adr/0034).
    """
    result, full_overrides = _assign_units(tx, names, excluded), tx.memory_overrides
    tx.memory_overrides = memory_overrides.without_overrides(full_overrides, names)
    if isinstance(result, Assignment) or tx.memory_overrides is full_overrides:
        tx.memory_overrides = full_overrides
        return result
    smaller_result = _assign_units(tx, names, excluded)
    # Before admission, nodes as large as the job wants them may still be coming.
    waits_for_nodes = tx.phase is Phase.PENDING and tx.job.own_nodes and not _have_all_nodes_joined(tx)
    if isinstance(smaller_result, Assignment) and not waits_for_nodes:
        tx.note(
            *(reasons.MEMORY_INCREASE_SKIPPED, "job"),
            f"there is no room for more memory than the spec says: {result.reason}",
        )
        return smaller_result
    tx.memory_overrides = full_overrides
    return result if waits_for_nodes else smaller_result


def _assign_units(tx: StateTransaction, names: tuple[str, ...], excluded: frozenset[str]) -> Assignment | Refusal:
    """Return an assignment of units, with their present memory, to nodes that are not excluded."""
    plan = tx.job.plan
    units = memory_overrides.units_with_memory(plan, tx.memory_overrides, names)
    if tx.phase is Phase.PENDING:
        # Spares stay free at admission only, since they exist for units that lose their nodes. Quotas likewise: later a
        # framework has taken its own.
        units = (*units, *quota_units(plan.roles))
        return assign(units, tx.nodes, excluded=excluded, reserve_nodes=spare_nodes(plan))
    # The quick attempt looks at nodes with room and at units whose effect `free` does not show. Only if it fails, all
    # nodes and units are examined, for the words of the refusal.
    roomy_nodes, placed_units = nodes_with_room(tx.nodes, units), assigned_units(tx, every=False)
    result = assign(units, roomy_nodes, excluded=excluded, placed_units=placed_units)
    if isinstance(result, Assignment):
        return result
    return assign(units, tx.nodes, excluded=excluded, placed_units=assigned_units(tx))


def _readmit(tx: StateTransaction, nodes: frozenset[str]) -> None:
    """End the exclusion of nodes that are needed."""
    for name in sorted(nodes):
        tx.exclusions = tx.exclusions.delete(name)
        tx.note(reasons.NODE_READMITTED, f"node/{name}", "no other node has room for units that need one")


def _wait_for_room(tx: StateTransaction, refusal: Refusal) -> None:
    """Wait for nodes to change, or fail the job (or start it with fewer ranks) where waiting cannot help."""
    is_admission = tx.phase is Phase.PENDING
    since = tx.search.since if tx.search.since is not None else tx.now
    never_fits = is_admission and refusal.never
    # At the job's start nodes may still be joining, so the verdict that they can never hold the job waits a little.
    final_at = since + limits.NODES_S if never_fits and not tx.job.own_nodes else None
    waited = never_fits and final_at is not None and tx.now >= final_at
    if waited or (never_fits and _have_all_nodes_joined(tx)):
        if tx.sizes and resizing.start_with_fewer(tx, refusal.reason):
            return
        # On a RayCluster of somebody else's the operator sees whether KubeRay still starts workers, and ends the job.
        if tx.job.spec.ray_cluster_ref is None:
            ending.fail_job(tx, reasons.NEVER_FITS, refusal.reason)
            return
        final_at = None
    reason = refusal.reason + checks.describe_excluded(tx)
    if reason != tx.search.no_room_reason:
        tx.note(reasons.NO_ROOM, "job", reason)
    search = evolve(tx.search, no_room_reason=reason, since=since, final_at=final_at, never=waited)
    search = evolve(search, deadline=_search_deadline(tx))
    if search != tx.search:
        tx.search = search
        for at in (final_at, search.deadline):
            if at is not None:
                tx.wake_at(at)


def _have_all_nodes_joined(tx: StateTransaction) -> bool:
    """Whether all nodes of the plan have joined; never on a RayCluster that is not the job's own."""
    planned = sum(group.replicas for group in tx.job.plan.node_groups.values())
    return tx.job.spec.ray_cluster_ref is None and sum(not node.head for node in tx.nodes) >= planned


def _search_deadline(tx: StateTransaction) -> float | None:
    """Return when the search for lost units ends (unix seconds); None before admission: other deadlines count then."""
    if not tx.was_admitted or tx.search.deadline is not None:
        return tx.search.deadline
    return tx.now + tx.job.fault_tolerance.node.pending_timeout_seconds


def _search_ends(tx: StateTransaction) -> tuple[tuple[str, float], ...]:
    """Return (unit, when its search ends): a unit that is lost while others are looks for as long as they did.

    Otherwise a large job on nodes that come and go, in which some unit always looks for a node, would fail one day.
    """
    search = tx.search
    search_ends = dict(search.until)
    # The units with which the search began share its deadline.
    search_end = tx.now + tx.job.fault_tolerance.node.pending_timeout_seconds if search_ends else search.deadline
    names = [name for name in sorted(tx.homeless) if ending.has_unfinished_rank(tx, name)]
    return tuple((name, search_ends.get(name, search_end or tx.now)) for name in names)


def end_overdue_searches(tx: StateTransaction) -> None:
    """End the searches that are overdue: their units found a place, or their role goes on without them."""
    until = tuple((name, search_end) for name, search_end in tx.search.until if search_end > tx.now)
    tx.search = evolve(tx.search, until=until, deadline=min((search_end for _, search_end in until), default=None))


def extend_search(tx: StateTransaction) -> None:
    """Look for room beyond the end of the search, for as long as servers finish whose units go to another domain."""
    drain_end = (
        tx.domain_move.finish_by if tx.domain_move is not None and tx.domain_move.finish_by is not None else tx.now
    )
    until = tuple((name, max(search_end, drain_end)) for name, search_end in tx.search.until)
    tx.search = evolve(tx.search, until=until, deadline=drain_end)


def follow_move(tx: StateTransaction) -> None:
    """Go on once the servers have finished whose units were to go to another domain, or let them stay."""
    if tx.domain_move is None or tx.ending or not moving.have_servers_finished(tx):
        return
    if lost_units(tx):
        try_to_place(tx)
    else:  # the lost units are being reserved without this move: its servers stay
        tx.domain_move = None


def overdue_units(tx: StateTransaction) -> tuple[str, ...]:
    """Return the units without a node whose search is over."""
    late = {name for name, at in tx.search.until if at <= tx.now}
    return tuple(name for name in lost_units(tx) if name in late or not tx.search.until)


def place_overdue(tx: StateTransaction) -> None:
    """Try to place the units whose search is over without those that may look on: all together have found no room."""
    names = overdue_units(tx)
    if names and len(names) < len(lost_units(tx)):
        _place(tx, names, frozenset(tx.exclusions).union(tx.departures), last=True)


def handle_reserved_unit(tx: StateTransaction, event: UnitReserved) -> None:
    """Record a held unit; with the last one of the job, roles start."""
    unit = tx.units.get(event.unit)
    if unit is None or event.token > unit.token:
        return
    # The answer is late: the unit was given up meanwhile, so what Ray now holds must be given back.
    if event.token < unit.token or unit.phase.nowhere:
        tx.do(Unreserve(event.unit, event.token))
        return
    if unit.phase is UnitPhase.HELD or tx.phase is Phase.STOPPING:
        return
    tx.set_unit(event.unit, evolve(unit, phase=UnitPhase.HELD, node=event.node))
    if tx.held_unit_count == tx.job.unit_count:
        tx.search = Search()
    if not tx.was_admitted:  # still the first admission
        if tx.held_unit_count == tx.job.unit_count:
            _start_admitted_job(tx)
        return
    if not _is_new_unit(tx, event.unit):
        tx.note(reasons.UNIT_RESCHEDULED, event.unit, f"held on {tx.node_title(event.node)}")
    # A moved unit changes the local and node ranks of its roles' other groups, too.
    for role, _ in tx.job.plan.units[event.unit].members:
        tx.seats = tx.seats.set(role, seats_of(tx, role))
    for host in unit_hosts(tx, event.unit):
        give_host_process_if_needed(tx, host)


def _is_new_unit(tx: StateTransaction, unit: str) -> bool:
    """Return whether a unit is new, with ranks that a fleet just got: nothing of it was lost, and nothing moves."""
    members = tx.job.plan.units[unit].members
    return any(group in tx.sizes[role].coming for role, group in members if role in tx.sizes)


def _start_admitted_job(tx: StateTransaction) -> None:
    for role in tx.job.roles:
        tx.seats = tx.seats.set(role, seats_of(tx, role))
    nodes = {unit.node for unit in tx.units.values()}
    tx.note(reasons.ADMITTED, "job", f"{counted(tx.held_unit_count, 'unit')} held on {counted(len(nodes), 'node')}")
    start_roles(tx)


def handle_refused_unit(tx: StateTransaction, event: UnitRefused) -> None:
    """Handle a refused reservation: before admission all units are given back, later only this one; then try again."""
    unit = tx.units.get(event.unit)
    if unit is None or event.token != unit.token or unit.phase is not UnitPhase.RESERVING or tx.ending:
        return
    if tx.was_admitted:
        tx.do(Unreserve(event.unit, unit.token))
        tx.set_unit(event.unit, UnitState(UnitPhase.LOST, unit.token))
        # It is reserved with the spec's memory next.
        overrides = memory_overrides.without_overrides(tx.memory_overrides, (event.unit,))
        if overrides is not tx.memory_overrides:
            tx.memory_overrides = overrides
            message = f"it is reserved with the spec's memory instead: {event.why}"
            tx.note(reasons.MEMORY_INCREASE_SKIPPED, event.unit, message)
    else:
        _give_all_back(tx)
    _back_off(tx, f"{event.unit}: {event.why}")


def _give_all_back(tx: StateTransaction) -> None:
    """Give back all units of a job that is not admitted."""
    for name, unit in sorted(tx.units.items()):
        if unit.phase is not UnitPhase.ABSENT:
            tx.do(Unreserve(name, unit.token))
            tx.set_unit(name, UnitState(UnitPhase.UNPLACED, unit.token))
    tx.phase = Phase.PENDING


def _back_off(tx: StateTransaction, reason: str) -> None:
    """Set the time of the next attempt: an exponential backoff with jitter."""
    attempt = tx.search.attempt + 1
    wait = min(limits.ADMIT_BACKOFF_MAX_S, limits.ADMIT_BACKOFF_S * 2 ** min(attempt - 1, 10))
    wait *= 0.5 + _jitter(tx.job.uid, attempt)
    deadline = _search_deadline(tx)
    tx.search = evolve(tx.search, attempt=attempt, retry_at=tx.now + wait, no_room_reason=reason, deadline=deadline)
    tx.wake_at(tx.now + wait)
    tx.note(reasons.RESERVATION_REFUSED, "job", f"{reason}; trying again in {wait:.1f} s")


def _jitter(uid: str, attempt: int) -> float:
    """Return a number from 0 to 1 that differs by job, so that jobs that block each other do not retry in step.

    It is a hash, because the core has no randomness: a replay must decide the same.
    """
    digest = blake2b(f"{uid}/{attempt}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") / 2**32


def leave_nodes(
    tx: StateTransaction,
    nodes: frozenset[str],
    outcome: Outcome,
    *,
    counts: bool | None = None,
    order: NodeDeparture | None = None,
) -> None:
    """Give up all units on nodes that are gone, frozen or replaced, and fail over their ranks.

    `counts`: whether the restarts use up budgets; None: the rules decide. `order`: the rule's order to leave, which
    says so itself.
    """
    spares.end_spares_of_nodes(tx, nodes)
    names = sorted(name for node in nodes for name in tx.housed.get(node, ()))
    if not names:
        return
    # The job is not admitted: the gang is given back as a whole, and no rank has failed.
    if not tx.was_admitted:
        _give_all_back(tx)
        _back_off(tx, f"lost while reserving: {', '.join(sorted(nodes))}")
        return
    tx.replaced += len({tx.units[name].node for name in names})
    # Asked for all roles before their ranks become WAITING below.
    begun = {role: failover.has_started_a_rank(tx, role) for role in tx.job.roles}
    lost = moving.give_up_units(tx, names)
    if lost:
        tx.count_restart(Level.NODE)
    if order is not None:
        _restart_by_rule(tx, lost, order, begun)
        return
    for role in tx.job.roles:
        if lost.get(role) and not tx.ending:
            decided = (
                None if counts is None else Restart(own_level_or_process(tx.facts(role)), counts, "its node is left")
            )
            ranks = tuple(lost[role])
            failover.handle_failed_ranks(
                tx, role, ranks, outcome, host_lost=True, has_started_rank=begun[role], fixed_decision=decided
            )


def _restart_by_rule(
    tx: StateTransaction, lost: Mapping[str, list[int]], order: NodeDeparture, begun: Mapping[str, bool]
) -> None:
    """Restart the ranks (by role) whose node a rule said to leave. `begun`: the roles of which a rank had started."""
    culprit = order.failure.role, order.failure.rank
    # The culprit and its role come first: restarts of other roles follow from its fault.
    for role in sorted(tx.job.roles, key=lambda name: name != culprit[0]):
        if lost.get(role) and not tx.ending:
            ranks = tuple(sorted(lost[role], key=lambda rank: (role, rank) != culprit))
            failover.restart_elsewhere(tx, role, ranks, order, has_started_rank=begun[role])


def needs_room(tx: StateTransaction) -> bool:
    """Whether a unit without a node has unfinished ranks."""
    return any(ending.has_unfinished_rank(tx, name) for name in tx.homeless)


def follow(tx: StateTransaction) -> None:
    """Update the search after an event: it ends when no rank needs a node, and begins when ended ranks start anew."""
    if not tx.was_admitted or tx.ending or (tx.units is tx.base.units and tx.incidents is tx.base.incidents):
        return
    if tx.search.deadline is None and lost_units(tx):
        try_to_place(tx)
    elif tx.search.deadline is not None and (until := _search_ends(tx)):
        if until != tx.search.until:
            tx.search = evolve(tx.search, until=until, deadline=min(at for _, at in until))
            tx.wake_at(min(at for _, at in until))
    elif not needs_room(tx):
        search = tx.search
        # With every unit held the backoff is over too; otherwise it goes on.
        is_complete = tx.held_unit_count == tx.job.unit_count
        rest = Search() if is_complete else Search(attempt=search.attempt, retry_at=search.retry_at)
        if search != rest:
            tx.search = rest
