"""More memory for a rank that was killed for want of it: its unit is given back and reserved again with more.

Only a kill from outside counts: by the kernel, a control group, Kubernetes or Ray's monitor. An exception about memory
(of a device, or a MemoryError) would not be mended by a larger reservation. The unit is the smallest thing that can
grow: a placement group cannot be resized.
"""

from __future__ import annotations

from collections.abc import Mapping

from dljob.master.failure import ending
from dljob.master.failure.policy import lift_level, role_level
from dljob.master.failure.restart import RestartOrder, begin_restart, kill_host
from dljob.master.start.assign import Assignment, Refusal, assign
from dljob.master.start.reservations import assigned_units, reserve, tell_domains, unit_hosts, without_unit
from dljob.master.state import causes, limits, memory_overrides
from dljob.master.state.actions import Unreserve
from dljob.master.state.evolve import evolve
from dljob.master.state.faults import Failure, FaultRecord
from dljob.master.state.memory_overrides import Given
from dljob.master.state.state import RankPhase, UnitPhase, UnitState
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Outcome, Reason
from dljob.plan.model import GRAIN, Amount, Unit
from dljob.spec.model import OutOfMemory
from dljob.spec.quantity import parse_factor, parse_memory, show_memory
from dljob.telemetry import reasons

_MEBIBYTE: Amount = 2**20 * GRAIN

Ended = Mapping[str, tuple[int, ...]]
"""Role -> ranks that were ended because their unit was given back."""


def grow(tx: StateTransaction, failure: Failure) -> Ended:
    """Raise the memory of a rank that is about to restart. Return the ranks of its unit that were ended for that."""
    if not failure.secondary and _starved(failure.outcome):
        return _more(tx, failure.role, failure.rank)
    return {}


def follow(tx: StateTransaction, ended: Ended, rank: str) -> None:
    """Restart the ranks that were ended for another rank's sake: without budget and backoff, as they did not fail."""
    # Users want the kill as the first cause of this restart, with its evidence.
    root = next((fault.root or fault.id for fault in reversed(tx.faults) if fault.rank == rank and _hungry(fault)), 0)
    for role, ranks in ended.items():
        level = lift_level(tx.facts(role), role_level(tx.facts(role)), host_lost=True)
        words = f"{rank} restarts with more memory"
        begin_restart(tx, RestartOrder(level, role, ranks, Reason.OOM_KILLED.value, words, root=root))


def learned(tx: StateTransaction) -> None:
    """Raise the memory of ranks whose OOM kill became known only after their restart, and restart them once more.

    A kernel's report comes half a second after the end of a thread host. A rank that was restarted again since is left
    alone.
    """
    if tx.faults is tx.base.faults or not tx.seats:
        return
    before = {fault.id: _hungry(fault) for fault in tx.base.faults}
    for fault in tx.faults:
        if tx.ending or before.get(fault.id, True) or not _hungry(fault):
            continue
        role, _, rank = fault.rank.partition("/")
        own = tx.ranks[role, int(rank)]
        if own.incarnation <= fault.incarnation + 1 and ending.is_unfinished(own):
            follow(tx, _more(tx, role, int(rank)), fault.rank)


def _hungry(fault: FaultRecord) -> bool:
    """Whether a fault asks for more memory."""
    return fault.outcome is not None and not fault.secondary and _starved(fault.outcome)


def _starved(outcome: Outcome) -> bool:
    return outcome.reason is Reason.OOM_KILLED and causes.killed(outcome)


def _unit(tx: StateTransaction, role: str, rank: int) -> str:
    facts = tx.facts(role)
    return facts.unit_of(facts.host_of(rank))


def _together(tx: StateTransaction, name: str, unit: str) -> bool:
    """Whether another rank of the unit was killed for memory just before: memory is raised once for both."""
    for other in tx.faults:
        if _hungry(other) and other.rank != name and tx.now - other.detected <= limits.JOIN_S:
            role, _, rank = other.rank.partition("/")
            if _unit(tx, role, int(rank)) == unit:
                return True
    return False


