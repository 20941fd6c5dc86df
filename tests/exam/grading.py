"""How an answer of `dljob why` is graded. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cause import Cause
from running_job import tells

RIGHT, HALF, WRONG, SILENT, INNOCENT, BROKEN = "right", "half", "wrong", "silent", "innocent", "not planted"
GRADES = (RIGHT, HALF, WRONG, SILENT, INNOCENT)
"""In the order of the table. `half`: kind or whom is right; or both, without the line, the evidence or the advice."""
USERS = ("user code", "libraries")
"""Groups in which the user's code is at fault."""
RANK = re.compile(r"^[\w.-]+/\d+$")
NOT_THE_CAUSE = ("next:", "done:", "earlier:", "restarts:", "after it:", "      dljob ")
"""How lines begin that are about something else than the first cause."""


@dataclass(frozen=True)
class Answer:
    """What dljob said of a job, reduced to what is graded."""

    reasons: tuple[str, ...]
    """Of the first cause, of the fault, of the job's phase."""
    blamed: str
    """The rank or target of the first cause; empty where none is named as such."""
    first: str
    """The first cause, or what stands in its place."""
    text: str
    """The first cause with its evidence."""
    advice: str
    code: int | None
    tells: bool


def answer_of(result: Mapping[str, Any]) -> Answer:
    """Reduce what dljob said; where there is no job, the command's own words count."""
    why = result["why"]
    if "error" in why:
        text = "\n".join([why["error"], *result["console"]])
        errors = [line for line in text.splitlines() if line.startswith("error:")]
        first = errors[-1] if errors else text
        return Answer((), "", first, text, text, result["exit_code"], True)
    fault = why.get("fault") or {}
    lines = [line for line in why["lines"] if not line.strip().startswith(tuple(map(str.strip, NOT_THE_CAUSE)))]
    causes = [line for line in lines if line.startswith(("first cause:", "last failure:", "stands still:"))]
    cause = str(fault.get("firstCause") or "")
    blamed = str(fault.get("rank") or fault.get("target") or "")
    word = cause.removeprefix(f"{blamed}: ").partition(":")[0]
    reasons = (word, str(fault.get("reason") or ""), str(why.get("reason") or ""))
    text = "\n".join([cause, *lines, *map(str, fault.get("evidence") or [])])
    first = cause or (causes[0] if causes else "\n".join(lines))
    advice = "\n".join([str(why.get("advice") or ""), *(line for line in why["lines"] if "next:" in line)])
    return Answer(reasons, blamed, first, text, advice, why["code"], tells(why))


def grade(cause: Cause, line: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the grade, and which of its parts are right.

    Args:
        cause: what was planted.
        line: `file:line` to be named; empty: none.
        result: what dljob said.
    """
    if result["broken"]:
        return {"grade": BROKEN, "parts": {}}
    answer = answer_of(result)
    parts = {
        "kind": right_kind(cause, answer),
        "whom": not cause.whom or right_whom(cause, answer),
        "line": not line or line in answer.text,
        "says": all(re.search(words, answer.text, re.IGNORECASE) for words in cause.says),
        "advice": bool(re.search(cause.advice, answer.advice, re.IGNORECASE)),
        "exit code": cause.exit_code is None or result["exit_code"] == cause.exit_code,
        "one answer": agrees(result),
    }
    return {"grade": _grade(cause, answer, parts), "parts": parts}


def _grade(cause: Cause, answer: Answer, parts: Mapping[str, bool]) -> str:
    if not cause.kind:
        return INNOCENT if answer.tells else RIGHT if all(parts.values()) else HALF
    if not answer.tells:
        return SILENT
    if blames_an_innocent(cause, answer):
        return INNOCENT
    if all(parts.values()):
        return RIGHT
    unknown = "Unknown" in answer.reasons or "not recorded" in answer.first
    return HALF if parts["kind"] or (parts["whom"] and cause.whom and not unknown) else WRONG


def right_kind(cause: Cause, answer: Answer) -> bool:
    """Whether the reason is one of those expected, or one of the words is said, and the exit code fits."""
    if not cause.kind:
        return not answer.tells
    words = cause.kind.split("|")
    reasons = [word for word in words if word[0].isupper()]
    said = [word for word in words if not word[0].isupper()]
    named = any(reason in answer.reasons or f"{reason}:" in answer.first for reason in reasons)
    named = named or any(re.search(word, answer.text, re.IGNORECASE) for word in said)
    return named and (answer.code in cause.code if cause.code else answer.code != 0)


def right_whom(cause: Cause, answer: Answer) -> bool:
    """Whether the rank or part is the one at fault."""
    if answer.blamed and re.fullmatch(cause.whom, answer.blamed):
        return True
    is_rank = bool(RANK.match(cause.whom))
    # Another rank stands as the one to blame: that this one is mentioned below does not help.
    return not (is_rank and RANK.match(answer.blamed)) and bool(re.search(cause.whom, answer.first, re.IGNORECASE))


def blames_an_innocent(cause: Cause, answer: Answer) -> bool:
    """Whether a wrong rank, the network, or the user's code for a fault of the machine is blamed."""
    if cause.never and re.search(cause.never, answer.first):
        return True
    reason = answer.reasons[0] if answer.reasons else ""
    expected = cause.kind.split("|")
    if reason == "Network" and "Network" not in expected:
        return True
    if reason in ("UserError", "ImportError") and cause.group not in USERS and reason not in expected:
        return True
    if reason == "Unknown" or not RANK.match(answer.blamed):
        return False
    return bool(RANK.match(cause.whom)) and not re.fullmatch(cause.whom, answer.blamed)


def agrees(result: Mapping[str, Any]) -> bool:
    """Whether the command's exit code and `dljob status` tell of the same end."""
    phase, code = result["status"].get("phase"), result["exit_code"]
    return code is None or phase is None or (code == 0) == (phase == "Succeeded")
