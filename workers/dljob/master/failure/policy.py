"""What is to be done about a failure: the first rule that matches, else the role's own level."""

from __future__ import annotations

from dataclasses import dataclass

from dljob.master.failure import budget
from dljob.master.state.faults import Failure
from dljob.master.state.job import RoleFacts
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Level, Outcome, Reason
from dljob.spec.model import Rule
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted

LADDER = (Level.IN_PROCESS, Level.PROCESS, Level.ROLE_GROUP, Level.ROLE, Level.JOB)
"""The levels, each the next one's escalation."""

_ACTIONS = {
    "RestartInProcess": Level.IN_PROCESS,
    "RestartProcess": Level.PROCESS,
    "RestartRoleGroup": Level.ROLE_GROUP,
    "RestartRole": Level.ROLE,
    "RestartJob": Level.JOB,
}


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart at a level. `counts`: whether it uses up a budget."""

    level: Level
    counts: bool
    why: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Leave the node: all units on it move. `counts`: whether the restarts use up budgets."""

    counts: bool
    why: str


@dataclass(frozen=True, slots=True)
class Fail:
    """End the job."""

    reason: str
    why: str


@dataclass(frozen=True, slots=True)
class Ignore:
    """Leave the rank as it is."""

    why: str


def describe(target: str, outcome: Outcome) -> str:
    """A failure in one line: who, what, where."""
    what = outcome.reason.value if outcome.reason else "Failed"
    if outcome.reason is Reason.UNKNOWN and not outcome.error_type:
        code = "" if outcome.code is None else f" with exit code {outcome.code}"
        return f"{target}: process gone{code}, cause unknown" + (f" ({outcome.message})" if outcome.message else "")
    error = ": ".join(part for part in (outcome.error_type, outcome.message) if part)
    where = f" (at {outcome.frame})" if outcome.frame else ""
    code = "" if outcome.code is None else f", exit code {outcome.code}"
    return f"{target}: {what}" + (f": {error}" if error else "") + where + code


def decide(d: StateTransaction, heard: Failure, repeats: tuple[str, str]) -> Restart | Replace | Fail | Ignore:
    """What to do about a failed rank, before any budget is asked. Remembers the rule's attempt.

    `repeats`: why it must repeat (`repeats`). What a rule names by reason or exit code goes before it.
    """
    role, outcome = heard.role, heard.outcome
    ends, why = repeats
    for rule in d.job.fault_tolerance.rules:
        if _matches(rule, role, outcome):
            if ends and not _names(rule, outcome.reason) and outcome.code not in rule.on_exit_codes:
                break
            return _by_rule(d, rule, role)
    if ends:
        return Fail(ends, why)
    level = d.facts(role).plan.restart_level
    if level == "Never":
        return Fail(reasons.FAIL_RULE, f"restartPolicy.level of {role} is Never")
    return Restart(Level(level), counts=not _announced(d, role, heard.rank, outcome), why=f"restartPolicy of {role}")


def _announced(d: StateTransaction, role: str, rank: int, outcome: Outcome) -> bool:
    """Whether the machine was taken away, and somebody had said so before."""
    return outcome.reason is Reason.PREEMPTED and d.hosts[d.facts(role).host_of(rank)].node in d.departures


def rule_for(d: StateTransaction, role: str, outcome: Outcome) -> Rule | None:
    """The first rule that is about a failure, if any is; nothing is remembered."""
    return next((rule for rule in d.job.fault_tolerance.rules if _matches(rule, role, outcome)), None)


def next_level(facts: RoleFacts, level: Level) -> Level | None:
    """The next larger level that restarts more than this one; None above the job."""
    if level is Level.JOB:
        return None
    if level is Level.IN_PROCESS:
        return lift(facts, Level.PROCESS, host_lost=False)
    larger = LADDER[LADDER.index(level) + 1]
    return Level.ROLE if larger is Level.ROLE_GROUP and facts.plan.group_size == 1 else larger


def lift(facts: RoleFacts, level: Level, *, host_lost: bool) -> Level:
    """The smallest level that makes sense: a torch world restarts whole, a lost fork host takes its group along."""
    if level is Level.JOB or (level is Level.IN_PROCESS and facts.plan.rejoins):
        return level
    level = max(level, Level.PROCESS, key=LADDER.index)
    if facts.world:
        return Level.ROLE if facts.plan.groups > 1 else max(level, Level.ROLE_GROUP, key=LADDER.index)
    if host_lost and facts.ranks_per_host > 1:
        return max(level, Level.ROLE_GROUP, key=LADDER.index)
    return level


def _matches(rule: Rule, role: str, outcome: Outcome) -> bool:
    return (
        (not rule.roles or role in rule.roles)
        and (not rule.on_reasons or _names(rule, outcome.reason))
        and (not rule.on_exit_codes or outcome.code in rule.on_exit_codes)
    )


def _names(rule: Rule, reason: Reason | None) -> bool:
    """Whether a rule names a reason; Unknown means Killed, too, as in files that were written before Killed was."""
    if reason is Reason.KILLED and Reason.UNKNOWN.value in rule.on_reasons:
        return True
    return reason is not None and reason.value in rule.on_reasons


def _by_rule(d: StateTransaction, rule: Rule, role: str) -> Restart | Replace | Fail | Ignore:
    """What a rule says, or what it escalates to when its attempts are used up."""
    attempts = len(budget.recent(d, f"rule:{rule.name}"))
    if rule.max_attempts is None or attempts < rule.max_attempts:
        budget.add(d, f"rule:{rule.name}")
        return _act(rule, rule.action, f"rule {rule.name}")
    why = f"rule {rule.name} was used {counted(attempts, 'time')}"
    if rule.escalate_to is not None:
        return _act(rule, rule.escalate_to, why)
    level = _ACTIONS.get(rule.action)
    larger = _beyond(d.facts(role), level) if level else Level.JOB if rule.action == "ReplaceNode" else None
    if larger is None:
        return Fail(reasons.BUDGET_EXHAUSTED, why)
    return Restart(larger, rule.counts_towards_limit, why)


def _beyond(facts: RoleFacts, level: Level) -> Level | None:
    """The next level that restarts more than an action of this level did: that may have been more than it says."""
    done = lift(facts, level, host_lost=False)
    whole = done is Level.ROLE_GROUP and facts.plan.groups == 1
    return next_level(facts, Level.ROLE if whole else done)


def own_level(facts: RoleFacts) -> Level:
    """What restarts with a rank whose node is left, whatever a role says of failures that are its own."""
    level = facts.plan.restart_level
    return Level.PROCESS if level == "Never" else Level(level)


def _act(rule: Rule, action: str, why: str) -> Restart | Replace | Fail | Ignore:
    if action == "Fail":
        return Fail(reasons.FAIL_RULE, why)
    if action == "ReplaceNode":
        return Replace(rule.counts_towards_limit, why)
    if action == "Ignore":
        return Ignore(why)
    return Restart(_ACTIONS[action], rule.counts_towards_limit, why)
