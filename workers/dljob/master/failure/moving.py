"""Moving units: giving up those of a lost node, and taking a whole role to another topology domain with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dljob.master.failure import ending
from dljob.master.failure.policy import lift, own_level
from dljob.master.failure.restart import RestartOrder, begin, kill
from dljob.master.start import starting
from dljob.master.start.assign import Assignment, Refusal, assign, roomy
from dljob.master.start.reservations import assigned_units, unit_hosts
from dljob.master.state import memory_overrides
from dljob.master.state.actions import Unreserve
from dljob.master.state.state import UnitPhase, UnitState
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import HostId, Reason
from dljob.telemetry import reasons


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
    table = d.job.plan.units
    concerned = {table[name].series for name in names if table[name].topology_key}
    held = {name: series for name, own in d.units.items() if own.node and (series := table[name].series) in concerned}
    if not held or not d.seats:
        return None
    # One role at a time, so that as few units as possible move; all together if no single move is enough.
    each = [frozenset([series]) for series in sorted(set(held.values()))]
    for series in (*each, frozenset(held.values())) if len(each) > 1 else each:
        found = _try(d, names, {name for name, own in held.items() if own in series}, excluded)
        if found is not None:
            return found
    return None


def elsewhere(d: StateTransaction, names: frozenset[str], barred: frozenset[str] = frozenset()) -> Assignment | Refusal:
    """Return an assignment of units, which still hold their nodes, to nodes that neither depart nor are excluded.

    `barred`: further nodes that are not to be used.
    """
    units = memory_overrides.units_of(d.job.plan, d.grants, names)
    barred = barred.union(d.exclusions, d.departures)
    rooms = [node for node in d.nodes if node.id not in barred]
    others = [held for held in assigned_units(d) if held.unit.name not in names] if rooms else ()
    return assign(units, roomy(rooms, units), taken=others)


def _try(d: StateTransaction, names: Iterable[str], held: set[str], excluded: frozenset[str]) -> Assignment | None:
    """Give up these held units if they and the lost ones fit elsewhere; return where they go."""
    units = memory_overrides.units_of(d.job.plan, d.grants, sorted({*names, *held}))
    stay = [own for own in assigned_units(d) if own.unit.name not in held]
    found = assign(units, d.nodes, excluded=excluded, taken=stay)
    if not isinstance(found, Assignment):
        return None
    series = ", ".join(sorted({d.job.plan.units[name].series for name in held}))
    others = f"{len(held)} other unit{'s go' if len(held) > 1 else ' goes'}"
    why = f"lost units of {series} find no room in their topology domain: {others} to another one with them"
    d.note(reasons.TOPOLOGY_DOMAIN_CHANGED, series, why)
    _begin(d, give_up(d, sorted(held)), why)
    return found


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
