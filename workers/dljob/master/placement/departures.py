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
from dljob.master.failure.moving import ask_servers_to_finish, assign_elsewhere, live_servers_by_host
from dljob.master.failure.restart import kill_host
from dljob.master.placement import leaving
from dljob.master.placement.admission import leave_nodes, try_to_place
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


def begin_ray_drains(tx: StateTransaction, nodes: Sequence[NodeView]) -> None:
    """Begin the departure of nodes that Ray drains."""
    if not set(map(_LEAVING, nodes)) - {None}:  # as usual; no code of Python's runs for each of thousands of nodes
        return
    for node in nodes:
        if node.leaving is not None and node.id not in tx.departures and not tx.ending:
            reason = "Ray drains it" + (f", it is gone by {_format_time(node.leaving)}" if node.leaving else "")
            # The notice makes the drain the first cause of whatever dies on the node later.
            notice = tx.notices.get(node.id)
            clues = (*(notice.clues if notice else ()), Clue(Source.NOTICE.value, reason))
            tx.notices = tx.notices.set(node.id, Notice(tx.now, clues))
            # 0: Ray drains the node without a deadline.
            _begin_departure(tx, node.id, reason, node.leaving or tx.now + limits.DEPART_S, ends=bool(node.leaving))


def handle_learned_cause(tx: StateTransaction, event: CauseLearned) -> None:
    """Add evidence to faults, and begin the departure of a node that Kubernetes is about to take away."""
    attribution.handle_learned_cause(tx, event)
    kind, _, name = event.target.partition("/")
    if kind != "node" or tx.ending or not any(node.id == name for node in tx.nodes):
        return
    cause = causes.classify(Outcome(ok=False, clues=event.clues))
    if cause.reason is Reason.PREEMPTED:
        # The pod's grace period covers the drains of its servers (`raycluster.podspec`).
        drains = (tx.facts(role).plan.drain_s for unit in _inhabited(tx, name) for role in _roles_of(tx, unit))
        _begin_departure(tx, name, cause.line, tx.now + limits.DEPART_S + max(drains, default=0.0))
        leave_departing_nodes(tx)
        try_to_place(tx)


def _roles_of(tx: StateTransaction, unit: str) -> list[str]:
    return [role for role, _ in tx.job.plan.units[unit].members]


def handle_saved_copies(tx: StateTransaction, event: CopiesSaved) -> None:
    """Let the ranks of all departing nodes go: their copies are on disk, or cannot be brought there."""
    unsaved = [entry for entry in sorted(tx.departures.items()) if not entry[1].saved]
    for name, departure in unsaved:
        _mark_saved(tx, name, departure, event.why)
    if unsaved:
        leave_departing_nodes(tx)


def follow(tx: StateTransaction) -> None:
    """Follow up on changed nodes: departures of lost nodes are over, and ranks that stayed may now have a place."""
    # On the usual job no node is announced to go, and nothing is compared.
    present_ids = {node.id for node in tx.nodes} if tx.departures else set[str]()
    for name in sorted(tx.departures):
        if name not in present_ids:
            tx.departures = tx.departures.delete(name)
    leave_departing_nodes(tx)


def leave_departing_nodes(tx: StateTransaction) -> None:
    """Move the ranks off departing nodes whose copies are on disk, where other nodes can hold them.

    All nodes that can be left now are left together, so that a role with ranks on several of them restarts once.
    """
    left_nodes: list[str] = []
    leaving_units = frozenset[str]()
    for name, departure in sorted(tx.departures.items()):
        units = _inhabited(tx, name)
        if _leaves_now(tx, name, departure, units, leaving_units):
            left_nodes.append(name)
            leaving_units |= units
    if not left_nodes:
        return
    for name in left_nodes:
        # Before the ranks leave: a drain that is over needs no timer.
        tx.departures = tx.departures.set(name, evolve(tx.departures[name], drain_by=None, drain_at=None, drained=True))
    causes = (f"{tx.node_title(name)} is taken away: {tx.departures[name].announcement}" for name in left_nodes)
    reason = "; ".join(causes)
    leave_nodes(tx, frozenset(left_nodes), Outcome(ok=False, reason=Reason.PREEMPTED, message=reason[:MAX_WHY]))
    try_to_place(tx)


