"""Assignment of units to nodes: exact within the bounds of the search, and with the reason if there is none.

The search itself is `plan.packing` and `plan.domains`, which the planner uses too, so that `dljob plan` and PrimeMaster
agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from operator import attrgetter

from dljob.master.state.views import NodeView
from dljob.plan.capacity import Capacity, Demand, demand_of, occupied, room_of, take
from dljob.plan.conflict import Conflict
from dljob.plan.domains import Choice, pack_in_domains, why_not
from dljob.plan.model import NODE_GROUP_LABEL, JobPlan, Resources, Unit
from dljob.plan.packing import Batch, MachineRun, Packing, Stuck, machine_name, runs_of
from dljob.plan.words import natural

_FREE, _TOTAL = attrgetter("free"), attrgetter("total")


@dataclass(frozen=True, slots=True)
class Assignment:
    """A node for every unit."""

    nodes: Mapping[str, str]
    """Unit -> node id."""
    domains: tuple[Choice, ...] = ()
    """Topology domains that were chosen for series that had none before, or preferred and not had, with the reason."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why some unit finds no node, so that none of the gang may be reserved."""

    reason: str
    """The smallest conflicting set of units with its numbers, in words."""
    conflict: tuple[tuple[str, int], ...]
    """The conflicting set, as (role or collocation, number of its units). Without any one entry the others fit."""
    missing_amounts: Resources
    """Least amounts that would have to become free; empty if it is not a matter of amounts."""
    never: bool
    """Whether it would not fit even if these nodes were empty. False: waiting may help."""
    proven: bool = True
    """False: the bounded search found no assignment, which does not prove that there is none."""


@dataclass(frozen=True, slots=True)
class AssignedUnit:
    """A unit that has a node already. `counted`: whether the node's `free` already excludes it."""

    unit: Unit
    node: str
    counted: bool = True
    domain: str = ""
    """Value of the unit's topology key, or of the preferred one, on the node; empty: none."""


def assign(
    units: Iterable[Unit],
    nodes: Iterable[NodeView],
    *,
    excluded: frozenset[str] = frozenset(),
    placed_units: Iterable[AssignedUnit] = (),
    reserve_nodes: Mapping[str, int] | None = None,
) -> Assignment | Refusal:
    """Return a node for every unit, or a refusal for all of them.

    The answer does not depend on the order of units, nodes or `placed_units`. Head nodes get no unit.

    Args:
        units: The units to place, all or none.
        nodes: The live nodes.
        excluded: Ids of nodes that get no unit now, though they might later.
        placed_units: Units that keep their node.
        reserve_nodes: Node group -> number of its nodes that stay entirely free, as spares.
    """
    batches, members = _batches(units)
    all_nodes = tuple(nodes)
    # Sorted, so that the answer does not depend on the order in which Ray lists the nodes.
    worker_nodes = sorted((node for node in all_nodes if not node.head), key=lambda node: natural(node.id))
    placed, spares = tuple(placed_units), reserve_nodes or {}
    runs, shortage = _runs(worker_nodes, batches, placed, spares, excluded)
    domains_in_use = _domains_in_use(placed)
    packing, domains = (Stuck(proven=True), ()) if shortage else pack_in_domains(batches, runs, domains_in_use)
    if isinstance(packing, Packing):
        return Assignment(_spread(packing, members, worker_nodes), domains)
    # It does not fit now. The same question on empty nodes tells whether waiting can help.
    empty_nodes = [replace(node, free=node.total) for node in worker_nodes]
    uncounted = [replace(unit, counted=False) for unit in placed]
    # Without the exclusions, which hold only for now.
    empty_runs, empty_shortage = _runs(empty_nodes, batches, uncounted, spares, frozenset())
    empty_packing = Stuck(proven=True) if empty_shortage else pack_in_domains(batches, empty_runs, domains_in_use)[0]
    never = isinstance(empty_packing, Stuck) and empty_packing.proven
    # Without room for the spares nothing was searched, so there is no conflict of units to name.
    if shortage:
        return Refusal(empty_shortage or shortage, (), (), never=never)
    # A refusal for ever names what the nodes have, any other what they have free.
    searched_runs, suffix = (empty_runs, "") if never else (runs, " free")
    is_proven = never or packing.proven
    conflict = why_not(batches, searched_runs, domains_in_use, proven=is_proven, suffix=suffix)
    return _refusal(conflict, spares, never=never, only_head=not worker_nodes and bool(all_nodes))


