"""Seats: local ranks and node ranks as torchrun counts them, over all groups of a role on a machine."""

from __future__ import annotations

from functools import lru_cache

from dljob.master.state.state import Seat, UnitPhase
from dljob.master.state.transaction import StateTransaction

# Seats are values, and most of a role's stay as they were when a unit moves: to make them anew takes most of the time.
_seat = lru_cache(65_536)(Seat)


@lru_cache(64)
def _seats_of_separate_groups(groups: int, size: int) -> tuple[Seat, ...]:
    """Return the seats of groups of which each has a node of its own."""
    return tuple(_seat(index, 0, size, groups) for index in range(groups))


def seats_of(tx: StateTransaction, role: str) -> tuple[Seat, ...]:
    """Return the seat of each group of a role, by the nodes of its units.

    Nodes are numbered in the order of their first group. A unit without a node counts as a node of its own.
    """
    facts = tx.facts(role)
    size = facts.plan.group_size
    # In most large jobs a unit fills a node, and then a move changes no seat.
    if len(tx.housed) == tx.held_unit_count + sum(tx.units[name].phase is UnitPhase.RESERVING for name in tx.homeless):
        return _seats_of_separate_groups(len(facts.group_units), size)
    # A name that no node has stands for none.
    unit_nodes = [tx.units[name].node or f"?{name}" for name in facts.group_units]
    if len(set(unit_nodes)) == len(unit_nodes):
        return _seats_of_separate_groups(len(unit_nodes), size)
    nodes: dict[str, int] = {}
    placed: list[tuple[str, int]] = []
    for node in unit_nodes:
        ranks_before = nodes.get(node, 0)
        placed.append((node, ranks_before))
        nodes[node] = ranks_before + size
    rank_of = {node: index for index, node in enumerate(nodes)}
    return tuple(_seat(rank_of[node], ranks_before, nodes[node], len(nodes)) for node, ranks_before in placed)
