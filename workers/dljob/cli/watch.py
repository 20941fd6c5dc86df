"""Following a job from its start to its last word, and what is printed then."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from dljob.cli import output
from dljob.cli.progress import FINAL
from dljob.errors import ExitCode

if TYPE_CHECKING:
    from dljob.api.handle import JobHandle
    from dljob.cli.live import Screen
    from dljob.runtime.launch import JobConnection


class Look(Protocol):
    """Somebody who takes part in watching a job."""

    def patience(self) -> float:
        """How long the next status may be waited for, in seconds."""
        ...

    def __call__(self, status: Mapping[str, Any], notes: Sequence[Mapping[str, Any]]) -> None:
        """Take in a status and the notes since the last one."""
        ...


POLL_S = 5.0
"""The status comes when it changes, and at the latest after so long."""


def watch(connection: JobConnection, screen: Screen, look: Look | None = None) -> dict[str, Any]:
    """Show the job until it is over; `look` sees every status and note. The final status."""
    version, seq = 0, 0
    while True:
        status = connection.status(version, POLL_S if look is None else min(POLL_S, look.patience()))
        notes = connection.notes(seq)
        version = status.get("version", version)
        seq = notes[-1]["seq"] if notes else seq
        screen.show(status, notes)
        if status.get("phase") in FINAL:
            screen.end(status)
            return status
        if look is not None:
            look(status, notes)


def finish(
    handle: JobHandle, status: Mapping[str, Any], form: output.DataFormat, extra: Mapping[str, Any] | None = None
) -> int:
    """The last words: on a failure its first cause and where to look, then the result as the last line of stdout."""
    failed = status.get("phase") != "Succeeded"
    if failed:
        output.say(f"error: job {handle.name} failed: {status.get('reason')}: {status.get('message')}")
    output.say(f"journal, logs and what the job saved: {handle.dir}")
    output.structured(outcome(status, extra or {}), form, indent=None)
    return ExitCode.JOB_FAILED if failed else ExitCode.OK


def outcome(status: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """The job's result with seconds and restarts; a failed job's has reason and message instead of a result."""
    made: dict[str, Any] = {}
    if status.get("phase") == "Succeeded":
        result: object = json.loads(status["result"]) if status.get("result") else {}
        made = cast("dict[str, Any]", result) if isinstance(result, dict) else {"result": result}
    else:
        made = {"phase": status.get("phase"), "reason": status.get("reason"), "message": status.get("message")}
    return {**made, "seconds": status.get("seconds"), "restarts": status.get("restarts"), **extra}
