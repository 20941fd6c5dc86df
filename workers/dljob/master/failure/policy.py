"""The decision about a failure: by the first rule of the spec that matches it, else by the role's own level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from dljob.master.failure import budget
from dljob.master.state import causes, limits
from dljob.master.state.faults import Failure
from dljob.master.state.job import RoleFacts
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Level, Outcome, Reason
from dljob.spec.model import Rule
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted

LEVELS = (Level.IN_PROCESS, Level.PROCESS, Level.ROLE_GROUP, Level.ROLE, Level.JOB)
"""The restart levels in the order of escalation."""

# Actions of a rule that are restarts, with their levels.
_LEVELS_BY_ACTION = {
    "RestartInProcess": Level.IN_PROCESS,
    "RestartProcess": Level.PROCESS,
    "RestartRoleGroup": Level.ROLE_GROUP,
    "RestartRole": Level.ROLE,
    "RestartJob": Level.JOB,
}


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart at a level. `uses_budget`: whether the restart uses up a budget."""

    level: Level
    uses_budget: bool
    explanation: str


@dataclass(frozen=True, slots=True)
class ReplaceNode:
    """Leave the node, so that all its units move. `uses_budget`: whether the restarts that follow use up budgets."""

    uses_budget: bool
    explanation: str


@dataclass(frozen=True, slots=True)
class FailJob:
    """Fail the job."""

    reason: str
    explanation: str


@dataclass(frozen=True, slots=True)
class IgnoreFailure:
    """Leave the rank in the phase Failed, and go on without it."""

    explanation: str


Decision: TypeAlias = Restart | ReplaceNode | FailJob | IgnoreFailure


def describe_failure(target: str, outcome: Outcome, *, lost_peer: bool = False) -> str:
    """Return a failure in one line: target, or the callee whose error ended it, reason, error, place and exit code.

    `lost_peer`: the failure only reports that a peer is gone; then its own error is no cause.
    """
    kind = outcome.reason.value if outcome.reason else "Failed"
    if lost_peer and outcome.reason is Reason.UNKNOWN:
        kind = "cause unknown, it lost its peer"
    elif outcome.reason is Reason.UNKNOWN and not outcome.error_type:
        code_text = "" if outcome.code is None else f" with exit code {outcome.code}"
        message_text = f" ({outcome.message})" if outcome.message else ""
        return f"{target}: process gone{code_text}, cause unknown{message_text}"
    place = f" (at {outcome.frame})" if outcome.frame and outcome.frame not in outcome.message else ""
    code_text = f", exit code {outcome.code}" if outcome.code else ""
    origin = outcome.origin or outcome
    error_text = ": ".join(part for part in (origin.error_type, origin.message) if part)
    # The code of a callee is to blame; the line of its caller comes behind it.
    if outcome.origin is not None:
        callee_place = f" (at {origin.frame})" if origin.frame and origin.frame not in origin.message else ""
        return f"{outcome.origin.rank}: {kind}: {error_text}{callee_place}; it ended {target}{place}{code_text}"
    error_text = f": {error_text}" if error_text else ""
    return f"{target}: {kind}{error_text}{place}{causes.describe_root_cause(outcome)}{code_text}"


def decide_about_failure(
    tx: StateTransaction, failure: Failure, repetition: FailJob | None, *, belongs_to_counted_failure: bool = False
) -> Decision:
    """Decide about a failed rank, before any budget is charged. The attempt of a matching rule is counted.

    Args:
        tx: The transaction.
        failure: The failure.
        repetition: Result of `repeats.check_repetition`: the end of the job, as no restart would help; None: it may.
        belongs_to_counted_failure: Whether its failure is counted already, with the attempt of the same rule.
    """
    role, outcome = failure.role, failure.outcome
    for rule in tx.job.fault_tolerance.rules:
        if _rule_matches(rule, role, outcome):
            # A rule that names the reason or exit code was written for this failure, so it goes before `repeats`. A
            # rule for any failure does not: it would restart what can only fail again.
            names_failure = _rule_names_reason(rule, outcome.reason) or outcome.code in rule.on_exit_codes
            if repetition is not None and not names_failure:
                break
            return _apply_rule(tx, rule, role, belongs_to_counted_failure=belongs_to_counted_failure)
    if repetition is not None:
        return repetition
    level = tx.facts(role).plan.restart_level
    if level == "Never":
        return FailJob(reasons.FAIL_RULE, f"restartPolicy.level of {role} is Never")
    # A node that computes wrong results would do so for the next process, too.
    if outcome.reason is Reason.SILENT_CORRUPTION:
        return ReplaceNode(uses_budget=True, explanation="a node with silent corruption is replaced")
    return Restart(Level(level), uses_budget=not is_announced(tx, failure), explanation=f"restartPolicy of {role}")


def is_announced(tx: StateTransaction, failure: Failure) -> bool:
    """Whether the node was taken away after an announcement; no budget pays for such a restart."""
    host = tx.facts(failure.role).host_of(failure.rank)
    return failure.outcome.reason is Reason.PREEMPTED and tx.hosts[host].node in tx.departures


