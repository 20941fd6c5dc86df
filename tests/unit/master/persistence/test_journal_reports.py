"""What the journal's writer tells is noted, and changes nothing else."""

from __future__ import annotations

import pytest
from master_kit import World, job

from dljob.master.state import events as ev
from dljob.telemetry import reasons


@pytest.mark.parametrize(
    "reason",
    [
        *(reasons.JOURNAL_STALLED, reasons.JOURNAL_TRIMMED, reasons.METRIC_SINK_FAILED),
        *(reasons.STACKS_UNREADABLE, "Unknown"),
    ],
)
def test_a_report_is_a_note_where_its_reason_is_known(reason: str) -> None:
    world = World(job({"name": "w", "entrypoint": {"class": "m.C"}, "replicas": 1}))
    world.send(ev.JournalReported(reason, "the volume was full for 3 s"))
    assert [note.message for note in world.notes(reason)] == (
        [] if reason == "Unknown" else ["the volume was full for 3 s"]
    )
