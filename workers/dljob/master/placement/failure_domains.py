"""Failure domains: nodes of one rack or super-pod, which are replaced together once several of them have failed.

A bad switch or power supply takes its machines one after the other, and each would cost the job a restart. So after
`domainFailures` of them all others are left in the same incident, paid once, if the rest of the cluster has room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from dljob.master.failure import budget
from dljob.master.failure.moving import elsewhere
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


def domains(d: StateTransaction, nodes: Iterable[NodeView]) -> Labels:
    """Return the domains of nodes; empty where the spec names no label."""
    key = d.job.fault_tolerance.node.failure_domain_label
    if key is None:
        return {}
    values = {node.id: dict(node.labels).get(key) for node in nodes if not node.head}
    return {name: value for name, value in values.items() if value}


def count(d: StateTransaction, name: str) -> int:
    """Count a failure of a node; return how often it failed within the window. Without `maxFailures` none is kept."""
    if d.job.fault_tolerance.node.max_failures == 1:
        return 1
    # Ids of nodes never come back, so those that failed long ago would fill the state.
    for key in [key for key in d.marks if key.startswith(budget.NODE) and not budget.recent(d, key)]:
        d.marks = d.marks.delete(key)
    return budget.add(d, f"{budget.NODE}{name}")


def others(d: StateTransaction, failed: frozenset[str], labels: Labels) -> dict[str, str]:
    """Count failures of nodes against their domains; return the other nodes to leave with them, each with the reason.

    Args:
        d: the transaction; its nodes are those that are there now.
        failed: ids of nodes that have just failed, each for the first time.
        labels: domains of the nodes, with those of failed nodes that are gone.
    """
    found: dict[str, str] = {}
    for value in sorted({labels[name] for name in failed if name in labels}):
        own = {name for name in failed if labels.get(name) == value}
        many = _add(d, value, sorted(own))
        left = {node.id for node in d.nodes if labels.get(node.id) == value}
        rest = sorted(left.difference(failed, d.exclusions, d.departures))
        if many >= (d.job.fault_tolerance.node.domain_failures or many + 1) and rest:
            found.update(_decide(d, value, rest, own, many))
    return found


def _decide(d: StateTransaction, value: str, rest: list[str], own: set[str], many: int) -> dict[str, str]:
    """Return the rest of a domain with the reason to leave it; empty where there is no room for its ranks elsewhere."""
    policy = d.job.fault_tolerance.node
    gone = frozenset(rest).union(own)
    units = frozenset(name for name, unit in d.units.items() if unit.node in gone)
    where = f"{policy.failure_domain_label}={value}"
    why = f"{counted(many, 'node')} of {where} failed within {policy.domain_window_seconds} s"
    room = elsewhere(d, units, gone) if units and d.seats else None
    if isinstance(room, Refusal):
        d.note(reasons.DOMAIN_STAYS, "job", f"{why}; its other nodes are used on: {room.why}")
        return {}
    more = f" and {len(rest) - SHOWN} more" if len(rest) > SHOWN else ""
    d.note(
        reasons.DOMAIN_REPLACED,
        "job",
        f"{why}; its other nodes are left with them: {', '.join(d.node_names(rest[:SHOWN]))}{more}",
    )
    return dict.fromkeys(rest, why)


def _add(d: StateTransaction, value: str, names: Iterable[str]) -> int:
    """Add failed nodes to a domain; return how many different ones failed within its window."""
    key, since = f"{budget.DOMAIN}{value}", d.now - d.job.fault_tolerance.node.domain_window_seconds
    kept = tuple(mark for mark in d.marks.get(key, ()) if mark.at > since and mark.node not in names)
    marks = (*kept, *(BudgetMark(d.now, name) for name in names))
    d.marks = d.marks.set(key, marks)
    return len(marks)
