"""Bad nodes are told to whoever replaces machines: a package of the user's, where the spec names one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dljob.master.state.actions import RelaunchNode
from dljob.master.state.events import RelaunchTold
from dljob.master.state.state import JobState
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import NodeView, Reason
from dljob.telemetry import reasons


def ask(d: StateTransaction, name: str, reason: str, why: str) -> None:
    """A node was left, and is excluded: have it replaced."""
    if d.job.fault_tolerance.node.relauncher:
        d.do(RelaunchNode(name, reason, why, _labels(d.nodes, name)))


def lost(d: StateTransaction, nodes: Iterable[NodeView]) -> None:
    """Of these nodes some that held units are gone: not those that were told of before, nor those announced to go."""
    if not d.job.fault_tolerance.node.relauncher or d.ending:
        return
    held = {unit.node for unit in d.units.values()}
    gone = {node.id for node in d.nodes}.intersection(held).difference(node.id for node in nodes)
    for name in sorted(gone.difference(d.exclusions, d.departures)):
        ask(d, name, Reason.NODE_LOST.value, f"node {name} is gone")


def told(d: StateTransaction, event: RelaunchTold) -> None:
    """Whoever replaces nodes has heard of one, or could not."""
    if event.trouble:
        d.note(reasons.NODE_RELAUNCH_FAILED, f"node/{event.node}", event.trouble)
    else:
        whom = d.job.fault_tolerance.node.relauncher
        d.note(reasons.NODE_RELAUNCH, f"node/{event.node}", f"{whom} was told to replace it")


def orders(state: JobState) -> Iterator[RelaunchNode]:
    """What a new master tells again: all nodes that are excluded."""
    if state.job.fault_tolerance.node.relauncher:
        for name, own in sorted(state.exclusions.items()):
            yield RelaunchNode(name, own.reason, own.check or own.reason, _labels(state.nodes, name))


def _labels(nodes: Iterable[NodeView], name: str) -> tuple[tuple[str, str], ...]:
    """What is known of a node that is, or was, there."""
    return next((tuple(node.labels) for node in nodes if node.id == name), ())
