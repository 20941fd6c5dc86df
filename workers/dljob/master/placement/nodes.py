"""Nodes that are left while they are still there, frozen or replaced by a rule; and when they may be used again.

A frozen node's processes may wake up at any time. They are fenced: PrimeMaster forgets them at once, so the answer to
their next beacon ends them, and one that gets no answer ends when its lease is over. Their devices are on that node, so
another one can be used at once; the node itself not before the lease has passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dljob.master.placement import departures
from dljob.master.placement.admission import leave, look, nodes_seen
from dljob.master.start import checks, relaunch
from dljob.master.state import limits
from dljob.master.state.events import NodeFrozen, NodesSeen, NodeThawed
from dljob.master.state.evolve import evolve
from dljob.master.state.state import Exclusion, JobState
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Outcome, Reason
from dljob.telemetry import reasons


def seen(d: StateTransaction, event: NodesSeen) -> None:
    """The nodes changed. One that is gone cannot be silent: its exclusion is only a matter of time."""
    live = frozenset(node.id for node in event.nodes)
    for name, own in sorted(d.exclusions.items()):
        if own.silent and name not in live:
            _set(d, name, evolve(own, silent=False))
    departures.announced(d, event.nodes)
    relaunch.lost(d, event.nodes)
    nodes_seen(d, event)
    departures.follow(d)


def gone(d: StateTransaction, name: str) -> bool:
    """A host went with its node: all that lives there did, whenever the list of nodes says so. False: that is known."""
    left = tuple(node for node in d.nodes if node.id != name)
    if not d.phase.active or len(left) == len(d.nodes):
        return False
    seen(d, NodesSeen(left))
    return True


def frozen(d: StateTransaction, event: NodeFrozen) -> None:
    """A node answers no more: its units go elsewhere, at once."""
    name, old = event.node, d.exclusions.get(event.node)
    known = any(node.id == name for node in d.nodes)
    if d.ending or not known or (old is not None and old.silent) or d.job.fault_tolerance.node.action == "Ignore":
        return
    why = f"node {name} has not answered for {event.silent_s:.1f} s"
    d.note(reasons.NODE_FROZEN, f"node/{name}", why)
    _exclude(d, name, Reason.NODE_FROZEN.value, silent=True)
    relaunch.ask(d, name, Reason.NODE_FROZEN.value, why)
    leave(d, frozenset([name]), Outcome(ok=False, reason=Reason.NODE_FROZEN, message=why))
    look(d)


def thawed(d: StateTransaction, event: NodeThawed) -> None:
    """A node answers again: what is left of its time runs, unless nothing else can hold what needs a place."""
    own = d.exclusions.get(event.node)
    if own is None or not own.silent:
        return
    _set(d, event.node, evolve(own, silent=False))
    d.note(
        reasons.NODE_RECOVERED, f"node/{event.node}", f"it answers again, {d.now - own.since:.1f} s after it was left"
    )
    look(d)


def leave_by_rule(d: StateTransaction) -> None:
    """Leave the nodes that rules said to replace in this transition."""
    for name, why in sorted(d.leaving.items()):
        if d.ending:
            return
        d.note(reasons.NODE_REPLACED, f"node/{name}", why.cause)
        _exclude(d, name, why.reason, silent=False)
        relaunch.ask(d, name, why.reason, why.cause)
        outcome = Outcome(ok=False, reason=Reason(why.reason), message=why.cause)
        leave(d, frozenset([name]), outcome, counts=why.counts)
        look(d)


def leave_bad(d: StateTransaction, bad: Mapping[str, str]) -> None:
    """Leave nodes that failed their check: node -> what it failed. No budget pays for that."""
    for name, why in sorted(bad.items()):
        d.note(reasons.NODE_CHECK_FAILED, f"node/{name}", f"failed check {why}")
        _exclude(d, name, "CheckFailed", silent=False, check=why)
        relaunch.ask(d, name, "CheckFailed", f"failed check {why}")
    said = "; ".join(f"node {name} failed its check {why}" for name, why in sorted(bad.items()))
    leave(d, frozenset(bad), Outcome(ok=False, reason=Reason.DEVICE_ERROR, message=said[:1000]), counts=False)
    look(d)


def _exclude(d: StateTransaction, name: str, reason: str, *, silent: bool, check: str = "") -> None:
    policy = d.job.fault_tolerance
    fence = d.now + policy.lease if silent else None  # a node that answers ends what it is told to end
    old = d.exclusions.get(name)
    check = check or (old.check if old else "")
    least = limits.BAD_NODE_S if check else 0.0
    until = max(fence or d.now, d.now + policy.node.exclude_seconds, d.now + least)
    _set(d, name, Exclusion(reason, d.now, until, fence, silent, check))


def _set(d: StateTransaction, name: str, own: Exclusion) -> None:
    d.exclusions = d.exclusions.set(name, own)
    for at in _times(own):
        d.wake_at(at)


def _times(own: Exclusion) -> Iterator[float]:
    """When something about an exclusion is due: while the node is silent, only the end of its fence."""
    if own.fence is not None:
        yield own.fence
    if not own.silent:
        yield own.until


def timers(state: JobState | StateTransaction) -> Iterator[float]:
    """When the exclusions want a Tick, in unix seconds."""
    for own in state.exclusions.values():
        yield from _times(own)


def tick(d: StateTransaction) -> None:
    """Fences that passed, exclusions whose time is over: the nodes may be used again."""
    changed = False
    for name, own in sorted(d.exclusions.items()):
        if not own.silent and own.until <= d.now:
            d.exclusions = d.exclusions.delete(name)
            checks.forget(d, name)
            d.note(reasons.NODE_READMITTED, f"node/{name}", f"excluded for {d.now - own.since:.0f} s: its time is over")
            changed = True
        elif own.fence is not None and own.fence <= d.now:
            d.exclusions = d.exclusions.set(name, evolve(own, fence=None))
            changed = True
    if changed:
        look(d)
        departures.go(d)
