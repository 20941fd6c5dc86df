"""Nodes that are lost, frozen, replaced by a rule or failed in a check, and when excluded ones may be used again.

The processes of a frozen node may wake up at any time, so they are fenced. PrimeMaster forgets them at once: the answer
to their next heartbeat ends them, and one that gets no answer ends when its lease expires. Their devices are on that
node, so other nodes can be used at once, but the node itself only after the lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter

from dljob.master.placement import departures
from dljob.master.placement.admission import handle_seen_nodes, leave_nodes, try_to_place
from dljob.master.placement.exclusions import exclude, exclusion_times, set_exclusion, with_domains
from dljob.master.placement.failure_domains import domains
from dljob.master.start import checks, relaunch
from dljob.master.state.events import NodeFrozen, NodesSeen, NodeThawed, PartAnswers, PartSilent
from dljob.master.state.evolve import evolve
from dljob.master.state.faults import FaultRecord
from dljob.master.state.state import JobState
from dljob.master.state.transaction import NodeDeparture, StateTransaction
from dljob.master.state.views import Outcome, Reason
from dljob.telemetry import reasons
from dljob.telemetry.evidence import Source

_ID = attrgetter("id")
WAIT = "Wait"
"""Level of a fault that restarts nothing: a part of the job is silent, and is waited for."""


def handle_nodes(tx: StateTransaction, event: NodesSeen) -> None:
    """Handle a changed list of nodes."""
    # A node that is gone is silent no longer: from now on its exclusion ends by time alone.
    silent = [(name, exclusion) for name, exclusion in sorted(tx.exclusions.items()) if exclusion.silent]
    live = frozenset(node.id for node in event.nodes) if silent else frozenset[str]()
    for name, exclusion in silent:
        if name not in live:
            set_exclusion(tx, name, evolve(exclusion, silent=False))
    # Both compare the new list with the old one, so they come before `nodes_seen` replaces it.
    if silences := [fault.target for fault in _open_silences(tx) if "/" in fault.target]:
        targets = {node.target for node in event.nodes}
        _end_silences(tx, (target for target in silences if target not in targets))
    departures.begin_ray_drains(tx, event.nodes)
    relaunch.request_replacements(tx, event.nodes)
    handle_seen_nodes(tx, event)
    departures.follow(tx)


def node_lost(tx: StateTransaction, name: str) -> bool:
    """Handle the loss of a node that a lost host reported before the list of nodes did. False: it is known already."""
    node_ids = list(map(_ID, tx.nodes))
    if not tx.phase.active or name not in node_ids:
        return False
    index = node_ids.index(name)
    handle_nodes(tx, NodesSeen((*tx.nodes[:index], *tx.nodes[index + 1 :])))
    return True


def handle_frozen_node(tx: StateTransaction, event: NodeFrozen) -> None:
    """Exclude a node that stopped answering, and move its units at once."""
    name, old = event.node, tx.exclusions.get(event.node)
    known = any(node.id == name for node in tx.nodes)
    if tx.ending or not known or (old is not None and old.silent) or tx.job.fault_tolerance.node.action == "Ignore":
        return
    reason = f"{tx.node_title(name)} has not answered for {event.silent_s:.1f} s{f': {event.why}' if event.why else ''}"
    _end_silences(tx, (tx.shown_target(f"node/{name}"),))
    tx.note(reasons.NODE_FROZEN, f"node/{name}", reason)
    exclude(tx, name, Reason.NODE_FROZEN.value, reason, silent=True)
    _leave_with_domain(tx, name, Outcome(ok=False, reason=Reason.NODE_FROZEN, message=reason))
    try_to_place(tx)


def handle_thawed_node(tx: StateTransaction, event: NodeThawed) -> None:
    """Handle a frozen node that answers again: its exclusion now ends by time, or earlier if no other node has room."""
    exclusion = tx.exclusions.get(event.node)
    if exclusion is None or not exclusion.silent:
        return
    set_exclusion(tx, event.node, evolve(exclusion, silent=False))
    words = f"it answers again, {tx.now - exclusion.since:.1f} s after it was excluded"
    tx.note(reasons.NODE_RECOVERED, f"node/{event.node}", words)
    try_to_place(tx)


def handle_silence(tx: StateTransaction, event: PartSilent) -> None:
    """Record that a part of the job is silent: nothing restarts, but users can see what the job waits for."""
    excluded = tx.exclusions.get(event.target.removeprefix("node/"))
    is_frozen = excluded is not None and excluded.silent  # its ranks have left: nobody waits for it
    target = tx.shown_target(event.target)
    if tx.ending or is_frozen or any(fault.target == target for fault in _open_silences(tx)):
        return
    words = f"no answer for {event.silent_s:.1f} s{f': {event.why}' if event.why else ''}"
    # A node is frozen; of the head and PrimeMaster a process is stopped, on a node that may well run.
    cause = f"{target}: {Reason.NODE_FROZEN.value if '/' in target else reasons.PART_SILENT}: {words}"
    since = tx.now - event.silent_s
    tx.append_fault(FaultRecord(tx.next_serial(), WAIT, Reason.NODE_FROZEN.value, target, cause, since))
    tx.note(reasons.PART_SILENT, target, f"{words}; it is waited for")


def handle_answer(tx: StateTransaction, event: PartAnswers) -> None:
    """Handle a silent part that answers again: its silence explains no later end of a process there."""
    name = event.target.removeprefix("node/")
    if notice := tx.notices.get(name):
        clues = tuple(clue for clue in notice.clues if clue.source != Source.NODE.value)
        tx.notices = tx.notices.set(name, evolve(notice, clues=clues))
    for fault in _end_silences(tx, (tx.shown_target(event.target),)):
        tx.note(reasons.NODE_RECOVERED, event.target, f"it answers again, after {tx.now - fault.detected_at:.1f} s")


def _open_silences(tx: StateTransaction) -> list[FaultRecord]:
    """Return the silences that are not over."""
    return [fault for fault in tx.faults if fault.level == WAIT and fault.recovered_at is None]


def _end_silences(tx: StateTransaction, targets: Iterable[str]) -> list[FaultRecord]:
    """End the silences of these parts: they answer, or what follows has a fault of its own. Return them."""
    ended_targets = frozenset(targets)
    ended = [fault for fault in _open_silences(tx) if fault.target in ended_targets]
    tx.recover_faults(fault.id for fault in ended)
    return ended


def leave_by_rule(tx: StateTransaction) -> None:
    """Exclude the nodes that rules said to replace in this transition, and move their units."""
    for name, order in sorted(tx.node_departures.items()):
        # The node before this one may have ended the job.
        if tx.ending:
            return
        tx.note(reasons.NODE_REPLACED, f"node/{name}", order.explanation)
        outcome = order.failure.outcome
        exclude(tx, name, (outcome.reason or Reason.UNKNOWN).value, order.explanation)
        _leave_with_domain(tx, name, outcome, order)
        try_to_place(tx)


def _leave_with_domain(tx: StateTransaction, name: str, outcome: Outcome, order: NodeDeparture | None = None) -> None:
    """Give up the units of a node that failed, and of its failure domain where too many of its nodes have."""
    lost_nodes = with_domains(tx, frozenset([name]), domains(tx, tx.nodes))
    leave_nodes(tx, lost_nodes, outcome, order=order)


def leave_bad(tx: StateTransaction, bad_nodes: Mapping[str, str]) -> None:
    """Exclude nodes that failed their check (node -> what it failed), and move their units. It costs no budget."""
    for name, failed_check in sorted(bad_nodes.items()):
        tx.note(reasons.NODE_CHECK_FAILED, f"node/{name}", f"failed check {failed_check}")
        exclude(tx, name, "CheckFailed", f"failed check {failed_check}", check=failed_check)
    causes = [
        f"{tx.node_title(name)} failed its check {failed_check}" for name, failed_check in sorted(bad_nodes.items())
    ]
    # Cut to a bound, since many nodes may fail at once.
    outcome = Outcome(ok=False, reason=Reason.DEVICE_ERROR, message="; ".join(causes)[:1000])
    leave_nodes(tx, frozenset(bad_nodes), outcome, counts=False)
    try_to_place(tx)


def timers(state: JobState | StateTransaction) -> Iterator[float]:
    """Yield when exclusions need a Tick (unix seconds)."""
    for exclusion in state.exclusions.values():
        yield from exclusion_times(exclusion)


def tick(tx: StateTransaction) -> None:
    """End the exclusions and fences that are due, and look for room on the nodes that may be used again."""
    changed = False
    for name, exclusion in sorted(tx.exclusions.items()):
        # Its check results go with the exclusion: it is checked again before a role starts on it.
        if not exclusion.silent and exclusion.until <= tx.now:
            tx.exclusions = tx.exclusions.delete(name)
            checks.forget_results(tx, name)
            excluded_s = tx.now - exclusion.since
            tx.note(reasons.NODE_READMITTED, f"node/{name}", f"its exclusion ended after {excluded_s:.0f} s")
            changed = True
        elif exclusion.fence is not None and exclusion.fence <= tx.now:
            tx.exclusions = tx.exclusions.set(name, evolve(exclusion, fence=None))
            changed = True
    if changed:
        try_to_place(tx)
        departures.leave_departing_nodes(tx)
