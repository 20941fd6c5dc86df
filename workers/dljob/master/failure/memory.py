"""More memory for a rank that was killed for want of it: its unit is given back and reserved again with more.

Only a kill from outside counts: by the kernel, a control group, Kubernetes or Ray's monitor. An exception about memory
(of a device, or a MemoryError) would not be mended by a larger reservation. The unit is the smallest thing that can
grow: a placement group cannot be resized.
"""

from __future__ import annotations

from collections.abc import Mapping

from dljob.master.failure import ending
from dljob.master.failure.moving import other_units
from dljob.master.failure.policy import own_level_or_process, raise_to_allowed_level
from dljob.master.failure.repeats import is_memory_kill
from dljob.master.failure.restart import RestartOrder, begin_restart, kill_host
from dljob.master.start.assign import Assignment, Refusal, assign
from dljob.master.start.reservations import note_domain_choices, reserve, unit_hosts, without_unit
from dljob.master.state import limits, memory_overrides
from dljob.master.state.actions import Unreserve
from dljob.master.state.evolve import evolve
from dljob.master.state.faults import Failure, FaultRecord
from dljob.master.state.memory_overrides import Overrides
from dljob.master.state.state import RankPhase, UnitPhase, UnitState
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Reason
from dljob.plan.model import GRAIN, Amount, Unit
from dljob.spec.model import OutOfMemory
from dljob.spec.quantity import parse_factor, parse_memory, show_memory
from dljob.telemetry import reasons

_MEBIBYTE: Amount = 2**20 * GRAIN

EndedRanksByRole = Mapping[str, tuple[int, ...]]
"""Role -> ranks that were ended because their unit was given back, to be reserved again with more memory."""


def raise_memory_after_kill(tx: StateTransaction, failure: Failure) -> EndedRanksByRole:
    """Raise the memory of a rank that is about to restart. Return the ranks of its unit that were ended for that."""
    if not failure.reports_lost_peer and is_memory_kill(failure.outcome):
        return _raise_memory_of_unit(tx, failure.role, failure.rank)
    return {}


def restart_ended_ranks(tx: StateTransaction, ended_ranks_by_role: EndedRanksByRole, rank_name: str) -> None:
    """Restart the ranks that ended with another rank's unit: without budget and backoff, as they did not fail."""
    # Users want the kill as the first cause of this restart, with its evidence.
    kills = [fault for fault in tx.faults if fault.rank == rank_name and _was_killed_for_memory(fault)]
    root_number = (kills[-1].root_number or kills[-1].id) if kills else 0
    reason, cause = Reason.OOM_KILLED.value, f"{rank_name} restarts with more memory"
    for role, ranks in ended_ranks_by_role.items():
        level = raise_to_allowed_level(tx.facts(role), own_level_or_process(tx.facts(role)), host_lost=True)
        begin_restart(tx, RestartOrder(level, role, ranks, reason, cause, root_number=root_number))


def raise_memory_of_late_kills(tx: StateTransaction) -> None:
    """Raise the memory of ranks whose OOM kill became known only after their restart, and restart them once more.

    A kernel's report comes half a second after the end of a thread host. A rank that was restarted again since stays
    as it is.
    """
    if tx.faults is tx.base.faults or not tx.was_admitted:
        return
    was_known_as_memory_kill = {fault.id: _was_killed_for_memory(fault) for fault in tx.base.faults}
    for fault in tx.faults:
        if tx.ending or was_known_as_memory_kill.get(fault.id, True) or not _was_killed_for_memory(fault):
            continue
        role, _, rank = fault.rank.partition("/")
        rank_state = tx.ranks[role, int(rank)]
        if rank_state.incarnation <= fault.incarnation + 1 and ending.is_unfinished(rank_state):
            restart_ended_ranks(tx, _raise_memory_of_unit(tx, role, int(rank)), fault.rank)


def _was_killed_for_memory(fault: FaultRecord) -> bool:
    """Whether a fault asks for more memory."""
    return fault.outcome is not None and not fault.reports_lost_peer and is_memory_kill(fault.outcome)


def _unit_of_rank(tx: StateTransaction, role: str, rank: int) -> str:
    facts = tx.facts(role)
    return facts.unit_of(facts.host_of(rank))


def _was_memory_just_raised(tx: StateTransaction, rank_name: str, unit: str) -> bool:
    """Whether another rank of the unit was killed for memory just before: memory is raised once for both."""
    for fault in tx.faults:
        is_recent = tx.now - fault.detected_at <= limits.SAME_FAILURE_WINDOW_S
        if fault.rank != rank_name and is_recent and _was_killed_for_memory(fault):
            role, _, rank = fault.rank.partition("/")
            if _unit_of_rank(tx, role, int(rank)) == unit:
                return True
    return False


