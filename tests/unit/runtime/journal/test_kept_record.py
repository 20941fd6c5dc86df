"""A job's record on the checkpoint volume: complete, without secrets, and no burden to the job."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from master_shell_kit import UID, World, end_all, ended, running, until

from dljob.logs import archive
from dljob.runtime.journal import kept_record
from dljob.runtime.journal.kept_record import KeptRecord, keep, shown_spec
from dljob.runtime.journal.sample_rows import SampleRow
from dljob.runtime.journal.samples import SampleWriter, read
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


def test_record_on_the_volume_follows_the_folder(folder: Path, place: Path) -> None:
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


def test_spec_on_the_volume_has_names_and_no_values(folder: Path, place: Path) -> None:
    keep(folder, place, 1)
    assert SECRET.encode() not in b"".join(tree(place).values())
    spec = json.loads((place / "spec.json").read_text())["spec"]
    assert [own["name"] for own in spec["env"]] == ["TOKEN"]
    assert spec["roles"][0]["replicas"] == 2
    assert "metadata" in json.loads(shown_spec('{"spec": {}}'))


def test_file_that_became_shorter_is_copied_whole(folder: Path, place: Path) -> None:
    (folder / "events.jsonl").write_text("long and long\n")
    keep(folder, place, 1)
    (folder / "events.jsonl").write_text("new\n")
    keep(folder, place, 1)
    assert (place / "events.jsonl").read_text() == "new\n"


def test_record_of_an_earlier_attempt_is_put_aside(folder: Path, place: Path) -> None:
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


def test_job_that_has_not_begun_leaves_what_there_is(tmp_path: Path, place: Path) -> None:
    keep(tmp_path / "nothing", place, 1)
    assert set(tree(place)) == {"attempt"}


def info(folder: Path) -> JobInfo:
    return JobInfo(UID, "j", str(folder), "dljob", "m", 30, 0.2, "", (("w", 1),))


async def test_volume_without_room_is_told_and_costs_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(archive.CHECKPOINT, str(tmp_path / "volume"))
    monkeypatch.setattr(archive, "FREE_BYTES", 1 << 60)
    monkeypatch.setattr(archive, "FREE_SHARE", 1)
    own = KeptRecord(info(folder))
    await own.end()
    own.close()
    assert "would be free on the volume" in caplog.text


async def test_end_does_not_wait_for_a_volume_that_hangs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_job_without_a_volume_keeps_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(archive.CHECKPOINT, raising=False)
    own = KeptRecord(info(folder))
    await own.run()
    await own.end()
    own.close()


async def test_master_keeps_its_record_while_it_runs_and_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
