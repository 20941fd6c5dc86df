"""PrimeMaster's log as text; for a job on this machine read from the job's folder, also as it grows."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from dljob.api.logs import POLL_S, LogTail
from dljob.errors import NotFoundError
from dljob.logs.master import NAME, OLDER, stamp

NO_LOG_HINT = "dljob events has what happened"


def read(folder: Path, *, tail: int | None = None, since: float | None = None) -> Iterator[str]:
    """Return the entries so far as text, oldest first; with `tail`, only the last `tail`.

    Args:
        folder: the job's folder.
        tail: a number of entries.
        since: unix seconds; earlier entries are omitted.

    Raises:
        NotFoundError: there is no such log.
    """
    older, log = folder / "logs" / OLDER, LogTail("", 0, folder / "logs" / NAME)
    if not log.path.exists():
        raise NotFoundError(
            f"no log of PrimeMaster in {folder / 'logs'}",
            hint=NO_LOG_HINT,
        )
    # The older file is missing until the log has been rotated once; `LogTail` then yields nothing.
    return iter(deque(_entries([LogTail("", 0, older), log], since), maxlen=tail))


def follow(
    folder: Path, over: Callable[[], bool], *, tail: int | None = None, since: float | None = None
) -> Iterator[str]:
    """Yield the entries so far (with `tail`, only the last) and those to come, until the job is over."""
    log = LogTail("", 0, folder / "logs" / NAME)
    first = True
    while True:
        ended = over()  # asked before the read: else entries written between the read and the end would be lost
        entries = _entries([log], since)
        yield from deque(entries, maxlen=tail) if first and tail is not None else entries
        first = False
        if ended:
            return
        time.sleep(POLL_S)


def _entries(logs: list[LogTail], since: float | None) -> Iterator[str]:
    return shown((line.text for log in logs for line in log.lines()), since)


def shown(lines: Iterable[str], since: float | None) -> Iterator[str]:
    """Yield lines of the log as text; with `since` (unix seconds), without the entries before it."""
    # Times are compared as text: `stamp` and the entries have one form.
    begin = "" if since is None else stamp(since)
    for line in lines:
        entry = _parsed(line)
        # A line that is no entry has no time; rather show it than lose it.
        if entry is None or str(entry.get("time") or "") >= begin:
            yield line if entry is None else text(entry)


def _parsed(line: str) -> Mapping[str, Any] | None:
    """Parse an entry; None for any other line, such as one cut short by a full disk."""
    try:
        entry: object = json.loads(line)
    except ValueError:
        return None
    return cast("Mapping[str, Any]", entry) if isinstance(entry, dict) else None


def text(entry: Mapping[str, Any]) -> str:
    """Format one entry: time, event, the actions with their numbers, the reason; an exception follows below.

    `21:20:01.123 HostLost -> KillHost, SpawnHost: restartPolicy of worker restarts worker at level Process; ...`
    """
    at = str(entry.get("time") or "")
    level = "" if entry.get("level") == "info" else f" {entry.get('level')}:"
    event = f" {counted(str(entry['event']), int(entry.get('steps') or 1))}" if entry.get("event") else ""
    done: Mapping[str, int] = entry.get("actions") or {}
    actions = ", ".join(counted(name, count) for name, count in done.items())
    led = f" -> {actions}" if actions else ""
    message = str(entry.get("message") or "")
    because = (f": {message}" if event else f" {message}") if message else ""
    exception = f"\n{entry['exception']}" if entry.get("exception") else ""
    return f"{at}{level}{event}{led}{because}{exception}"


def counted(name: str, count: int) -> str:
    """Return `SpawnHost`, or `SpawnHost x4`."""
    return name if count == 1 else f"{name} x{count}"
