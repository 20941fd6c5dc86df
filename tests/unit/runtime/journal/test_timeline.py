"""The timeline under one master after another."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from dljob.master.state.actions import Note
from dljob.runtime.journal import timeline as timeline_module
from dljob.runtime.journal.job_record import read_notes, read_status
from dljob.runtime.journal.timeline import Timeline, write_atomically


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


async def test_a_full_volume_loses_no_event_and_has_room_for_the_last_status(tmp_path, monkeypatch):
    timeline = Timeline(tmp_path)
    note(timeline, "one")
    await timeline.flush()
    await timeline.status({"phase": "Running"})
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patch:
        patch.setattr(timeline_module, "_append", Mock(side_effect=full))
        patch.setattr(timeline_module, "write_atomically", Mock(side_effect=full))
        note(timeline, "two")
        await timeline.flush()
        await timeline.status({"phase": "Succeeded"})
        assert read_status(tmp_path) == {"phase": "Succeeded"}
    note(timeline, "three")
    await timeline.flush()
    await asyncio.to_thread(timeline.close)
    assert [said["message"] for said in read_notes(tmp_path)] == ["one", "two", "three"]
    assert not (tmp_path / timeline_module.RESERVED).exists()


async def test_a_line_that_was_cut_off_is_ended_by_the_next_write_and_not_by_a_reader(tmp_path):
    """The master that commands may be in the middle of this line while its standby starts."""
    first = Timeline(tmp_path)
    note(first, "one")
    await first.flush()
    await asyncio.to_thread(first.close)
    events = tmp_path / "events.jsonl"
    torn = events.read_bytes() + b'{"seq": 2, "mess'
    events.write_bytes(torn)
    second = Timeline(tmp_path)
    second.read_again()
    assert events.read_bytes() == torn
    for text in ("one", "two"):
        note(second, text)
    await second.flush()
    await asyncio.to_thread(second.close)
    assert [said["message"] for said in read_notes(tmp_path)] == ["one", "two"]


async def test_folder_that_hangs_delays_no_decision_and_has_all_events_and_the_last_status_once_it_answers(
    tmp_path, monkeypatch, caplog
):
    hangs, written, append = threading.Event(), list[Path](), timeline_module._append

    def slow(path: Path, text: str) -> None:
        assert hangs.wait(60)
        append(path, text)

    def once(path: Path, text: str) -> None:
        written.append(path)
        write_atomically(path, text)

    monkeypatch.setattr(timeline_module, "_append", slow)
    monkeypatch.setattr(timeline_module, "write_atomically", once)
    monkeypatch.setattr(timeline_module, "LATE_S", 0.01)
    monkeypatch.setattr(timeline_module, "END_S", 0.01)
    made = Timeline(tmp_path)
    async with asyncio.timeout(30):
        for number in range(3):
            note(made, str(number))
            await made.flush()
            await made.status({"events": number})
    assert not read_notes(tmp_path)
    assert [row.message for row in caplog.records] == [
        f"{tmp_path} takes no file for 0 s: events and status follow once it does"
    ]
    made.close()  # gives up as well
    hangs.set()
    monkeypatch.setattr(timeline_module, "END_S", 60)
    made.close()
    assert [said["message"] for said in read_notes(tmp_path)] == ["0", "1", "2"]
    assert read_status(tmp_path) == {"events": 2}
    assert len(written) == 1, "of statuses that wait only the last one is written"


async def test_writes_are_waited_for_again_once_a_late_one_is_done(tmp_path, monkeypatch):
    asked, go, append = threading.Semaphore(0), threading.Semaphore(0), timeline_module._append

    def slow(path: Path, text: str) -> None:
        asked.release()
        assert go.acquire(timeout=60)
        append(path, text)

    monkeypatch.setattr(timeline_module, "_append", slow)
    monkeypatch.setattr(timeline_module, "LATE_S", 0.01)
    made = Timeline(tmp_path)
    note(made, "late")
    await made.flush()
    go.release()
    assert made._last is not None
    await asyncio.wrap_future(made._last)
    monkeypatch.setattr(timeline_module, "LATE_S", 60)
    note(made, "in time")
    writing = asyncio.create_task(made.flush())
    for _ in range(2):
        assert await asyncio.to_thread(asked.acquire, timeout=60)
    assert not writing.done()
    go.release()
    await writing
    assert [said["message"] for said in read_notes(tmp_path)] == ["late", "in time"]
    made.close()


async def test_odd_text_of_user_code_loses_no_note_and_no_master(tmp_path):
    odd = ["caf\udce9.bin is no file", "one\u2028two\x85three", "größer"]
    first = Timeline(tmp_path)
    for text in odd:
        note(first, text)
    await first.flush()
    await first.status({"message": odd[0]})
    await asyncio.to_thread(first.close)
    assert [said["message"] for said in read_notes(tmp_path)] == odd
    assert read_status(tmp_path) == {"message": odd[0]}
    events = tmp_path / "events.jsonl"
    events.write_bytes(events.read_bytes()[: -len('ßer"}\n'.encode()) + 1])
    assert [said["message"] for said in read_notes(tmp_path)] == odd[:2], "its writer died within a character"


def test_two_threads_may_replace_a_file_at_the_same_time(tmp_path, monkeypatch):
    """Requests to a gateway see a job's end at the same time, in threads of one process."""
    file, replace, texts = tmp_path / "status.json", Path.replace, ["second"]

    def late(temp: Path, target: Path) -> Path:
        while texts:
            write_atomically(file, texts.pop())
            assert file.read_text() == "second"
        return replace(temp, target)

    monkeypatch.setattr(Path, "replace", late)
    write_atomically(file, "first")
    assert file.read_text() == "first"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(tmp_path):
    (tmp_path / "status.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "status.json", "text")
    assert [found.name for found in tmp_path.iterdir()] == ["status.json"]
