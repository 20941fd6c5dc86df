"""Nodes that are lost, frozen, replaced by a rule or failed in a check, and when excluded ones may be used again.

The processes of a frozen node may wake up at any time, so they are fenced. PrimeMaster forgets them at once: the answer
to their next heartbeat ends them, and one that gets no answer ends when its lease expires. Their devices are on that
node, so other nodes can be used at once, but the node itself only after the lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter

from dljob.master.placement import departures
from dljob.master.placement.admission import leave, nodes_seen, try_to_place
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


def handle_nodes(d: StateTransaction, event: NodesSeen) -> None:
    """Handle a changed list of nodes."""
    # A node that is gone is silent no longer: from now on its exclusion ends by time alone.
    silent = [(name, own) for name, own in sorted(d.exclusions.items()) if own.silent]
    live = frozenset(node.id for node in event.nodes) if silent else frozenset[str]()
    for name, own in silent:
        if name not in live:
            set_exclusion(d, name, evolve(own, silent=False))
    # Both compare the new list with the old one, so they come before `nodes_seen` replaces it.
    if silences := [fault.target for fault in _waits(d) if "/" in fault.target]:
        targets = {node.target for node in event.nodes}
        _end_waits(d, (target for target in silences if target not in targets))
    departures.announced(d, event.nodes)
    relaunch.request_replacements(d, event.nodes)
    nodes_seen(d, event)
    departures.follow(d)


def node_lost(d: StateTransaction, name: str) -> bool:
    """Handle the loss of a node that a lost host reported before the list of nodes did. False: it is known already."""
    there = list(map(_ID, d.nodes))
    if not d.phase.active or name not in there:
        return False
    at = there.index(name)
    handle_nodes(d, NodesSeen((*d.nodes[:at], *d.nodes[at + 1 :])))
    return True


def frozen(d: StateTransaction, event: NodeFrozen) -> None:
    """Exclude a node that stopped answering, and move its units at once."""
    name, old = event.node, d.exclusions.get(event.node)
    known = any(node.id == name for node in d.nodes)
    if d.ending or not known or (old is not None and old.silent) or d.job.fault_tolerance.node.action == "Ignore":
        return
    why = f"{d.node_title(name)} has not answered for {event.silent_s:.1f} s{f': {event.why}' if event.why else ''}"
    _end_waits(d, (d.shown_target(f"node/{name}"),))
    d.note(reasons.NODE_FROZEN, f"node/{name}", why)
    exclude(d, name, Reason.NODE_FROZEN.value, why, silent=True)
    _leave_with_domain(d, name, Outcome(ok=False, reason=Reason.NODE_FROZEN, message=why))
    try_to_place(d)


def thawed(d: StateTransaction, event: NodeThawed) -> None:
    """Handle a frozen node that answers again: its exclusion now ends by time, or earlier if no other node has room."""
    own = d.exclusions.get(event.node)
    if own is None or not own.silent:
        return
    set_exclusion(d, event.node, evolve(own, silent=False))
    d.note(
        reasons.NODE_RECOVERED,
        f"node/{event.node}",
        f"it answers again, {d.now - own.since:.1f} s after it was excluded",
    )
    try_to_place(d)


def handle_silence(d: StateTransaction, event: PartSilent) -> None:
    """Record that a part of the job is silent: nothing restarts, but users can see what the job waits for."""
    excluded = d.exclusions.get(event.target.removeprefix("node/"))
    is_frozen = excluded is not None and excluded.silent  # its ranks have left: nobody waits for it
    target = d.shown_target(event.target)
    if d.ending or is_frozen or any(fault.target == target for fault in _waits(d)):
        return
    words = f"no answer for {event.silent_s:.1f} s{f': {event.why}' if event.why else ''}"
    cause = f"{target}: {Reason.NODE_FROZEN.value}: {words}"
    since = d.now - event.silent_s
    d.append_fault(FaultRecord(d.next_serial(), WAIT, Reason.NODE_FROZEN.value, target, cause, since))
    d.note(reasons.PART_SILENT, target, f"{words}; it is waited for")


def handle_answer(d: StateTransaction, event: PartAnswers) -> None:
    """Handle a silent part that answers again: its silence explains no later end of a process there."""
    name = event.target.removeprefix("node/")
    if notice := d.notices.get(name):
        clues = tuple(clue for clue in notice.clues if clue.source != Source.NODE.value)
        d.notices = d.notices.set(name, evolve(notice, clues=clues))
    for fault in _end_waits(d, (d.shown_target(event.target),)):
        d.note(reasons.NODE_RECOVERED, event.target, f"it answers again, after {d.now - fault.detected:.1f} s")


def _waits(d: StateTransaction) -> list[FaultRecord]:
    """Return the silences that are not over."""
    return [fault for fault in d.faults if fault.level == WAIT and fault.recovered is None]


def _end_waits(d: StateTransaction, targets: Iterable[str]) -> list[FaultRecord]:
    """End the silences of these parts: they answer, or what follows has a fault of its own. Return them."""
    ended_targets = frozenset(targets)
    ended = [fault for fault in _waits(d) if fault.target in ended_targets]
    d.recover_faults(fault.id for fault in ended)
    return ended


def leave_by_rule(d: StateTransaction) -> None:
    """Exclude the nodes that rules said to replace in this transition, and move their units."""
    for name, order in sorted(d.leaving.items()):
        # The node before this one may have ended the job.
        if d.ending:
            return
        d.note(reasons.NODE_REPLACED, f"node/{name}", order.why)
        outcome = order.failure.outcome
        exclude(d, name, (outcome.reason or Reason.UNKNOWN).value, order.why)
        _leave_with_domain(d, name, outcome, order)
        try_to_place(d)


def _leave_with_domain(d: StateTransaction, name: str, outcome: Outcome, order: NodeDeparture | None = None) -> None:
    """Give up the units of a node that failed, and of its failure domain where too many of its nodes have."""
    gone = with_domains(d, frozenset([name]), domains(d, d.nodes))
    leave(d, gone, outcome, order=order)


def leave_bad(d: StateTransaction, bad: Mapping[str, str]) -> None:
    """Exclude nodes that failed their check (node -> what it failed), and move their units. It costs no budget."""
    for name, why in sorted(bad.items()):
        d.note(reasons.NODE_CHECK_FAILED, f"node/{name}", f"failed check {why}")
        exclude(d, name, "CheckFailed", f"failed check {why}", check=why)
    said = "; ".join(f"{d.node_title(name)} failed its check {why}" for name, why in sorted(bad.items()))
    # Cut to a bound, since many nodes may fail at once.
    leave(d, frozenset(bad), Outcome(ok=False, reason=Reason.DEVICE_ERROR, message=said[:1000]), counts=False)
    try_to_place(d)


def timers(state: JobState | StateTransaction) -> Iterator[float]:
    """Yield when exclusions need a Tick (unix seconds)."""
    for own in state.exclusions.values():
        yield from exclusion_times(own)


def tick(d: StateTransaction) -> None:
    """End the exclusions and fences that are due, and look for room on the nodes that may be used again."""
    changed = False
    for name, own in sorted(d.exclusions.items()):
        # Its check results go with the exclusion: it is checked again before a role starts on it.
        if not own.silent and own.until <= d.now:
            d.exclusions = d.exclusions.delete(name)
            checks.forget(d, name)
            d.note(reasons.NODE_READMITTED, f"node/{name}", f"its exclusion ended after {d.now - own.since:.0f} s")
            changed = True
        elif own.fence is not None and own.fence <= d.now:
            d.exclusions = d.exclusions.set(name, evolve(own, fence=None))
            changed = True
    if changed:
        try_to_place(d)
        departures.go(d)