def nodes_with_room(nodes: Sequence[NodeView], units: Iterable[Unit]) -> list[NodeView]:
    """Return the nodes with enough free for the least demand of each resource: a quick filter before the search."""
    demands = [dict(demand) for demand in {unit.demand for unit in units}]
    # Only a resource that all units ask for can rule a node out for each of them.
    common = set[str]().union(*demands).intersection(*demands)
    least_amounts = [(name, min(demand[name] for demand in demands)) for name in sorted(common)]

    def has_room(free: Resources, total: Resources) -> bool:
        free_amounts, total_amounts = dict(free), dict(total)
        # Resources that a node does not state are left to the search.
        return all(name not in total_amounts or free_amounts.get(name, 0) >= amount for name, amount in least_amounts)

    # Most nodes of a cluster have the same to give, and state the same: no pair is made for each node then.
    frees, totals = list(map(_FREE, nodes)), set(map(_TOTAL, nodes))
    roomy_frees = {free for free in set(frees) if all(has_room(free, total) for total in totals)}
    full_frees = {free for free in set(frees) - roomy_frees if not any(has_room(free, total) for total in totals)}
    if len(roomy_frees) + len(full_frees) == len(set(frees)):
        return list(compress(nodes, map(roomy_frees.__contains__, frees)))
    amounts = list(zip(frees, map(_TOTAL, nodes), strict=True))
    roomy_pairs = {pair for pair in set(amounts) if has_room(*pair)}
    return list(compress(nodes, map(roomy_pairs.__contains__, amounts)))


def would_be_nodes(plan: JobPlan) -> tuple[NodeView, ...]:
    """Return the planned machines as empty nodes, as if they had joined: `<group>-<i>`, spares last."""
    return tuple(
        NodeView(machine_name(group, i), group.resources, group.resources, group.labels)
        for group in plan.node_groups.values()
        for i in range(group.replicas)
    )


def spare_nodes(plan: JobPlan) -> dict[str, int]:
    """Return node group -> number of machines that stay free as spares: `reserve_nodes` of `assign`."""
    return {group.name: group.spares for group in plan.node_groups.values() if group.spares}


def nodes_of_group(nodes: Iterable[NodeView], group: str) -> tuple[NodeView, ...]:
    """Return the nodes with the label of a node group; all nodes, where none carries such a label."""
    workers = [node for node in nodes if not node.head]
    label_of = {node.id: dict(node.labels).get(NODE_GROUP_LABEL) for node in workers}
    return tuple(node for node in workers if label_of[node.id] == group or not any(label_of.values()))


def _domains_in_use(placed_units: Iterable[AssignedUnit]) -> dict[str, frozenset[str]]:
    """Return series -> the topology domains that its units occupy already."""
    domains: dict[str, set[str]] = {}
    for placed in placed_units:
        # A preference has nothing to do with nodes that are in no domain.
        if placed.unit.topology_key or (placed.unit.preferred_key and placed.domain):
            domains.setdefault(placed.unit.series, set()).add(placed.domain)
    return {series: frozenset(values) for series, values in domains.items()}


def _batches(units: Iterable[Unit]) -> tuple[list[Batch], list[list[str]]]:
    """Return batches of exchangeable units of one series, and the unit names of each batch in order."""
    units_by_kind: dict[tuple[str, Demand], list[Unit]] = {}
    for unit in sorted(units, key=lambda unit: natural(unit.name)):
        units_by_kind.setdefault((unit.series, demand_of(unit)), []).append(unit)
    batches = [Batch(name, demand, len(alike), alike[0]) for (name, demand), alike in units_by_kind.items()]
    return batches, [[unit.name for unit in alike] for alike in units_by_kind.values()]


