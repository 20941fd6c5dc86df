"""A job's record on the checkpoint volume: complete, without secrets, and no burden to the job."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from master_shell_kit import UID, World, end_all, ended, running, until

from dljob.logs import archive
from dljob.master.state.actions import Note
from dljob.runtime.journal import kept_record
from dljob.runtime.journal.event_file import each_event
from dljob.runtime.journal.kept_record import KeptRecord, keep, shown_spec
from dljob.runtime.journal.sample_rows import SampleRow
from dljob.runtime.journal.samples import SampleWriter, read
from dljob.runtime.journal.timeline import Timeline
from dljob.runtime.process.messages import JobInfo

SECRET = "hunter2"
MANIFEST: dict[str, Any] = {
    "kind": "DLJob",
    "metadata": {"name": "j", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": SECRET}},
    "spec": {
        "env": [{"name": "TOKEN", "value": SECRET}],
        "config": {"password": SECRET},
        "roles": [{"name": "w", "replicas": 2, "args": [SECRET], "env": [{"name": "KEY", "value": SECRET}]}],
        "head": {"template": {"spec": {"containers": [{"name": "head", "env": [{"name": "A", "value": SECRET}]}]}}},
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "job"
    (made / "journal" / "closed").mkdir(parents=True)
    (made / "spec.json").write_text(json.dumps(MANIFEST))
    (made / "events.jsonl").write_text('{"seq":1}\n')
    (made / "status.json").write_text('{"phase":"Running"}')
    (made / "journal" / "000001.jsonl").write_text("a\n")
    (made / "journal" / "closed" / "000000.jsonl.gz").write_text("z")
    (made / "journal" / ".part").write_text("not whole")
    SampleWriter(made).append(SampleRow(1.0, {"steps/w": [1]}))
    return made


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "volume" / "j-01234567"


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_record_on_the_volume_follows_the_folder(folder, place):
    keep(folder, place, 1)
    same = {"events.jsonl", "status.json", "journal/000001.jsonl", "journal/closed/000000.jsonl.gz"}
    kept, own = tree(place), tree(folder)
    assert set(kept) == {*same, "attempt", "spec.json", "samples/000001.jsonl"}
    assert {name: kept[name] for name in same} == {name: own[name] for name in same}
    with (folder / "events.jsonl").open("a") as events:
        events.write('{"seq":2}\n')
    (folder / "status.json").write_text('{"phase":"Failed"}')
    (folder / "journal" / "000001.jsonl").rename(folder / "journal" / "000002.jsonl")
    (folder / "journal" / "closed" / "000001.jsonl.gz").write_text("packed")
    SampleWriter(folder).close()
    keep(folder, place, 1)
    keep(folder, place, 1)
    own = {name: content for name, content in tree(folder).items() if name not in ("spec.json", "journal/.part")}
    assert {name: content for name, content in tree(place).items() if name not in ("spec.json", "attempt")} == own
    assert read(place).times == [1.0]


def test_spec_on_the_volume_has_names_and_no_values(folder, place):
    keep(folder, place, 1)
    assert SECRET.encode() not in b"".join(tree(place).values())
    spec = json.loads((place / "spec.json").read_text())["spec"]
    assert [own["name"] for own in spec["env"]] == ["TOKEN"]
    assert spec["roles"][0]["replicas"] == 2
    assert "metadata" in json.loads(shown_spec('{"spec": {}}'))


def events_of(*numbers: int) -> str:
    return "".join(f'{{"seq": {number}, "reason": "Restarting"}}\n' for number in numbers)


def numbers_in(folder: Path) -> list[int]:
    return [event["seq"] for event in each_event(folder / "events.jsonl")]


def other_node(tmp_path: Path, *numbers: int) -> Path:
    """A job's folder on another node, with the events that a master wrote there."""
    made = tmp_path / "other"
    made.mkdir()
    if numbers:
        (made / "events.jsonl").write_text(events_of(*numbers))
    return made


