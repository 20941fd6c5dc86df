"""The summary that a recorded journal must lead to."""

from __future__ import annotations

from typing import Any

from dljob.master.state.state import JobState


def summary(state: JobState) -> dict[str, Any]:
    """Return the facts of a job's end that follow from its journal."""
    assert state.verdict is not None
    return {
        "phase": state.phase.value,
        "reason": state.verdict.reason,
        "message": state.verdict.message,
        "restarts": dict(state.restarts),
        "incarnations": {f"{role}/{rank}": own.incarnation for (role, rank), own in sorted(state.ranks.items())},
        "version": state.version,
        "result": state.result,
    }
