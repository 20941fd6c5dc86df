"""What is followed in a folder is, at every moment, what a page made then would show."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from growing_folder import GrowingFolder
from simulated_folder import UID

from dljob.api.local import views
from dljob.api.shown_job import Overview, Page
from dljob.report import job_folder, lanes, page_data
from dljob.report.live import document as documents
from dljob.report.live import sources
from dljob.report.live.document import LiveDocument
from dljob.report.live.journal_tail import JournalTail
from dljob.report.live.sources import AskedSource, FolderSource, OlderEvents, SourceSilentError
from dljob.runtime.control_socket.client import NoAnswerError, SocketLine
from dljob.runtime.journal.samples import Samples

SAME = ("lanes", "ledger", "roles", "placement", "accounts", "spec")


def source_of(folder: Path) -> FolderSource:
    return FolderSource(folder, UID, lambda: views.in_folder(folder), lambda seen: [seen.phase])


def page_of(folder: Path) -> dict[str, Any]:
    return json.loads(json.dumps(page_data.page_data(job_folder.load(folder), time.time())))


def shown(document: LiveDocument) -> dict[str, Any]:
    return json.loads(json.dumps(document.all_data()))


def test_a_followed_folder_shows_what_a_page_made_then_would(growing: GrowingFolder) -> None:
    source, document = source_of(growing.path), LiveDocument("d")
    while growing.left:
        growing.step(25)
        if len(growing.left) % 3 == 0:
            growing.segment()
        assert source.look(document)
        now, page = shown(document), page_of(growing.path)
        assert {key: now[key] for key in SAME} == {key: page[key] for key in SAME}
        assert now["events"] == page["events"]
        assert [own["id"] for own in now["incidents"]] == [own["id"] for own in page["incidents"]]
    assert source.over
    assert document.parts["live"] is False
    assert document.parts["job"]["cause"] == [growing.state.phase.value]
    assert [own["until"] for own in now["incidents"]] == [own["until"] for own in page["incidents"]]


def test_nothing_new_in_the_folder_changes_nothing(growing: GrowingFolder) -> None:
    source, document = source_of(growing.path), LiveDocument("d")
    while growing.left:
        growing.step(1000)
    assert source.look(document)
    assert not source.look(document)


def test_a_folder_whose_journal_begins_later_gets_its_lanes_then(growing: GrowingFolder, tmp_path: Path) -> None:
    source, document = source_of(growing.path), LiveDocument("d")
    shutil.move(growing.path / "journal", tmp_path / "aside")
    (growing.path / "events.jsonl").unlink()
    (growing.path / "status.json").write_text(json.dumps({"name": "x", "uid": UID, "phase": "Pending"}))
    assert source.look(document)
    assert document.parts["lanes"] is None
    assert "lanes, stages: the folder has no journal" in document.parts["unrecorded"]
    shutil.move(tmp_path / "aside", growing.path / "journal")
    growing.step(50)
    assert source.look(document)
    assert shown(document)["lanes"] == page_of(growing.path)["lanes"]


def test_a_status_that_is_away_for_a_moment_keeps_the_last_one(growing: GrowingFolder) -> None:
    growing.step(30)
    source, document = source_of(growing.path), LiveDocument("d")
    source.look(document)
    phase = document.parts["job"]["phase"]
    (growing.path / "status.json").rename(growing.path / "aside")
    source._status = lambda: Overview("x", phase, {}, {})
    source.look(document)
    assert document.parts["job"]["phase"] == phase


def test_torn_and_damaged_events_wait_or_are_left_out(growing: GrowingFolder) -> None:
    growing.step(60)
    file = growing.path / "events.jsonl"
    whole = file.read_bytes()
    count = whole.count(b"\n")
    file.write_bytes(whole[:-5])
    source, document = source_of(growing.path), LiveDocument("d")
    source.look(document)
    assert len(document.events) == count - 1
    file.write_bytes(whole + b"[]\n{\n" + whole.splitlines(keepends=True)[0])
    source.look(document)
    assert [note["seq"] for note in document.events] == list(range(1, count + 1))


def test_a_long_record_begins_with_its_newest_events_and_pages_the_others(
    growing: GrowingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    while growing.left:
        growing.step(1000)
    every = page_of(growing.path)["events"]
    size = (growing.path / "events.jsonl").stat().st_size
    monkeypatch.setattr(sources, "BEGIN_BYTES", size // 2)
    monkeypatch.setattr(sources, "OLDER", 3)
    source, document = source_of(growing.path), LiveDocument("d")
    source.look(document)
    page = shown(document)
    first = page["events"][0]["seq"]
    assert page["eventsLeftOut"] == first - 1 > 3
    assert page["events"] == every[first - 1 :]
    assert page["older"] == "older"
    found = source.older(OlderEvents(first))
    assert found.events == every[first - 4 : first - 1]
    assert found.before == first - 3
    assert not source.look(document)


def test_a_filter_for_earlier_events_is_that_of_the_page() -> None:
    event = {"seq": 1, "time": 5.0, "reason": "Restarting", "target": "rollout/1", "message": "was Killed"}
    for asked in (("killed", "rollout"), "Restarting", 5.0, 5.0), ((),), (("restarting", "process"),):
        assert OlderEvents(9, *asked).wants({**event, "level": "Process"})
    for asked in (("killed", "process"),), ((), "Restart"), ((), "", 5.1), ((), "", 0.0, 4.9):
        assert not OlderEvents(9, *asked).wants(event)


def test_too_many_lanes_are_thinned_and_made_anew_from_time_to_time(
    growing: GrowingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "MOST", 5)
    growing.step(25)
    source, document = source_of(growing.path), LiveDocument("d")
    source.look(document)
    before = shown(document)["lanes"]
    growing.step(25)
    source.look(document)
    assert shown(document)["lanes"] == before
    monkeypatch.setattr(sources, "THIN_S", 0.0)
    source._thinned_at = 0.0
    source.look(document)
    assert shown(document)["lanes"] == page_of(growing.path)["lanes"]


def test_primemaster_is_asked_for_events_behind_the_last_one(
    growing: GrowingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing.step(60)
    asked: list[Any] = []
    monkeypatch.setattr(SocketLine, "ask", lambda _self, request, _seconds: asked.append(json.loads(request)) or b"")
    source = source_of(growing.path)
    source.look(LiveDocument("d"))
    source.wait()
    assert asked == [{"job": UID, "call": "notes", "args": [growing.seq, sources.NEWS_S]}]


def test_a_silent_primemaster_is_told(growing: GrowingFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> bytes:
        raise NoAnswerError("no process answers at x")

    monkeypatch.setattr(SocketLine, "ask", silent)
    with pytest.raises(SourceSilentError, match="PrimeMaster does not answer: no process answers at x"):
        source_of(growing.path).wait()
    shutil.rmtree(growing.path)
    with pytest.raises(SourceSilentError):
        source_of(growing.path).wait()


def test_a_part_that_is_begun_is_read_once_its_header_is_there(growing: GrowingFolder) -> None:
    tail = JournalTail(growing.path / "journal")
    growing.step(20)
    first = tail.read()
    assert first
    late = growing.path / "journal" / "000002.jsonl"
    late.touch()
    assert tail.read() == []
    late.unlink()
    growing.segment()
    growing.step(20)
    found = tail.read()
    assert found[0]["k"] == "snapshot"
    assert found[-1]["k"] == "change"
    assert tail.read() == []
    assert tail.troubles == []


def test_an_empty_or_missing_journal_is_read_as_nothing(tmp_path: Path) -> None:
    tail = JournalTail(tmp_path / "none")
    assert tail.read() == []
    (tmp_path / "none").mkdir()
    assert tail.read() == []


class Elsewhere:
    """A job of a cluster, as its handle answers."""

    name, uid = "x", "u"

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.phase = "Running"

    def page(self) -> Page:
        status = {"phase": self.phase, "startTime": "2026-01-01T00:00:00Z"}
        seen = Overview("x", self.phase, status, status)
        return Page(seen, [], {"roles": []}, list(self.events), [], "", [])


def test_a_job_elsewhere_is_asked_and_its_page_changes_with_the_answer() -> None:
    job = Elsewhere()
    pauses: list[float] = []
    source = AskedSource(job, lambda seen: [seen.phase], pauses.append)  # type: ignore[arg-type]
    document = LiveDocument("d")
    job.events = [{"time": 1.0, "reason": "A"}]
    assert source.look(document)
    assert document.parts["live"]
    assert document.parts["source"] == "data"
    assert not source.look(document)
    job.events = [*job.events, {"time": 2.0, "reason": "B"}]
    job.phase = "Failed"
    source.wait()
    assert pauses == [sources.ASK_S]
    assert source.look(document)
    assert [note["reason"] for note in document.events] == ["A", "B"]
    assert source.over
    assert document.parts["live"] is False


def test_earlier_events_of_a_job_elsewhere_are_those_of_its_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "EVENTS", 2)
    monkeypatch.setattr(sources, "OLDER", 2)
    job = Elsewhere()
    source, document = AskedSource(job, lambda seen: [seen.phase]), LiveDocument("d")  # type: ignore[arg-type]
    job.events = [{"time": float(number), "reason": "A"} for number in range(6)]
    source.look(document)
    assert (document.all_data()["eventsLeftOut"], document.parts["older"]) == (4, "older")
    assert [event["seq"] for event in source.older(OlderEvents(5)).events] == [3, 4]
    assert source.older(OlderEvents(5)).before == 3
    assert source.older(OlderEvents(3)).before == 1
    assert source.older(OlderEvents(5, reason="B")) == ([], 1)


def test_samples_are_read_the_more_seldom_the_more_they_cost(
    growing: GrowingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []

    def read(folder: Path, _most: int) -> Samples:
        reads.append(folder)
        return Samples(times=[1.0], steps={"a": [[len(reads)]]})

    monkeypatch.setattr(sources.samples, "read", read)
    source, document = source_of(growing.path), LiveDocument("d")
    source.look(document)
    source.look(document)
    assert len(reads) == 1
    assert document.parts["samples"]["steps"] == {"a": [[1]]}
    monkeypatch.setattr(sources, "SAMPLES_S", 0.0)
    source._sampled_at = 0.0
    source.look(document)
    assert document.parts["samples"]["steps"] == {"a": [[2]]}