@pytest.mark.parametrize("events", [events_of(*range(900, 911)), events_of(3)], ids=["longer", "shorter"])
def test_record_that_a_folder_does_not_continue_is_put_aside(folder, place, tmp_path, events):
    (folder / "events.jsonl").write_text(events_of(1, 2))
    keep(folder, place, 1)
    first = tree(place)
    other = other_node(tmp_path)
    (other / "events.jsonl").write_text(events)
    SampleWriter(other).append(SampleRow(9.0, {"steps/w": [5]}))
    for _ in range(2):
        keep(other, place, 1)
    assert (place / "events.jsonl").read_text() == events
    assert read(place).times == [9.0]
    assert json.loads((place / "spec.json").read_text())["kind"] == "DLJob", "the other node has none"
    aside = tree(place / "earlier" / "attempt-1.1")
    assert aside == {name: first[name] for name in first if name not in ("spec.json", "attempt")}


@pytest.mark.parametrize("attempt", [1, 2], ids=["in this attempt", "in a later attempt"])
def test_master_that_was_replaced_elsewhere_leaves_the_record_alone(folder, place, tmp_path, attempt):
    """Its successor has fenced it, which it finds at its next commit."""
    (folder / "events.jsonl").write_text(events_of(1, 2))
    keep(other_node(tmp_path, 1, 2, 3), place, attempt)
    before = tree(place)
    keep(folder, place, 1)
    assert tree(place) == before


async def test_master_on_another_node_goes_on_with_the_record_of_the_volume(folder, place, tmp_path, monkeypatch):
    monkeypatch.setenv(archive.CHECKPOINT, str(place.parent))
    (folder / "events.jsonl").write_text(events_of(1, 2, 3) + '{"seq": 4, "rea')
    keep(folder, place, 1)
    other = other_node(tmp_path, 2)  # it was there before, and has older samples
    SampleWriter(other).append(SampleRow(0.5, {"steps/w": [0]}))
    own, timeline = KeptRecord(info(other)), Timeline(other)
    timeline.resume(3, ())  # as folded ahead from a snapshot
    timeline.add(Note("Restarting", "job", "four"), 4.0)
    await own.restore(timeline, begun=True)
    assert [note["seq"] for note in timeline.after(0)] == [1, 2, 3, 4]
    await timeline.flush()
    SampleWriter(other).append(SampleRow(4.0, {"steps/w": [2]}))
    await own.end()
    assert numbers_in(place) == numbers_in(other) == [1, 2, 3, 4]
    assert read(place).times == [1.0, 4.0]
    assert not (place / "earlier").exists()
    assert not (other / kept_record.STAGED).exists()
    timeline.close()
    own.close()


@pytest.mark.parametrize("case", ["not begun", "another attempt", "as far here", "nothing there"])
async def test_folder_that_lacks_nothing_is_left_as_it_is(folder, place, tmp_path, monkeypatch, case):
    monkeypatch.setenv(archive.CHECKPOINT, str(place.parent))
    (folder / "events.jsonl").write_text(events_of(1, 2, 3))
    if case != "nothing there":
        keep(folder, place, 2 if case == "another attempt" else 1)
    other = other_node(tmp_path, 3) if case == "as far here" else other_node(tmp_path)
    before, own, timeline = tree(other), KeptRecord(info(other)), Timeline(other)
    await own.restore(timeline, begun=case != "not begun")
    assert tree(other) == before
    assert timeline.after(0) == []
    timeline.close()
    own.close()


