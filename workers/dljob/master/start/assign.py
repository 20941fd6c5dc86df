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

    why: str
    """The smallest conflicting set of units with its numbers, in words."""
    conflict: tuple[tuple[str, int], ...]
    """The conflicting set, as (role or collocation, number of its units). Without any one entry the others fit."""
    missing: Resources
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
    taken: Iterable[AssignedUnit] = (),
    reserve_nodes: Mapping[str, int] | None = None,
) -> Assignment | Refusal:
    """Return a node for every unit, or a refusal for all of them.

    The answer does not depend on the order of units, nodes or `taken`. Head nodes get no unit.

    Args:
        units: The units to place, all or none.
        nodes: The live nodes.
        excluded: Ids of nodes that get no unit now, though they might later.
        taken: Units that keep their node.
        reserve_nodes: Node group -> number of its nodes that stay entirely free, as spares.
    """
    batches, members = _batches(units)
    everything = tuple(nodes)
    # Sorted, so that the answer does not depend on the order in which Ray lists the nodes.
    seen = sorted((node for node in everything if not node.head), key=lambda node: natural(node.id))
    held, spares = tuple(taken), reserve_nodes or {}
    now, short = _runs(seen, batches, held, spares, excluded)
    fixed = _fixed(held)
    found, chosen = (Stuck(proven=True), ()) if short else pack_in_domains(batches, now, fixed)
    if isinstance(found, Packing):
        return Assignment(_spread(found, members, seen), chosen)
    # It does not fit now. The same question on empty nodes tells whether waiting can help.
    emptied = [replace(node, free=node.total) for node in seen]
    whole = [replace(item, counted=False) for item in held]
    # Without the exclusions, which hold only for now.
    later, ever_short = _runs(emptied, batches, whole, spares, frozenset())
    ever = Stuck(proven=True) if ever_short else pack_in_domains(batches, later, fixed)[0]
    never = isinstance(ever, Stuck) and ever.proven
    # Without room for the spares nothing was searched, so there is no conflict of units to name.
    if short:
        return Refusal(ever_short or short, (), (), never=never)
    # A refusal for ever names what the nodes have, any other what they have free.
    conflict = why_not(
        batches, later if never else now, fixed, proven=never or found.proven, suffix="" if never else " free"
    )
    return _refusal(conflict, spares, never=never, only_head=not seen and bool(everything))


def roomy(nodes: Sequence[NodeView], units: Iterable[Unit]) -> list[NodeView]:
    """Return the nodes with enough free for the least demand of each resource: a quick filter before the search."""
    demands = [dict(demand) for demand in {unit.demand for unit in units}]
    # Only a resource that all units ask for can rule a node out for each of them.
    common = set[str]().union(*demands).intersection(*demands)
    least = [(name, min(demand[name] for demand in demands)) for name in sorted(common)]

    def has(free: Resources, total: Resources) -> bool:
        there, stated = dict(free), dict(total)
        # Resources that a node does not state are left to the search.
        return all(name not in stated or there.get(name, 0) >= amount for name, amount in least)

    # Most nodes of a cluster have the same to give, and state the same: no pair is made for each node then.
    frees, totals = list(map(_FREE, nodes)), set(map(_TOTAL, nodes))
    sure = {free for free in set(frees) if all(has(free, total) for total in totals)}
    out = {free for free in set(frees) - sure if not any(has(free, total) for total in totals)}
    if len(sure) + len(out) == len(set(frees)):
        return list(compress(nodes, map(sure.__contains__, frees)))
    amounts = list(zip(frees, map(_TOTAL, nodes), strict=True))
    fit = {each for each in set(amounts) if has(*each)}
    return list(compress(nodes, map(fit.__contains__, amounts)))


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


def of_group(nodes: Iterable[NodeView], group: str) -> tuple[NodeView, ...]:
    """Return the nodes with the label of a node group; all nodes, where none carries such a label."""
    workers = [node for node in nodes if not node.head]
    said = {node.id: dict(node.labels).get(NODE_GROUP_LABEL) for node in workers}
    return tuple(node for node in workers if said[node.id] == group or not any(said.values()))


def _fixed(held: Iterable[AssignedUnit]) -> dict[str, frozenset[str]]:
    """Return series -> the topology domains that its units occupy already."""
    found: dict[str, set[str]] = {}
    for item in held:
        # A preference has nothing to do with nodes that are in no domain.
        if item.unit.topology_key or (item.unit.preferred_key and item.domain):
            found.setdefault(item.unit.series, set()).add(item.domain)
    return {series: frozenset(values) for series, values in found.items()}


