"""Ray's tables in dljob's terms. Every method blocks for at least a millisecond: call it in a thread."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup

from dljob import ray_private
from dljob.master.state.views import NodeView
from dljob.plan.model import CPU_LABEL, GRAIN, Amount, Resources
from dljob.spec.quantity import CPU_PATTERN, parse_cpu

GONE = "REMOVED"
"""The state of a placement group that was removed."""
HEAD = "node:__internal_head__"
"""The resource by which Ray marks its head node."""
HIDDEN = ("node:", "object_store_memory", "accelerator_type:")
"""Prefixes of resources that Ray adds by itself, and that no plan counts."""


class RayTables:
    """Reads nodes, placement groups and actors from the GCS."""

    def live_nodes(self) -> list[Mapping[str, Any]]:
        """Return the nodes that the GCS considers alive."""
        return [row for row in ray.nodes() if row["Alive"]]

    def groups(self) -> list[Mapping[str, Any]]:
        """Return the placement groups that are not removed; the GCS keeps the rows of removed ones."""
        return [row for row in ray_private.group_rows().values() if row["state"] != GONE]

    def group_by_id(self, group: PlacementGroup) -> Mapping[str, Any]:
        """Return the row of a placement group; one that the GCS has forgotten counts as removed."""
        return ray_private.group_row(group.id) or {"state": GONE, "stats": {"scheduling_state": GONE}}

    def group_of(self, row: Mapping[str, Any]) -> PlacementGroup:
        """Return the handle of a row."""
        return PlacementGroup(ray.PlacementGroupID.from_hex(row["placement_group_id"]))

    def node_of(self, handle: Any) -> str:
        """Return the node of an actor, also of a dead one; empty if it never had one."""
        node: str = ray_private.actor_row(handle).get("Address", {}).get("NodeID", "")
        # An actor without a node has the nil id, all f.
        return "" if set(node) <= {"f"} else node

    def views(self, rows: Iterable[Mapping[str, Any]]) -> tuple[NodeView, ...]:
        """Return nodes with their free resources: the lesser of what raylets reported and what groups leave.

        Raylets report with a delay, and groups do not count what actors outside of them hold.
        """
        reported = ray_private.free_by_node()
        held, going = self._held_resources(), ray_private.draining_nodes()
        made = [
            _view(row, reported.get(row["NodeID"], {}), held.get(row["NodeID"], {}), going.get(row["NodeID"]))
            for row in rows
        ]
        return tuple(sorted(made, key=lambda view: view.id))

    def _held_resources(self) -> dict[str, dict[str, Amount]]:
        """Return node -> resources held by created groups: the GCS's table is exact at once, raylets report later."""
        held: dict[str, dict[str, Amount]] = {}
        for row in self.groups():
            for index, bundle in row["bundles"].items():
                node = held.setdefault(row["bundles_to_node_id"][index], {})
                for name, amount in bundle.items():
                    node[name] = node.get(name, 0) + _grain(amount)
        return held


def _grain(amount: float) -> Amount:
    return round(amount * GRAIN)


def _view(
    row: Mapping[str, Any], reported: Mapping[str, float], held: Mapping[str, Amount], going: int | None
) -> NodeView:
    # Ray also lists the resources of placement groups, by names with "_group_".
    total = {name: _grain(amount) for name, amount in row["Resources"].items() if _is_own(name)}
    labels: Mapping[str, str] = row.get("Labels") or {}
    over = _uncounted_cpus(total, labels)
    total = {name: amount - over.get(name, 0) for name, amount in total.items()}
    free = {
        name: max(0, min(_grain(reported.get(name, 0.0)) - over.get(name, 0), amount - held.get(name, 0)))
        for name, amount in total.items()
    }
    return NodeView(
        id=row["NodeID"],
        total=_resources(total),
        free=_resources(free),
        labels=tuple(sorted(labels.items())),
        ip=row["NodeManagerAddress"],
        # A head that offers CPUs was started to carry work: `ray start --head` on one machine, or `ray.init()`.
        head=HEAD in row["Resources"] and not total.get("CPU"),
        leaving=None if going is None else going / 1000,  # it comes in milliseconds
    )


def _uncounted_cpus(total: Mapping[str, Amount], labels: Mapping[str, str]) -> dict[str, Amount]:
    """Return the CPUs that Ray offers beyond the machine's real fraction: Ray counts whole CPUs, the plan fractions."""
    counted = labels.get(CPU_LABEL, "")
    there = total.get("CPU", 0)
    return {"CPU": max(0, there - parse_cpu(counted))} if re.fullmatch(CPU_PATTERN, counted) else {}


def _is_own(name: str) -> bool:
    return "_group_" not in name and not name.startswith(HIDDEN)


def _resources(amounts: Mapping[str, Amount]) -> Resources:
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))
