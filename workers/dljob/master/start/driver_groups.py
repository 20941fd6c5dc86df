"""Pending placement groups and actors of a role's own Ray driver: the reason why one waits, reported once.

Ray waits for ever without a message. The explanation here is arithmetic on the nodes' reports; only Ray places.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dljob.master.state.events import GroupAsked
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import AskedGroup, NodeView
from dljob.plan.model import Amount, Resources, add_up
from dljob.plan.words import resource_text, resources_text
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted

SHOWN = 6
"""Number of nodes that an explanation names."""
SHORT = 8
"""Characters of Ray's id of a node without a name."""


def record_pending_group(tx: StateTransaction, event: GroupAsked) -> None:
    """Record a pending group: a line in the timeline the first time, and the reason in the status while it waits."""
    if event.waits:
        if event.group not in tx.groups:
            tx.note(reasons.PLACEMENT_PENDING, event.owner, event.why)
        # An unchanged reason must not make a new version of the state.
        if tx.groups.get(event.group) != (event.owner, event.why):
            tx.groups = tx.groups.set(event.group, (event.owner, event.why))
    elif event.group in tx.groups:
        tx.groups = tx.groups.delete(event.group)
        tx.note(reasons.PLACEMENT_RESOLVED, event.owner, event.why)


def explain(group: AskedGroup, nodes: Iterable[NodeView]) -> str:
    """Return the demand of a group or an actor, why it cannot be met now or ever, and what the nodes have of it."""
    sorted_nodes = sorted(nodes, key=lambda node: node.id)
    # STRICT_PACK wants all bundles on one node, so they count as one part.
    parts = [add_up(*group.bundles)] if group.strategy == "STRICT_PACK" else list(group.bundles)
    needs_own_nodes = group.strategy == "STRICT_SPREAD"
    never_text = _lack(parts, [dict(node.total) for node in sorted_nodes], "has", needs_own_nodes=needs_own_nodes)
    now_text = _lack(parts, [dict(node.free) for node in sorted_nodes], "has free", needs_own_nodes=needs_own_nodes)
    if never_text:
        verdict = f"these nodes can never hold it: {never_text}"
    elif now_text:
        verdict = f"not now: {now_text}"
    else:
        verdict = (
            "there is enough in total, but not in pieces of the right size, or not on nodes with the wanted labels"
        )
    if group.kind == "task":
        waiter = f"{group.name} started by a rank"
    else:
        waiter = f"{group.kind} {group.name or group.id} of {group.owner}"
    return f"{waiter} waits for {_describe_bundles(group)}; {verdict}; {_have(group, sorted_nodes)}"


def _describe_bundles(group: AskedGroup) -> str:
    """Return the bundles in words, equal ones together, and the strategy's condition on their nodes."""
    counts: dict[Resources, int] = {}
    for bundle in group.bundles:
        counts[bundle] = counts.get(bundle, 0) + 1
    texts = [f"{count} x ({resources_text(bundle)})" for bundle, count in counts.items()]
    conditions = {"STRICT_PACK": " on one node", "STRICT_SPREAD": ", each on a node of its own"}
    return " + ".join(texts) + conditions.get(group.strategy, "")


def _lack(parts: Sequence[Resources], have: Sequence[dict[str, Amount]], verb: str, *, needs_own_nodes: bool) -> str:
    """Return what is missing: a node for some part, enough nodes, or the sum; empty: nothing that counting can show.

    `have` are the amounts of each node, and `verb` says which ones they are ("has" or "has free").
    """
    # From the most telling reason to the weakest: a part that fits nowhere, too few nodes, too little in all.
    for part in dict.fromkeys(parts):
        if not any(_holds(amounts, part) for amounts in have):
            return f"no node {verb} {resources_text(part)}"
    fitting_count = sum(any(_holds(amounts, part) for part in parts) for amounts in have)
    if needs_own_nodes and fitting_count < len(parts):
        return f"it wants {counted(len(parts), 'node')}, and {fitting_count} could hold a bundle"
    demand = add_up(*parts)
    sums = {name: sum(amounts.get(name, 0) for amounts in have) for name, _ in demand}
    lacking_names = [name for name, amount in demand if amount > sums[name]]
    if not lacking_names:
        return ""
    needs = ", ".join(resource_text(name, dict(demand)[name]) for name in lacking_names)
    have_text = ", ".join(resource_text(name, sums[name]) for name in lacking_names)
    return f"it needs {needs} in all, and all nodes together {verb.replace('has', 'have')} {have_text}"


def _holds(amounts: dict[str, Amount], part: Resources) -> bool:
    """Whether a node has room for a part of a group."""
    return all(amounts.get(name, 0) >= amount for name, amount in part)


def _have(group: AskedGroup, nodes: Sequence[NodeView]) -> str:
    """Return the free amounts on nodes that have any of the resources that the group needs."""
    names = [name for name, _ in add_up(*group.bundles)]
    rows: list[str] = []
    for node in nodes:
        total, free = dict(node.total), dict(node.free)
        texts = [
            f"{resource_text(name, free.get(name, 0))} of {resource_text(name, total[name]).split()[0]}"
            for name in names
            if name in total
        ]
        if texts:
            name = "head" if node.head else node.id[:SHORT] if node.name == node.id else node.name
            rows.append(f"{name}: {', '.join(texts)}")
    more = f" and {len(rows) - SHOWN} more nodes" if len(rows) > SHOWN else ""
    return f"free on nodes: {'; '.join(rows[:SHOWN])}{more}" if rows else "no node has any of it"
