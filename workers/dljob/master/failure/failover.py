"""Failover: the level of a restart after a failure, its budget and backoff, and the end of restarts under way."""

from __future__ import annotations

from dljob.master.failure import attribution, budget, coupling, deliveries, ending, memory, policy, repeats
from dljob.master.failure.restart import RestartOrder, begin_restart, remaining_backoff_s, restart_time_limit_s
from dljob.master.start import spares, starting
from dljob.master.state import limits
from dljob.master.state.evolve import evolve
from dljob.master.state.faults import Failure, FaultRecord
from dljob.master.state.job import STORE_HOST_INDEX
from dljob.master.state.state import RankKey, RankPhase, RankState
from dljob.master.state.transaction import NodeDeparture, StateTransaction
from dljob.master.state.views import HostId, Level, Outcome, Reason
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted, seconds

# Reasons of nodes that end without notice: those of one rack may be reported in both ways.
_REASONS_NODE_GONE_UNANNOUNCED = frozenset({Reason.NODE_LOST, Reason.NODE_FROZEN})
_REASONS_NODE_GONE = _REASONS_NODE_GONE_UNANNOUNCED | {Reason.PREEMPTED}
# Reasons that a process gets before it is known that its node is lost.
_VAGUE_REASONS = frozenset({Reason.UNKNOWN.value, Reason.KILLED.value})


def handle_failed_ranks(
    tx: StateTransaction,
    role: str,
    ranks: tuple[int, ...],
    outcome: Outcome,
    *,
    host_lost: bool,
    has_started_rank: bool = True,
    fixed_decision: policy.Restart | None = None,
    failed_store: str = "",
    is_culprit_known: bool = True,
) -> None:
    """Handle ranks of a role that failed together, for one cause. Their processes, or their user code, have ended.

    Args:
        tx: The transaction.
        role: Role of the ranks.
        ranks: The failed ranks; the first one stands for all in messages and in the attribution.
        outcome: How they ended.
        host_lost: Whether the host's process is gone as well.
        has_started_rank: Whether any rank of the role had been started since the role last waited as a whole.
        fixed_decision: The restart, where the rules need not be asked, unless the job ends for a failure that repeats.
        failed_store: Name of the torch store or SubMaster host that failed; empty: the ranks did.
        is_culprit_known: Whether the first rank is to blame. Otherwise nobody knows which rank is, and no node is left.
    """
    failure = attribution.attribute_failure(tx, role, ranks[0], outcome)
    culprit_name = failed_store or failure.name
    cause = policy.describe_failure(culprit_name, failure.outcome, lost_peer=failure.reports_lost_peer)
    if is_culprit_known and not failed_store:
        deliveries.remember_failure(tx, failure, ranks, cause)
    if failed_store:
        # Its ranks may be older, and may have no process yet: they do not tell whether this failure is counted.
        process_ordered_at = tx.base.hosts[HostId(role, STORE_HOST_INDEX)].process_ordered_at
        repetition = repeats.check_store_repetition(tx, failure)
    else:
        process_ordered_at = _process_ordered_at(tx, failure)
        had_process = _live_state_before_event(tx, failure) is not None
        repetition = repeats.check_repetition(tx, failure, had_process=had_process)
    belongs_to_counted_failure = _belongs_to_counted_failure(tx, failure, process_ordered_at)
    decision: policy.Decision | None = fixed_decision
    if decision is None or repetition is not None:
        decision = policy.decide_about_failure(
            tx, failure, repetition, belongs_to_counted_failure=belongs_to_counted_failure
        )
    if isinstance(decision, policy.ReplaceNode):
        # The error of a callee says nothing about the node of its caller.
        can_blame_node = is_culprit_known and failure.outcome.origin is None
        decision = _leave_node_or_restart(tx, failure, decision, culprit_name, can_blame_node=can_blame_node)
        if decision is None:
            return
    if isinstance(decision, policy.FailJob):
        attribution.record_final_fault(tx, failure, cause)
        message = f"{cause}; {decision.explanation}{deliveries.failing_items_suffix(tx, role)}"
        ending.fail_job(tx, decision.reason, message)
    elif isinstance(decision, policy.IgnoreFailure):
        _ignore_failure(tx, role, ranks, f"{cause}; {decision.explanation}")
    else:
        level = _needed_level(tx, role, decision.level, host_lost=host_lost, has_started_rank=has_started_rank)
        order = _order_restart(
            tx,
            failure,
            ranks,
            evolve(decision, level=level),
            culprit_name,
            belongs_to_counted_failure=belongs_to_counted_failure,
        )
        _begin_ordered_restart(tx, order, failure)


