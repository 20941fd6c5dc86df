"""Hangs, stragglers and silent corruption: a note, and a restart where the policy, a rule or an accuser asks for it."""

from __future__ import annotations

from dljob.master.failure import failover, policy
from dljob.master.failure.restart import kill_single_rank_hosts
from dljob.master.failure.stalling import mark_hung
from dljob.master.start.problems import record_problem
from dljob.master.state import early_end
from dljob.master.state.events import HangFound
from dljob.master.state.evolve import evolve
from dljob.master.state.problems import StandingProblem
from dljob.master.state.state import RankPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Clue, Outcome, Reason
from dljob.telemetry import reasons
from dljob.telemetry.evidence import Source

_TIMELINE_REASONS = {Reason.STRAGGLER: reasons.STRAGGLER_FOUND, Reason.SILENT_CORRUPTION: reasons.CORRUPTION_FOUND}
_FINDING_WORDS = {Reason.STRAGGLER: "straggler", Reason.SILENT_CORRUPTION: "silent corruption"}


def report_hang(tx: StateTransaction, event: HangFound) -> None:
    """Report a finding about a rank, and restart it like a failed one unless a rule or the policy says otherwise."""
    rank_state = tx.ranks.get((event.role, event.rank))
    if not tx.phase.active or rank_state is None or rank_state.incarnation != event.incarnation:
        return
    reason = Reason(event.kind)
    # A rank that has ended hangs nowhere: the others of its world do, and wait for it.
    is_ended_member = rank_state.phase is RankPhase.SUCCEEDED and tx.facts(event.role).is_torch_world
    is_awaited_after_end = is_ended_member and reason is Reason.HANG
    # Of ranks that are not ready only a circle is reported: it never ends by itself.
    phases_of_hang = (RankPhase.READY, RankPhase.STARTING) if event.whole else (RankPhase.READY,)
    if rank_state.phase not in phases_of_hang and not is_awaited_after_end:
        return
    outcome = _finding_outcome(event, reason)
    if is_awaited_after_end:
        outcome = evolve(early_end.outcome_of_early_end(event.why, rank_state.end_step), clues=outcome.clues[1:])
    target = event.role if event.whole else f"{event.role}/{event.rank}"
    stacks_text = f"; stacks: {event.stacks}" if event.stacks else ""
    tx.note(_TIMELINE_REASONS.get(reason, reasons.HANG_FOUND), target, f"{event.why}{stacks_text}")
    if reason is Reason.HANG:
        mark_hung(tx, (event.role, event.rank))
    elif reason is Reason.STRAGGLER:
        rank_name = f"{event.role}/{event.rank}"
        record_problem(tx, StandingProblem(reasons.STRAGGLER, rank_name, f"{rank_name}: {event.why}", tx.now))
    rule = policy.matching_rule(tx, event.role, outcome)
    if rule is not None and rule.action == "Ignore":
        return
    # A straggler still makes progress: only a rule that names Straggler, or a witness that may act, restarts it.
    is_named_by_rule = rule is not None and outcome.reason is not None and outcome.reason.value in rule.on_reasons
    restarts_by_policy = reason is not Reason.STRAGGLER and tx.job.fault_tolerance.hang.action == "Restart"
    has_witness_that_may_act = bool(event.by)
    if not (has_witness_that_may_act or is_named_by_rule or restarts_by_policy):
        return
    facts, ranks, fixed_decision = tx.facts(event.role), (event.rank,), None
    if event.whole:  # the finding is about all ranks of the role
        ranks = tuple(rank for rank in facts.ranks if tx.ranks[event.role, rank].phase in phases_of_hang)
    # With no culprit, restarting one rank would leave the others as they are: the whole role restarts.
    if event.whole and rule is None and facts.plan.restart_level != "Never":
        explanation = f"all of {event.role} stands still"
        fixed_decision = policy.Restart(
            policy.raise_to_role(policy.own_level_or_process(facts)), uses_budget=True, explanation=explanation
        )
    # A hanging process obeys no order, so it is killed first.
    kill_single_rank_hosts(tx, event.role, ranks)
    failover.handle_failed_ranks(
        tx, event.role, ranks, outcome, host_lost=False, fixed_decision=fixed_decision, is_culprit_known=not event.whole
    )


def _finding_outcome(event: HangFound, reason: Reason) -> Outcome:
    """Return the finding as an outcome, with the monitor's words and the stacks as evidence."""
    finding = Clue(Source.MONITOR, f"{_FINDING_WORDS.get(reason, 'hang')}: {event.why}")
    clues = (finding, Clue(Source.STACKS, event.stacks)) if event.stacks else (finding,)
    outcome = Outcome(ok=False, reason=reason, message=event.why, frame=event.line, clues=clues)
    return evolve(outcome, step=event.step, advanced=event.advanced, finished=event.finished)
