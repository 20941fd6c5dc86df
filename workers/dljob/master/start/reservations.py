"""Reservations: which node holds which unit, which hosts live in a unit, and the order to reserve one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dljob.master.start.assign import AssignedUnit
from dljob.master.state import limits, memory_overrides
from dljob.master.state.actions import Reserve
from dljob.master.state.evolve import evolve
from dljob.master.state.state import Phase, UnitPhase, UnitState
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import HostId, NodeView
from dljob.plan.domains import Choice
from dljob.plan.model import Unit, add_up
from dljob.telemetry import reasons


def assigned_units(d: StateTransaction, *, every: bool = True) -> list[AssignedUnit]:
    """Return the units that have a node. Without `every`, only those whose effect a node's `free` does not show.

    These are units that are still being reserved, and in a job with anti-affinity, spread or topology keys all of them.
    """
    plan = d.job.plan
    series = plan.units.series
    apart = every or any(own.apart or own.spread or own.topology_key or own.preferred_key for own in series)
    wanted = (UnitPhase.HELD, UnitPhase.RESERVING) if apart else (UnitPhase.RESERVING,)
    # Only jobs with topology keys pay for reading the labels of all nodes.
    keyed = any(own.topology_key or own.preferred_key for own in series)
    labels = {node.id: dict(node.labels) for node in d.nodes} if keyed else {}
    found: list[AssignedUnit] = []
    # A unit that is being reserved has no place yet, so that one of few looks for those of them.
    for name in d.units if apart else d.homeless:
        own = d.units[name]
        if own.phase in wanted:
            unit = memory_overrides.unit_of(plan, name, memory_overrides.given(d.grants, name))
            domain = labels.get(own.node, {}).get(unit.topology_key or unit.preferred_key, "")
            found.append(AssignedUnit(unit, own.node, counted=own.phase is UnitPhase.HELD, domain=domain))
    return found


def reserve(d: StateTransaction, nodes: dict[str, str]) -> None:
    """Order the reservation of units; `nodes`: unit -> node."""
    if d.phase is Phase.PENDING:
        d.phase = Phase.SCHEDULING
    if d.search.since is not None:  # room was found: nothing is lacking any more
        d.search = evolve(d.search, why="", since=None, final_at=None, never=False)
    for name, node in nodes.items():
        token = d.units[name].token + 1
        if token > 1:  # not its first reservation
            _forget_devices(d, name)
        d.set_unit(name, UnitState(UnitPhase.RESERVING, token, node))
        d.do(Reserve(name, token, node, limits.RESERVE_S, memory_overrides.given(d.grants, name)))


def tell_domains(d: StateTransaction, domains: Iterable[Choice]) -> None:
    """Tell users of topology domains that were chosen, and of preferred ones that were not had."""
    for own in domains:
        d.note(reasons.DOMAIN_CHOSEN if own.value else reasons.PREFERRED_DOMAIN_MISSED, own.series, own.reason)


def _forget_devices(d: StateTransaction, unit: str) -> None:
    """Forget the device ids of a unit's hosts: a new reservation may get other devices, even on the same node."""
    for host in unit_hosts(d, unit):
        if d.hosts[host].devices:
            d.set_host(host, evolve(d.hosts[host], devices=(), slots=()))


def without_unit(node: NodeView, unit: Unit) -> NodeView:
    """Return a node as it will be once it has given a unit back."""
    total = dict(node.total)
    free = add_up(node.free, unit.demand)
    # Capped: the node's report may already count the unit as free.
    return replace(node, free=tuple((name, min(amount, total[name])) for name, amount in free if name in total))


def unit_hosts(d: StateTransaction, unit: str) -> tuple[HostId, ...]:
    """Return all hosts that live in a unit, stores included."""
    hosts: list[HostId] = []
    for role, group in d.job.plan.units[unit].members:
        facts = d.facts(role)
        # The store of a world lives in the reservation of its rank 0.
        if facts.world and group == 0:
            hosts.append(HostId(role, -1))
        hosts.extend(dict.fromkeys(facts.host_of(rank) for rank in facts.group_ranks(group)))
    return tuple(hosts)
