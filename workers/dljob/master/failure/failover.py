"""Failover: the level of a restart after a failure, its budget and backoff, and the end of restarts under way."""

from __future__ import annotations

from collections.abc import Iterable

from dljob.master.failure import attribution, budget, coupling, deliveries, ending, memory, repeats
from dljob.master.failure.policy import (
    Fail,
    Ignore,
    Replace,
    Restart,
    is_announced,
    raise_to_role,
    decide_about_failure,
    describe_failure,
    lift_level,
    next_larger_level,
    role_level,
)
from dljob.master.failure.restart import RestartOrder, begin_restart, seconds_to_start
from dljob.master.start import spares, starting
from dljob.master.state import limits
from dljob.master.state.evolve import evolve
from dljob.master.state.faults import Failure, FaultRecord
from dljob.master.state.job import STORE
from dljob.master.state.state import RankKey, RankPhase, RankState
from dljob.master.state.transaction import NodeDeparture, StateTransaction
from dljob.master.state.views import HostId, Level, Outcome, Reason
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted, seconds

# How nodes end without notice: those of one rack may be reported in both ways.
_UNANNOUNCED = frozenset({Reason.NODE_LOST, Reason.NODE_FROZEN})
_NODE_REASONS = _UNANNOUNCED | {Reason.PREEMPTED}
# Reasons that a process gets before it is known that its node is lost.
_VAGUE = frozenset({Reason.UNKNOWN.value, Reason.KILLED.value})


def failed(
    tx: StateTransaction,
    role: str,
    ranks: tuple[int, ...],
    outcome: Outcome,
    *,
    host_lost: bool,
    begun: bool = True,
    decided: Restart | None = None,
    who: str = "",
    blamed: bool = True,
) -> None:
    """Handle ranks of a role that failed together, for one cause. Their processes, or their user code, have ended.

    Args:
        tx: The transaction.
        role: Role of the ranks.
        ranks: The failed ranks; the first one stands for all in messages and in the attribution.
        outcome: How they ended.
        host_lost: Whether the host's process is gone as well.
        begun: Whether any rank of the role had been started since the role last waited as a whole.
        decided: The restart, where the rules need not be asked, unless the job ends for a failure that repeats.
        who: Name of what failed, if it was none of the ranks (a torch store).
        blamed: Whether it is known which rank is to blame: the first one. Otherwise no node is left.
    """
    failure = attribution.attribute_failure(tx, role, ranks[0], outcome)
    cause = describe_failure(who or failure.name, failure.outcome, lost_peer=failure.secondary)
    if blamed and not who:
        deliveries.remember_failure(tx, failure, ranks, cause)
    joined = _joined(tx, failure)
    repeated = ("", "") if who else repeats.check_repetition(tx, failure, had_process=_life(tx, failure) is not None)
    decision = (
        decide_about_failure(tx, failure, repeated, is_counted=joined) if decided is None or repeated[0] else decided
    )
    if isinstance(decision, Replace):
        # The error of a callee says nothing about the node of its caller.
        is_own = failure.outcome.origin is None
        restart = _leave_node(tx, failure, decision, who or failure.name, blamed=blamed and is_own)
        if restart is None:
            return
        decision = restart
    if isinstance(decision, Fail):
        attribution.record_final_fault(tx, failure, cause)
        ending.fail_job(
            tx, decision.reason, f"{cause}; {decision.explanation}{deliveries.describe_barren_role(tx, role)}"
        )
    elif isinstance(decision, Ignore):
        _ignore(tx, role, ranks, f"{cause}; {decision.explanation}")
    else:
        level = _lifted(tx, role, decision.level, host_lost=host_lost, begun=begun)
        order = _order(tx, failure, ranks, evolve(decision, level=level), who or failure.name, joined=joined)
        _begin(tx, order, failure)


def _life(tx: StateTransaction, failure: Failure) -> RankState | None:
    """Return a failed rank as it was before this event; None if it had no process, as where none could be made.

    A rank that waits for a process still has the times of the one before.
    """
    before = tx.base.ranks.get((failure.role, failure.rank))
    return before if before is not None and before.phase.live else None


def left(tx: StateTransaction, role: str, ranks: tuple[int, ...], order: NodeDeparture, *, begun: bool) -> None:
    """Restart ranks whose node a rule says to leave: for the failure of one of them, or of another role's rank.

    Args:
        tx: The transaction.
        role: Role of the ranks.
        ranks: The ranks, whose processes have ended; the one that failed, if it is among them, is the first.
        order: The order to leave the node.
        begun: Whether any rank of the role had been started since the role last waited as a whole.
    """
    failure = attribution.failure_of_leaving_rank(tx, order.failure, role, ranks[0])
    level = _lifted(tx, role, role_level(tx.facts(role)), host_lost=True, begun=begun)
    decision = Restart(level, order.uses_budget, "its node is left")
    restart = _order(
        tx, failure, ranks, decision, order.culprit_name, joined=_joined(tx, failure), culprit=order.failure
    )
    _begin(tx, restart, failure if failure is order.failure else None)


