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


def assigned_units(tx: StateTransaction, *, every: bool = True) -> list[AssignedUnit]:
    """Return the units that have a node. Without `every`, only those whose effect a node's `free` does not show.

    These are units that are still being reserved, and in a job with anti-affinity, spread or topology keys all of them.
    """
    plan = tx.job.plan
    series = plan.units.series
    shows_all = every or any(role.apart or role.spread or role.topology_key or role.preferred_key for role in series)
    phases = (UnitPhase.HELD, UnitPhase.RESERVING) if shows_all else (UnitPhase.RESERVING,)
    # Only jobs with topology keys pay for reading the labels of all nodes.
    has_keys = any(role.topology_key or role.preferred_key for role in series)
    labels = {node.id: dict(node.labels) for node in tx.nodes} if has_keys else {}
    assigned: list[AssignedUnit] = []
    # A unit that is being reserved has no place yet, so that one of few looks for those of them.
    for name in tx.units if shows_all else tx.homeless:
        state = tx.units[name]
        if state.phase in phases:
            unit = memory_overrides.unit_with_memory(
                plan, name, memory_overrides.overrides_of_unit(tx.memory_overrides, name)
            )
            domain = labels.get(state.node, {}).get(unit.topology_key or unit.preferred_key, "")
            assigned.append(AssignedUnit(unit, state.node, counted=state.phase is UnitPhase.HELD, domain=domain))
    return assigned


def reserve(tx: StateTransaction, nodes: dict[str, str]) -> None:
    """Order the reservation of units; `nodes`: unit -> node."""
    if tx.phase is Phase.PENDING:
        tx.phase = Phase.SCHEDULING
    if tx.search.since is not None:  # room was found: nothing is lacking any more
        tx.search = evolve(tx.search, no_room_reason="", since=None, final_at=None, never=False)
    for name, node in nodes.items():
        token = tx.units[name].token + 1
        if token > 1:  # not its first reservation
            _forget_devices(tx, name)
        tx.set_unit(name, UnitState(UnitPhase.RESERVING, token, node))
        tx.do(
            Reserve(name, token, node, limits.RESERVE_S, memory_overrides.overrides_of_unit(tx.memory_overrides, name))
        )


def note_domain_choices(tx: StateTransaction, domains: Iterable[Choice]) -> None:
    """Tell users of topology domains that were chosen, and of preferred ones that were not had."""
    for choice in domains:
        reason = reasons.DOMAIN_CHOSEN if choice.value else reasons.PREFERRED_DOMAIN_MISSED
        tx.note(reason, choice.series, choice.reason)


def _forget_devices(tx: StateTransaction, unit: str) -> None:
    """Forget the device ids of a unit's hosts: a new reservation may get other devices, even on the same node."""
    for host in unit_hosts(tx, unit):
        if tx.hosts[host].devices:
            tx.set_host(host, evolve(tx.hosts[host], devices=(), slots=()))


def without_unit(node: NodeView, unit: Unit) -> NodeView:
    """Return a node as it will be once it has given a unit back."""
    total = dict(node.total)
    free = add_up(node.free, unit.demand)
    # Capped: the node's report may already count the unit as free.
    return replace(node, free=tuple((name, min(amount, total[name])) for name, amount in free if name in total))


def unit_hosts(tx: StateTransaction, unit: str) -> tuple[HostId, ...]:
    """Return all hosts that live in a unit, stores included."""
    hosts: list[HostId] = []
    for role, group in tx.job.plan.units[unit].members:
        facts = tx.facts(role)
        # The store of a world lives in the reservation of its rank 0.
        if facts.is_torch_world and group == 0:
            hosts.append(HostId(role, -1))
        hosts.extend(dict.fromkeys(facts.host_of(rank) for rank in facts.group_ranks(group)))
    return tuple(hosts)