def _leaves_now(
    tx: StateTransaction, name: str, departure: Departure, units: frozenset[str], leaving_units: frozenset[str]
) -> bool:
    """Whether the ranks of a departing node leave now, with the units of others; else do what comes before.

    Args:
        tx: The transaction.
        name: The node.
        departure: Its departure.
        units: Units on it; empty: no unfinished rank is there.
        leaving_units: Units of the nodes before it, which leave now.
    """
    if tx.ending or not units:
        if departure.drain_at is not None or departure.drain_by is not None:
            # Nobody is left to drain: no timer may wait for it.
            tx.departures = tx.departures.set(name, evolve(departure, drain_at=None, drain_by=None))
        return False
    if not departure.saved:
        # Servers do not wait for the copies: a short announcement may have no time for one after the other.
        _drain_in_place(tx, name, units)
        return False
    if departure.drain_by is None and _finish_fleet_ranks(tx, name, units, departure):
        _postpone_drain(tx, name, departure)
        return False
    result = assign_elsewhere(tx, leaving_units | units) if tx.was_admitted else None
    if isinstance(result, Refusal):
        if not departure.stays:  # reported once, though it is tried again at each change of the nodes
            tx.note(reasons.NODE_LEAVING, f"node/{name}", f"its ranks stay until it is gone: {result.reason}")
        tx.departures = tx.departures.set(name, evolve(departure, stays=result.reason))
        _drain_in_place(tx, name, units)
        return False
    return not _waits_for_drain(tx, name, departure, units)


def _waits_for_drain(tx: StateTransaction, name: str, departure: Departure, units: frozenset[str]) -> bool:
    """Whether servers of a node that is left now still finish their requests; the first time it orders them to."""
    last_moment = departure.gone_at - limits.PARTING_S  # The rest of the time is for the ranks to leave.
    if departure.drained or last_moment <= tx.now:
        return False
    if departure.drain_by is None:
        return _order_drain(tx, name, units)
    if departure.stays:
        # There is room now, so they leave as soon as they have finished; `stays` names the present obstacle.
        tx.departures = tx.departures.set(name, evolve(departure, stays=""))
        tx.wake_at(last_moment)
    return departure.drain_by > tx.now and bool(live_servers_by_host(tx, units))


def _order_drain(tx: StateTransaction, name: str, units: frozenset[str]) -> bool:
    """Ask the servers of a departing node to finish their requests; return whether any has to be waited for."""
    departure, servers = tx.departures[name], live_servers_by_host(tx, units)
    if not servers:
        tx.departures = tx.departures.set(name, evolve(departure, drain_at=None, drained=True))
        return False
    drain_by = ask_servers_to_finish(tx, servers, Reason.PREEMPTED.value)
    tx.departures = tx.departures.set(name, evolve(departure, drain_at=None, drain_by=drain_by))
    tx.wake_at(_next_step_at(tx.departures[name]))
    server_count = counted(sum(map(len, servers.values())), "server")
    end = _format_time(min(drain_by, departure.gone_at))
    tx.note(reasons.NODE_LEAVING, f"node/{name}", f"{server_count} of it finish their requests first, until {end}")
    return True


def _drain_in_place(tx: StateTransaction, name: str, units: frozenset[str]) -> None:
    """Begin or end the drain of servers whose node has ranks that stay; servers that ignore its end are killed."""
    departure, servers = tx.departures[name], live_servers_by_host(tx, units)
    if departure.drain_at is not None and departure.drain_at <= tx.now:
        _order_drain(tx, name, units)
        return
    if departure.drain_by is None or (servers and departure.drain_by > tx.now):
        return
    tx.departures = tx.departures.set(name, evolve(departure, drain_by=None, drained=True))
    for host, ranks in servers.items():
        kill_host(tx, host)
        for rank in ranks:
            ending.mark_without_process(tx, (host.role, rank))


def _postpone_drain(tx: StateTransaction, name: str, departure: Departure) -> None:
    """Put off the drain of ranks that leave with their role's consent, or wait for their turn to."""
    if departure.drain_at is not None and departure.drain_at <= tx.now:
        drain_at = min(tx.now + limits.FINISH_S, departure.gone_at - limits.PARTING_S)
        tx.departures = tx.departures.set(name, evolve(departure, drain_at=drain_at if drain_at > tx.now else None))


def leave_after_drain(tx: StateTransaction) -> None:
    """Let the ranks of departing nodes leave whose last server has ended."""
    if any(departure.drain_by is not None for departure in tx.departures.values()):
        leave_departing_nodes(tx)


