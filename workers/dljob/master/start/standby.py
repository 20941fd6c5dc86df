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
from dljob.master.start.assign import of_group, spare_nodes
from dljob.master.start.starting import completed
from dljob.master.state.state import JobState, Phase, SparePhase, UnitPhase
from dljob.master.state.transaction import StateTransaction
from dljob.plan.words import natural


def standing_by(state: JobState | StateTransaction) -> dict[str, tuple[str, ...]]:
    """Return node group -> its standby nodes: as many as it has spares, or fewer if there are not so many."""
    used = {unit.node for unit in state.units.values() if unit.phase in (UnitPhase.HELD, UnitPhase.RESERVING)}
    barred = {*state.exclusions, *state.departures, *_failing(state)}
    found: dict[str, tuple[str, ...]] = {}
    for group, count in sorted(spare_nodes(state.job.plan).items()):
        idle = [
            node
            for node in of_group(state.nodes, group)
            if not node.head and node.id not in used and node.id not in barred
        ]
        # The same choice as at admission (`assign`): the last ones, entirely free ones preferred.
        idle.sort(key=lambda node: (node.free == node.total, natural(node.id)))
        found[group] = tuple(node.id for node in idle[len(idle) - min(count, len(idle)) :])
        # Without labels a node counts for every group, but stands by for one only.
        used.update(found[group])
    return found


def _failing(state: JobState | StateTransaction) -> set[str]:
    """Return the nodes where a spare failed to start too often and was given up; other nodes stand by instead."""
    return {node for (_, node, _), own in state.spares.items() if own.phase is SparePhase.LOST}


def keep(d: StateTransaction) -> None:
    """Update the spares after an event: order those that standby nodes lack, and end those that are left over."""
    if not d.job.fault_tolerance.spares.nodes or d.phase is not Phase.RUNNING or not _changed(d):
        return
    wanted = _spares_per_node(d, standing_by(d))
    for role, node, slot in sorted(d.spares):
        if slot >= max(spares.per_node(d), wanted.get((role, node), 0)):
            spares.end(d, (role, node, slot))
    for (role, node), count in sorted(wanted.items()):
        spares.keep(d, role, [node], count)


def _changed(d: StateTransaction) -> bool:
    """Whether this event changed anything that decides the standby nodes or their spares."""
    base = d.base
    nodes = (d.nodes is base.nodes, d.exclusions is base.exclusions, d.departures is base.departures)
    tables = (*nodes, d.units is base.units)
    return base.phase is not d.phase or not all(tables) or _grew(d) or _gave_up(d)


def _gave_up(d: StateTransaction) -> bool:
    """Whether a spare was given up in this event."""
    there = (d.spares.get(key) for key in d.touched.spares)
    return any(own is not None and own.phase is SparePhase.LOST for own in there)


def _grew(d: StateTransaction) -> bool:
    """Whether a role became ready for the first time, or has ended."""
    return any(
        d.roles[role].was_ready is not d.base.roles[role].was_ready or completed(d, role) for role in d.touched.roles
    )


def _spares_per_node(d: StateTransaction, nodes: Mapping[str, tuple[str, ...]]) -> dict[tuple[str, str], int]:
    """Return (role, standby node) -> the largest number of the role's hosts on any node of the same group."""
    labels = {node.id: node for node in d.nodes}
    found: dict[tuple[str, str], int] = {}
    for group, idle in nodes.items():
        own = {node.id for node in of_group(labels.values(), group)}
        for role, facts in d.job.roles.items():
            if idle and facts.plan.accelerator is None and d.roles[role].was_ready and not completed(d, role):
                where = Counter(d.units[facts.unit_of(host)].node for host in facts.hosts() if host.index >= 0)
                most = max((count for node, count in where.items() if node in own), default=0)
                found.update({(role, node): most for node in idle if most})
    return found
