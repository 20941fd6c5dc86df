"""Classification of a failure: evidence -> cause, by the spec's own rules and then those of `telemetry.causes`.

The first rule that matches decides. Rules are texts with `*`, not regular expressions: users' rules run inside
PrimeMaster's transition, where a pattern that backtracks would stop the job's control (docs/adr/0019).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dljob.master.state import last_words
from dljob.master.state.evolve import evolve
from dljob.master.state.views import Clue, Outcome, Reason
from dljob.telemetry.causes import CHILD_KILLED, CHILD_LOST, HINTS, RULES, RUNTIME_ERRORS
from dljob.telemetry.evidence import CauseRule, EvidenceScope, Source

if TYPE_CHECKING:  # ranks read causes, too, and must not load pydantic
    from dljob.spec.model import KnownCause

LINE = 1000
"""Characters of a line of evidence that are searched, so that the time of a match is bounded."""
LINES = 40
"""Last lines of a log that users' rules search, for the same reason."""
MENTIONS = 20
"""Last lines of a log in which a line counts as a hint."""
KEPT = 400
"""Characters of a line of evidence that are shown, cut at the end of a sentence or a word."""
USERS_RULE = "spec/"
"""Beginning of the names of users' rules, so that none is taken for one of ours."""
SIGKILLED, SIGTERMED = 137, 143
# SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV: signals by which a process crashes of itself.
_CRASHED = frozenset({132, 134, 135, 136, 139})
_CHILD_PIDS = re.compile(r"\(pid(?:\(s\))? ([\d, ]+)\)")
# Words by which an exception is recognized as one of an accelerator's runtime.
_RUNTIMES = ("cuda", "cublas", "cudnn", "nccl", "npu", "hccl", "acl")

Lines = dict[str, tuple[str, ...]]
"""Source -> its lines of evidence."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A classified failure. `rule` is empty when no rule matched, and the reason then is the host's.

    `ended_by_master`: PrimeMaster ended the process. `reports_lost_peer`: the failure only says that a peer is gone.
    """

    reason: Reason
    rule: str = ""
    line: str = ""
    """The line of evidence that matched."""
    reports_lost_peer: bool = False
    ended_by_master: bool = False


def classify(outcome: Outcome, user_rules: Iterable[KnownCause] = ()) -> Cause:
    """Return the cause of a failed outcome. `user_rules` are the spec's `faultTolerance.causes`."""
    lines = _lines(outcome)
    reported_reason = outcome.reason or Reason.UNKNOWN
    own_lines = (*lines.get(Source.ERROR, ()), *lines.get(Source.LOG, ()))
    # The first rule recognizes ends that PrimeMaster ordered: no rule of a user may take one for a failure.
    first = RULES[0]
    order_line = _first_match(first.patterns, lines.get(first.source, ()))
    if order_line:
        return Cause(reported_reason, first.name, order_line, reports_lost_peer=True, ended_by_master=True)
    # Users' rules come before the general ones: users know their code's messages.
    for user_rule in user_rules:
        line = _first_match((user_rule.on_log,), own_lines)
        if line:
            return Cause(Reason(user_rule.reason), f"{USERS_RULE}{user_rule.name}", line)
    for rule in RULES[1:]:
        line = _first_match(rule.patterns, _lines_for(rule, outcome, lines))
        if line:
            return Cause(Reason(rule.reason) if rule.reason else reported_reason, rule.name, line, rule.secondary)
    # The exit code alone proves the signal, but not its sender.
    by_signal = reported_reason is Reason.UNKNOWN and outcome.code in (SIGKILLED, SIGTERMED) and not outcome.error_type
    return Cause(Reason.KILLED if by_signal else reported_reason)


def outcome_of_cause(outcome: Outcome, cause: Cause) -> Outcome:
    """Return the outcome with the reason of its cause, and the line of evidence where it has no error of its own."""
    message = outcome.message
    # An exception has words of its own; an exit code or signal has none but the evidence.
    if cause.line and not outcome.error_type and not _mentions(message, cause.line):
        message = f"{message}; {cause.line}" if message else cause.line
    if cause.reason is outcome.reason and message == outcome.message:
        return outcome
    return evolve(outcome, reason=cause.reason, message=message)


