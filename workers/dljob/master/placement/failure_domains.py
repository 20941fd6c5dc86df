"""Failure domains: nodes of one rack or super-pod, which are replaced together once several of them have failed.

A bad switch or power supply takes its machines one after the other, and each would cost the job a restart. So after
`domainFailures` of them all others are left in the same incident, paid once, if the rest of the cluster has room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from dljob.master.failure import budget
from dljob.master.failure.moving import assign_elsewhere
from dljob.master.start.assign import Refusal
from dljob.master.state.state import BudgetMark
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import NodeView
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted

Labels: TypeAlias = Mapping[str, str]
"""Node id -> its value of `failureDomainLabel`; nodes without the label are left out."""
SHOWN = 5
"""Number of nodes that a note names."""


def domains(tx: StateTransaction, nodes: Iterable[NodeView]) -> Labels:
    """Return the domains of nodes; empty where the spec names no label."""
    key = tx.job.fault_tolerance.node.failure_domain_label
    if key is None:
        return {}
    values = {node.id: dict(node.labels).get(key) for node in nodes if not node.head}
    return {name: value for name, value in values.items() if value}


def count_failure(tx: StateTransaction, name: str) -> int:
    """Count a failure of a node; return how often it failed within the window. Without `maxFailures` none is kept."""
    if tx.job.fault_tolerance.node.max_failures == 1:
        return 1
    # Ids of nodes never come back, so those that failed long ago would fill the state.
    for key in [key for key in tx.marks if key.startswith(budget.NODE_PREFIX) and not budget.recent_marks(tx, key)]:
        tx.marks = tx.marks.delete(key)
    return budget.add_mark(tx, f"{budget.NODE_PREFIX}{name}")


def domain_mates_to_leave(tx: StateTransaction, failed: frozenset[str], labels: Labels) -> dict[str, str]:
    """Count failures of nodes against their domains; return the other nodes to leave with them, each with the reason.

    Args:
        tx: the transaction; its nodes are those that are there now.
        failed: ids of nodes that have just failed, each for the first time.
        labels: domains of the nodes, with those of failed nodes that are gone.
    """
    reasons_by_node: dict[str, str] = {}
    for domain in sorted({labels[name] for name in failed if name in labels}):
        failed_mates = {name for name in failed if labels.get(name) == domain}
        failure_count = _count_failed_nodes(tx, domain, sorted(failed_mates))
        present_nodes = {node.id for node in tx.nodes if labels.get(node.id) == domain}
        healthy_mates = sorted(present_nodes.difference(failed, tx.exclusions, tx.departures))
        if failure_count >= (tx.job.fault_tolerance.node.domain_failures or failure_count + 1) and healthy_mates:
            reasons_by_node.update(_leave_domain(tx, domain, healthy_mates, failed_mates, failure_count))
    return reasons_by_node


def _leave_domain(
    tx: StateTransaction, domain: str, healthy_mates: list[str], failed_mates: set[str], failure_count: int
) -> dict[str, str]:
    """Return the rest of a domain with the reason to leave it; empty where there is no room for its ranks elsewhere."""
    policy = tx.job.fault_tolerance.node
    nodes = frozenset(healthy_mates).union(failed_mates)
    units = frozenset(name for name, unit in tx.units.items() if unit.node in nodes)
    label = f"{policy.failure_domain_label}={domain}"
    reason = f"{counted(failure_count, 'node')} of {label} failed within {policy.domain_window_seconds} s"
    room = assign_elsewhere(tx, units, nodes) if units and tx.was_admitted else None
    if isinstance(room, Refusal):
        tx.note(reasons.DOMAIN_STAYS, "job", f"{reason}; its other nodes are used on: {room.reason}")
        return {}
    omitted = f" and {len(healthy_mates) - SHOWN} more" if len(healthy_mates) > SHOWN else ""
    tx.note(
        reasons.DOMAIN_REPLACED,
        "job",
        f"{reason}; its other nodes are left with them: {', '.join(tx.node_names(healthy_mates[:SHOWN]))}{omitted}",
    )
    return dict.fromkeys(healthy_mates, reason)


def _count_failed_nodes(tx: StateTransaction, domain: str, names: Iterable[str]) -> int:
    """Add failed nodes to a domain; return how many different ones failed within its window."""
    key, since = f"{budget.DOMAIN_PREFIX}{domain}", tx.now - tx.job.fault_tolerance.node.domain_window_seconds
    older_marks = tuple(mark for mark in tx.marks.get(key, ()) if mark.at > since and mark.node not in names)
    marks = (*older_marks, *(BudgetMark(tx.now, name) for name in names))
    tx.marks = tx.marks.set(key, marks)
    return len(marks)
