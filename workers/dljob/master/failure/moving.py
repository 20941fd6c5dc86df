"""Moving units: giving up those of a lost node, and taking a whole role to another topology domain with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from dljob.master.failure import ending
from dljob.master.failure.policy import own_level_or_process, raise_to_allowed_level
from dljob.master.failure.restart import RestartOrder, begin_restart, kill_host, remaining_backoff_s, stop_order
from dljob.master.start import starting
from dljob.master.start.assign import AssignedUnit, Assignment, Refusal, assign, nodes_with_room
from dljob.master.start.reservations import assigned_units, unit_hosts
from dljob.master.state import limits, memory_overrides
from dljob.master.state.actions import Unreserve
from dljob.master.state.evolve import evolve
from dljob.master.state.faults import DomainMove
from dljob.master.state.state import HostPhase, RankPhase, UnitPhase, UnitState
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import HostId, Reason
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted


def give_up_units(tx: StateTransaction, unit_names: Iterable[str]) -> dict[str, list[int]]:
    """Give up units and kill their hosts. Return the unfinished ranks of roles that have begun, by role."""
    lost_ranks: dict[str, list[int]] = {}
    for unit_name in unit_names:
        reservation = tx.units[unit_name]
        tx.do(Unreserve(unit_name, reservation.token))
        tx.set_unit(unit_name, UnitState(UnitPhase.LOST, reservation.token, ""))
        for host in unit_hosts(tx, unit_name):
            kill_host(tx, host)
            has_begun = not starting.unmet_prerequisites(tx, host.role)
            for rank in tx.facts(host.role).ranks_of(host.index) if host.index >= 0 else ():
                rank_state = tx.ranks[host.role, rank]
                is_lost = has_begun and ending.is_unfinished(rank_state)
                if is_lost:
                    lost_ranks.setdefault(host.role, []).append(rank)
                # A live rank of a role that has not begun anew is from before: its end was awaited.
                if is_lost or rank_state.phase.live:
                    ending.mark_without_process(tx, (host.role, rank))
    return lost_ranks


def assign_whole_roles_to_another_domain(
    tx: StateTransaction, lost_units: Iterable[str], excluded_nodes: frozenset[str]
) -> Assignment | None:
    """Return an assignment to another domain, for units that find no room in theirs and all other units of their roles.

    None where no domain has room for a whole role: held units stay, and the lost ones wait. Waiting for a machine in
    the old domain takes minutes and a restart seconds, so the move is tried at once.
    """
    if tx.domain_move is not None and not have_servers_finished(tx):
        return None
    asked_units = frozenset(tx.domain_move.units) if tx.domain_move is not None else frozenset[str]()
    tx.domain_move = None
    planned_units = tx.job.plan.units
    # A series is the name that all units of one role begin with.
    series_without_room = {planned_units[name].series for name in lost_units if planned_units[name].topology_key}
    series_of = {name: planned_units[name].series for name, unit in tx.units.items() if unit.node}
    series_of = {name: series for name, series in series_of.items() if series in series_without_room}
    if not series_of or not tx.was_admitted:
        return None
    # One role at a time, so that as few units as possible move; all together if no single move is enough.
    series_choices = [frozenset([series]) for series in sorted(set(series_of.values()))]
    series_choices += [frozenset(series_of.values())] if len(series_choices) > 1 else []
    for moving_series in series_choices:
        moving_units = {name for name, series in series_of.items() if series in moving_series}
        units = memory_overrides.units_with_memory(
            tx.job.plan, tx.memory_overrides, sorted({*lost_units, *moving_units})
        )
        staying_units = other_units(tx, moving_units)
        assignment = assign(units, tx.nodes, excluded=excluded_nodes, placed_units=staying_units)
        if isinstance(assignment, Assignment):
            if not moving_units <= asked_units and _ask_servers_in_units_to_finish(tx, moving_units):
                return None
            _give_up_and_restart_units(tx, moving_units)
            return assignment
    return None


def have_servers_finished(tx: StateTransaction) -> bool:
    """Whether the servers of units that go to another domain have finished, or their time is over."""
    move = tx.domain_move
    return move is None or move.finish_by is None or not live_servers_by_host(tx, move.units)


def end_overdue_drain(tx: StateTransaction) -> None:
    """Wait no longer for servers whose time to finish is over."""
    move = tx.domain_move
    if move is not None and move.finish_by is not None and move.finish_by <= tx.now:
        tx.domain_move = evolve(move, finish_by=None)


def restart_staying_servers(tx: StateTransaction) -> None:
    """Start servers again whose units stay after all; those that did not finish in time are killed first."""
    old_move, new_move = tx.base.domain_move, tx.domain_move
    if old_move is None or new_move is old_move or tx.ending:
        return
    moving_units = new_move.units if new_move is not None else ()
    other_units_of_move = [name for name in old_move.units if name not in moving_units]
    staying_units = {name for name in other_units_of_move if tx.units[name].phase is UnitPhase.HELD}
    for host, ranks in live_servers_by_host(tx, staying_units).items():
        kill_host(tx, host)
        for rank in ranks:
            ending.mark_without_process(tx, (host.role, rank))
    starting.start_staying_servers(tx, staying_units)


def live_servers_by_host(tx: StateTransaction, units: Collection[str]) -> dict[HostId, tuple[int, ...]]:
    """Return the live ranks with a `drain` in units, by host."""
    servers: dict[HostId, tuple[int, ...]] = {}
    for host in (host for unit in sorted(units) for host in unit_hosts(tx, unit)):
        facts = tx.facts(host.role)
        if facts.plan.drain is not None and tx.hosts[host].phase is HostPhase.READY:
            live_ranks = tuple(rank for rank in facts.ranks_of(host.index) if tx.ranks[host.role, rank].phase.live)
            if live_ranks:
                servers[host] = live_ranks
    return servers


def ask_servers_to_finish(tx: StateTransaction, servers: Mapping[HostId, tuple[int, ...]], reason: str) -> float:
    """Ask servers to finish their requests, out of the endpoints; return when they have to be done (unix seconds)."""
    for host, ranks in servers.items():
        # The other ranks are being stopped already: by a restart, or because their role drops them.
        asked_ranks = tuple(rank for rank in ranks if tx.ranks[host.role, rank].phase is not RankPhase.STOPPING)
        for rank in asked_ranks:
            rank_state = tx.ranks[host.role, rank]
            tx.set_rank((host.role, rank), evolve(rank_state, phase=RankPhase.STOPPING, restart_reason=reason))
        if asked_ranks:
            tx.do(stop_order(tx, host, asked_ranks))
    return tx.now + max(tx.facts(host.role).plan.drain_s for host in servers) + limits.SIGTERM_GRACE_S


def assign_elsewhere(
    tx: StateTransaction, unit_names: frozenset[str], barred_nodes: frozenset[str] = frozenset()
) -> Assignment | Refusal:
    """Return an assignment of units, which still hold their nodes, to nodes that neither depart nor are excluded.

    `barred_nodes`: further nodes that are not to be used.
    """
    units = memory_overrides.units_with_memory(tx.job.plan, tx.memory_overrides, unit_names)
    barred_nodes = barred_nodes.union(tx.exclusions, tx.departures)
    nodes = [node for node in tx.nodes if node.id not in barred_nodes]
    staying_units = other_units(tx, unit_names) if nodes else ()
    return assign(units, nodes_with_room(nodes, units), placed_units=staying_units)


def other_units(tx: StateTransaction, unit_names: Collection[str]) -> list[AssignedUnit]:
    """Return the units with a node, but these."""
    return [assigned_unit for assigned_unit in assigned_units(tx) if assigned_unit.unit.name not in unit_names]


def _ask_servers_in_units_to_finish(tx: StateTransaction, moving_units: set[str]) -> bool:
    """Ask the servers of units that are to go to finish their requests; return whether any has to be waited for."""
    servers = live_servers_by_host(tx, moving_units)
    if not servers:
        return False
    finish_by = ask_servers_to_finish(tx, servers, Reason.NODE_LOST.value)
    tx.domain_move = DomainMove(tuple(sorted(moving_units)), finish_by)
    tx.wake_at(finish_by)
    count, series = sum(map(len, servers.values())), _series_names(tx, moving_units)
    explanation = f"{counted(count, 'server')} of it finish{'es' if count == 1 else ''} requests first"
    message = f"it goes to another topology domain: {explanation}, within {finish_by - tx.now:.0f} s"
    tx.note(reasons.NO_ROOM, series, message)
    return True


def _series_names(tx: StateTransaction, unit_names: Iterable[str]) -> str:
    return ", ".join(sorted({tx.job.plan.units[name].series for name in unit_names}))


def _give_up_and_restart_units(tx: StateTransaction, moving_units: set[str]) -> None:
    """Give up held units, to go to another domain with the lost ones, and restart their ranks.

    It is part of the restart for the lost ones, so it is not charged again.
    """
    series, count, reason = _series_names(tx, moving_units), len(moving_units), Reason.NODE_LOST.value
    movers_text = f"{count} other unit{'s go' if count > 1 else ' goes'} to another one with them"
    cause = f"lost units of {series} find no room in their topology domain: {movers_text}"
    tx.note(reasons.TOPOLOGY_DOMAIN_CHANGED, series, cause)
    lost_ranks = give_up_units(tx, sorted(moving_units))
    for role, facts in tx.job.roles.items():
        ranks = tuple(lost_ranks.get(role, ()))
        if not ranks:
            continue
        level = raise_to_allowed_level(facts, own_level_or_process(facts), host_lost=True)
        # They start together with the lost ranks, so they wait out the same backoff.
        incidents = [incident for incident in tx.incidents.values() if incident.role in ("", role)]
        backoff_s = remaining_backoff_s(tx, incidents)
        order = RestartOrder(level, role, ranks, reason, cause, backoff_s=backoff_s, is_continuation=True)
        begin_restart(tx, order)