def _runs(
    nodes: Sequence[NodeView],
    batches: Sequence[Batch],
    placed_units: Sequence[AssignedUnit],
    spares: Mapping[str, int],
    excluded: frozenset[str],
) -> tuple[tuple[MachineRun, ...], str]:
    """Return the room of usable nodes as runs of equal machines, and a message if the spares cannot be kept free."""
    by_node: dict[str, list[AssignedUnit]] = {}
    for placed in placed_units:
        by_node.setdefault(placed.node, []).append(placed)
    spare_indices, shortage = _choose_spare_nodes(nodes, by_node, spares, excluded)
    # Most nodes of a cluster are alike: their room is computed once. One that holds such units has a key of its own.
    indices_by_kind: dict[object, list[int]] = {}
    for index, node in enumerate(nodes):
        if node.id not in excluded and index not in spare_indices:
            key = node.id if node.id in by_node else (node.free, node.labels, node.total)
            indices_by_kind.setdefault(key, []).append(index)
    rooms: list[tuple[Capacity, Sequence[int]]] = []
    for indices in indices_by_kind.values():
        first_node = nodes[indices[0]]
        room = _room(first_node, by_node.get(first_node.id, ()))
        if room is not None:  # a node that holds more than it has takes nothing
            rooms.append((room, indices))
    return runs_of(rooms, batches), shortage


def _choose_spare_nodes(
    nodes: Sequence[NodeView],
    units_by_node: Mapping[str, Sequence[AssignedUnit]],
    spares: Mapping[str, int],
    excluded: frozenset[str],
) -> tuple[set[int], str]:
    """Return the indices of nodes to keep as spares, each group's last free ones, and a message if they are too few."""
    spare_indices: set[int] = set()
    index_of = {node.id: index for index, node in enumerate(nodes)}
    for group, count in sorted(spares.items()):
        group_indices = [index_of[node.id] for node in nodes_of_group(nodes, group)]
        free_indices = [
            i
            for i in group_indices
            if nodes[i].free == nodes[i].total and i not in spare_indices
            if not {nodes[i].id} & (units_by_node.keys() | excluded)
        ]
        if len(free_indices) < count:
            numbers = f"{len(free_indices)} of {len(group_indices)} are free"
            return spare_indices, f"node group {group}: {count} to stay free as spares, {numbers}"
        # The last ones, so that units fill the first nodes.
        spare_indices.update(free_indices[len(free_indices) - count :])
    return spare_indices, ""


def _room(node: NodeView, placed_units: Sequence[AssignedUnit]) -> Capacity | None:
    """Return the room of a node beside the units that it holds; None when they hold more than it has."""
    room: Capacity | None = room_of(node.free, node.labels, node.total)
    for placed in placed_units:
        demand = demand_of(placed.unit)
        if room is not None:
            room = occupied(room, demand) if placed.counted else take(room, demand)
    return room


def _spread(packing: Packing, members: Sequence[Sequence[str]], nodes: Sequence[NodeView]) -> dict[str, str]:
    """Return unit -> node id: units in order on nodes in order, so that neighbouring groups stay neighbours."""
    chosen: dict[str, str] = {}
    for names, spots in zip(members, packing.spots, strict=True):
        counted_indices = sorted((index, count) for ids, count in spots for index in ids)
        indices = [index for index, count in counted_indices for _ in range(count)]
        chosen.update((name, nodes[index].id) for name, index in zip(names, indices, strict=True))
    return chosen


def _refusal(conflict: Conflict, spares: Mapping[str, int], *, never: bool, only_head: bool) -> Refusal:
    """Return the refusal of a conflict, with the hints that users need to understand its numbers."""
    spares_text = ", ".join(f"{count} of {group}" for group, count in sorted(spares.items()))
    reason = conflict.reason
    if only_head:
        reason = f"{reason} (ranks never live on the head)"
    elif spares_text:
        reason = f"{reason} (kept free as spares: {spares_text})"
    conflict_counts = tuple((batch.name, batch.count) for batch in conflict.batches)
    return Refusal(reason, conflict_counts, conflict.missing, never=never, proven=conflict.proven)
