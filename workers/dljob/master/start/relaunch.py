"""Requests to replace bad nodes, sent to the relauncher that the spec names: a Python package of the user's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dljob.master.state.actions import RelaunchNode
from dljob.master.state.events import RelaunchTold
from dljob.master.state.state import JobState
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import NodeView, Reason
from dljob.telemetry import reasons


def ask(d: StateTransaction, name: str, reason: str, why: str) -> None:
    """Ask for the replacement of a node that was excluded, if the spec names a relauncher."""
    if d.job.fault_tolerance.node.relauncher:
        d.do(RelaunchNode(name, reason, why, _labels(d.nodes, name)))


def request_replacements(d: StateTransaction, nodes: Iterable[NodeView]) -> None:
    """Ask for the replacement of nodes that held units and are gone from the list.

    Excluded nodes were reported before, and a node that was announced to go is taken away on purpose.
    """
    if not d.job.fault_tolerance.node.relauncher or d.ending:
        return
    gone = {node.id for node in d.nodes}.intersection(d.housed).difference(node.id for node in nodes)
    for name in sorted(gone.difference(d.exclusions, d.departures)):
        ask(d, name, Reason.NODE_LOST.value, f"{d.node_title(name)} is gone from Ray")


def report_answer(d: StateTransaction, event: RelaunchTold) -> None:
    """Report the answer of the relauncher in the timeline."""
    if event.trouble:
        d.note(reasons.NODE_RELAUNCH_FAILED, f"node/{event.node}", event.trouble)
    else:
        whom = d.job.fault_tolerance.node.relauncher
        d.note(reasons.NODE_RELAUNCH, f"node/{event.node}", f"{whom} was asked to replace it")


def orders(state: JobState) -> Iterator[RelaunchNode]:
    """Yield the requests that a new epoch repeats: those for all excluded nodes that are to be replaced."""
    if state.job.fault_tolerance.node.relauncher:
        for name, own in sorted(state.exclusions.items()):
            if own.replaced:
                yield RelaunchNode(name, own.reason, own.replaced, _labels(state.nodes, name))


def _labels(nodes: Iterable[NodeView], name: str) -> tuple[tuple[str, str], ...]:
    """Return the labels of a node; empty if it is unknown."""
    return next((tuple(node.labels) for node in nodes if node.id == name), ())