def _mentions(message: str, line: str) -> bool:
    """Whether a message has a line of evidence already, perhaps without the kind before it ("hang: no step ...")."""
    words = line.partition(": ")[2]
    return line in message or bool(words and message.startswith(words))


def add_clues(outcome: Outcome, clues: Iterable[Clue]) -> Outcome:
    """Return the outcome with more evidence; known clues are not added again."""
    new = tuple(clue for clue in clues if clue not in outcome.clues)
    return evolve(outcome, clues=(*outcome.clues, *new)) if new else outcome


def with_late_end(outcome: Outcome, end: Outcome | None) -> Outcome:
    """Return the outcome of a process that vanished as `end` tells it, which came later; its clues are kept."""
    if end is None or outcome.code is not None or outcome.error_type:
        return outcome
    return add_clues(end, outcome.clues)


def evidence(outcome: Outcome) -> tuple[str, ...]:
    """Return the evidence for users: exit code, clues, and the last line of the log or traceback."""
    code = () if outcome.code is None else (f"exit code {outcome.code}",)
    clues = tuple(f"{clue.source}: {_shortened(clue.text)}" for clue in outcome.clues)
    last_line = last_words.last_line(outcome.detail)
    hint = _hint(outcome)
    mention = (f"its log mentions: {_shortened(hint)}",) if hint not in ("", last_line) else ()
    # Without an exit code `detail` is the backend's own text.
    source = "last line" if outcome.error_type or outcome.code is not None else Source.BACKEND.value
    last = (f"{source}: {_shortened(last_line)}",) if last_line else ()
    return (*code, *clues, *mention, *last)


def _hint(outcome: Outcome) -> str:
    """Return a line near the end of the log that looks like a cause, where the process said nothing else of its end."""
    if outcome.error_type or outcome.code in (None, SIGKILLED, SIGTERMED):
        return ""
    lines = [line.strip()[:LINE] for line in outcome.detail.splitlines() if line.strip()]
    return next((line for line in reversed(lines[-MENTIONS:]) if _first_match(HINTS, (line,))), "")


def describe_root_cause(outcome: Outcome) -> str:
    """Return what an end follows from, in words: the root of its exceptions, and what failed before without an end."""
    cause = next((f", caused by {clue.text}" for clue in outcome.clues if clue.source == Source.CAUSE), "")
    handled = next((f", while handling {clue.text}" for clue in outcome.clues if clue.source == Source.HANDLED), "")
    # What libraries handle within themselves is evidence, and no news for who reads the cause.
    handled = handled if " at " in handled else ""
    earlier = next((clue.text for clue in outcome.clues if clue.source == Source.EARLIER), "")
    when = "at its end" if earlier.startswith("atexit ") else "before that"
    return f"{cause or handled}{f'; {when}, {earlier}' if earlier else ''}"


def _shortened(text: str) -> str:
    """Return a text cut to at most KEPT characters at the end of a sentence or of a word, with an ellipsis."""
    if len(text) <= KEPT:
        return text
    head = text[: KEPT - 4]
    sentence = head.rfind(". ")
    return f"{head[: sentence + 1]} ..." if sentence > 0 else f"{head.rpartition(' ')[0] or head} ..."


def matches(pattern: str, text: str) -> bool:
    """Whether a text contains the parts of a pattern between its `*`, in order, without regard to case."""
    at, low = 0, text.lower()
    for part in pattern.lower().split("*"):
        at = low.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def was_killed(outcome: Outcome) -> bool:
    """Whether a process ended by SIGKILL, or vanished without an exit code or an exception."""
    return not outcome.error_type and outcome.code in (SIGKILLED, None)