def _live_state_before_event(tx: StateTransaction, failure: Failure) -> RankState | None:
    """Return a failed rank as it was before this event; None if it had no process, as where none could be made.

    A rank that waits for a process still has the times of the one before.
    """
    rank_state = tx.base.ranks.get((failure.role, failure.rank))
    return rank_state if rank_state is not None and rank_state.phase.live else None


def restart_elsewhere(
    tx: StateTransaction, role: str, ranks: tuple[int, ...], departure: NodeDeparture, *, has_started_rank: bool
) -> None:
    """Restart ranks that a rule moves off their node: for the failure of one of them, or of another role's rank.

    Args:
        tx: The transaction.
        role: Role of the ranks.
        ranks: The ranks, whose processes have ended; the one that failed, if it is among them, is the first.
        departure: The order to leave the node.
        has_started_rank: Whether any rank of the role had been started since the role last waited as a whole.
    """
    culprit = departure.failure
    failure = attribution.failure_of_leaving_rank(tx, culprit, role, ranks[0])
    level = policy.own_level_or_process(tx.facts(role))
    level = _needed_level(tx, role, level, host_lost=True, has_started_rank=has_started_rank)
    decision = policy.Restart(level, departure.uses_budget, "its node is left")
    belongs_to_counted_failure = _belongs_to_counted_failure(tx, failure, _process_ordered_at(tx, failure))
    order = _order_restart(
        tx,
        failure,
        ranks,
        decision,
        departure.culprit_name,
        belongs_to_counted_failure=belongs_to_counted_failure,
        culprit=culprit,
    )
    _begin_ordered_restart(tx, order, failure if failure is culprit else None)


def _leave_node_or_restart(
    tx: StateTransaction, failure: Failure, decision: policy.ReplaceNode, culprit_name: str, *, can_blame_node: bool
) -> policy.Restart | None:
    """Order to leave the node of a failed rank. Return the restart that remains where there is no node to leave."""
    facts, uses_budget, explanation = tx.facts(failure.role), decision.uses_budget, decision.explanation
    if not can_blame_node:
        level = policy.raise_to_role(policy.own_level_or_process(facts))
        return policy.Restart(level, uses_budget, f"{explanation}, with no node to blame,")
    node = tx.units[facts.unit_of(facts.host_of(failure.rank))].node
    if not node:  # the unit is being moved already
        return policy.Restart(policy.own_level_or_process(facts), uses_budget, explanation)
    cause = policy.describe_failure(culprit_name, failure.outcome, lost_peer=failure.reports_lost_peer)
    tx.node_departures.setdefault(node, NodeDeparture(failure, culprit_name, f"{cause}; {explanation}", uses_budget))
    return None


def _needed_level(tx: StateTransaction, role: str, level: Level, *, host_lost: bool, has_started_rank: bool) -> Level:
    """Return the level that a failure needs, given how far the start of its role has come."""
    if tx.facts(role).is_torch_world and not has_started_rank and level is not Level.JOB:
        # No rank of the world has started, so no peer is affected: only the host that failed is created again.
        return Level.PROCESS
    return policy.raise_to_allowed_level(tx.facts(role), level, host_lost=host_lost)


def has_started_a_rank(tx: StateTransaction, role: str) -> bool:
    """Whether any rank of a role was started since the role last waited as a whole."""
    return tx.roles[role].waiting_count < tx.facts(role).plan.replicas


def _ignore_failure(tx: StateTransaction, role: str, ranks: tuple[int, ...], message: str) -> None:
    """Leave failed ranks in the phase Failed, as a rule says; their role may be complete with that."""
    for rank in ranks:
        mark_rank_done_in_restart(tx, (role, rank))
        rank_state = tx.ranks[role, rank]
        tx.set_rank((role, rank), evolve(rank_state, phase=RankPhase.FAILED, incident=0))
    tx.note(reasons.IGNORED, f"{role}/{ranks[0]}", message)
    ending.advance_role_and_job(tx, role)


