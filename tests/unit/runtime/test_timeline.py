"""The timeline under one master after another."""

from __future__ import annotations

import asyncio

from dljob.master.actions import Note
from dljob.runtime.entries import read_notes
from dljob.runtime.timeline import Timeline


def note(timeline: Timeline, text: str) -> None:
    timeline.add(Note("Restarting", "job", text), 1.0)


async def test_a_master_that_starts_from_a_snapshot_knows_what_was_noted_before_it(tmp_path):
    first = Timeline(tmp_path)
    for text in ("one", "two", "three"):
        note(first, text)
    await first.flush()
    await asyncio.to_thread(first.close)
    second = Timeline(tmp_path)
    second.resume(
        2, read_notes(tmp_path)
    )  # the snapshot was written behind the second note; the replay comes past the third again
    note(second, "three")
    note(second, "four")
    assert [said["seq"] for said in second.after(0)] == [1, 2, 3, 4]
    assert [said["message"] for said in second.after(1)] == ["two", "three", "four"]
    await second.flush()
    await asyncio.to_thread(second.close)
    third = Timeline(tmp_path)
    third.resume(4, read_notes(tmp_path))
    third.resume(4, read_notes(tmp_path))
    assert [said["message"] for said in third.after(0)] == ["one", "two", "three", "four"]
    await asyncio.to_thread(third.close)
