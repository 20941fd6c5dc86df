"""Announced departures of nodes: checkpoint copies are flushed to disk, and the ranks leave while there is time.

A departure is announced by Ray for a node that it drains (for an autoscaler, by `ray drain-node`, and since Ray 2.60
when its pod gets SIGTERM), or by Kubernetes for a pod that is evicted, preempted, tainted away or deleted. From then on
nothing is placed on the node: Ray would refuse it. Its ranks leave once their copies are on disk, if another node can
hold them; otherwise they stay to the end, and try again whenever nodes change. In both cases the announcement is the
recorded cause, no budget is charged, and no backoff waits. Servers with a `drain` finish their requests before that,
out of the endpoints, for as long as the announcement leaves time. Where no other node has room they serve until just
that time is left; then they finish, and wait for room, while the node's other ranks stay to the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from operator import attrgetter

from dljob.master.failure import attribution, ending
from dljob.master.failure.moving import ask_to_finish, elsewhere, servers_of
from dljob.master.failure.restart import kill
from dljob.master.placement import leaving
from dljob.master.placement.admission import leave, try_to_place
from dljob.master.start import starting
from dljob.master.start.assign import Refusal
from dljob.master.state import causes, limits
from dljob.master.state.actions import SaveCopies, Unreserve
from dljob.master.state.events import CauseLearned, CopiesSaved
from dljob.master.state.evolve import evolve
from dljob.master.state.faults import Departure, Notice
from dljob.master.state.state import JobState, UnitPhase, UnitState
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Clue, NodeView, Outcome, Reason
from dljob.telemetry import reasons
from dljob.telemetry.evidence import Source
from dljob.telemetry.wording import counted

GRACE_S = 120.0
"""Seconds for copies to come to disk, where the spec has no `checkpoint`."""
MAX_REASON = 500
"""Characters of the announcements that are kept."""
MAX_WHY = 1000
"""Characters of a cause that names many nodes which are left together."""
_LEAVING = attrgetter("leaving")


def announced(d: StateTransaction, nodes: Sequence[NodeView]) -> None:
    """Begin the departure of nodes that Ray drains."""
    if not set(map(_LEAVING, nodes)) - {None}:  # as usual; no code of Python's runs for each of thousands of nodes
        return
    for node in nodes:
        if node.leaving is not None and node.id not in d.departures and not d.ending:
            until = f", it is gone by {_clock(node.leaving)}" if node.leaving else ""
            why = f"Ray drains it{until}"
            # The notice makes the drain the first cause of whatever dies on the node later.
            before = d.notices.get(node.id)
            clues = (*(before.clues if before else ()), Clue(Source.NOTICE.value, why))
            d.notices = d.notices.set(node.id, Notice(d.now, clues))
            # 0: Ray drains the node without a deadline.
            _begin(d, node.id, why, node.leaving or d.now + limits.DEPART_S, ends=bool(node.leaving))


def learned(d: StateTransaction, event: CauseLearned) -> None:
    """Add evidence to faults, and begin the departure of a node that Kubernetes is about to take away."""
    attribution.learned(d, event)
    kind, _, name = event.target.partition("/")
    if kind != "node" or d.ending or not any(node.id == name for node in d.nodes):
        return
    cause = causes.classify(Outcome(ok=False, clues=event.clues))
    if cause.reason is Reason.PREEMPTED:
        # The pod's grace period covers the drains of its servers (`raycluster.podspec`).
        drains = (d.facts(role).plan.drain_s for unit in _inhabited(d, name) for role in _roles(d, unit))
        _begin(d, name, cause.line, d.now + limits.DEPART_S + max(drains, default=0.0))
        go(d)
        try_to_place(d)


def _roles(d: StateTransaction, unit: str) -> list[str]:
    return [role for role, _ in d.job.plan.units[unit].members]


def saved(d: StateTransaction, event: CopiesSaved) -> None:
    """Let the ranks of all departing nodes go: their copies are on disk, or cannot be brought there."""
    waiting = [(name, own) for name, own in sorted(d.departures.items()) if not own.saved]
    for name, own in waiting:
        _saved(d, name, own, event.why)
    if waiting:
        go(d)


def follow(d: StateTransaction) -> None:
    """Follow up on changed nodes: departures of lost nodes are over, and ranks that stayed may now have a place."""
    # On the usual job no node is announced to go, and nothing is compared.
    there = {node.id for node in d.nodes} if d.departures else set[str]()
    for name in sorted(d.departures):
        if name not in there:
            d.departures = d.departures.delete(name)
    go(d)


def go(d: StateTransaction) -> None:
    """Move the ranks off departing nodes whose copies are on disk, where other nodes can hold them.

    All nodes that can be left now are left together, so that a role with ranks on several of them restarts once.
    """
    left: list[str] = []
    going = frozenset[str]()
    for name, own in sorted(d.departures.items()):
        units = _inhabited(d, name)
        if _leaves(d, name, own, units, going):
            left.append(name)
            going |= units
    if not left:
        return
    for name in left:
        # Before the ranks leave: a drain that is over needs no timer.
        d.departures = d.departures.set(name, evolve(d.departures[name], drain_by=None, drain_at=None, drained=True))
    why = "; ".join(f"{d.node_title(name)} is taken away: {d.departures[name].why}" for name in left)
    leave(d, frozenset(left), Outcome(ok=False, reason=Reason.PREEMPTED, message=why[:MAX_WHY]))
    try_to_place(d)


def _leaves(d: StateTransaction, name: str, own: Departure, units: frozenset[str], going: frozenset[str]) -> bool:
    """Whether the ranks of a departing node leave now, with units of others that go; else does what has to be before.

    Args:
        d: The transaction.
        name: The node.
        own: Its departure.
        units: Units on it; empty: nobody lives there.
        going: Units of the nodes before it, which leave now.
    """
    if d.ending or not units:
        if own.drain_at is not None or own.drain_by is not None:
            # Nobody is left to drain: no timer may wait for it.
            d.departures = d.departures.set(name, evolve(own, drain_at=None, drain_by=None))
        return False
    if not own.saved:
        # Servers do not wait for the copies: a short announcement may have no time for one after the other.
        _drain_in_place(d, name, units)
        return False
    if own.drain_by is None and _finishing(d, name, units, own):
        _put_off(d, name, own)
        return False
    found = elsewhere(d, going | units) if d.seats else None
    if isinstance(found, Refusal):
        if not own.stays:  # reported once, though it is tried again at each change of the nodes
            d.note(reasons.NODE_LEAVING, f"node/{name}", f"its ranks stay until it is gone: {found.why}")
        d.departures = d.departures.set(name, evolve(own, stays=found.why))
        _drain_in_place(d, name, units)
        return False
    return not _drains(d, name, own, units)


def _drains(d: StateTransaction, name: str, own: Departure, units: frozenset[str]) -> bool:
    """Whether servers of a node that is left now still finish their requests; the first time it orders them to."""
    last = own.by - limits.PARTING_S  # The rest of the time is for the ranks to leave.
    if own.drained or last <= d.now:
        return False
    if own.drain_by is None:
        return _drain(d, name, units)
    if own.stays:
        # There is room now, so they leave as soon as they have finished; `stays` names the present obstacle.
        d.departures = d.departures.set(name, evolve(own, stays=""))
        d.wake_at(last)
    return own.drain_by > d.now and bool(servers_of(d, units))


def _drain(d: StateTransaction, name: str, units: frozenset[str]) -> bool:
    """Ask the servers of a departing node to finish their requests; return whether any has to be waited for."""
    own, live = d.departures[name], servers_of(d, units)
    if not live:
        d.departures = d.departures.set(name, evolve(own, drain_at=None, drained=True))
        return False
    drain_by = ask_to_finish(d, live, Reason.PREEMPTED.value)
    d.departures = d.departures.set(name, evolve(own, drain_at=None, drain_by=drain_by))
    d.wake_at(_next_step_at(d.departures[name]))
    servers, until = counted(sum(map(len, live.values())), "server"), _clock(min(drain_by, own.by))
    d.note(reasons.NODE_LEAVING, f"node/{name}", f"{servers} of it finish their requests first, until {until}")
    return True


def _drain_in_place(d: StateTransaction, name: str, units: frozenset[str]) -> None:
    """Begin or end the drain of servers whose node has ranks that stay."""
    own = d.departures[name]
    if own.drain_at is not None and own.drain_at <= d.now:
        _drain(d, name, units)
    else:
        _end_drain(d, name, units)


def _end_drain(d: StateTransaction, name: str, units: frozenset[str]) -> None:
    """End a drain that is over while its node's ranks stay; servers that ignore it are killed."""
    own, live = d.departures[name], servers_of(d, units)
    if own.drain_by is None or (live and own.drain_by > d.now):
        return
    d.departures = d.departures.set(name, evolve(own, drain_by=None, drained=True))
    for host, ranks in live.items():
        kill(d, host)
        for rank in ranks:
            ending.drop_process(d, (host.role, rank))


