"""Moving units: giving up those of a lost node, and taking a whole role to another topology domain with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from dljob.master.failure import ending
from dljob.master.failure.policy import lift, own_level
from dljob.master.failure.restart import RestartOrder, begin, kill, stop_ranks
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


def give_up(d: StateTransaction, names: Iterable[str]) -> dict[str, list[int]]:
    """Give up units and kill their hosts. Return the unfinished ranks, by role."""
    lost: dict[str, list[int]] = {}
    for name in names:
        unit = d.units[name]
        d.do(Unreserve(name, unit.token))
        d.set_unit(name, UnitState(UnitPhase.LOST, unit.token, ""))
        for host in unit_hosts(d, name):
            kill(d, host)
            _collect(d, host, lost)
    return lost


def _collect(d: StateTransaction, host: HostId, lost: dict[str, list[int]]) -> None:
    """Add the unfinished ranks of a host to the losses of its role; a role that has not begun loses none."""
    begun = not starting.ahead(d, host.role)
    for rank in d.facts(host.role).ranks_of(host.index) if host.index >= 0 else ():
        own = d.ranks[host.role, rank]
        if begun and ending.unfinished(own):
            ending.drop_process(d, (host.role, rank))
            lost.setdefault(host.role, []).append(rank)
        elif own.phase.live:
            # It was to end before its role begins anew.
            ending.drop_process(d, (host.role, rank))


def to_another_domain(d: StateTransaction, names: Iterable[str], excluded: frozenset[str]) -> Assignment | None:
    """Return an assignment to another domain, for units that find no room in theirs and all other units of their roles.

    None where no domain has room for a whole role: held units stay, and the lost ones wait. Waiting for a machine in
    the old domain takes minutes and a restart seconds, so the move is tried at once.
    """
    if d.moving is not None and not finished(d):
        return None
    asked = frozenset(d.moving.units) if d.moving is not None else frozenset[str]()
    d.moving = None
    table = d.job.plan.units
    concerned = {table[name].series for name in names if table[name].topology_key}
    held = {name: series for name, own in d.units.items() if own.node and (series := table[name].series) in concerned}
    if not held or not d.seats:
        return None
    # One role at a time, so that as few units as possible move; all together if no single move is enough.
    each = [frozenset([series]) for series in sorted(set(held.values()))]
    for series in (*each, frozenset(held.values())) if len(each) > 1 else each:
        movers = {name for name, own in held.items() if own in series}
        found = _fit(d, names, movers, excluded)
        if found is not None:
            if not movers <= asked and _finish(d, movers):
                return None
            _go(d, movers)
            return found
    return None


def finished(d: StateTransaction) -> bool:
    """Whether nobody waits any longer for the servers of units that are to go to another domain."""
    return d.moving is None or d.moving.by is None or not servers_of(d, d.moving.units)


def tick(d: StateTransaction) -> None:
    """Wait no longer for servers whose time to finish is over."""
    if d.moving is not None and d.moving.by is not None and d.moving.by <= d.now:
        d.moving = evolve(d.moving, by=None)


def follow(d: StateTransaction) -> None:
    """Start servers again whose units stay after all; those that did not finish in time are killed first."""
    if d.moving is d.base.moving or d.base.moving is None or d.ending:
        return
    still = d.moving.units if d.moving is not None else ()
    stay = {name for name in d.base.moving.units if name not in still and d.units[name].phase is UnitPhase.HELD}
    for host, ranks in servers_of(d, stay).items():
        kill(d, host)
        for rank in ranks:
            ending.drop_process(d, (host.role, rank))
    starting.start_again(d, stay)


def servers_of(d: StateTransaction, units: Collection[str]) -> dict[HostId, tuple[int, ...]]:
    """Return the live ranks with a `drain` in units, by host."""
    return {
        host: ranks
        for unit in sorted(units)
        for host in unit_hosts(d, unit)
        if d.facts(host.role).plan.drain is not None
        and d.hosts[host].phase is HostPhase.READY
        and (ranks := tuple(r for r in d.facts(host.role).ranks_of(host.index) if d.ranks[host.role, r].phase.live))
    }


def ask_to_finish(d: StateTransaction, servers: Mapping[HostId, tuple[int, ...]], reason: str) -> float:
    """Ask servers to finish their requests, out of the endpoints; return when they have to be done (unix seconds)."""
    for host, ranks in servers.items():
        # Others are being stopped already: by a restart, or as ranks that their role gives up.
        asked = tuple(rank for rank in ranks if d.ranks[host.role, rank].phase is not RankPhase.STOPPING)
        for rank in asked:
            old = d.ranks[host.role, rank]
            d.set_rank((host.role, rank), evolve(old, phase=RankPhase.STOPPING, restart_reason=reason))
        if asked:
            d.do(stop_ranks(d, host, asked))
    return d.now + max(d.facts(host.role).plan.drain_s for host in servers) + limits.SCRIPT_GRACE_S


def elsewhere(d: StateTransaction, names: frozenset[str], barred: frozenset[str] = frozenset()) -> Assignment | Refusal:
    """Return an assignment of units, which still hold their nodes, to nodes that neither depart nor are excluded.

    `barred`: further nodes that are not to be used.
    """
    units = memory_overrides.units_of(d.job.plan, d.grants, names)
    barred = barred.union(d.exclusions, d.departures)
    rooms = [node for node in d.nodes if node.id not in barred]
    others = [held for held in assigned_units(d) if held.unit.name not in names] if rooms else ()
    return assign(units, roomy(rooms, units), taken=others)


def _fit(d: StateTransaction, names: Iterable[str], held: set[str], excluded: frozenset[str]) -> Assignment | None:
    """Return an assignment of these held units and the lost ones to other nodes, if there is one."""
    units = memory_overrides.units_of(d.job.plan, d.grants, sorted({*names, *held}))
    stay = [own for own in assigned_units(d) if own.unit.name not in held]
    found = assign(units, d.nodes, excluded=excluded, taken=stay)
    return found if isinstance(found, Assignment) else None


def _finish(d: StateTransaction, held: set[str]) -> bool:
    """Ask the servers of units that are to go to finish their requests; return whether any has to be waited for."""
    servers = servers_of(d, held)
    if not servers:
        return False
    by = ask_to_finish(d, servers, Reason.NODE_LOST.value)
    d.moving = DomainMove(tuple(sorted(held)), by)
    d.wake_at(by)
    count, series = sum(map(len, servers.values())), _series(d, held)
    why = f"{counted(count, 'server')} of it finish{'es' if count == 1 else ''} requests first"
    d.note(reasons.NO_ROOM, series, f"it goes to another topology domain: {why}, within {by - d.now:.0f} s")
    return True


def _series(d: StateTransaction, held: Iterable[str]) -> str:
    return ", ".join(sorted({d.job.plan.units[name].series for name in held}))


def _go(d: StateTransaction, held: set[str]) -> None:
    """Give up held units, to go to another domain with the lost ones."""
    series = _series(d, held)
    others = f"{len(held)} other unit{'s go' if len(held) > 1 else ' goes'}"
    why = f"lost units of {series} find no room in their topology domain: {others} to another one with them"
    d.note(reasons.TOPOLOGY_DOMAIN_CHANGED, series, why)
    _begin(d, give_up(d, sorted(held)), why)


def _begin(d: StateTransaction, lost: Mapping[str, list[int]], why: str) -> None:
    """Restart the ranks that had to move, as part of the restart for the lost ones: it is not charged again."""
    for role in d.job.roles:
        if lost.get(role):
            level = lift(d.facts(role), own_level(d.facts(role)), host_lost=True)
            # They start together with the lost ranks, so they wait out the same backoff.
            under_way = [own.due for own in d.incidents.values() if own.role in ("", role) and not own.launched]
            wait = max([0.0, *(due - d.now for due in under_way)])
            begin(
                d,
                RestartOrder(
                    level, role, tuple(lost[role]), Reason.NODE_LOST.value, why, wait=wait, without_fault=True
                ),
            )