def is_time_out(outcome: Outcome) -> bool:
    """Whether an error, or one that it was raised from, says that a wait lasted too long."""
    error = outcome if outcome.origin is None else outcome.origin
    roots = (clue.text for clue in outcome.clues if clue.source in (Source.CAUSE, Source.HANDLED))
    words = (f"{error.error_type}: {error.message}", *roots)
    return any(phrase in line.lower() for line in words for phrase in ("timeout", "timed out", "times out"))


def child_pids(outcome: Outcome) -> tuple[int, ...] | None:
    """Return the pids, as far as known, of children whose loss ended the process; None: it is no such end."""
    lines = _lines(outcome)
    errors = (*lines.get(Source.ERROR, ()), *lines.get(Source.CHILD, ()))
    line = _first_match((*CHILD_KILLED, *CHILD_LOST), errors)
    if not (line or Source.CHILD in lines):
        return None
    pids = [pid for match in map(_CHILD_PIDS.search, errors) if match for pid in re.findall(r"\d+", match[1])]
    return tuple(dict.fromkeys(map(int, pids)))


def _lines(outcome: Outcome) -> Lines:
    """Return the lines of evidence of an outcome, by source."""
    lines_by_source: dict[str, list[str]] = {}
    for clue in outcome.clues:
        lines_by_source.setdefault(clue.source, []).append(clue.text[:LINE])
    if outcome.error_type:
        # Its own words first, then those of the exceptions that it was raised from. One that was being handled counts
        # under a general error alone: another error in a handler is a fault of the handler's.
        roots = lines_by_source.get(Source.CAUSE, [])
        if outcome.error_type in RUNTIME_ERRORS:
            roots = [*roots, *lines_by_source.get(Source.HANDLED, [])]
        error = outcome if outcome.origin is None else outcome.origin
        lines_by_source[Source.ERROR] = [f"{error.error_type}: {error.message}"[:LINE], *roots]
    else:
        lines_by_source[Source.END] = [outcome.message[:LINE]]
        tail = [line.strip()[:LINE] for line in outcome.detail.splitlines()[-LINES:]]
        # Without an exit code `detail` is Ray's own text. After SIGKILL or SIGTERM no log line explains the end, since
        # the signal came from outside: a neighbour's noise must not become the cause.
        if outcome.code is None:
            lines_by_source[Source.BACKEND] = tail
        elif outcome.code not in (SIGKILLED, SIGTERMED):
            lines_by_source[Source.LOG] = tail
    return {source: tuple(lines) for source, lines in lines_by_source.items()}


def _lines_for(rule: CauseRule, outcome: Outcome, lines: Lines) -> tuple[str, ...]:
    """Return the lines of evidence that a rule may use for this kind of end."""
    if not _may_explain(rule, outcome):
        return ()
    candidates = lines.get(rule.source, ())
    return tuple(line for line in candidates if _error_type(line) in rule.errors) if rule.errors else candidates


def _error_type(line: str) -> str:
    """Return the type of an error, without its namespace: `bad_alloc` of `std::bad_alloc: no memory`."""
    return re.split(r": | at |:?$", line, maxsplit=1)[0].rpartition("::")[2]


def _may_explain(rule: CauseRule, outcome: Outcome) -> bool:
    """Whether a rule applies to this kind of end: trouble of the machine explains no exception of user code."""
    if rule.of is EvidenceScope.ANY or was_killed(outcome):
        return True
    if rule.of is EvidenceScope.KILLED:  # a kill in the same control group explains no ordinary exit
        return child_pids(outcome) is not None
    if not outcome.error_type and outcome.code == SIGTERMED:
        return True
    error_text = outcome.message.lower() if outcome.error_type else ""
    names_runtime = any(name in error_text for name in _RUNTIMES)
    return rule.of is EvidenceScope.DEVICE and (outcome.code in _CRASHED or names_runtime)


def _first_match(patterns: Iterable[str], lines: Iterable[str]) -> str:
    """Return the first line that matches any of the patterns; empty: none does."""
    patterns = tuple(patterns)
    return next((line for line in lines if any(matches(pattern, line) for pattern in patterns)), "")
