"""Requests to replace bad nodes, sent to the relauncher that the spec names: a Python package of the user's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dljob.master.state.actions import RelaunchNode
from dljob.master.state.events import RelaunchTold
from dljob.master.state.state import JobState
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import NodeView, Reason
from dljob.telemetry import reasons


def request_replacement(tx: StateTransaction, name: str, reason: str, explanation: str) -> None:
    """Ask for the replacement of a node that was excluded, if the spec names a relauncher."""
    if tx.job.fault_tolerance.node.relauncher:
        tx.do(RelaunchNode(name, reason, explanation, _labels(tx.nodes, name)))


def request_replacements(tx: StateTransaction, nodes: Iterable[NodeView]) -> None:
    """Ask for the replacement of nodes that held units and are gone from the list.

    Excluded nodes were reported before, and a node that was announced to go is taken away on purpose.
    """
    if not tx.job.fault_tolerance.node.relauncher or tx.ending:
        return
    missing_nodes = {node.id for node in tx.nodes}.intersection(tx.housed).difference(node.id for node in nodes)
    for name in sorted(missing_nodes.difference(tx.exclusions, tx.departures)):
        request_replacement(tx, name, Reason.NODE_LOST.value, f"{tx.node_title(name)} is gone from Ray")


def report_answer(tx: StateTransaction, event: RelaunchTold) -> None:
    """Report the answer of the relauncher in the timeline."""
    if event.trouble:
        tx.note(reasons.NODE_RELAUNCH_FAILED, f"node/{event.node}", event.trouble)
    else:
        relauncher = tx.job.fault_tolerance.node.relauncher
        tx.note(reasons.NODE_RELAUNCH, f"node/{event.node}", f"{relauncher} was asked to replace it")


def repeated_requests(state: JobState) -> Iterator[RelaunchNode]:
    """Yield the requests that a new epoch repeats: those for all excluded nodes that are to be replaced."""
    if state.job.fault_tolerance.node.relauncher:
        for name, exclusion in sorted(state.exclusions.items()):
            if exclusion.replaced:
                yield RelaunchNode(name, exclusion.reason, exclusion.replaced, _labels(state.nodes, name))


def _labels(nodes: Iterable[NodeView], name: str) -> tuple[tuple[str, str], ...]:
    """Return the labels of a node; empty if it is unknown."""
    return next((tuple(node.labels) for node in nodes if node.id == name), ())
