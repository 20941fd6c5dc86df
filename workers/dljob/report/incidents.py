"""Incidents of a page: each fault with its evidence, what restarted, and the seconds of each stage. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from dljob.master.state import last_words
from dljob.report import lanes
from dljob.report.history import JobHistory, RankKey
from dljob.telemetry.evidence import Source
from dljob.telemetry.wording import unix

Json = Mapping[str, Any]

SAMPLED = 100
"""Ranks of an incident, about, on whose lanes its stages are looked for."""
LINES = 20
"""Lines of a rank's output that are shown with an incident."""
TEXT = 300
"""Characters of a line of evidence."""
STACK = 20_000
"""Characters of one rank's stacks."""
MOST = 200
"""Incidents that have log lines and stacks, the first and the last ones; the others have all else."""
_STARTED = ("replace", "init", "rendezvous", "wait")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class IncidentText(NamedTuple):
    """What the folder has about an incident: lines of the failed rank's output, and stacks."""

    rank: str
    lines: Sequence[str]
    stacks: Sequence[tuple[str, str]] = ()


def plain(text: str) -> str:
    """Return a text without the sequences that a terminal obeys; a line that a bar redrew keeps its last state."""
    return _CONTROL.sub("", text.rstrip("\r").rpartition("\r")[2])


def of_history(history: JobHistory, until: float, faults: Mapping[int, Json] | None = None) -> list[dict[str, Any]]:
    """Return the incidents that a journal tells, oldest first.

    Args:
        history: what the journal tells.
        until: the end of the record (unix seconds).
        faults: those of its faults that are wanted; None: all.
    """
    restarts = {fault: incident for incident in history.incidents for fault in incident.faults}
    rows: list[dict[str, Any]] = []
    for number, fault in sorted((history.faults if faults is None else faults).items()):
        incident = restarts.get(number)
        members: Sequence[RankKey] = incident.members if incident else ()
        outcome: Json = fault.get("outcome") or {}
        shown = _base(number, fault, _evidence(outcome))
        if origin := outcome.get("origin"):
            shown.update(rank=origin["rank"], incarnation=origin["incarnation"])
        rows.append(
            {
                **shown,
                "at": round(fault["detected_at"], 3),
                "until": fault["recovered_at"] and round(fault["recovered_at"], 3),
                "cause": _root(history, fault),
                "followed": [plain(effect["cause"]) for effect in fault["consequences"]],
                "restarted": [f"{role}/{rank}" for role, rank in members],
                "stages": _stages(history, fault, members, until),
                "lostSteps": fault["lost"],
            }
        )
    return rows


def of_status(faults: Iterable[Json]) -> list[dict[str, Any]]:
    """Return the incidents that a status tells, for jobs without a journal at hand."""
    return [
        {
            **_base(number, fault, _texts(fault, "evidence")),
            "at": unix(fault.get("detectedAt")),
            "until": unix(fault.get("recoveredAt")),
            "cause": plain(str(fault.get("firstCause") or "")),
            "followed": [plain(line) for line in _texts(fault, "followed")],
            "restarted": None,
            "stages": None,
            "lostSteps": fault.get("lostSteps"),
        }
        for number, fault in enumerate(faults, 1)
    ]


def with_texts(incidents: list[dict[str, Any]], texts: Mapping[int, IncidentText]) -> list[dict[str, Any]]:
    """Add log lines and stacks to the incidents that have some."""
    for incident in incidents:
        text = texts.get(incident["id"])
        lines = [shown for line in text.lines if (shown := plain(line))] if text else []
        incident["log"] = {"rank": text.rank, "lines": lines} if text and lines else None
        incident["stacks"] = [{"rank": rank, "text": stack[:STACK]} for rank, stack in text.stacks] if text else []
    return incidents


def _base(number: int, fault: Json, evidence: Iterable[str]) -> dict[str, Any]:
    return {
        "id": number,
        "level": fault.get("level", ""),
        "reason": fault.get("reason", ""),
        "target": fault.get("target", ""),
        "rank": fault.get("rank", ""),
        "incarnation": fault.get("incarnation", 0),
        "evidence": [plain(line) for line in evidence],
    }


def _texts(fault: Json, key: str) -> list[str]:
    return [str(line) for line in cast("list[object]", fault.get(key) or [])]


def _root(history: JobHistory, fault: Json) -> str:
    """Return the first cause: that of the fault from which this one follows, if it is known."""
    return plain(str(history.faults.get(fault["root_number"], fault)["cause"]))


def _evidence(outcome: Json) -> list[str]:
    """Return the evidence of a rank's end: exit code, clues, and the last line of its log or traceback."""
    code = [] if outcome.get("code") is None else [f"exit code {outcome['code']}"]
    clues = [f"{clue['source']}: {_cut(str(clue['text']))}" for clue in outcome.get("clues") or ()]
    last = last_words.last_line(str(outcome.get("detail") or ""))
    # As in `causes.evidence`: without an exit code it is the backend's text.
    source = "last line" if code or outcome.get("error_type") else Source.BACKEND.value
    return [*code, *clues, *([f"{source}: {_cut(last)}"] if last else [])]


def _cut(text: str) -> str:
    return text if len(text) <= TEXT else f"{text[: TEXT - 4]} ..."


def _stages(history: JobHistory, fault: Json, members: Sequence[RankKey], until: float) -> list[dict[str, Any]]:
    """Return the seconds of each stage, on the lane of the member that took longest to be productive again."""
    if not members:
        return []
    begin = fault["detected_at"]
    # All ranks of a world are productive again at the same time: a part of a thousand tells it.
    members = members if len(members) <= SAMPLED else members[:: len(members) // SAMPLED]
    noticed = max(lanes.detected(history, key, begin) for key in members)
    back = {key: lanes.next_in(history, key, "productive", begin, until) for key in members}
    last = max(members, key=lambda key: back[key])
    ready = min(fault["recovered_at"] or until, back[last])
    first = lanes.spent(history, last, begin, ready)
    stages = {
        "noticed": noticed,
        "decided": first.get("decide", 0.0),
        "placed": first.get("schedule", 0.0),
        "started": sum(first.get(account, 0.0) for account in _STARTED),
        "first step": back[last] - ready + first.get("recompute", 0.0),
    }
    return [{"name": name, "seconds": round(seconds, 3)} for name, seconds in stages.items()]
