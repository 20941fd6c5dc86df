"""What a client reads and writes without a cluster."""

from __future__ import annotations

import json

import pytest

from dljob.errors import UsageError
from dljob.master.state.actions import Note
from dljob.runtime.job.launch import launch
from dljob.runtime.job.outline import CREATE_S, outline
from dljob.runtime.journal.job_record import read_notes
from dljob.runtime.journal.timeline import Timeline
from dljob.spec.model import DLJobManifest


def note(n: int) -> Note:
    return Note("Admitted", "job", f"note {n}")


async def test_notes_are_filed_once_over_the_masters_of_a_job(tmp_path):
    """The second master replays the first two notes, and files only the third."""
    first = Timeline(tmp_path)
    first.add(note(1), 1.0)
    first.add(note(2), 2.0)
    await first.flush()
    second = Timeline(tmp_path)
    for n in (1, 2, 3):
        second.add(note(n), float(n))
    await second.flush()
    assert [said["message"] for said in read_notes(tmp_path)] == ["note 1", "note 2", "note 3"]
    assert [said["seq"] for said in read_notes(tmp_path, 2)] == [3]


async def test_a_line_that_was_cut_off_is_written_again(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"seq": 1, "message": "note 1"}\n{"seq": 2, "mess')
    timeline = Timeline(tmp_path)
    timeline.add(note(1), 1.0)
    timeline.add(note(2), 2.0)
    await timeline.flush()
    assert [said["seq"] for said in read_notes(tmp_path)] == [1, 2]


def test_a_note_that_a_fenced_master_wrote_too_is_read_once(tmp_path):
    lines = "".join(json.dumps({"seq": seq}) + "\n" for seq in (1, 2, 3, 2, 3, 4))
    (tmp_path / "events.jsonl").write_text(lines)
    assert [said["seq"] for said in read_notes(tmp_path)] == [1, 2, 3, 4]


async def test_the_status_file_is_replaced_whole(tmp_path):
    timeline = Timeline(tmp_path)
    for phase in ("Running", "Succeeded"):
        await timeline.status({"phase": phase})
        assert json.loads((tmp_path / "status.json").read_text()) == {"phase": phase}
    timeline.close()  # gives back the room that it keeps for a last status
    names = [path.name for path in tmp_path.iterdir()]
    assert names == ["status.json"]


def test_an_ended_job_without_notes_has_none(tmp_path):
    assert read_notes(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path):
    (tmp_path / "file").touch()
    roles = [{"name": "w", "entrypoint": {"class": "m.C"}}]
    manifest = DLJobManifest.model_validate({"metadata": {"name": "j"}, "spec": {"roles": roles}})
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        launch(manifest, job_dir=tmp_path / "file" / "job", code_dir=tmp_path)


def test_the_outline_of_a_job_is_what_its_models_say():
    roles = [{"name": "w", "entrypoint": {"class": "a.B"}}]
    plain = {"metadata": {"name": "j"}, "spec": {"roles": roles}}
    seen = outline(json.dumps(plain))
    model = DLJobManifest.model_validate(plain)
    assert seen.create_timeout_s == CREATE_S == model.spec.master.create_timeout_seconds
    assert (seen.name, seen.backend, seen.options) == ("j", None, {})
    more = {"backend": {"name": "yr", "options": {"journal": "kv"}}, "master": {"createTimeoutSeconds": 7}}
    full = DLJobManifest.model_validate({"metadata": {"name": "j"}, "spec": {"roles": roles, **more}})
    seen = outline(full.model_dump_json(by_alias=True, exclude_none=True))
    assert (seen.backend, seen.options, seen.create_timeout_s) == ("yr", {"journal": "kv"}, 7)