def _put_off(d: StateTransaction, name: str, own: Departure) -> None:
    """Put off the drain of ranks that leave with their role's consent, or wait for their turn to."""
    if own.drain_at is not None and own.drain_at <= d.now:
        at = min(d.now + limits.FINISH_S, own.by - limits.PARTING_S)
        d.departures = d.departures.set(name, evolve(own, drain_at=at if at > d.now else None))


def drained(d: StateTransaction) -> None:
    """Let the ranks of departing nodes leave whose last server has ended."""
    if any(own.drain_by is not None for own in d.departures.values()):
        go(d)


def _finishing(d: StateTransaction, name: str, units: frozenset[str], own: Departure) -> bool:
    """Have the ranks of a departing node finish their work if they are all of fleets that can do without them.

    Their roles are smaller then, and grow again where there is room. Nodes whose ranks are of one role take turns, as
    long as their time allows, so that not all of its ranks leave at once. Return whether ranks are still at it.
    """
    goes: dict[str, list[int]] = {}
    for unit in sorted(units):
        for role, group in d.job.plan.units[unit].members:
            goes.setdefault(role, []).extend(d.facts(role).group_ranks(group))
    if not d.seats or not all(d.facts(role).fleet for role in goes):
        return False
    if any(set(ranks) & set(d.sizes[role].leaving) for role, ranks in goes.items()):
        return True
    busy = [(role, left) for role in goes if (left := d.sizes[role].leave_by) is not None]
    if busy:
        role, left = max(busy, key=lambda each: each[1])
        # Its own ranks may need as long as those before them.
        turn = left + limits.FINISH_S + limits.STOP_S + d.facts(role).plan.drain_s
        if turn <= own.by - limits.PARTING_S:
            return True
        if not own.stays:
            words = f"its ranks do not wait for others of {role} that leave: it may be gone before"
            d.note(reasons.NODE_LEAVING, f"node/{name}", words)
    if any(d.sizes[role].leaving or _too_few(d, role, len(ranks)) for role, ranks in goes.items()):
        return False
    why, by = f"their node is taken away: {own.why}", max(d.now + 1.0, own.by - limits.PARTING_S)
    begun = [leaving.begin(d, role, ranks, why, by=by) for role, ranks in sorted(goes.items())]
    return any(begun)