def _more(tx: StateTransaction, role: str, rank: int) -> Ended:
    """Raise the memory of a rank's unit if its policy allows and there is room; return the ranks ended for that."""
    name, unit, plan = f"{role}/{rank}", _unit(tx, role, rank), tx.job.plan
    policy = memory_overrides.policy_of(tx.job, role)
    if policy is None or _together(tx, name, unit):
        return {}
    now = memory_overrides.given(tx.grants, unit)
    has = dict(now).get(role, memory_overrides.memory_of(plan, role))
    more = raised(has, policy)
    if more <= has:
        tx.note(
            reasons.MEMORY_INCREASE_SKIPPED,
            name,
            f"memory stays {show_memory(has)} after OOMKilled: it is at maxMemory",
        )
        return {}
    # Remembered even if there is no room now: the next attempt begins with it.
    wanted = max(more, tx.grants.wanted.get(role, 0))
    tx.grants = evolve(tx.grants, wanted=tx.grants.wanted.set(role, wanted))
    words = f"memory {show_memory(has)} -> {show_memory(more)} of at most {policy.max_memory} after OOMKilled of {name}"
    then = tuple(sorted({**dict(now), role: more}.items()))
    if tx.units[unit].phase is UnitPhase.LOST:
        tx.grants = memory_overrides.with_given(tx.grants, unit, then)  # the unit looks for a node already
        tx.note(reasons.MEMORY_RAISED, name, words)
        return {}
    # A place is found before the unit is given back: without room the rank goes on as before.
    found = _place(tx, unit, memory_overrides.unit_of(plan, unit, then))
    if isinstance(found, Refusal):
        why = f"it goes on with {show_memory(has)}, there is no room: {found.why}"
        tx.note(reasons.MEMORY_INCREASE_SKIPPED, name, f"{words}: {why}")
        return {}
    tx.note(reasons.MEMORY_RAISED, name, words)
    return _renew(tx, unit, then, found)


def raised(amount: Amount, policy: OutOfMemory) -> Amount:
    """Return an amount multiplied by the policy's factor, rounded up to whole MiB, and at most the policy's maximum."""
    more = -(-amount * parse_factor(policy.memory_factor) // (GRAIN * _MEBIBYTE)) * _MEBIBYTE
    return min(more, parse_memory(policy.max_memory))


def _place(tx: StateTransaction, name: str, wanted: Unit) -> Assignment | Refusal:
    """Return a node for a unit with more memory: if possible its present one, where its copies and spares are."""
    own, barred = tx.units[name], frozenset(tx.exclusions).union(tx.departures)
    holds = memory_overrides.unit_of(tx.job.plan, name, memory_overrides.given(tx.grants, name))
    rooms = [
        without_unit(node, holds) if own.phase is UnitPhase.HELD and node.id == own.node else node
        for node in tx.nodes
        if node.id not in barred
    ]
    others = [held for held in assigned_units(tx) if held.unit.name != name]
    here = assign([wanted], [node for node in rooms if node.id == own.node], taken=others)
    return here if isinstance(here, Assignment) else assign([wanted], rooms, taken=others)


def _renew(tx: StateTransaction, name: str, given: Given, found: Assignment) -> Ended:
    """Reserve a unit anew with more memory. Its hosts are killed, and start again once it is held.

    Return the ranks that ran in it, by role.
    """
    tx.grants = memory_overrides.with_given(tx.grants, name, given)
    tx.do(Unreserve(name, tx.units[name].token))
    tx.set_unit(name, UnitState(UnitPhase.LOST, tx.units[name].token))
    lost: dict[str, tuple[int, ...]] = {}
    # All that lives in the unit ends with its placement group: Ray would kill it anyway.
    for host in unit_hosts(tx, name):
        kill_host(tx, host)
        for rank in tx.facts(host.role).ranks_of(host.index) if host.index >= 0 else ():
            phase = tx.ranks[host.role, rank].phase
            if phase.live:
                ending.drop_process(tx, (host.role, rank))
            if phase in (RankPhase.STARTING, RankPhase.READY):
                lost[host.role] = (*lost.get(host.role, ()), rank)
    tell_domains(tx, found.domains)
    reserve(tx, dict(found.nodes))
    return lost
