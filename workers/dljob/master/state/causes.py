"""What a process ended of: evidence -> cause, by the rules of a spec and then those of `telemetry.causes`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dljob.master.state.evolve import evolve
from dljob.master.state.views import Clue, Outcome, Reason
from dljob.spec.model import KnownCause
from dljob.telemetry.causes import RULES
from dljob.telemetry.evidence import CauseRule, EvidenceScope, Source

LINE = 1000
"""So many characters of a line of evidence are looked at."""
LINES = 40
"""So many of the last lines of a log."""
KEPT = 400
"""So many characters of a line of evidence are kept, to the end of a sentence or a word."""
SIGKILLED, SIGTERMED = 137, 143
_CRASHED = frozenset({132, 134, 135, 136, 139})
_RUNTIMES = ("cuda", "cublas", "cudnn", "nccl", "npu", "hccl", "acl")

Lines = dict[str, tuple[str, ...]]
"""Source -> its lines of evidence."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What was found. `rule` empty: no rule fits, and it is as the host said.

    `ordered`: PrimeMaster itself had it ended. `secondary`: it only tells that somebody else is gone.
    """

    reason: Reason
    rule: str = ""
    line: str = ""
    """The evidence that decided."""
    secondary: bool = False
    ordered: bool = False


def classify(outcome: Outcome, users: Iterable[KnownCause] = ()) -> Cause:
    """The cause of an end that was not well."""
    lines = _lines(outcome)
    given = outcome.reason or Reason.UNKNOWN
    own = (*lines.get(Source.ERROR, ()), *lines.get(Source.LOG, ()))
    first = RULES[0]
    told = _found(first.patterns, lines.get(first.source, ()))
    if told:
        return Cause(given, first.name, told, secondary=True, ordered=True)
    for user in users:
        line = _found((user.on_log,), own)
        if line:
            return Cause(Reason(user.reason), user.name, line)
    for rule in RULES[1:]:
        line = _found(rule.patterns, lines.get(rule.source, ())) if _may_explain(rule, outcome) else ""
        if line:
            return Cause(Reason(rule.reason) if rule.reason else given, rule.name, line, rule.secondary)
    by_sigkill = given is Reason.UNKNOWN and outcome.code == SIGKILLED and not outcome.error_type
    return Cause(Reason.KILLED if by_sigkill else given)


def judged(outcome: Outcome, cause: Cause) -> Outcome:
    """The outcome with its cause's reason, and with the words of the evidence where it had none of its own."""
    said = outcome.message
    if cause.line and not outcome.error_type and cause.line not in said:
        said = f"{said}; {cause.line}" if said else cause.line
    if cause.reason is outcome.reason and said == outcome.message:
        return outcome
    return evolve(outcome, reason=cause.reason, message=said)


def told(outcome: Outcome, clues: Iterable[Clue]) -> Outcome:
    """The outcome with more evidence; what it had is not added again."""
    new = tuple(clue for clue in clues if clue not in outcome.clues)
    return evolve(outcome, clues=(*outcome.clues, *new)) if new else outcome


def evidence(outcome: Outcome) -> tuple[str, ...]:
    """What is kept to be shown: exit code, clues, and the last line of the log or traceback."""
    code = () if outcome.code is None else (f"exit code {outcome.code}",)
    clues = tuple(f"{clue.source}: {_shortened(clue.text)}" for clue in outcome.clues)
    last = [line for line in outcome.detail.splitlines() if line.strip()][-1:]
    return (*code, *clues, *(f"last line: {_shortened(line.strip())}" for line in last))


def _shortened(text: str) -> str:
    """A text of at most KEPT characters: its first whole sentences, else its first whole words, and a mark."""
    if len(text) <= KEPT:
        return text
    head = text[: KEPT - 4]
    sentence = head.rfind(". ")
    return f"{head[: sentence + 1]} ..." if sentence > 0 else f"{head.rpartition(' ')[0] or head} ..."


def matches(pattern: str, text: str) -> bool:
    """Whether a text holds the parts of a pattern, in order, in any case."""
    at, low = 0, text.lower()
    for part in pattern.lower().split("*"):
        at = low.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def killed(outcome: Outcome) -> bool:
    """Whether a process was ended from outside, at once, without a word."""
    return not outcome.error_type and outcome.code in (SIGKILLED, None)


def _lines(outcome: Outcome) -> Lines:
    """The evidence of an outcome, by source."""
    found: dict[str, list[str]] = {}
    for clue in outcome.clues:
        found.setdefault(clue.source, []).append(clue.text[:LINE])
    if outcome.error_type:
        found[Source.ERROR] = [f"{outcome.error_type}: {outcome.message}"[:LINE]]
    else:
        found[Source.END] = [outcome.message[:LINE]]
        tail = [line.strip()[:LINE] for line in outcome.detail.splitlines()[-LINES:]]
        if outcome.code is None:
            found[Source.BACKEND] = tail
        elif outcome.code not in (SIGKILLED, SIGTERMED):
            found[Source.LOG] = tail
    return {source: tuple(lines) for source, lines in found.items()}


def _may_explain(rule: CauseRule, outcome: Outcome) -> bool:
    if rule.errors and outcome.error_type not in rule.errors:
        return False
    if rule.of is EvidenceScope.ANY or killed(outcome):
        return True
    if rule.of is EvidenceScope.KILLED:
        return False
    if not outcome.error_type and outcome.code == SIGTERMED:
        return True
    said = outcome.message.lower() if outcome.error_type else ""
    return rule.of is EvidenceScope.DEVICE and (outcome.code in _CRASHED or any(name in said for name in _RUNTIMES))


def _found(patterns: Iterable[str], lines: Iterable[str]) -> str:
    """The first line that a pattern is in; empty: none."""
    patterns = tuple(patterns)
    return next((line for line in lines if any(matches(pattern, line) for pattern in patterns)), "")