async def test_takeover_does_not_wait_for_a_volume_that_hangs_and_nothing_on_it_is_lost(
    folder, place, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv(archive.CHECKPOINT, str(place.parent))
    monkeypatch.setattr(kept_record, "RESTORE_S", 0.05)
    (folder / "events.jsonl").write_text(events_of(1, 2, 3))
    keep(folder, place, 1)
    goes_on, staged = threading.Event(), kept_record.stage

    def hang(*args: Any) -> bool:
        goes_on.wait()
        return staged(*args)

    monkeypatch.setattr(kept_record, "stage", hang)
    other = other_node(tmp_path)
    own, timeline = KeptRecord(info(other)), Timeline(other)
    await own.restore(timeline, begun=True)
    assert "does not answer: earlier events and samples stay on the volume alone" in caplog.text
    (other / "events.jsonl").write_text(events_of(3, 4))
    goes_on.set()
    await own.end()
    assert numbers_in(place) == [3, 4]
    assert numbers_in(place / "earlier" / "attempt-1.1") == [1, 2, 3]
    timeline.close()
    own.close()


@pytest.mark.parametrize("broken", [(shutil, "copytree"), (Path, "replace")], ids=["volume", "folder"])
async def test_record_that_cannot_be_brought_is_told_and_left(folder, place, monkeypatch, caplog, broken):
    monkeypatch.setenv(archive.CHECKPOINT, str(place.parent))
    keep(folder, place, 1)

    def fails(*_: Any) -> None:
        raise OSError("Stale file handle")

    monkeypatch.setattr(*broken, fails)
    other = other_node(folder.parent)
    own, timeline = KeptRecord(info(other)), Timeline(other)
    await own.restore(timeline, begun=True)
    assert f"stay on the volume alone, in {place}: Stale file handle" in caplog.text
    assert not (other / "events.jsonl").exists()
    timeline.close()
    own.close()


def test_record_of_an_earlier_attempt_is_put_aside(folder, place):
    keep(folder, place, 1)
    first = tree(place)
    (folder / "events.jsonl").write_text("second\n")
    (place / "status.json").unlink()  # the first attempt died before its first status
    del first["status.json"], first["attempt"]
    (place / "logs").mkdir()
    keep(folder, place, 2)
    assert tree(place / "earlier" / "attempt-1") == first
    assert (place / "events.jsonl").read_text() == "second\n"
    assert (place / "logs").is_dir()


def test_job_that_has_not_begun_leaves_what_there_is(tmp_path, place):
    keep(tmp_path / "nothing", place, 1)
    assert set(tree(place)) == {"attempt"}


def info(folder: Path) -> JobInfo:
    return JobInfo(UID, "j", str(folder), "dljob", "m", 30, 0.2, "", (("w", 1),))


async def test_volume_without_room_is_told_and_costs_nothing(folder, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv(archive.CHECKPOINT, str(tmp_path / "volume"))
    monkeypatch.setattr(archive, "FREE_BYTES", 1 << 60)
    monkeypatch.setattr(archive, "FREE_SHARE", 1)
    own = KeptRecord(info(folder))
    await own.end()
    own.close()
    assert "would be free on the volume" in caplog.text


async def test_end_does_not_wait_for_a_volume_that_hangs(folder, tmp_path, monkeypatch):
    monkeypatch.setenv(archive.CHECKPOINT, str(tmp_path / "volume"))
    monkeypatch.setattr(kept_record, "END_S", 0.05)
    goes_on = threading.Event()

    def hang(folder: Path, place: Path, attempt: int) -> None:
        goes_on.wait()

    monkeypatch.setattr(kept_record, "keep", hang)
    own = KeptRecord(info(folder))
    await own.end()
    goes_on.set()
    own.close()


async def test_job_without_a_volume_keeps_nothing(folder, monkeypatch):
    monkeypatch.delenv(archive.CHECKPOINT, raising=False)
    own = KeptRecord(info(folder))
    await own.run()
    await own.end()
    own.close()


async def test_master_keeps_its_record_while_it_runs_and_at_its_end(tmp_path, monkeypatch):
    monkeypatch.setenv(archive.CHECKPOINT, str(tmp_path / "volume"))
    monkeypatch.setattr(kept_record, "KEEP_S", 0.02)
    monkeypatch.setattr(kept_record, "FIRST_S", 0.01)
    world = World(tmp_path / "job")
    await until(running(world.master()))
    place = tmp_path / "volume" / f"j-{UID[:8]}"
    await until((place / "status.json").exists)
    end_all(world)
    await ended(world)
    assert json.loads((place / "status.json").read_text())["phase"] == "Succeeded"
    for name in ("events.jsonl", "status.json", "journal/000001.jsonl"):
        assert (place / name).read_bytes() == (tmp_path / "job" / name).read_bytes()
    assert list((place / "samples").iterdir())
    assert read(place) == read(tmp_path / "job")
