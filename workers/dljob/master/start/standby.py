"""Standby nodes: spare nodes without ranks, kept warm with one process spare for each host that a node may lose.

They follow from the state: as many nodes of each group as it has spares, among those that hold no unit of the job, are
not excluded, and can bring processes up. So the pool refills by itself when a node joins or an exclusion ends. A unit
that lost its node finds room there, and its hosts find processes. Roles with devices have none there: only a process
inside the bundle can learn its device ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dljob.master.start import spares
from dljob.master.start.assign import nodes_of_group, spare_nodes
from dljob.master.start.starting import is_role_completed
from dljob.master.state.state import JobState, Phase, SparePhase, UnitPhase
from dljob.master.state.transaction import StateTransaction
from dljob.plan.words import natural


def standby_nodes(state: JobState | StateTransaction) -> dict[str, tuple[str, ...]]:
    """Return node group -> its standby nodes: as many as it has spares, or fewer if there are not so many."""
    used_nodes = {unit.node for unit in state.units.values() if unit.phase in (UnitPhase.HELD, UnitPhase.RESERVING)}
    barred_nodes = {*state.exclusions, *state.departures, *_nodes_of_lost_spares(state)}
    nodes_by_group: dict[str, tuple[str, ...]] = {}
    for group, count in sorted(spare_nodes(state.job.plan).items()):
        idle_nodes = [
            node
            for node in nodes_of_group(state.nodes, group)
            if not node.head and node.id not in used_nodes and node.id not in barred_nodes
        ]
        # The same choice as at admission (`assign`): the last ones, entirely free ones preferred.
        idle_nodes.sort(key=lambda node: (node.free == node.total, natural(node.id)))
        nodes_by_group[group] = tuple(node.id for node in idle_nodes[len(idle_nodes) - min(count, len(idle_nodes)) :])
        # Without labels a node counts for every group, but stands by for one only.
        used_nodes.update(nodes_by_group[group])
    return nodes_by_group


def _nodes_of_lost_spares(state: JobState | StateTransaction) -> set[str]:
    """Return the nodes where a spare failed to start too often and was given up; other nodes stand by instead."""
    return {node for (_, node, _), spare in state.spares.items() if spare.phase is SparePhase.LOST}


def update_standby_spares(tx: StateTransaction) -> None:
    """Update the spares after an event: order those that standby nodes lack, and end those that are left over."""
    if not tx.job.fault_tolerance.spares.nodes or tx.phase is not Phase.RUNNING or not _may_standby_change(tx):
        return
    wanted_counts = _spare_counts(tx, standby_nodes(tx))
    for role, node, slot in sorted(tx.spares):
        if slot >= max(spares.spares_per_node(tx), wanted_counts.get((role, node), 0)):
            spares.end_spare(tx, (role, node, slot))
    for (role, node), count in sorted(wanted_counts.items()):
        spares.order_missing_spares(tx, role, [node], count)


def _may_standby_change(tx: StateTransaction) -> bool:
    """Whether this event changed anything that decides the standby nodes or their spares."""
    base = tx.base
    nodes = (tx.nodes is base.nodes, tx.exclusions is base.exclusions, tx.departures is base.departures)
    tables = (*nodes, tx.units is base.units)
    return base.phase is not tx.phase or not all(tables) or _has_role_begun_or_ended(tx) or _was_spare_given_up(tx)


def _was_spare_given_up(tx: StateTransaction) -> bool:
    """Whether a spare was given up in this event."""
    spares_touched = (tx.spares.get(key) for key in tx.changes.spares)
    return any(spare is not None and spare.phase is SparePhase.LOST for spare in spares_touched)


def _has_role_begun_or_ended(tx: StateTransaction) -> bool:
    """Whether a role became ready for the first time, or has ended."""
    return any(
        tx.roles[role].was_ready is not tx.base.roles[role].was_ready or is_role_completed(tx, role)
        for role in tx.changes.roles
    )


def _spare_counts(tx: StateTransaction, nodes: Mapping[str, tuple[str, ...]]) -> dict[tuple[str, str], int]:
    """Return (role, standby node) -> the largest number of the role's hosts on any node of the same group."""
    views = {node.id: node for node in tx.nodes}
    spare_counts: dict[tuple[str, str], int] = {}
    for group, idle_nodes in nodes.items():
        group_nodes = {node.id for node in nodes_of_group(views.values(), group)}
        for role, facts in tx.job.roles.items():
            needs_spares = tx.roles[role].was_ready and not is_role_completed(tx, role)
            if idle_nodes and facts.plan.accelerator is None and needs_spares:
                host_counts = Counter(tx.units[facts.unit_of(host)].node for host in facts.hosts() if host.index >= 0)
                largest_count = max((count for node, count in host_counts.items() if node in group_nodes), default=0)
                spare_counts.update({(role, node): largest_count for node in idle_nodes if largest_count})
    return spare_counts
