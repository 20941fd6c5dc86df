"""The end of a job whose master cannot go on: the journaled verdict if there is one, else the master's error."""

from __future__ import annotations

from typing import Any

from dljob.errors import DLJobError, JournalError
from dljob.master.state.actions import Note
from dljob.master.state.state import Phase, Verdict
from dljob.runtime.journal.journal import JournalBrokenError
from dljob.telemetry import reasons


def cut_short(
    verdict: Verdict | None, error: Exception, cleanup_error: Exception | None
) -> tuple[Note, dict[str, Any]]:
    """Return the last event and the fields that replace those of the last status.

    A verdict is in the journal: the end of the ranks stays true, even if the master fails while it cleans up after
    them.
    """
    journal = isinstance(error, (JournalBrokenError, JournalError))
    reason = reasons.JOURNAL_FAILED if journal else reasons.MASTER_FAILED
    uncleared = f"; not all of the job could be cleared: {_message(cleanup_error)}" if cleanup_error else ""
    note = Note(reason, "job", f"{_message(error)}{uncleared}")
    if verdict is None:
        return note, {"phase": Phase.FAILED.value, "reason": reason, "message": note.message}
    return note, {"phase": verdict.phase.value, "reason": verdict.reason, "message": f"{verdict.message}{uncleared}"}


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, DLJobError) else f"{type(error).__name__}: {error}"