def matching_rule(tx: StateTransaction, role: str, outcome: Outcome) -> Rule | None:
    """Return the first rule that matches a failure, or None. The attempt is not counted."""
    return next((rule for rule in tx.job.fault_tolerance.rules if _rule_matches(rule, role, outcome)), None)


def next_larger_level(facts: RoleFacts, level: Level) -> Level | None:
    """Return the next larger level that restarts more than this one; None above the job."""
    if level is Level.JOB:
        return None
    if level is Level.IN_PROCESS:
        # It covers the whole role already, so only new processes for the same ranks are more.
        return raise_to_allowed_level(facts, Level.PROCESS, host_lost=False)
    larger_level = LEVELS[LEVELS.index(level) + 1]
    return Level.ROLE if larger_level is Level.ROLE_GROUP and facts.plan.group_size == 1 else larger_level


def raise_to_allowed_level(facts: RoleFacts, level: Level, *, host_lost: bool) -> Level:
    """Return the least level at or above the given one that the role allows.

    A torch world can only restart as a whole, since its ranks form one process group. A lost fork host takes all ranks
    of its group along. Roles that name each other restart as a whole.
    """
    if level is Level.JOB or (level is Level.IN_PROCESS and facts.plan.rejoins):
        return level
    level = max(level, Level.PROCESS, key=LEVELS.index)
    if facts.plan.name in facts.roles_taken_along:
        level = Level.ROLE
    if facts.is_torch_world:
        return Level.ROLE if facts.plan.groups > 1 else max(level, Level.ROLE_GROUP, key=LEVELS.index)
    if host_lost and facts.ranks_per_host > 1:
        return max(level, Level.ROLE_GROUP, key=LEVELS.index)
    return level


def _rule_matches(rule: Rule, role: str, outcome: Outcome) -> bool:
    """Whether a rule matches a failure: all conditions that it names must hold."""
    return (
        (not rule.roles or role in rule.roles)
        and (not rule.on_reasons or _rule_names_reason(rule, outcome.reason))
        and (not rule.on_exit_codes or outcome.code in rule.on_exit_codes)
    )


def _rule_names_reason(rule: Rule, reason: Reason | None) -> bool:
    """Whether a rule names a reason. Unknown includes Killed: the kernel decides which of both is known."""
    if reason is Reason.KILLED and Reason.UNKNOWN.value in rule.on_reasons:
        return True
    return reason is not None and reason.value in rule.on_reasons


def _apply_rule(tx: StateTransaction, rule: Rule, role: str, *, belongs_to_counted_failure: bool) -> Decision:
    """Return the action of a rule, or its escalation when its attempts are used up."""
    recent_uses = budget.recent_marks(tx, f"rule:{rule.name}")
    if belongs_to_counted_failure and recent_uses and tx.now - recent_uses[-1].at <= limits.SAME_FAILURE_WINDOW_S:
        return _decision_for_action(rule, rule.action, f"rule {rule.name}")
    use_count = len(recent_uses)
    if rule.max_attempts is None or use_count < rule.max_attempts:
        budget.add_mark(tx, f"rule:{rule.name}")
        return _decision_for_action(rule, rule.action, f"rule {rule.name}")
    explanation = f"rule {rule.name} was used {counted(use_count, 'time')}"
    if rule.escalate_to is not None:
        return _decision_for_action(rule, rule.escalate_to, explanation)
    # Without `escalateTo` a restart climbs by one level, and a replaced node leads to a restart of the job.
    larger_level: Level | None = None
    if rule.action == "ReplaceNode":
        larger_level = Level.JOB
    elif rule.action in _LEVELS_BY_ACTION:
        larger_level = _next_level_above_action(tx.facts(role), _LEVELS_BY_ACTION[rule.action])
    if larger_level is None:
        return FailJob(reasons.BUDGET_EXHAUSTED, explanation)
    return Restart(larger_level, rule.counts_towards_limit, explanation)


def _next_level_above_action(facts: RoleFacts, level: Level) -> Level | None:
    """Return the next level that restarts more than an action of this level did, which may itself have been lifted."""
    effective_level = raise_to_allowed_level(facts, level, host_lost=False)
    is_whole_role = effective_level is Level.ROLE_GROUP and facts.plan.groups == 1
    return next_larger_level(facts, Level.ROLE if is_whole_role else effective_level)


def own_level_or_process(facts: RoleFacts) -> Level:
    """Return the level at which a role's ranks restart on another node; Never becomes Process: they did not fail."""
    level = facts.plan.restart_level
    return Level.PROCESS if level == "Never" else Level(level)


def raise_to_role(level: Level) -> Level:
    """Return the level at which a whole role restarts, or the job where a role's level says so."""
    return level if level is Level.JOB else Level.ROLE


def _decision_for_action(rule: Rule, action: str, explanation: str) -> Decision:
    """Return the decision that the action of a rule stands for."""
    if action == "Fail":
        return FailJob(reasons.FAIL_RULE, explanation)
    if action == "ReplaceNode":
        return ReplaceNode(rule.counts_towards_limit, explanation)
    if action == "Ignore":
        return IgnoreFailure(explanation)
    return Restart(_LEVELS_BY_ACTION[action], rule.counts_towards_limit, explanation)