def _finish_fleet_ranks(tx: StateTransaction, name: str, units: frozenset[str], departure: Departure) -> bool:
    """Have the ranks of a departing node finish their work if they are all of fleets that can do without them.

    Their roles are smaller then, and grow again where there is room. Nodes whose ranks are of one role take turns, as
    long as their time allows, so that not all of its ranks leave at once. Return whether ranks are still at it.
    """
    leaving_ranks: dict[str, list[int]] = {}
    for unit in sorted(units):
        for role, group in tx.job.plan.units[unit].members:
            leaving_ranks.setdefault(role, []).extend(tx.facts(role).group_ranks(group))
    if not tx.was_admitted or not all(tx.facts(role).fleet for role in leaving_ranks):
        return False
    if any(set(ranks) & set(tx.sizes[role].leaving) for role, ranks in leaving_ranks.items()):
        return True
    busy_roles = [(role, leave_by) for role in leaving_ranks if (leave_by := tx.sizes[role].leave_by) is not None]
    if busy_roles:
        role, leave_by = max(busy_roles, key=lambda pair: pair[1])
        # The ranks of this node may need as long as those before them.
        turn_end = leave_by + limits.FINISH_S + limits.HOST_STOP_S + tx.facts(role).plan.drain_s
        if turn_end <= departure.gone_at - limits.PARTING_S:
            return True
        if not departure.stays:
            words = f"its ranks do not wait for others of {role} that leave: it may be gone before"
            tx.note(reasons.NODE_LEAVING, f"node/{name}", words)
    for role, ranks in leaving_ranks.items():
        if tx.sizes[role].leaving or tx.sizes[role].size - len(ranks) < tx.facts(role).plan.min_replicas:
            return False
    reason = f"their node is taken away: {departure.announcement}"
    deadline = max(tx.now + 1.0, departure.gone_at - limits.PARTING_S)
    roles = sorted(leaving_ranks.items())
    begun = [leaving.begin_leaving(tx, role, ranks, reason, by=deadline) for role, ranks in roles]
    return any(begun)


def timers(state: JobState | StateTransaction) -> Iterator[float]:
    """Yield when departures need a Tick (unix seconds)."""
    for departure in state.departures.values():
        yield _next_step_at(departure)


def tick(tx: StateTransaction) -> None:
    """Handle due departures: stop waiting for copies, and use a node again that is still there long after its time."""
    due_departures = [entry for entry in sorted(tx.departures.items()) if _next_step_at(entry[1]) <= tx.now]
    drained_nodes = {node.id for node in tx.nodes if node.leaving is not None}
    for name, departure in due_departures:
        if not departure.saved and departure.save_by <= tx.now:
            _mark_saved(tx, name, departure, f"the flush took longer than {departure.save_by - departure.since:.0f} s")
        elif departure.drain_at is not None or departure.drain_by is not None:
            continue  # `leave_departing_nodes` below begins or ends the drain
        elif name in drained_nodes:
            # Ray never takes a drain back, and places nothing on the node: the departure stays.
            tx.departures = tx.departures.set(name, evolve(departure, gone_at=tx.now))
        else:
            tx.departures = tx.departures.delete(name)
            starting.start_staying_servers(tx, [unit for unit, place in tx.units.items() if place.node == name])
            tx.note(
                reasons.NODE_DRAIN_CANCELLED,
                f"node/{name}",
                f"still there {tx.now - departure.since:.0f} s after its departure was announced: it is used again",
            )
    if due_departures:
        leave_departing_nodes(tx)
        try_to_place(tx)


def orders(state: JobState, now: float) -> Iterator[SaveCopies]:
    """Yield the flush that a new epoch orders again."""
    first = _first_unsaved(state)
    if first is not None:
        # At least a second: the time of the last epoch's flush may be over.
        yield SaveCopies(first[0], max(first[1].save_by - now, 1.0))


def _first_unsaved(tx: JobState | StateTransaction) -> tuple[str, Departure] | None:
    """Return a departing node whose ranks wait for their copies. One flush covers the copies of all nodes."""
    return next(((name, departure) for name, departure in sorted(tx.departures.items()) if not departure.saved), None)


