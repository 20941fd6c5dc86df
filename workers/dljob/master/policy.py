"""What is to be done about a failure: the first rule that matches, else the role's own level; and what must repeat."""

from __future__ import annotations

from dataclasses import dataclass

from dljob.master import budget
from dljob.master.draft import Draft
from dljob.master.job import RoleFacts
from dljob.master.state import ErrorMemory, RankKey
from dljob.master.views import Level, Outcome, Reason
from dljob.spec.model import Rule
from dljob.telemetry import reasons

LADDER = (Level.IN_PROCESS, Level.PROCESS, Level.ROLE_GROUP, Level.ROLE, Level.JOB)
"""The levels, each the next one's escalation."""

_ACTIONS = {
    "RestartInProcess": Level.IN_PROCESS,
    "RestartProcess": Level.PROCESS,
    "RestartRoleGroup": Level.ROLE_GROUP,
    "RestartRole": Level.ROLE,
    "RestartJob": Level.JOB,
}
_PEER_ERRORS = frozenset(
    {"CollectiveAbortedError", "DistBackendError", "DistNetworkError", "DistStoreError", "PeerLostError"}
)
_PEER_WORDS = ("connection reset by peer", "connection closed by peer", "broken pipe")


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


def decide(d: Draft, role: str, rank: int, outcome: Outcome) -> Restart | Replace | Fail | Ignore:
    """What to do about a failed rank, before any budget is asked. Remembers the error and the rule's attempt."""
    repeats = _repeats(d, role, rank, outcome)
    for rule in d.job.fault_tolerance.rules:
        if _matches(rule, role, outcome):
            if repeats and outcome.reason not in rule.on_reasons and outcome.code not in rule.on_exit_codes:
                break
            return _by_rule(d, rule, role)
    if repeats:
        return Fail(reasons.USER_ERROR_REPEATS, repeats)
    level = d.facts(role).plan.restart_level
    if level == "Never":
        return Fail(reasons.FAIL_RULE, f"restartPolicy.level of {role} is Never")
    return Restart(Level(level), counts=not _announced(d, role, rank, outcome), why=f"restartPolicy of {role}")


def _announced(d: Draft, role: str, rank: int, outcome: Outcome) -> bool:
    """Whether the machine was taken away, and somebody had said so before."""
    return outcome.reason is Reason.PREEMPTED and d.hosts[d.facts(role).host_of(rank)].node in d.departures


def rule_for(d: Draft, role: str, outcome: Outcome) -> Rule | None:
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


def _repeats(d: Draft, role: str, rank: int, outcome: Outcome) -> str:
    """Why a failure must repeat; empty when it need not. Remembers user errors per rank, or per torch world."""
    key: RankKey = (role, -1 if d.facts(role).world else rank)
    if outcome.reason not in (Reason.USER_ERROR, Reason.IMPORT_ERROR):
        d.errors = d.errors.delete(key) if key in d.errors else d.errors
        return ""
    if outcome.fatal:
        return "it would fail again in the same way"
    if not outcome.error_type or _blames_peer(outcome):
        return ""
    last = d.errors.get(key)
    d.errors = d.errors.set(key, ErrorMemory(outcome.error_type, outcome.frame, outcome.step))
    same = last is not None and (last.error_type, last.frame) == (outcome.error_type, outcome.frame)
    if last is None or not same or _progressed(last.step, outcome.step):
        return ""
    return "the same error at the same place twice, with no progress between"


def _progressed(before: int | None, after: int | None) -> bool:
    return after is not None and (before is None or after > before)


def _blames_peer(outcome: Outcome) -> bool:
    """Whether the error only says that another process of the world went away."""
    text = outcome.message.lower()
    return outcome.error_type in _PEER_ERRORS or any(words in text for words in _PEER_WORDS)


def _matches(rule: Rule, role: str, outcome: Outcome) -> bool:
    return (
        (not rule.roles or role in rule.roles)
        and (not rule.on_reasons or (outcome.reason is not None and outcome.reason.value in rule.on_reasons))
        and (not rule.on_exit_codes or outcome.code in rule.on_exit_codes)
    )


def _by_rule(d: Draft, rule: Rule, role: str) -> Restart | Replace | Fail | Ignore:
    """What a rule says, or what it escalates to when its attempts are used up."""
    attempts = len(budget.recent(d, f"rule:{rule.name}"))
    if rule.max_attempts is None or attempts < rule.max_attempts:
        budget.add(d, f"rule:{rule.name}")
        return _act(rule, rule.action, f"rule {rule.name}")
    why = f"rule {rule.name} was used {attempts} times"
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