def _leave_node(tx: StateTransaction, failure: Failure, decision: Replace, who: str, *, blamed: bool) -> Restart | None:
    """Order to leave the node of a failed rank. Return the restart that remains where there is no node to leave."""
    facts = tx.facts(failure.role)
    if not blamed:
        return Restart(
            raise_to_role(role_level(facts)), decision.uses_budget, f"{decision.explanation}, with no node to blame,"
        )
    node = tx.units[facts.unit_of(facts.host_of(failure.rank))].node
    if not node:  # the unit is being moved already
        return Restart(role_level(facts), decision.uses_budget, decision.explanation)
    why = f"{describe_failure(who, failure.outcome, lost_peer=failure.secondary)}; {decision.explanation}"
    tx.leaving.setdefault(node, NodeDeparture(failure, who, why, decision.uses_budget))
    return None


def _lifted(tx: StateTransaction, role: str, level: Level, *, host_lost: bool, begun: bool) -> Level:
    """Return the level that a failure needs, given how far the start of its role has come."""
    if tx.facts(role).world and not begun and level is not Level.JOB:
        # No rank of the world has started, so no peer is affected: only the host that failed is created again.
        return Level.PROCESS
    return lift_level(tx.facts(role), level, host_lost=host_lost)


def begun(tx: StateTransaction, role: str) -> bool:
    """Whether any rank of a role was started since the role last waited as a whole."""
    return tx.roles[role].waiting < tx.facts(role).plan.replicas


def _ignore(tx: StateTransaction, role: str, ranks: tuple[int, ...], why: str) -> None:
    """Leave failed ranks in the phase Failed, as a rule says; their role may be complete with that."""
    for rank in ranks:
        settle(tx, (role, rank))
        old = tx.ranks[role, rank]
        tx.set_rank((role, rank), evolve(old, phase=RankPhase.FAILED, incident=0))
    tx.note(reasons.IGNORED, f"{role}/{ranks[0]}", why)
    ending.follow_role_change(tx, role)


def _order(
    tx: StateTransaction,
    failure: Failure,
    ranks: tuple[int, ...],
    decision: Restart,
    who: str,
    *,
    joined: bool,
    culprit: Failure | None = None,
) -> RestartOrder | None:
    """Charge a budget, escalate while none is left, and return the order; None if nothing restarts for this failure.

    `culprit`: the failure to blame, if it may be that of another role's rank: its fault may be recorded already.
    """
    culprit = culprit or failure
    role, outcome = failure.role, failure.outcome
    reason = outcome.reason.value if outcome.reason else Reason.UNKNOWN.value
    cause = describe_failure(who, outcome, lost_peer=failure.secondary)
    level = decision.level
    if outcome.reason in _NODE_REASONS and not decision.uses_budget:
        _refund(tx, failure)
    if by := coupling.covering_restart(tx, role, ranks, level):
        tx.because(f"{cause}; {role} restarts with {by} already")
        return None
    # A failure that belongs to a counted one costs nothing, and joins the backoff that is already running.
    if joined or _moves_as_announced(tx, failure):
        wait = _left_of_backoff(tx, role, ranks)
    else:
        ready_at = life.ready_at if (life := _life(tx, failure)) is not None else 0.0
        wait = budget.backoff_seconds(
            tx, budget.add_failure(tx, role, failure.node, tx.now - ready_at if ready_at else 0.0)
        )
    root = 0 if culprit is failure else attribution.fault_number_of(tx, culprit)
    if decision.uses_budget and not joined:
        charged = charge(tx, role, level, cause)
        if charged is None:
            attribution.record_final_fault(tx, culprit, cause, root)
            return None
        level = charged
    tx.because(_why(tx, role, level, decision, wait))
    # After an escalation even live hosts are replaced: keeping them was tried and did not help.
    fresh = level is not decision.level
    new = None if root else culprit
    return RestartOrder(level, role, ranks, reason, cause, wait=wait, fresh=fresh, failure=new, root=root)


