"""Invariants of topology: roles in one domain, and units with a node each."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dljob.master.state.state import JobState, UnitPhase
from dljob.plan.model import Series


def check_domains(state: JobState) -> Iterator[str]:
    """The units of a series with a topology key share one domain, and a spread series has at most one unit per node."""
    plan = state.job.plan
    marked = [series for series in plan.units.series if series.topology_key or series.spread]
    labels = {node.id: dict(node.labels) for node in state.nodes} if marked else {}
    for series in marked:
        nodes = _nodes(state, series)
        values = {labels[node].get(series.topology_key) for node in nodes if series.topology_key and node in labels}
        if len(values) > 1:
            yield f"domain: {series.name} is in {sorted(map(str, values))}"
        if series.spread and len(set(nodes)) < len(nodes):
            yield f"spread: {series.name} has two units on a node of {sorted(nodes)}"


def check_preferences(state: JobState, told_names: Collection[str]) -> Iterator[str]:
    """A series that prefers a domain lies in one, or users have been told that it does not (`told_names`)."""
    marked = [
        series for series in state.job.plan.units.series if series.preferred_key and series.name not in told_names
    ]
    labels = {node.id: dict(node.labels) for node in state.nodes} if marked else {}
    for series in marked:
        values = {labels[node].get(series.preferred_key) for node in _nodes(state, series) if node in labels}
        if len(values) > 1:
            yield f"preference: {series.name} is in {sorted(map(str, values))}, and nobody was told"


def _nodes(state: JobState, series: Series) -> list[str]:
    """Return the nodes of the units of a series that have a place, or are about to get one."""
    units = [state.units[name] for k in range(series.count) if (name := f"{series.name}/{k}") in state.units]
    return [unit.node for unit in units if unit.phase in (UnitPhase.HELD, UnitPhase.RESERVING)]
