"""Watching a job from its start to its end, and printing the outcome."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from dljob.cli import failure, output
from dljob.errors import exit_code
from dljob.spec.status import TERMINAL

if TYPE_CHECKING:
    from dljob.api.handle import JobHandle
    from dljob.cli.live import Screen
    from dljob.runtime.control_socket.client import Connection


class WatchParticipant(Protocol):
    """Participant in watching a job, such as a fault injector."""

    def patience(self) -> float:
        """Return how long to wait for the next status, in seconds."""
        ...

    def __call__(self, status: Mapping[str, Any], notes: Sequence[Mapping[str, Any]]) -> None:
        """Process a status and the notes since the last one."""
        ...


POLL_S = 5.0
"""Longest wait for a status in seconds; a change ends it."""


def watch(connection: Connection, screen: Screen, participants: Sequence[WatchParticipant] = ()) -> dict[str, Any]:
    """Show the job until it is over, and return the final status; each participant gets every status and note."""
    version, seq = 0, 0
    while True:
        # A participant may have to act before anything changes.
        status = connection.status(version, min([POLL_S, *(participant.patience() for participant in participants)]))
        # After the status: once it is final, all notes up to the end are there.
        notes = connection.notes(seq)
        version = status.get("version", version)
        seq = notes[-1]["seq"] if notes else seq
        _drawn(screen.show, status, notes)
        if status.get("phase") in TERMINAL:
            _drawn(screen.end, status)
            return status
        for participant in participants:
            participant(status, notes)


def _drawn(draw: Callable[..., None], *arguments: object) -> None:
    """Draw something, or say why that is impossible: values are the user's, and what they look like must end no job."""
    try:
        draw(*arguments)
    except OSError:  # a pipe or terminal was closed, and the job is stopped in order
        raise
    except Exception as error:  # noqa: BLE001 - see above
        output.say(f"this status cannot be drawn; the job does not depend on that: {error!r}")


def tell(handle: JobHandle, status: Mapping[str, Any]) -> int:
    """Print a failure's first cause and the folder to stderr; return the exit code."""
    for line in failure.report(handle.name, handle.dir, status):
        output.say(line)
    output.say(f"journal, logs and checkpoints: {handle.dir}")
    return exit_code(status["phase"])


def finish(
    handle: JobHandle, status: Mapping[str, Any], form: output.DataFormat, extra: Mapping[str, Any] | None = None
) -> int:
    """Print a failure's first cause and the folder, then the result as stdout's last line; return the exit code."""
    code = tell(handle, status)
    output.structured(outcome(status, extra or {}), form, indent=None)
    return code


def outcome(status: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result with seconds, restarts and cuts; for a failed job reason and message in place of a result."""
    result_fields: dict[str, Any] = {}
    if status.get("phase") == "Succeeded":
        result: object = json.loads(status["result"]) if status.get("result") else {}
        # The outcome is one object: a dict gives its own keys, any other value goes under `result`.
        result_fields = cast("dict[str, Any]", result) if isinstance(result, dict) else {"result": result}
    else:
        result_fields = {"phase": status.get("phase"), "reason": status.get("reason"), "message": status.get("message")}
    # First, so that a result of the user's own with this name stays.
    cuts = {"cuts": status["cuts"]} if status.get("cuts") else {}
    return {**cuts, **result_fields, "seconds": status.get("seconds"), "restarts": status.get("restarts"), **extra}