def _order_restart(
    tx: StateTransaction,
    failure: Failure,
    ranks: tuple[int, ...],
    decision: policy.Restart,
    culprit_name: str,
    *,
    belongs_to_counted_failure: bool,
    culprit: Failure | None = None,
) -> RestartOrder | None:
    """Charge a budget, escalate while none is left, and return the order; None if nothing restarts for this failure.

    `culprit`: the failure to blame, if it is perhaps that of another role's rank; its fault may be recorded already.
    """
    culprit = culprit or failure
    role, outcome = failure.role, failure.outcome
    reason = outcome.reason.value if outcome.reason else Reason.UNKNOWN.value
    cause = policy.describe_failure(culprit_name, outcome, lost_peer=failure.reports_lost_peer)
    level, explanation = decision.level, decision.explanation
    if outcome.reason in _REASONS_NODE_GONE and not decision.uses_budget:
        _refund_echoes_of_lost_node(tx, failure)
    covering_target = coupling.target_of_covering_restart_in_event(tx, role, ranks, level)
    if covering_target:
        tx.because(f"{cause}; {role} restarts with {covering_target} already")
        return None
    # A failure that belongs to a counted one costs nothing, and joins the backoff that is already running.
    if belongs_to_counted_failure or _has_left_announced_node(tx, failure):
        incidents = [tx.incidents.get(tx.ranks[role, rank].incident) for rank in ranks]
        backoff_s = remaining_backoff_s(tx, filter(None, incidents))
    else:
        old_state = _live_state_before_event(tx, failure)
        ready_s = tx.now - old_state.ready_at if old_state is not None and old_state.ready_at else 0.0
        backoff_s = budget.backoff_seconds(tx, budget.add_failure(tx, role, failure.node, ready_s))
    root_number = 0 if culprit is failure else attribution.recorded_fault_number(tx, culprit)
    if decision.uses_budget and not belongs_to_counted_failure:
        charged_level = charge_budget(tx, role, level, cause)
        if charged_level is None:
            attribution.record_final_fault(tx, culprit, cause, root_number)
            return None
        level = charged_level
    limit = budget.restart_limit(tx, level, role)
    used_count = len(budget.recent_marks(tx, budget.budget_key(level, role)))
    cost = "it costs no budget"
    if decision.uses_budget:
        window_text = seconds(tx.job.fault_tolerance.window_seconds)
        cost = f"{used_count} of {counted(limit, 'restart')} used within {window_text}"
    tx.because(f"{explanation} restarts {role} at level {level.value}; {cost}; backoff {backoff_s:.1f} s")
    return RestartOrder(
        level,
        role,
        ranks,
        reason,
        cause,
        backoff_s=backoff_s,
        # After an escalation even live hosts are replaced: keeping them was tried and did not help.
        replaces_hosts=level is not decision.level,
        failure=None if root_number else culprit,
        root_number=root_number,
    )


def _begin_ordered_restart(tx: StateTransaction, order: RestartOrder | None, failure: Failure | None) -> None:
    """Begin a restart, if one is ordered, after a failure of the role itself, or of another role's rank (None)."""
    if order is None:
        return
    role, level = order.role, order.level
    # Memory is raised before the restart begins: the other way round a host had two generations in one event, and a
    # crash of PrimeMaster forgot the first (docs/adr/0034).
    ended_by_role: memory.EndedRanksByRole = memory.raise_memory_after_kill(tx, failure) if failure else {}
    if role in ended_by_role and level is Level.PROCESS:
        level = Level.ROLE_GROUP  # all ranks of the role in that unit were ended with it
    begin_restart(tx, evolve(order, level=level))
    if failure and level is not Level.JOB:
        restarting_roles = (role, *tx.facts(role).roles_taken_along)
        uncovered_ranks = {name: ranks for name, ranks in ended_by_role.items() if name not in restarting_roles}
        memory.restart_ended_ranks(tx, uncovered_ranks, failure.name)


def _process_ordered_at(tx: StateTransaction, failure: Failure) -> float:
    """Return when the process of a failed rank was ordered: its own, or its host's where that is younger."""
    host = tx.facts(failure.role).host_of(failure.rank)
    return max(tx.ranks[failure.role, failure.rank].process_ordered_at, tx.hosts[host].process_ordered_at)


