"""A moment of a job's past for readers: status, state as JSON, and what changed between two moments. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from dljob.master import status as snapshots
from dljob.master.persistence.changes import changes
from dljob.master.persistence.codec import encode_state
from dljob.master.state.state import JobState
from dljob.report.replay import Past, PastMoment

STEPS_MISSING = "steps: unknown: the folder has no sample of this time, nor of one before it"


def shown(past: Past, moment: PastMoment, when: float, progress: snapshots.Progress) -> dict[str, Any]:
    """Return a moment with all that is known of it.

    Args:
        past: the job's past.
        moment: the moment of the last event before `when`.
        when: the time that is shown, in unix seconds: status and ledger are of it.
        progress: the steps of the ranks at that time.
    """
    return {
        "journal": {
            "oldest": snapshots.rfc3339(past.oldest.at),
            "oldestEvent": max(1, past.oldest.seq),
            "complete": not past.cut,
            "writtenBy": past.cores,
            "replayedBy": "changes" if past.foreign else "events",
        },
        "time": snapshots.rfc3339(when),
        "unixTime": when,
        "seconds": round(when - moment.state.started_at, 3),
        "event": moment.seq,
        "cause": moment.event,
        "status": snapshots.status(moment.state, when, progress),
        "state": encode_state(moment.state),
        "unrecorded": [] if progress else [STEPS_MISSING],
    }


def difference(before: JobState, after: JobState) -> list[str]:
    """Return a line for each value that changed between two states: its path, and the old and the new value."""
    change = changes(before, after)
    return [] if change is None else list(_lines("", encode_state(before), change))


def _lines(path: str, old: Any, change: list[Any]) -> Iterator[str]:  # noqa: ANN401 - JSON
    form, *parts = change
    match form:
        case "d":
            fields = cast("Mapping[str, Any]", old)
            for name, part in cast("Mapping[str, list[Any]]", parts[0]).items():
                yield from _lines(f"{path}.{name}" if path else name, fields[name], part)
        case "m":
            rows = {_key(key): value for key, value in old or ()}
            for key, part in parts[0]:
                yield from _lines(f"{path}[{_key(key)}]", rows.get(_key(key)), part)
            for key in parts[1]:
                yield f"{path}[{_key(key)}]: {_text(rows.get(_key(key)))} -> gone"
        case "s":
            first, last, items = parts
            removed = list(old or ())[first : len(old or ()) - last]
            yield f"{path}[{first}:]: {_text(removed)} -> {_text(items)}"
        case _:
            yield f"{path}: {_text(old)} -> {_text(parts[0])}"


def _key(key: Any) -> str:  # noqa: ANN401 - JSON
    if isinstance(key, list):
        return "/".join(str(part) for part in cast("list[Any]", key))
    if isinstance(key, dict):
        return "/".join(str(part) for part in cast("dict[str, Any]", key).values())
    return str(key)


def _text(value: Any) -> str:  # noqa: ANN401 - JSON
    return json.dumps(value, ensure_ascii=False)