def _batches(units: Iterable[Unit]) -> tuple[list[Batch], list[list[str]]]:
    """Return batches of exchangeable units of one series, and the unit names of each batch in order."""
    found: dict[tuple[str, Demand], list[Unit]] = {}
    for unit in sorted(units, key=lambda unit: natural(unit.name)):
        found.setdefault((unit.series, demand_of(unit)), []).append(unit)
    batches = [Batch(name, demand, len(same), same[0]) for (name, demand), same in found.items()]
    return batches, [[unit.name for unit in same] for same in found.values()]


def _runs(
    nodes: Sequence[NodeView],
    batches: Sequence[Batch],
    held: Sequence[AssignedUnit],
    spares: Mapping[str, int],
    excluded: frozenset[str],
) -> tuple[tuple[MachineRun, ...], str]:
    """Return the room of usable nodes as runs of equal machines, and a message if the spares cannot be kept free."""
    by_node: dict[str, list[AssignedUnit]] = {}
    for item in held:
        by_node.setdefault(item.node, []).append(item)
    aside, short = _set_aside(nodes, by_node, spares, excluded)
    # Most nodes of a cluster are alike: their room is computed once. One that holds such units has a key of its own.
    alike: dict[object, list[int]] = {}
    for index, node in enumerate(nodes):
        if node.id not in excluded and index not in aside:
            key = node.id if node.id in by_node else (node.free, node.labels, node.total)
            alike.setdefault(key, []).append(index)
    rooms: list[tuple[Capacity, Sequence[int]]] = []
    for same in alike.values():
        first = nodes[same[0]]
        room = _room(first, by_node.get(first.id, ()))
        if room is not None:  # a node that holds more than it has takes nothing
            rooms.append((room, same))
    return runs_of(rooms, batches), short


def _set_aside(
    nodes: Sequence[NodeView],
    held: Mapping[str, Sequence[AssignedUnit]],
    spares: Mapping[str, int],
    excluded: frozenset[str],
) -> tuple[set[int], str]:
    """Return the indices of nodes to keep as spares, each group's last free ones, and a message if they are too few."""
    aside: set[int] = set()
    at = {node.id: index for index, node in enumerate(nodes)}
    for group, count in sorted(spares.items()):
        mine = [at[node.id] for node in of_group(nodes, group)]
        free = [
            i
            for i in mine
            if nodes[i].free == nodes[i].total and not {nodes[i].id} & (held.keys() | excluded) and i not in aside
        ]
        if len(free) < count:
            return aside, f"node group {group}: {count} to stay free as spares, {len(free)} of {len(mine)} are free"
        aside.update(free[len(free) - count :])  # the last ones, so that units fill the first nodes
    return aside, ""


def _room(node: NodeView, held: Sequence[AssignedUnit]) -> Capacity | None:
    """Return the room of a node beside the units that it holds; None when they hold more than it has."""
    room: Capacity | None = room_of(node.free, node.labels, node.total)
    for item in held:
        demand = demand_of(item.unit)
        if room is not None:
            room = occupied(room, demand) if item.counted else take(room, demand)
    return room


def _spread(packing: Packing, members: Sequence[Sequence[str]], nodes: Sequence[NodeView]) -> dict[str, str]:
    """Return unit -> node id: units in order on nodes in order, so that neighbouring groups stay neighbours."""
    chosen: dict[str, str] = {}
    for names, spots in zip(members, packing.spots, strict=True):
        where = sorted((index, each) for ids, each in spots for index in ids)
        indices = [index for index, each in where for _ in range(each)]
        chosen.update((name, nodes[index].id) for name, index in zip(names, indices, strict=True))
    return chosen


def _refusal(conflict: Conflict, spares: Mapping[str, int], *, never: bool, only_head: bool) -> Refusal:
    """Return the refusal of a conflict, with the hints that users need to understand its numbers."""
    kept = ", ".join(f"{count} of {group}" for group, count in sorted(spares.items()))
    why = conflict.reason
    if only_head:
        why = f"{why} (ranks never live on the head)"
    elif kept:
        why = f"{why} (kept free as spares: {kept})"
    named = tuple((batch.name, batch.count) for batch in conflict.batches)
    return Refusal(why, named, conflict.missing, never=never, proven=conflict.proven)