def _belongs_to_counted_failure(tx: StateTransaction, failure: Failure, process_ordered_at: float) -> bool:
    """Whether a failure belongs to one that is already counted; otherwise a lost node would use up the whole budget.

    Processes of one node that die together count once. The loss of a node counts as the same failure if its processes
    were reported before it (also those started there since), or peers whose errors only tell of it, or another node
    that was lost at the same time (one rack): before the processes started or the role has come back.
    """
    role = failure.role
    if budget.died_in_counted_failure(tx, role, failure.node, process_ordered_at):
        return True
    reason = failure.outcome.reason
    if reason not in _REASONS_NODE_GONE:
        return False
    matching_reasons = _REASONS_NODE_GONE_UNANNOUNCED if reason in _REASONS_NODE_GONE_UNANNOUNCED else {reason}
    for fault in tx.faults:
        # A restart of the job is one of every role.
        is_of_role = fault.rank.startswith(f"{role}/") or (fault.rank and fault.level == Level.JOB.value)
        if not is_of_role or tx.now - fault.detected_at > limits.SAME_FAILURE_WINDOW_S:
            continue
        is_unexplained_echo = fault.reports_lost_peer and not fault.root_number
        began_before = process_ordered_at < fault.detected_at or _is_restart_under_way(tx, fault)
        is_node_lost_with_it = fault.reason in matching_reasons and began_before
        if fault.node == failure.node or is_unexplained_echo or is_node_lost_with_it:
            return True
    return False


def _is_restart_under_way(tx: StateTransaction, fault: FaultRecord) -> bool:
    """Whether the restart after a fault goes on, and began seconds ago.

    Its ranks have new processes, so their age shows nothing. Seconds count from the failure that was counted: a
    row of lost nodes, each soon after the one before it, would otherwise never be counted again.
    """
    role = fault.rank.partition("/")[0]
    counted_at = budget.time_of_counted_failure(tx, role, fault.detected_at)
    return fault.recovered_at is None and tx.now - counted_at <= limits.SAME_FAILURE_WINDOW_S


def _has_left_announced_node(tx: StateTransaction, failure: Failure) -> bool:
    """Whether a rank left its node as announced: that is no failure, and the next node need not be waited for.

    A process that dies on such a node has not left it. It starts there again, so it has to wait.
    """
    facts = tx.facts(failure.role)
    return policy.is_announced(tx, failure) and not tx.units[facts.unit_of(facts.host_of(failure.rank))].node


def _refund_echoes_of_lost_node(tx: StateTransaction, failure: Failure) -> None:
    """Refund what budgets paid for failures that a lost node, which costs no budget, turned out to have caused.

    Peers of the lost node fail before the loss is reported, and are charged as failures of their own.
    """
    echo_times: set[float] = set()
    for fault in tx.faults:
        is_of_role = fault.rank.startswith(f"{failure.role}/")
        is_recent = fault.recovered_at is None and tx.now - fault.detected_at <= limits.LATE_CAUSE_WINDOW_S
        is_unexplained_echo = fault.reports_lost_peer and not fault.root_number
        died_with_node = fault.node == failure.node and fault.reason in _VAGUE_REASONS
        if is_of_role and is_recent and (is_unexplained_echo or died_with_node):
            echo_times.add(fault.detected_at)
    budget.remove_marks(tx, (failure.role, budget.JOB_BUDGET_KEY), frozenset(echo_times))