def _too_few(d: StateTransaction, role: str, gone: int) -> bool:
    return d.sizes[role].size - gone < d.facts(role).plan.min_replicas


def timers(state: JobState | StateTransaction) -> Iterator[float]:
    """Yield when departures need a Tick (unix seconds)."""
    for own in state.departures.values():
        yield _next_step_at(own)


def tick(d: StateTransaction) -> None:
    """Handle due departures: stop waiting for copies, and use a node again that is still there long after its time."""
    due = [(name, own) for name, own in sorted(d.departures.items()) if _next_step_at(own) <= d.now]
    by_ray = {node.id for node in d.nodes if node.leaving is not None}
    for name, own in due:
        if not own.saved and own.save_by <= d.now:
            _saved(d, name, own, f"the flush took longer than {own.save_by - own.since:.0f} s")
        elif own.drain_at is not None or own.drain_by is not None:
            continue  # `go` below begins or ends the drain
        elif name in by_ray:
            # Ray never takes a drain back, and places nothing on the node: the departure stays.
            d.departures = d.departures.set(name, evolve(own, by=d.now))
        else:
            d.departures = d.departures.delete(name)
            starting.start_again(d, [unit for unit, at in d.units.items() if at.node == name])
            d.note(
                reasons.NODE_DRAIN_CANCELLED,
                f"node/{name}",
                f"still there {d.now - own.since:.0f} s after its departure was announced: it is used again",
            )
    if due:
        go(d)
        try_to_place(d)


def orders(state: JobState, now: float) -> Iterator[SaveCopies]:
    """Yield the flush that a new epoch orders again."""
    first = _first(state)
    if first is not None:
        # At least a second: the time of the last epoch's flush may be over.
        yield SaveCopies(first[0], max(first[1].save_by - now, 1.0))