def _begin(tx: StateTransaction, order: RestartOrder | None, failure: Failure | None) -> None:
    """Begin a restart, if one is ordered, after a failure of the role itself, or of another role's rank (None)."""
    if order is None:
        return
    role, level = order.role, order.level
    # Memory is raised before the restart begins: the other way round a host had two generations in one event, and a
    # crash of PrimeMaster forgot the first (docs/adr/0034).
    ended: memory.Ended = memory.grow(tx, failure) if failure else {}
    if role in ended and level is Level.PROCESS:
        level = Level.ROLE_GROUP  # all ranks of the role in that unit were ended with it
    begin_restart(tx, evolve(order, level=level))
    if failure and level is not Level.JOB:
        restarted = (role, *tx.facts(role).coupled)
        memory.follow(tx, {other: theirs for other, theirs in ended.items() if other not in restarted}, failure.name)


def _why(tx: StateTransaction, role: str, level: Level, decision: Restart, wait: float) -> str:
    """Return the log line of a restart: the rule, the level, the cost to the budget, and the backoff."""
    most, used = budget.restart_limit(tx, level, role), len(budget.recent_marks(tx, budget.budget_key(level, role)))
    cost = f"{used} of {counted(most, 'restart')} used within {seconds(tx.job.fault_tolerance.window_seconds)}"
    paid = cost if decision.uses_budget else "it costs no budget"
    return f"{decision.explanation} restarts {role} at level {level.value}; {paid}; backoff {wait:.1f} s"


def _joined(tx: StateTransaction, failure: Failure) -> bool:
    """Whether a failure belongs to one that is already counted; otherwise a lost node would use up the whole budget.

    Processes of one node that die together count once. The loss of a node counts as the same failure if its processes
    were reported before it (also those started there since), or peers whose errors only tell of it, or another node
    that was lost at the same time (one rack): before the processes started or the role has come back.
    """
    role, host = failure.role, tx.facts(failure.role).host_of(failure.rank)
    since = max(tx.ranks[role, failure.rank].since, tx.hosts[host].since)
    if budget.is_counted_already(tx, role, failure.node, since):
        return True
    reason = failure.outcome.reason
    alike = _UNANNOUNCED if reason in _UNANNOUNCED else {reason}
    # The three cases of the docstring in order: the same node, an unexplained echo of a peer, a node lost with it.
    return reason in _NODE_REASONS and any(
        fault.node == failure.node
        or (fault.secondary and not fault.root)
        or (fault.reason in alike and (since < fault.detected or _under_way(tx, fault)))
        for fault in tx.faults
        # A restart of the job is one of every role.
        if fault.rank.startswith(f"{role}/") or (fault.rank and fault.level == Level.JOB.value)
        if tx.now - fault.detected <= limits.JOIN_S
    )


def _under_way(tx: StateTransaction, fault: FaultRecord) -> bool:
    """Whether the restart after a fault goes on, and began seconds ago.

    Its ranks have new processes, so that their age does not tell. Seconds count from the failure that was counted: a
    row of lost nodes, each soon after the one before it, would otherwise never be counted again.
    """
    role = fault.rank.partition("/")[0]
    return fault.recovered is None and tx.now - budget.time_counted(tx, role, fault.detected) <= limits.JOIN_S


def _moves_as_announced(tx: StateTransaction, failure: Failure) -> bool:
    """Whether a rank left its node as announced: that is no failure, and the next node need not be waited for.

    A process that dies on such a node has not left it. It starts there again, so it has to wait.
    """
    facts = tx.facts(failure.role)
    return is_announced(tx, failure) and not tx.units[facts.unit_of(facts.host_of(failure.rank))].node


def _refund(tx: StateTransaction, failure: Failure) -> None:
    """Refund what budgets paid for failures that a lost node, which costs no budget, turned out to have caused.

    Peers of the lost node fail before the loss is reported, and are charged as failures of their own.
    """
    echoes = frozenset(
        fault.detected
        for fault in tx.faults
        if fault.rank.startswith(f"{failure.role}/")
        and fault.recovered is None
        and tx.now - fault.detected <= limits.LEARN_S
        and ((fault.secondary and not fault.root) or (fault.node == failure.node and fault.reason in _VAGUE))
    )
    budget.refund_marks(tx, (failure.role, budget.JOB_KEY), echoes)


def _left_of_backoff(tx: StateTransaction, role: str, ranks: Iterable[int]) -> float:
    """Return the remaining seconds of the backoff of the restarts that these ranks are in."""
    under_way = (tx.incidents.get(tx.ranks[role, rank].incident) for rank in ranks)
    return max([0.0, *(own.due - tx.now for own in under_way if own is not None and not own.launched)])


