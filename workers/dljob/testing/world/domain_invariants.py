"""Invariants of topology: roles in one domain, and units with a node each."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dljob.master.state.state import JobState, UnitPhase
from dljob.plan.model import Series


def check_domains(state: JobState) -> Iterator[str]:
    """The units of a series with a topology key share one domain, and a spread series has at most one unit per node."""
    plan = state.job.plan
    marked = [own for own in plan.units.series if own.topology_key or own.spread]
    labels = {node.id: dict(node.labels) for node in state.nodes} if marked else {}
    for own in marked:
        nodes = _nodes(state, own)
        values = {labels[node].get(own.topology_key) for node in nodes if own.topology_key and node in labels}
        if len(values) > 1:
            yield f"domain: {own.name} is in {sorted(map(str, values))}"
        if own.spread and len(set(nodes)) < len(nodes):
            yield f"spread: {own.name} has two units on a node of {sorted(nodes)}"


def check_preferences(state: JobState, told: Collection[str]) -> Iterator[str]:
    """A series that prefers a domain lies in one, or users have been told that it does not: `told` names those."""
    marked = [own for own in state.job.plan.units.series if own.preferred_key and own.name not in told]
    labels = {node.id: dict(node.labels) for node in state.nodes} if marked else {}
    for own in marked:
        values = {labels[node].get(own.preferred_key) for node in _nodes(state, own) if node in labels}
        if len(values) > 1:
            yield f"preference: {own.name} is in {sorted(map(str, values))}, and nobody was told"


def _nodes(state: JobState, own: Series) -> list[str]:
    """Return the nodes of the units of a series that have a place, or are about to get one."""
    units = [state.units[name] for k in range(own.count) if (name := f"{own.name}/{k}") in state.units]
    return [unit.node for unit in units if unit.phase in (UnitPhase.HELD, UnitPhase.RESERVING)]
