"""Ray's tables in dljob's terms. Every method blocks for at least a millisecond: call it in a thread."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup

from dljob import ray_private
from dljob.master.state.views import NodeView
from dljob.plan.labels import NO_RANKS
from dljob.plan.model import CPU_LABEL, GRAIN, Amount, Resources
from dljob.spec.quantity import CPU_PATTERN, parse_cpu

GONE = "REMOVED"
"""The state of a placement group that was removed."""
HEAD = "node:__internal_head__"
"""The resource by which Ray marks its head node."""
HIDDEN = ("node:", "object_store_memory", "accelerator_type:")
"""Prefixes of resources that Ray adds by itself, and that no plan counts."""
INSTANCE = "RAY_CLOUD_INSTANCE_ID"
"""The variable by which KubeRay gives Ray the name of the pod. Source: KubeRay 1.6.2, common/pod.go."""
ANSWERS_S = 5.0
"""Seconds for the GCS to tell the names of pods."""


class RayTables:
    """Reads nodes, placement groups and actors from the GCS."""

    def __init__(self) -> None:
        self._pods: dict[str, str] = {}
        """Node -> the name of its pod; empty for a node that is none."""

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
        node_rows, reported = list(rows), ray_private.free_by_node()
        held_by_node, going = self._held_resources(), ray_private.draining_nodes()
        self._learn_pods({row["NodeID"] for row in node_rows})
        node_views = [
            _view(row, reported.get(node, {}), held_by_node.get(node, {}), going.get(node), self._pods.get(node, ""))
            for row in node_rows
            for node in [row["NodeID"]]
        ]
        return tuple(sorted(node_views, key=lambda view: view.id))

    def name_of(self, node: str) -> str:
        """Return the name of a node's pod, or else the beginning of Ray's id."""
        return self._pods.get(node) or node[:8]

    def _learn_pods(self, nodes: set[str]) -> None:
        """Learn the pods of these nodes where one is new, and forget those of nodes that are gone."""
        if INSTANCE in os.environ and not nodes <= self._pods.keys():
            with suppress(Exception):  # a job goes on without the names, which are asked for again with the next list
                known = ray_private.node_infos(ANSWERS_S)
                self._pods = {node: known[node].instance_id if node in known else "" for node in nodes}

    def _held_resources(self) -> dict[str, dict[str, Amount]]:
        """Return node -> resources held by created groups: the GCS's table is exact at once, raylets report later."""
        held_by_node: dict[str, dict[str, Amount]] = {}
        for row in self.groups():
            for index, bundle in row["bundles"].items():
                node = held_by_node.setdefault(row["bundles_to_node_id"][index], {})
                for name, amount in bundle.items():
                    node[name] = node.get(name, 0) + _grain(amount)
        return held_by_node


def _grain(amount: float) -> Amount:
    return round(amount * GRAIN)


def _view(
    row: Mapping[str, Any],
    reported: Mapping[str, float],
    held_amounts: Mapping[str, Amount],
    going: int | None,
    pod: str = "",
) -> NodeView:
    # Ray also lists the resources of placement groups, by names with "_group_".
    total = {name: _grain(amount) for name, amount in row["Resources"].items() if _is_own(name)}
    labels: Mapping[str, str] = row.get("Labels") or {}
    over = _uncounted_cpus(total, labels)
    total = {name: amount - over.get(name, 0) for name, amount in total.items()}
    free = {
        name: max(0, min(_grain(reported.get(name, 0.0)) - over.get(name, 0), amount - held_amounts.get(name, 0)))
        for name, amount in total.items()
    }
    return NodeView(
        id=row["NodeID"],
        total=_resources(total),
        free=_resources(free),
        labels=tuple(sorted(labels.items())),
        ip=row["NodeManagerAddress"],
        # A head that offers CPUs was started to carry work, by `ray start --head` on one machine or `ray.init()`; but
        # that of an embedded Ray offers them to users' tasks alone.
        head=HEAD in row["Resources"] and (not total.get("CPU") or NO_RANKS in labels),
        leaving=None if going is None else going / 1000,  # it comes in milliseconds
        pod=pod,
    )


def _uncounted_cpus(total: Mapping[str, Amount], labels: Mapping[str, str]) -> dict[str, Amount]:
    """Return the CPUs that Ray offers beyond the machine's real fraction: Ray counts whole CPUs, the plan fractions."""
    counted = labels.get(CPU_LABEL, "")
    offered = total.get("CPU", 0)
    return {"CPU": max(0, offered - parse_cpu(counted))} if re.fullmatch(CPU_PATTERN, counted) else {}


def _is_own(name: str) -> bool:
    return "_group_" not in name and not name.startswith(HIDDEN)


def _resources(amounts: Mapping[str, Amount]) -> Resources:
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))
