"""Invariants of topology: roles in one domain, and units with a node each."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.master.state.state import JobState, UnitPhase


def check_domains(state: JobState) -> Iterator[str]:
    """The units of a series with a topology key share one domain, and a spread series has at most one unit per node."""
    plan = state.job.plan
    marked = [own for own in plan.units.series if own.topology_key or own.spread]
    labels = {node.id: dict(node.labels) for node in state.nodes} if marked else {}
    for own in marked:
        names = (f"{own.name}/{k}" for k in range(own.count))
        units = [state.units[name] for name in names if name in state.units]
        # Only units that have a place, or are about to get one.
        nodes = [unit.node for unit in units if unit.phase in (UnitPhase.HELD, UnitPhase.RESERVING)]
        values = {labels[node].get(own.topology_key) for node in nodes if own.topology_key and node in labels}
        if len(values) > 1:
            yield f"domain: {own.name} is in {sorted(map(str, values))}"
        if own.spread and len(set(nodes)) < len(nodes):
            yield f"spread: {own.name} has two units on a node of {sorted(nodes)}"
