"""Placement of a page: where the plan put each unit, and where the units were last. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dljob.master.start.assign import Refusal, assign, spare_nodes, would_be_nodes
from dljob.plan.labels import NODE_NAME
from dljob.plan.model import JobPlan, Resources, Unit
from dljob.plan.words import natural, ranges

UNIT = 10_000
"""An amount of 1 in the plan's unit."""


def placement(plan: JobPlan, units: Mapping[str, str], nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the nodes with their units, as planned and as they last were.

    Args:
        plan: the plan of the job's spec.
        units: unit -> the node that it was last on.
        nodes: node -> how it was last seen; its names are those that users gave.
    """
    would_be = would_be_nodes(plan)
    assignment = assign(plan.units.values(), would_be, reserve_nodes=spare_nodes(plan))
    # It fitted when the job was submitted; another version may judge otherwise.
    planned = {} if isinstance(assignment, Refusal) else dict(assignment.nodes)
    totals = {node.id: node.total for node in would_be}
    actual = {name: node for name, node in units.items() if name in plan.units}
    amounts = {node: tuple((name, amount) for name, amount in row["total"]) for node, row in nodes.items()}
    names = {node: row.get("pod") or dict(row["labels"]).get(NODE_NAME, node) for node, row in nodes.items()}
    heads = {node for node, row in nodes.items() if row.get("head")}
    return {
        "nodes": _nodes(plan, actual, amounts, names, heads),
        "plan": {"nodes": _nodes(plan, planned, totals, {})},
    }


def _nodes(
    plan: JobPlan,
    placed: Mapping[str, str],
    totals: Mapping[str, Resources],
    names: Mapping[str, str],
    heads: Collection[str] = (),
) -> list[dict[str, Any]]:
    on_node: dict[str, list[Unit]] = {node: [] for node in totals}
    for unit, node in placed.items():
        on_node.setdefault(node, []).append(plan.units[unit])
    rows = [
        {
            "name": names.get(node, node),
            "resources": _amounts(totals.get(node, ())),
            "bundles": [_bundle(unit, i) for unit in units for i in range(len(unit.bundles))],
        }
        for node, units in on_node.items()
        if units or node not in heads
    ]
    return sorted(rows, key=lambda row: natural(row["name"]))


def _bundle(unit: Unit, index: int) -> dict[str, Any]:
    bundle = unit.bundles[index]
    return {"unit": unit.name, "ranks": _ranks(bundle.ranks), "shares": _amounts(bundle.resources)}


def _ranks(ranks: Iterable[tuple[str, int]]) -> list[str]:
    """Return ranks as in "actor/0-7"."""
    by_role: dict[str, list[int]] = {}
    for role, rank in ranks:
        by_role.setdefault(role, []).append(rank)
    return [f"{role}/{ranges(sorted(numbers))}" for role, numbers in by_role.items()]


def _amounts(resources: Iterable[tuple[str, int]]) -> dict[str, float]:
    return {name: amount / UNIT for name, amount in resources}