def _first(d: JobState | StateTransaction) -> tuple[str, Departure] | None:
    """Return a departing node whose ranks wait for their copies. One flush covers the copies of all nodes."""
    return next(((name, own) for name, own in sorted(d.departures.items()) if not own.saved), None)


def _next_step_at(own: Departure) -> float:
    """Return when the next step of a departure is due: of flush, drain, or the announcement's validity."""
    steps = [] if own.saved else [own.save_by]
    if own.drain_at is not None:
        steps.append(own.drain_at)
    elif own.drain_by is not None:
        # Ranks that have a place leave while the node is there.
        leave_by = own.drain_by if own.stays or not own.saved else min(own.drain_by, own.by - limits.PARTING_S)
        steps.append(leave_by)
    return min(steps, default=own.by + limits.NOTICE_S)


def _begin(d: StateTransaction, name: str, why: str, by: float, *, ends: bool = True) -> None:
    """Begin the departure of a node that is gone at `by` (unix seconds), or add the words of a further announcement.

    `ends`: whether it ends at some time, or only once its ranks have left.
    """
    old = d.departures.get(name)
    if old is not None:
        # Ray and Kubernetes may announce the same departure, each in its words.
        if why not in old.why:
            d.departures = d.departures.set(name, evolve(old, why=f"{old.why}; {why}"[:MAX_REASON]))
        return
    checkpoint = d.job.spec.checkpoint
    grace = checkpoint.grace_period_seconds if checkpoint else GRACE_S
    # No longer than the node is there, less the time that ranks need to leave it.
    within = max(1.0, min(grace, by - d.now - limits.PARTING_S))
    _cancel_reservations(d, name)
    waits, asked = bool(d.seats and _inhabited(d, name)), _first(d) is not None
    own = Departure(why, d.now, by, d.now + within, saved=not waits)
    own = evolve(own, drain_at=_drain_at(d, name, own) if ends else None)
    d.departures = d.departures.set(name, own)
    d.wake_at(_next_step_at(own))
    then = "; its ranks leave once their checkpoint copies are on disk" if waits else ""
    d.note(reasons.NODE_LEAVING, f"node/{name}", f"it is about to be taken away: {why}{then}")
    if waits and not asked:  # a flush that is under way for another node serves this one, too
        d.do(SaveCopies(name, within))


def _drain_at(d: StateTransaction, name: str, own: Departure) -> float | None:
    """Return when the servers of a departing node have to finish, wherever they go; None if there are none."""
    facts = [d.facts(role) for unit in _inhabited(d, name) for role in _roles(d, unit)]
    longest = max((each.plan.drain_s for each in facts if each.plan.drain is not None), default=None)
    if longest is None or not d.seats:
        return None
    # Kubernetes tells no time: by what is assumed for it, they have to begin at once. Ranks of fleets leave otherwise
    # (`_finishing`), after the flush.
    first = d.now if own.saved or not all(each.fleet for each in facts) else own.save_by
    return max(first, own.by - limits.DEPART_S - longest)


def _cancel_reservations(d: StateTransaction, name: str) -> None:
    """Give back reservations that this node has not answered yet; no rank lives in them.

    The caller looks for room once the departure is recorded. At admission (no seats) `go` gives all units back.
    """
    asked = [unit for unit in d.homeless if d.units[unit].node == name] if d.seats else []
    for unit in sorted(asked):
        token = d.units[unit].token
        d.do(Unreserve(unit, token))
        d.set_unit(unit, UnitState(UnitPhase.LOST, token))


def _saved(d: StateTransaction, name: str, own: Departure, why: str) -> None:
    """Record that the ranks of a departing node need not wait any longer; `why` names what is not on disk."""
    own = evolve(own, saved=True)
    if own.drain_at is not None:
        own = evolve(own, drain_at=_drain_at(d, name, own))
    d.departures = d.departures.set(name, own)
    d.wake_at(_next_step_at(own))
    if why:
        d.note(reasons.NODE_LEAVING, f"node/{name}", f"some checkpoint copies of its ranks are not on disk: {why}")


def _inhabited(d: StateTransaction, name: str) -> frozenset[str]:
    """Return the units on a node; empty if no unfinished rank lives in them, as there is nothing to move."""
    units = frozenset(
        unit for unit in d.housed.get(name, ()) if d.units[unit].phase in (UnitPhase.HELD, UnitPhase.RESERVING)
    )
    return units if any(ending.inhabited(d, unit) for unit in units) else frozenset()


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S UTC")
