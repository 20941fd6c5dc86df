"""Moving units: giving up those of a lost node, and taking a whole role to another topology domain with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from dljob.master.failure import ending
from dljob.master.failure.policy import lift_level, role_level
from dljob.master.failure.restart import RestartOrder, begin_restart, kill_host, stop_order
from dljob.master.start import starting
from dljob.master.start.assign import Assignment, Refusal, assign, roomy
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


def give_up(tx: StateTransaction, names: Iterable[str]) -> dict[str, list[int]]:
    """Give up units and kill their hosts. Return the unfinished ranks, by role."""
    lost: dict[str, list[int]] = {}
    for name in names:
        unit = tx.units[name]
        tx.do(Unreserve(name, unit.token))
        tx.set_unit(name, UnitState(UnitPhase.LOST, unit.token, ""))
        for host in unit_hosts(tx, name):
            kill_host(tx, host)
            _collect(tx, host, lost)
    return lost


def _collect(tx: StateTransaction, host: HostId, lost: dict[str, list[int]]) -> None:
    """Add the unfinished ranks of a host to the losses of its role; a role that has not begun loses none."""
    begun = not starting.ahead(tx, host.role)
    for rank in tx.facts(host.role).ranks_of(host.index) if host.index >= 0 else ():
        own = tx.ranks[host.role, rank]
        if begun and ending.is_unfinished(own):
            ending.drop_process(tx, (host.role, rank))
            lost.setdefault(host.role, []).append(rank)
        elif own.phase.live:
            # It was to end before its role begins anew.
            ending.drop_process(tx, (host.role, rank))


def to_another_domain(tx: StateTransaction, names: Iterable[str], excluded: frozenset[str]) -> Assignment | None:
    """Return an assignment to another domain, for units that find no room in theirs and all other units of their roles.

    None where no domain has room for a whole role: held units stay, and the lost ones wait. Waiting for a machine in
    the old domain takes minutes and a restart seconds, so the move is tried at once.
    """
    if tx.moving is not None and not finished(tx):
        return None
    asked = frozenset(tx.moving.units) if tx.moving is not None else frozenset[str]()
    tx.moving = None
    table = tx.job.plan.units
    concerned = {table[name].series for name in names if table[name].topology_key}
    held = {name: series for name, own in tx.units.items() if own.node and (series := table[name].series) in concerned}
    if not held or not tx.seats:
        return None
    # One role at a time, so that as few units as possible move; all together if no single move is enough.
    each = [frozenset([series]) for series in sorted(set(held.values()))]
    for series in (*each, frozenset(held.values())) if len(each) > 1 else each:
        movers = {name for name, own in held.items() if own in series}
        found = _fit(tx, names, movers, excluded)
        if found is not None:
            if not movers <= asked and _finish(tx, movers):
                return None
            _go(tx, movers)
            return found
    return None


def finished(tx: StateTransaction) -> bool:
    """Whether nobody waits any longer for the servers of units that are to go to another domain."""
    return tx.moving is None or tx.moving.by is None or not servers_of(tx, tx.moving.units)


def tick(tx: StateTransaction) -> None:
    """Wait no longer for servers whose time to finish is over."""
    if tx.moving is not None and tx.moving.by is not None and tx.moving.by <= tx.now:
        tx.moving = evolve(tx.moving, by=None)


def follow(tx: StateTransaction) -> None:
    """Start servers again whose units stay after all; those that did not finish in time are killed first."""
    if tx.moving is tx.base.moving or tx.base.moving is None or tx.ending:
        return
    still = tx.moving.units if tx.moving is not None else ()
    stay = {name for name in tx.base.moving.units if name not in still and tx.units[name].phase is UnitPhase.HELD}
    for host, ranks in servers_of(tx, stay).items():
        kill_host(tx, host)
        for rank in ranks:
            ending.drop_process(tx, (host.role, rank))
    starting.start_again(tx, stay)


def servers_of(tx: StateTransaction, units: Collection[str]) -> dict[HostId, tuple[int, ...]]:
    """Return the live ranks with a `drain` in units, by host."""
    return {
        host: ranks
        for unit in sorted(units)
        for host in unit_hosts(tx, unit)
        if tx.facts(host.role).plan.drain is not None
        and tx.hosts[host].phase is HostPhase.READY
        and (ranks := tuple(r for r in tx.facts(host.role).ranks_of(host.index) if tx.ranks[host.role, r].phase.live))
    }


def ask_to_finish(tx: StateTransaction, servers: Mapping[HostId, tuple[int, ...]], reason: str) -> float:
    """Ask servers to finish their requests, out of the endpoints; return when they have to be done (unix seconds)."""
    for host, ranks in servers.items():
        # Others are being stopped already: by a restart, or as ranks that their role gives up.
        asked = tuple(rank for rank in ranks if tx.ranks[host.role, rank].phase is not RankPhase.STOPPING)
        for rank in asked:
            old = tx.ranks[host.role, rank]
            tx.set_rank((host.role, rank), evolve(old, phase=RankPhase.STOPPING, restart_reason=reason))
        if asked:
            tx.do(stop_order(tx, host, asked))
    return tx.now + max(tx.facts(host.role).plan.drain_s for host in servers) + limits.SCRIPT_GRACE_S


def elsewhere(
    tx: StateTransaction, names: frozenset[str], barred: frozenset[str] = frozenset()
) -> Assignment | Refusal:
    """Return an assignment of units, which still hold their nodes, to nodes that neither depart nor are excluded.

    `barred`: further nodes that are not to be used.
    """
    units = memory_overrides.units_of(tx.job.plan, tx.grants, names)
    barred = barred.union(tx.exclusions, tx.departures)
    rooms = [node for node in tx.nodes if node.id not in barred]
    others = [held for held in assigned_units(tx) if held.unit.name not in names] if rooms else ()
    return assign(units, roomy(rooms, units), taken=others)


def _fit(tx: StateTransaction, names: Iterable[str], held: set[str], excluded: frozenset[str]) -> Assignment | None:
    """Return an assignment of these held units and the lost ones to other nodes, if there is one."""
    units = memory_overrides.units_of(tx.job.plan, tx.grants, sorted({*names, *held}))
    stay = [own for own in assigned_units(tx) if own.unit.name not in held]
    found = assign(units, tx.nodes, excluded=excluded, taken=stay)
    return found if isinstance(found, Assignment) else None


def _finish(tx: StateTransaction, held: set[str]) -> bool:
    """Ask the servers of units that are to go to finish their requests; return whether any has to be waited for."""
    servers = servers_of(tx, held)
    if not servers:
        return False
    by = ask_to_finish(tx, servers, Reason.NODE_LOST.value)
    tx.moving = DomainMove(tuple(sorted(held)), by)
    tx.wake_at(by)
    count, series = sum(map(len, servers.values())), _series(tx, held)
    why = f"{counted(count, 'server')} of it finish{'es' if count == 1 else ''} requests first"
    tx.note(reasons.NO_ROOM, series, f"it goes to another topology domain: {why}, within {by - tx.now:.0f} s")
    return True


def _series(tx: StateTransaction, held: Iterable[str]) -> str:
    return ", ".join(sorted({tx.job.plan.units[name].series for name in held}))


def _go(tx: StateTransaction, held: set[str]) -> None:
    """Give up held units, to go to another domain with the lost ones."""
    series = _series(tx, held)
    others = f"{len(held)} other unit{'s go' if len(held) > 1 else ' goes'}"
    why = f"lost units of {series} find no room in their topology domain: {others} to another one with them"
    tx.note(reasons.TOPOLOGY_DOMAIN_CHANGED, series, why)
    _begin(tx, give_up(tx, sorted(held)), why)


def _begin(tx: StateTransaction, lost: Mapping[str, list[int]], why: str) -> None:
    """Restart the ranks that had to move, as part of the restart for the lost ones: it is not charged again."""
    for role in tx.job.roles:
        if lost.get(role):
            level = lift_level(tx.facts(role), role_level(tx.facts(role)), host_lost=True)
            # They start together with the lost ranks, so they wait out the same backoff.
            under_way = [own.due for own in tx.incidents.values() if own.role in ("", role) and not own.launched]
            wait = max([0.0, *(due - tx.now for due in under_way)])
            begin_restart(
                tx,
                RestartOrder(
                    level, role, tuple(lost[role]), Reason.NODE_LOST.value, why, wait=wait, without_fault=True
                ),
            )