def _next_step_at(departure: Departure) -> float:
    """Return when the next step of a departure is due: of flush, drain, or the announcement's validity."""
    steps = [] if departure.saved else [departure.save_by]
    if departure.drain_at is not None:
        steps.append(departure.drain_at)
    elif departure.drain_by is not None:
        # Ranks that have a place leave while the node is there.
        can_leave = departure.saved and not departure.stays
        parting = departure.gone_at - limits.PARTING_S
        steps.append(min(departure.drain_by, parting) if can_leave else departure.drain_by)
    return min(steps, default=departure.gone_at + limits.ANNOUNCED_END_WINDOW_S)


def _begin_departure(tx: StateTransaction, name: str, reason: str, by: float, *, ends: bool = True) -> None:
    """Begin the departure of a node that is gone at `by` (unix seconds), or add the words of a further announcement.

    `ends`: whether it ends at some time, or only once its ranks have left.
    """
    departure = tx.departures.get(name)
    if departure is not None:
        # Ray and Kubernetes may announce the same departure, each in its words.
        if reason not in departure.announcement:
            all_reasons = f"{departure.announcement}; {reason}"[:MAX_REASON]
            tx.departures = tx.departures.set(name, evolve(departure, announcement=all_reasons))
        return
    checkpoint = tx.job.spec.checkpoint
    grace = checkpoint.grace_period_seconds if checkpoint else GRACE_S
    # No longer than the node is there, less the time that ranks need to leave it.
    within = max(1.0, min(grace, by - tx.now - limits.PARTING_S))
    _cancel_reservations(tx, name)
    waits, is_flushing = bool(tx.was_admitted and _inhabited(tx, name)), _first_unsaved(tx) is not None
    departure = Departure(reason, tx.now, by, tx.now + within, saved=not waits)
    departure = evolve(departure, drain_at=_drain_at(tx, name, departure) if ends else None)
    tx.departures = tx.departures.set(name, departure)
    tx.wake_at(_next_step_at(departure))
    consequence = "; its ranks leave once their checkpoint copies are on disk" if waits else ""
    tx.note(reasons.NODE_LEAVING, f"node/{name}", f"it is about to be taken away: {reason}{consequence}")
    if waits and not is_flushing:  # a flush that is under way for another node serves this one, too
        tx.do(SaveCopies(name, within))


def _drain_at(tx: StateTransaction, name: str, departure: Departure) -> float | None:
    """Return when the servers of a departing node have to finish, wherever they go; None if there are none."""
    roles = [tx.facts(role) for unit in _inhabited(tx, name) for role in _roles_of(tx, unit)]
    longest = max((role.plan.drain_s for role in roles if role.plan.drain is not None), default=None)
    if longest is None or not tx.was_admitted:
        return None
    # Kubernetes tells no time: by what is assumed for it, they have to begin at once. Ranks of fleets leave otherwise
    # (`_finish_fleet_ranks`), after the flush.
    earliest = tx.now if departure.saved or not all(role.fleet for role in roles) else departure.save_by
    return max(earliest, departure.gone_at - limits.DEPART_S - longest)


def _cancel_reservations(tx: StateTransaction, name: str) -> None:
    """Give back reservations that this node has not answered yet; no rank lives in them.

    The caller looks for room once the departure is recorded. At admission (no seats) `leave_departing_nodes` gives all
    units back.
    """
    asked = [unit for unit in tx.homeless if tx.units[unit].node == name] if tx.was_admitted else []
    for unit in sorted(asked):
        token = tx.units[unit].token
        tx.do(Unreserve(unit, token))
        tx.set_unit(unit, UnitState(UnitPhase.LOST, token))


def _mark_saved(tx: StateTransaction, name: str, departure: Departure, failure: str) -> None:
    """Record that the ranks of a departing node need not wait any longer; `failure` names what is not on disk."""
    departure = evolve(departure, saved=True)
    if departure.drain_at is not None:
        departure = evolve(departure, drain_at=_drain_at(tx, name, departure))
    tx.departures = tx.departures.set(name, departure)
    tx.wake_at(_next_step_at(departure))
    if failure:
        tx.note(reasons.NODE_LEAVING, f"node/{name}", f"some checkpoint copies of its ranks are not on disk: {failure}")


def _inhabited(tx: StateTransaction, name: str) -> frozenset[str]:
    """Return the units on a node; empty if no unfinished rank lives in them, as there is nothing to move."""
    units = frozenset(
        unit for unit in tx.housed.get(name, ()) if tx.units[unit].phase in (UnitPhase.HELD, UnitPhase.RESERVING)
    )
    return units if any(ending.has_unfinished_rank(tx, unit) for unit in units) else frozenset()


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S UTC")
