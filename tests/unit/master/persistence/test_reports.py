"""A report of a part of the runtime is noted, and changes nothing else."""

from __future__ import annotations

from master_kit import World, job

from dljob.master.state import events as ev
from dljob.telemetry import reasons


def test_a_report_is_a_note_of_its_reason() -> None:
    world = World(job({"name": "w"}))
    world.send(ev.NoteReported(reasons.JOURNAL_STALLED, "the volume was full for 3 s"))
    assert [note.message for note in world.notes(reasons.JOURNAL_STALLED)] == ["the volume was full for 3 s"]