def _raise_memory_of_unit(tx: StateTransaction, role: str, rank: int) -> EndedRanksByRole:
    """Raise the memory of a rank's unit if its policy allows and there is room; return the ranks ended for that."""
    rank_name, unit, plan = f"{role}/{rank}", _unit_of_rank(tx, role, rank), tx.job.plan
    policy = memory_overrides.memory_policy_of(tx.job, role)
    if policy is None or _was_memory_just_raised(tx, rank_name, unit):
        return {}
    current_memory = memory_overrides.overrides_of_unit(tx.memory_overrides, unit)
    amount = dict(current_memory).get(role, memory_overrides.planned_memory_of(plan, role))
    larger_amount = next_amount(amount, policy)
    if larger_amount <= amount:
        message = f"memory stays {show_memory(amount)} after OOMKilled: it is at maxMemory"
        tx.note(reasons.MEMORY_INCREASE_SKIPPED, rank_name, message)
        return {}
    # Remembered even if there is no room now: the next attempt begins with it.
    requested_amount = max(larger_amount, tx.memory_overrides.requested.get(role, 0))
    tx.memory_overrides = evolve(
        tx.memory_overrides, requested=tx.memory_overrides.requested.set(role, requested_amount)
    )
    amounts = f"{show_memory(amount)} -> {show_memory(larger_amount)} of at most {policy.max_memory}"
    change_text = f"memory {amounts} after OOMKilled of {rank_name}"
    new_memory = tuple(sorted({**dict(current_memory), role: larger_amount}.items()))
    if tx.units[unit].phase is UnitPhase.LOST:
        tx.memory_overrides = memory_overrides.with_overrides(
            tx.memory_overrides, unit, new_memory
        )  # the unit looks for a node already
        tx.note(reasons.MEMORY_RAISED, rank_name, change_text)
        return {}
    # A place is found before the unit is given back: without room the rank goes on as before.
    assignment = _assign_larger_unit(tx, unit, memory_overrides.unit_with_memory(plan, unit, new_memory))
    if isinstance(assignment, Refusal):
        explanation = f"it goes on with {show_memory(amount)}, there is no room: {assignment.reason}"
        tx.note(reasons.MEMORY_INCREASE_SKIPPED, rank_name, f"{change_text}: {explanation}")
        return {}
    tx.note(reasons.MEMORY_RAISED, rank_name, change_text)
    return _reserve_larger_unit(tx, unit, new_memory, assignment)


def next_amount(amount: Amount, policy: OutOfMemory) -> Amount:
    """Return an amount multiplied by the policy's factor, rounded up to whole MiB, and at most the policy's maximum."""
    larger_amount = -(-amount * parse_factor(policy.memory_factor) // (GRAIN * _MEBIBYTE)) * _MEBIBYTE
    return min(larger_amount, parse_memory(policy.max_memory))


def _assign_larger_unit(tx: StateTransaction, unit_name: str, larger_unit: Unit) -> Assignment | Refusal:
    """Return a node for a unit with more memory: if possible its present one, where its copies and spares are."""
    unit_state, barred_nodes = tx.units[unit_name], frozenset(tx.exclusions).union(tx.departures)
    present_unit = memory_overrides.unit_with_memory(
        tx.job.plan, unit_name, memory_overrides.overrides_of_unit(tx.memory_overrides, unit_name)
    )
    present_node = unit_state.node if unit_state.phase is UnitPhase.HELD else None
    nodes = [node for node in tx.nodes if node.id not in barred_nodes]
    nodes = [without_unit(node, present_unit) if node.id == present_node else node for node in nodes]
    staying_units = other_units(tx, (unit_name,))
    for candidate_nodes in ([node for node in nodes if node.id == unit_state.node], nodes):
        assignment = assign([larger_unit], candidate_nodes, placed_units=staying_units)
        if isinstance(assignment, Assignment):
            break
    return assignment


def _reserve_larger_unit(
    tx: StateTransaction, unit_name: str, new_memory: Overrides, assignment: Assignment
) -> EndedRanksByRole:
    """Reserve a unit anew with more memory. Its hosts are killed, and start again once it is held.

    Return the ranks that ran in it, by role.
    """
    tx.memory_overrides = memory_overrides.with_overrides(tx.memory_overrides, unit_name, new_memory)
    tx.do(Unreserve(unit_name, tx.units[unit_name].token))
    tx.set_unit(unit_name, UnitState(UnitPhase.LOST, tx.units[unit_name].token))
    ended_ranks_by_role: dict[str, tuple[int, ...]] = {}
    # All that lives in the unit ends with its placement group: Ray would kill it anyway.
    for host in unit_hosts(tx, unit_name):
        kill_host(tx, host)
        for rank in tx.facts(host.role).ranks_of(host.index) if host.index >= 0 else ():
            phase = tx.ranks[host.role, rank].phase
            if phase.live:
                ending.mark_without_process(tx, (host.role, rank))
            if phase in (RankPhase.STARTING, RankPhase.READY):
                ended_ranks_by_role[host.role] = (*ended_ranks_by_role.get(host.role, ()), rank)
    note_domain_choices(tx, assignment.domains)
    reserve(tx, dict(assignment.nodes))
    return ended_ranks_by_role