def charge_budget(tx: StateTransaction, role: str, level: Level, cause: str) -> Level | None:
    """Charge a restart to the budget of a level, or to the next larger level that has one left.

    Returns None, and fails the job, if no level has any left.
    """
    charged_level, window_text = level, seconds(tx.job.fault_tolerance.window_seconds)
    while not budget.has_restart_left(tx, charged_level, role):
        larger_level = policy.next_larger_level(tx.facts(role), charged_level)
        if larger_level is None:
            # A job with maxRestarts 0 has no budget of its own: the message names the role's, which is used up.
            exhausted_level = charged_level if budget.restart_limit(tx, charged_level, role) else level
            owner = "the job" if exhausted_level is Level.JOB else role
            limit = budget.restart_limit(tx, exhausted_level, role)
            explanation = f"no restarts are left: {limit} of {owner} within {window_text}"
            explanation = explanation if limit else f"{owner} may not restart: maxRestarts is 0"
            if exhausted_level is not Level.JOB and tx.facts(role).plan.is_torchrun_script:
                explanation += " (dljob torchrun --max-restarts=N allows more)"
            message = f"{cause}; {explanation}{deliveries.failing_items_suffix(tx, role)}"
            ending.fail_job(tx, reasons.BUDGET_EXHAUSTED, message)
            return None
        charged_level = larger_level
    if charged_level is not level:
        allowed_restarts, new_level = counted(budget.restart_limit(tx, level, role), "restart"), charged_level.value
        explanation = f"the budget of {allowed_restarts} of {role} within {window_text} is used up"
        tx.note(reasons.ESCALATED, role, f"{explanation}: restarting at level {new_level}", level=new_level)
    budget.add_mark(tx, budget.budget_key(charged_level, role))
    return charged_level


def escalate_overdue_restart(tx: StateTransaction, incident_number: int) -> None:
    """Escalate a restart that did not finish in time to the next larger level, or fail the job."""
    incident = tx.incidents[incident_number]
    # Members that have left the restart do not count: a fleet may have dropped them, and they must not start again.
    unready_keys = [key for key in incident.members if tx.ranks[key].incident == incident_number]
    role, _ = unready_keys[0]
    level, rank_names = incident.level, ", ".join(f"{name}/{rank}" for name, rank in unready_keys[:3])
    cause = (
        f"{incident.target}: {len(unready_keys)} of {len(incident.members)} ranks not ready"
        f" {restart_time_limit_s(tx, incident.members):.0f} s after a restart at level {level.value} ({rank_names})"
    )
    larger_level = policy.next_larger_level(tx.facts(role), level)
    if larger_level is None:
        ending.fail_job(tx, reasons.RESTART_TIMED_OUT, cause)
        return
    # A role that restarts with others restarts whole, so the next level may be too small for it.
    needed_level = policy.raise_to_allowed_level(tx.facts(role), larger_level, host_lost=False)
    charged_level = charge_budget(tx, role, needed_level, cause)
    if charged_level is not None:
        tx.note(reasons.ESCALATED, incident.target, cause, level=charged_level.value)
        ranks = tuple(rank for name, rank in unready_keys if name == role)
        begin_restart(tx, RestartOrder(charged_level, role, ranks, incident.reason, cause, replaces_hosts=True))


def mark_rank_done_in_restart(tx: StateTransaction, key: RankKey) -> None:
    """Count a rank as done with its restart; the restart ends with the last one."""
    incident_number = tx.ranks[key].incident
    incident = tx.incidents.get(incident_number)
    if incident is None:
        return
    incident = evolve(incident, unready_count=incident.unready_count - 1)
    if incident.unready_count:
        tx.incidents = tx.incidents.set(incident_number, incident)
        return
    tx.incidents = tx.incidents.delete(incident_number)
    tx.recover_faults(incident.fault_numbers)
    recovery_s = tx.now - incident.detected_at
    message = f"{counted(len(incident.members), 'rank')} ready again {recovery_s:.2f} s after the failure"
    tx.note(reasons.RECOVERED, incident.target, message, level=incident.level.value, seconds=recovery_s)
    # Spares are replaced only now: creating processes earlier would take processor time from the restart.
    if not spares.spares_per_node(tx):
        return
    for role in sorted({role for role, _ in incident.members}):
        # In a restart of the job, this role may have completed before the others were ready.
        if not starting.is_role_completed(tx, role):
            ranks = [rank for name, rank in incident.members if name == role]
            spares.order_missing_spares(tx, role, spares.nodes_of_ranks(tx, role, ranks))


def restart_world(tx: StateTransaction, role: str, outcome: Outcome) -> None:
    """Restart the world of a lost torch store or SubMaster host, which forms its group anew on a new store."""
    unfinished_ranks = tuple(rank for rank in tx.facts(role).ranks if ending.is_unfinished(tx.ranks[role, rank]))
    if unfinished_ranks:
        store, has_started = str(HostId(role, STORE_HOST_INDEX)), has_started_a_rank(tx, role)
        handle_failed_ranks(
            tx, role, unfinished_ranks, outcome, host_lost=True, has_started_rank=has_started, failed_store=store
        )