def charge(tx: StateTransaction, role: str, level: Level, cause: str) -> Level | None:
    """Charge a restart to the budget of a level, or to the next larger level that has one left.

    Returns None, and fails the job, if no level has any left.
    """
    at = level
    while not budget.has_restart_left(tx, at, role):
        larger = next_larger_level(tx.facts(role), at)
        if larger is None:
            # A job with maxRestarts 0 has no budget of its own: the message names the role's, which is used up.
            last = at if budget.restart_limit(tx, at, role) else level
            whose = "the job" if last is Level.JOB else role
            most, window = budget.restart_limit(tx, last, role), seconds(tx.job.fault_tolerance.window_seconds)
            used = f"no restarts are left: {most} of {whose} within {window}"
            used = used if most else f"{whose} may not restart: maxRestarts is 0"
            if last is not Level.JOB and tx.facts(role).plan.is_torchrun_script:
                used += " (dljob torchrun --max-restarts=N allows more)"
            message = f"{cause}; {used}{deliveries.describe_barren_role(tx, role)}"
            ending.fail_job(tx, reasons.BUDGET_EXHAUSTED, message)
            return None
        at = larger
    if at is not level:
        allowed = counted(budget.restart_limit(tx, level, role), "restart")
        used = f"the budget of {allowed} of {role} within {seconds(tx.job.fault_tolerance.window_seconds)} is used up"
        tx.note(reasons.ESCALATED, role, f"{used}: restarting at level {at.value}", level=at.value)
    budget.add_mark(tx, budget.budget_key(at, role))
    return at


def timed_out(tx: StateTransaction, number: int) -> None:
    """Escalate a restart that did not finish in time to the next larger level, or fail the job."""
    incident = tx.incidents[number]
    # Not the members that have left it: a fleet may have dropped them, and they must not start again.
    pending = [key for key in incident.members if tx.ranks[key].incident == number]
    role = pending[0][0]
    cause = (
        f"{incident.target}: {len(pending)} of {len(incident.members)} ranks not ready"
        f" {seconds_to_start(tx, incident.members):.0f} s after"
    )
    names = ", ".join(f"{name}/{rank}" for name, rank in pending[:3])
    cause = f"{cause} a restart at level {incident.level.value} ({names})"
    larger = next_larger_level(tx.facts(role), incident.level)
    if larger is None:
        ending.fail_job(tx, reasons.RESTART_TIMED_OUT, cause)
        return
    # Of a role that was taken along whole, a smaller level may not do.
    level = charge(tx, role, lift_level(tx.facts(role), larger, host_lost=False), cause)
    if level is not None:
        tx.note(reasons.ESCALATED, incident.target, cause, level=level.value)
        ranks = tuple(rank for name, rank in pending if name == role)
        begin_restart(tx, RestartOrder(level, role, ranks, incident.reason, cause, fresh=True))


def settle(tx: StateTransaction, key: RankKey) -> None:
    """Count a rank as done with its restart; the restart ends with the last one."""
    number = tx.ranks[key].incident
    incident = tx.incidents.get(number)
    if incident is None:
        return
    incident = evolve(incident, pending=incident.pending - 1)
    if incident.pending:
        tx.incidents = tx.incidents.set(number, incident)
        return
    tx.incidents = tx.incidents.delete(number)
    tx.recover_faults(incident.faults)
    lasted = tx.now - incident.detected
    count = len(incident.members)
    message = f"{counted(count, 'rank')} ready again {lasted:.2f} s after the failure"
    tx.note(reasons.RECOVERED, incident.target, message, level=incident.level.value, seconds=lasted)
    # Spares are replaced only now: creating processes earlier would take processor time from the restart.
    if spares.per_node(tx):
        _keep_spares(tx, incident.members)


def _keep_spares(tx: StateTransaction, members: Iterable[RankKey]) -> None:
    """Order the spares that the nodes of these ranks lack."""
    ranks: dict[str, list[int]] = {}
    for role, rank in members:
        ranks.setdefault(role, []).append(rank)
    for role in sorted(ranks):
        if starting.completed(tx, role):
            continue  # in a restart of the job, this role may have completed before the others were ready
        spares.keep(tx, role, spares.homes(tx, role, ranks[role]))


def restart_world(tx: StateTransaction, role: str, outcome: Outcome) -> None:
    """Restart the world of a lost torch store or SubMaster host, which forms its group anew on a new store."""
    unfinished = [r for r in tx.facts(role).ranks if ending.is_unfinished(tx.ranks[role, r])]
    if unfinished:
        store = str(HostId(role, STORE))
        failed(tx, role, tuple(unfinished), outcome, host_lost=True, begun=begun(tx, role), who=store)
