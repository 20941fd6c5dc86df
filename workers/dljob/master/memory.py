"""More memory for who was ended for want of it: its unit is given back, and asked for anew with more.

Only what somebody else ended for memory counts: the kernel, a control group, Kubernetes, Ray's monitor. What an
exception tells of, of a device's memory or the machine's, no larger reservation mends.
"""

from __future__ import annotations

from dataclasses import replace

from dljob.master import causes, ending, grants, limits
from dljob.master.actions import Unreserve
from dljob.master.admission import look, reserve, taken, unit_hosts
from dljob.master.assign import Assignment, Refusal, assign
from dljob.master.draft import Draft
from dljob.master.evolve import evolve
from dljob.master.faults import Fault
from dljob.master.grants import Given, policy_of
from dljob.master.policy import lift, own_level
from dljob.master.restart import Order, begin, kill
from dljob.master.state import RankPhase, UnitPhase, UnitState
from dljob.master.views import NodeView, Reason
from dljob.plan.model import GRAIN, Amount, Unit, add_up
from dljob.spec.model import OutOfMemory
from dljob.spec.quantity import parse_factor, parse_memory, show_memory
from dljob.telemetry import reasons

_MEBIBYTE: Amount = 2**20 * GRAIN


def grow(d: Draft) -> None:
    """Give more to the units of ranks that were found, in this transition, to have been ended for want of memory."""
    if d.faults is d.base.faults or not d.seats:
        return
    known = {fault.id for fault in d.base.faults if _starved(fault)}
    for fault in d.faults:
        if fault.id not in known and _starved(fault) and not d.ending and not _together(d, fault):
            _more(d, fault)


def _starved(fault: Fault) -> bool:
    outcome = fault.outcome
    wanting = fault.reason == Reason.OOM_KILLED.value and not fault.secondary
    return wanting and outcome is not None and causes.killed(outcome)


def _unit(d: Draft, fault: Fault) -> str:
    role, _, rank = fault.rank.partition("/")
    facts = d.facts(role)
    return facts.unit_of(facts.host_of(int(rank)))


def _together(d: Draft, fault: Fault) -> bool:
    """Whether another rank of its unit fell for the same reason just before: once more memory is for both."""
    return any(
        other.id < fault.id
        and other.rank != fault.rank
        and _starved(other)
        and fault.detected - other.detected <= limits.JOIN_S
        and _unit(d, other) == _unit(d, fault)
        for other in d.faults
    )


def _more(d: Draft, fault: Fault) -> None:
    role, _, number = fault.rank.partition("/")
    rank, policy = d.ranks[role, int(number)], policy_of(d.job, role)
    if policy is None or rank.incarnation > fault.incarnation + 1 or not ending.unfinished(rank):
        return
    unit, plan = _unit(d, fault), d.job.plan
    now, most = grants.given(d.grants, unit), parse_memory(policy.max_memory)
    has = dict(now).get(role, grants.memory_of(plan, role))
    more = raised(has, policy)
    if more <= has:
        d.note(reasons.MEMORY_KEPT, fault.rank, f"memory stays {show_memory(has)} after OOMKilled: that is maxMemory")
        return
    words = f"memory {show_memory(has)} -> {show_memory(more)} of at most {show_memory(most)} after OOMKilled of "
    words += fault.rank
    wanted = max(more, d.grants.wanted.get(role, 0))
    d.grants = evolve(d.grants, wanted=d.grants.wanted.set(role, wanted))
    then = tuple(sorted({**dict(now), role: more}.items()))
    found = _place(d, unit, grants.unit_of(plan, unit, then))
    if isinstance(found, Refusal):
        d.note(
            reasons.MEMORY_KEPT,
            fault.rank,
            f"{words}: it goes on with {show_memory(has)}, there is no room: {found.why}",
        )
        return
    d.note(reasons.MEMORY_RAISED, fault.rank, words)
    _renew(d, unit, then, found, f"{fault.rank} comes back with more memory")


def raised(amount: Amount, policy: OutOfMemory) -> Amount:
    """So much more, in whole MiB, and no more than the most."""
    more = -(-amount * parse_factor(policy.memory_factor) // (GRAIN * _MEBIBYTE)) * _MEBIBYTE
    return min(more, parse_memory(policy.max_memory))


def _place(d: Draft, name: str, wanted: Unit) -> Assignment | Refusal:
    """Where a unit can be with more: where it is, if it can."""
    own, barred = d.units[name], frozenset(d.exclusions).union(d.departures)
    holds = grants.unit_of(d.job.plan, name, grants.given(d.grants, name))
    rooms = [
        _left(node, holds) if own.phase is UnitPhase.HELD and node.id == own.node else node
        for node in d.nodes
        if node.id not in barred
    ]
    others = [held for held in taken(d) if held.unit.name != name]
    here = assign([wanted], [node for node in rooms if node.id == own.node], taken=others)
    return here if isinstance(here, Assignment) else assign([wanted], rooms, taken=others)


def _left(node: NodeView, unit: Unit) -> NodeView:
    """A node as it will be when it holds a unit no more."""
    total = dict(node.total)
    free = add_up(node.free, unit.demand)
    return replace(node, free=tuple((name, min(amount, total[name])) for name, amount in free if name in total))


def _renew(d: Draft, name: str, given: Given, found: Assignment, why: str) -> None:
    """Ask for a unit anew. Who lives in it is ended, and starts again once it is held."""
    own = d.units[name]
    d.grants = grants.with_given(d.grants, name, given)
    if own.phase is UnitPhase.LOST:
        look(d)
        return
    d.do(Unreserve(name, own.token))
    d.set_unit(name, UnitState(UnitPhase.LOST, own.token))
    lost: dict[str, list[int]] = {}
    for host in unit_hosts(d, name):
        kill(d, host)
        for rank in d.facts(host.role).ranks_of(host.index) if host.index >= 0 else ():
            phase = d.ranks[host.role, rank].phase
            if phase.live:
                ending.process_gone(d, (host.role, rank))
            if phase in (RankPhase.STARTING, RankPhase.READY):
                lost.setdefault(host.role, []).append(rank)
    reserve(d, dict(found.nodes))
    for role, ranks in lost.items():
        # Theirs is no failure: it uses up no budget and waits for no backoff.
        level = lift(d.facts(role), own_level(d.facts(role)), host_lost=True)
        begin(d, Order(level, role, tuple(ranks), Reason.OOM_KILLED.value, why))
