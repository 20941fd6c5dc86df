"""Data of pages: of whole folders, of damaged and foreign ones, of jobs that never started, and of large ones."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from simulated_folder import simulated

from dljob.api.shown_job import Overview, Page
from dljob.errors import NotFoundError
from dljob.report import job_folder, page_data
from dljob.report.job_folder import RecordedJob
from dljob.runtime.journal.sample_rows import SampleRow
from dljob.runtime.journal.samples import SampleWriter
from dljob.testing.simulate.drive import Case
from dljob.testing.world.fault_schedule import Timed
from dljob.testing.world.model import FaultMove

NOW = 2e9
RESOURCES = {"cpu": "1"}
ROLES = [
    {"name": "t", "type": "Elastic", "replicas": 2, "entrypoint": {"module": "m"}, "resources": RESOURCES,
     "accelerator": {"count": 2}, "config": {"key": "hunter2"}},
    {"name": "d", "entrypoint": {"class": "m.D"}, "resources": RESOURCES},
]  # fmt: skip
GROUP = {"name": "g", "replicas": 2, "cpu": "4", "accelerator": {"type": "GPU", "count": 2}}
MANIFEST: dict[str, Any] = {"metadata": {"name": "x"}, "spec": {"roles": ROLES, "nodeGroups": [GROUP]}}
FAULTS = (Timed(40.0, FaultMove("kill", 0, 0, "t/1")),)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job") / "x"
    simulated(folder, Case(7, MANIFEST, FAULTS))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "x"))


def data(folder: Path, **how: Any) -> dict[str, Any]:
    return page_data.page_data(job_folder.load(folder), NOW, **how)


def test_a_whole_folder_tells_everything_but_samples(folder: Path) -> None:
    found = data(folder, version="1", cause=["first cause: x"])
    assert found["format"] == page_data.FORMAT
    assert found["made"] == {"at": NOW, "by": "1"}
    assert found["job"]["cause"] == ["first cause: x"]
    assert found["job"]["end"] > found["job"]["start"]
    assert [role["name"] for role in found["roles"]] == ["t", "d"]
    assert found["roles"][0] == {
        "name": "t", "type": "Elastic", "driver": True, "replicas": 2, "devices": 2.0, "collocation": None
    }  # fmt: skip
    seconds = sum(next(role for role in found["ledger"]["roles"] if role["name"] == "t")["accounts"].values())
    assert found["job"]["deviceSeconds"] == pytest.approx(2 * seconds, abs=0.01)
    assert [len(found["lanes"][name]) for name in ("t", "d")] == [2, 1]
    assert found["incidents"][0]["rank"].startswith("t/")
    assert found["events"][0]["seq"] == 1
    assert "hunter2" not in json.dumps(found)
    assert "hunter2" in json.dumps(data(folder, with_values=True))


def test_placement_shows_the_units_of_both_by_node(folder: Path) -> None:
    found = data(folder)["placement"]
    for side in (found, found["plan"]):
        bundles = [bundle for node in side["nodes"] for bundle in node["bundles"]]
        assert sorted(rank for bundle in bundles for rank in bundle["ranks"]) == ["d/0", "t/0", "t/1"]
        assert {"GPU": 2.0, "CPU": 1.0} in [bundle["shares"] for bundle in bundles]
        assert all(node["resources"]["GPU"] == 2.0 for node in side["nodes"])


def test_log_lines_until_a_failure_and_stacks_of_a_hang_are_shown(folder: Path) -> None:
    fault = next(iter(job_folder.load(folder).history.faults.values()))  # type: ignore[union-attr]
    role, _, rank = fault["rank"].partition("/")
    log = folder / "logs" / f"{role}-{rank}.log"
    log.parent.mkdir()
    lines = [f"line {number}\n" for number in range(40)]
    log.write_text("".join(lines) + "of the next life\n")
    at = [int((fault["detected_at"] + later) * 1e9) for later in (-1, 1, 5)]
    sizes = [0, sum(map(len, lines)), log.stat().st_size]
    log.with_suffix(".marks").write_bytes(b"".join(struct.pack("<QQ", *pair) for pair in zip(at, sizes, strict=True)))
    (folder / "stacks").mkdir()
    (folder / "stacks" / f"{role}-{rank}-{fault['incarnation']}.txt").write_text("Thread 1")
    found = data(folder)["incidents"][0]
    assert found["log"] == {"rank": fault["rank"], "lines": [f"line {number}" for number in range(20, 40)]}
    assert found["stacks"] == [{"rank": fault["rank"], "text": "Thread 1"}]


def test_dumps_of_witnesses_stand_beside_the_stacks_of_their_hang(folder: Path) -> None:
    fault = next(iter(job_folder.load(folder).history.faults.values()))  # type: ignore[union-attr]
    stem = f"{fault['rank'].replace('/', '-')}-{fault['incarnation']}"
    where = folder / "stacks"
    where.mkdir()
    (where / f"{stem}.txt").write_text("Thread 1")
    (where / f"{stem}.recorder-n0.dump").write_text('{"entries":[]}')
    (where / f"{stem}.timer-n0.dump").write_bytes(b"\x80\x02}q")
    (where / f"{stem}9.recorder-n0.dump").write_text("of another incarnation")
    assert [(own["rank"], own["text"]) for own in data(folder)["incidents"][0]["stacks"]] == [
        (fault["rank"], "Thread 1"),
        (f"{stem}.recorder-n0.dump", '{"entries":[]}'),
        (f"{stem}.timer-n0.dump", f"no text: {where / f'{stem}.timer-n0.dump'}"),
    ]


def test_a_pipe_in_place_of_a_log_is_not_read(folder: Path) -> None:
    (folder / "logs").mkdir()
    (folder / "logs" / "t-1.log").mkdir()
    (folder / "logs" / "t-1.marks").write_bytes(struct.pack("<QQ", 1, 10))
    assert data(folder)["incidents"][0]["log"] is None


def test_thousands_of_faults_have_text_for_the_first_and_the_last_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_folder, "MOST", 2)
    asked: list[str] = []
    monkeypatch.setattr(job_folder, "_lines", lambda log, at: asked.append(log.name) or [])
    status = json.loads((folder / "status.json").read_text())
    faults = [{"rank": f"t/{n}", "detectedAt": "2026-01-01T00:00:00Z"} for n in range(9)]
    odd = [{"rank": "../../etc/0", "detectedAt": "2026-01-01T00:00:00Z"}, {"rank": "t/x"}, {}]
    shutil.rmtree(folder / "journal")
    (folder / "status.json").write_text(json.dumps({**status, "recentFaults": [*faults, odd[0]]}))
    job_folder.load(folder)
    assert asked == ["t-0.log"]
    (folder / "status.json").write_text(json.dumps({**status, "recentFaults": odd[1:]}))
    job_folder.load(folder)
    assert asked == ["t-0.log"]


def test_without_journal_the_status_alone_tells_incidents(folder: Path) -> None:
    shutil.rmtree(folder / "journal")
    found = data(folder)
    assert found["lanes"] is None
    assert found["incidents"][0]["stages"] is None
    assert "lanes, stages: the folder has no journal" in found["unrecorded"]
    assert [node["bundles"] for node in found["placement"]["nodes"]]


def test_a_journal_of_another_shape_costs_the_lanes_alone(folder: Path) -> None:
    part = folder / "journal" / "000001.jsonl"
    from dljob.telemetry.records import encode_line

    head = part.read_bytes().split(b"\n")[0]
    part.write_bytes(head + b"\n" + encode_line(1, {"k": "snapshot", "at": 1.0, "of": 1, "i": 0, "d": "{}"}))
    found = data(folder)
    assert found["lanes"] is None
    assert found["ledger"]
    assert any("another version of dljob wrote it" in line for line in found["unrecorded"])


def test_a_job_that_never_started_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(json.dumps({"name": "x", "uid": "u", "phase": "Pending"}))
    found = data(tmp_path)
    assert found["job"]["start"] is None
    assert (found["roles"], found["events"], found["incidents"], found["lanes"]) == ([], [], [], None)
    assert found["placement"] is None
    missing = [line.partition(":")[0] for line in found["unrecorded"]]
    assert missing == ["events", "spec", "lanes, stages", "samples"]


def test_a_folder_without_status_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no status of a job"):
        job_folder.load(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{", '{"spec": 1}'])
def test_a_damaged_spec_is_told(folder: Path, text: str) -> None:
    (folder / "spec.json").write_text(text)
    found = data(folder)
    assert found["spec"] is None
    assert any(line.startswith("spec: ") for line in found["unrecorded"])
    assert found["roles"][0]["devices"] is None
    assert found["job"]["deviceSeconds"] is None


def test_a_spec_that_this_version_refuses_has_no_placement_but_is_shown(folder: Path) -> None:
    (folder / "spec.json").write_text(json.dumps({**MANIFEST, "spec": {**MANIFEST["spec"], "later": 1}}))
    found = data(folder)
    assert found["placement"] is None
    assert found["spec"]["later"] == 1
    assert any("cannot plan" in line for line in found["unrecorded"])


def test_damaged_and_repeated_events_are_left_out(folder: Path) -> None:
    notes = (folder / "events.jsonl").read_text().splitlines()
    (folder / "events.jsonl").write_text("\n".join([notes[0], notes[0], "{torn", "[]", *notes[1:]]))
    found = data(folder)
    assert [note["seq"] for note in found["events"]] == list(range(1, len(notes) + 1))
    assert "events: 2 damaged lines of events.jsonl are left out" in found["unrecorded"]


def test_of_many_events_the_first_and_the_newest_are_kept() -> None:
    events = [{"seq": number, "time": 1.0, "reason": "R", "target": "job"} for number in range(page_data.EVENTS + 7)]
    record = RecordedJob({"name": "x"}, {}, events, None, {}, ())
    found = page_data.page_data(record, NOW)
    assert found["eventsLeftOut"] == 7
    assert len(found["events"]) == page_data.EVENTS
    assert [note["seq"] for note in found["events"][page_data.FIRST_EVENTS - 1 :][:2]] == [499, 507]
    assert any("7 of 10007 are left out" in line for line in found["unrecorded"])


def test_a_job_of_a_cluster_is_shown_by_what_it_tells() -> None:
    status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "seconds": 5.0}
    shown = Page(
        Overview("x", "Running", status, status), [], MANIFEST["spec"], [{"time": 1.0, "reason": "R"}], ["none"], "", []
    )  # type: ignore[list-item]
    found = page_data.page_data(job_folder.of_shown(shown, "x", "u"), NOW, live=True)
    assert found["events"] == [{"seq": 1, "time": 1.0, "reason": "R"}]
    assert found["unrecorded"] == ["events: none", "lanes, stages, logs: the job's folder is in its cluster"]
    assert found["live"]
    assert (found["job"]["name"], found["job"]["uid"]) == ("x", "u")
    assert found["job"]["end"] == found["job"]["start"] + 5.0


def test_samples_of_a_folder_go_to_the_page(folder: Path) -> None:
    writer = SampleWriter(folder)
    for at in (10.0, 20.0):
        columns = {"accounts/t": "pp", "steps/t": [int(at), None], "progress/loss": 1 / at}
        writer.append(SampleRow(at, columns))
    shutil.rmtree(folder / "journal")
    found = data(folder)
    assert found["samples"]["times"] == [10.0, 20.0]
    assert found["samples"]["steps"] == {"t": [[10, 20], [None, None]]}
    assert found["samples"]["progress"] == {"loss": [0.1, 0.05]}
    assert found["lanes"]["t"][0][:2] == [10.0, 3]
    assert not [line for line in found["unrecorded"] if line.startswith("samples")]


@pytest.mark.parametrize("value", [None, 7, "x", [1], {"a": 1}, [[]], [{}], [{"name": [1], "node": 7, "evidence": 7}]])
def test_a_status_of_another_version_costs_only_the_parts_that_need_it(folder: Path, value: Any) -> None:
    shutil.rmtree(folder / "journal")
    record = job_folder.load(folder)
    for key in record.status:
        if key not in ("name", "uid"):
            found = page_data.page_data(record._replace(status={**record.status, key: value}), NOW)
            assert found["job"]["name"] == record.status["name"]
    if value == [{"name": [1], "node": 7, "evidence": 7}]:
        status = {**record.status, "recentFaults": value, "units": value, "roles": value, "ledger": {"roles": value}}
        said = page_data.page_data(record._replace(status=status), NOW)["unrecorded"]
        told = "status or spec is damaged, or of another version"
        assert {line.partition(":")[0] for line in said if told in line} == {"incidents", "roles", "placement"}
