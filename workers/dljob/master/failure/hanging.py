"""Hangs, stragglers and silent corruption: a note, and a restart where the policy, a rule or an accuser asks for it."""

from __future__ import annotations

from dljob.master.failure import failover, policy
from dljob.master.failure.policy import Restart, raise_to_role, role_level
from dljob.master.failure.restart import kill_hosts_of_one_rank
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

_NOTES = {Reason.STRAGGLER: reasons.STRAGGLER_FOUND, Reason.SILENT_CORRUPTION: reasons.CORRUPTION_FOUND}
_WORDS = {Reason.STRAGGLER: "straggler", Reason.SILENT_CORRUPTION: "silent corruption"}


def report_hang(tx: StateTransaction, event: HangFound) -> None:
    """Report a finding about a rank, and restart it like a failed one unless a rule or the policy says otherwise."""
    rank_state = tx.ranks.get((event.role, event.rank))
    if not tx.phase.active or rank_state is None or rank_state.incarnation != event.incarnation:
        return
    reason = Reason(event.kind)
    # A rank that has ended hangs nowhere: the others of its world do, and wait for it.
    has_ended = rank_state.phase is RankPhase.SUCCEEDED and tx.facts(event.role).is_torch_world
    has_ended = has_ended and reason is Reason.HANG
    # Of ranks that are not ready only a circle is reported: it never ends by itself.
    phases = (RankPhase.READY, RankPhase.STARTING) if event.whole else (RankPhase.READY,)
    if rank_state.phase not in phases and not has_ended:
        return
    outcome = _finding_outcome(event, reason)
    if has_ended:
        outcome = evolve(early_end.outcome_of_early_end(event.why, rank_state.end_step), clues=outcome.clues[1:])
    target = event.role if event.whole else f"{event.role}/{event.rank}"
    stacks_text = f"; stacks: {event.stacks}" if event.stacks else ""
    tx.note(_NOTES.get(reason, reasons.HANG_FOUND), target, f"{event.why}{stacks_text}")
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
    if not (event.by or is_named_by_rule or restarts_by_policy):
        return
    facts = tx.facts(event.role)
    ranks = tuple(rank for rank in facts.ranks if tx.ranks[event.role, rank].phase in phases)
    ranks = ranks if event.whole else (event.rank,)
    decision = None
    # With no culprit, restarting one rank would leave the others as they are: the whole role restarts.
    if event.whole and rule is None and facts.plan.restart_level != "Never":
        explanation = f"all of {event.role} stands still"
        decision = Restart(raise_to_role(role_level(facts)), uses_budget=True, explanation=explanation)
    # A hanging process obeys no order, so it is killed first.
    kill_hosts_of_one_rank(tx, event.role, ranks)
    failover.handle_failed_ranks(
        tx, event.role, ranks, outcome, host_lost=False, fixed_decision=decision, is_culprit_known=not event.whole
    )


def _finding_outcome(event: HangFound, reason: Reason) -> Outcome:
    """Return the finding as an outcome, with the monitor's words and the stacks as evidence."""
    finding = Clue(Source.MONITOR, f"{_WORDS.get(reason, 'hang')}: {event.why}")
    stacks = (Clue(Source.STACKS, event.stacks),) if event.stacks else ()
    return Outcome(
        ok=False,
        reason=reason,
        message=event.why,
        frame=event.line,
        step=event.step,
        advanced=event.advanced,
        finished=event.finished,
        clues=(finding, *stacks),
    )
