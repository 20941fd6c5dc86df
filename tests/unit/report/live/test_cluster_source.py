"""A job of a cluster is shown as one of this machine: by a copy of its record, while there is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from growing_folder import GrowingFolder, record_answer

from dljob.api.kubernetes.handle import RecordAnswer
from dljob.api.shown_job import Overview, Page
from dljob.report import job_folder, page_data
from dljob.report.live import sources
from dljob.report.live.cluster_source import ClusterSource
from dljob.report.live.document import LiveDocument
from dljob.report.live.sources import OlderEvents, SourceSilentError
from dljob.testing.simulate.drive import case_of


class InCluster:
    """A job on Kubernetes whose PrimeMaster writes a folder."""

    name, uid = "x", "u"

    def __init__(self, growing: GrowingFolder) -> None:
        self.growing = growing
        self.phase, self.attempt, self.silent = "Running", 1, ""
        self.without = False
        self.published: list[dict[str, Any]] = []
        manifest = json.loads((growing.path / "spec.json").read_text())
        self.body = {**manifest, "apiVersion": "dljob.io/v1alpha1", "kind": "DLJob"}

    def _seen(self) -> Overview:
        status = {"phase": self.phase, "startTime": "2026-01-01T00:00:00Z", "message": "", "attempt": self.attempt}
        return Overview("x", self.phase, status, status)

    def record(self, _events: object, have: dict[str, int]) -> RecordAnswer:
        fresh, self.published = self.published, []
        if self.silent or self.without:
            return RecordAnswer(self._seen(), self.attempt, fresh, silent=self.silent)
        return RecordAnswer(self._seen(), self.attempt, fresh, record_answer(self.growing.path, have))

    def page(self) -> Page:
        return Page(self._seen(), [], {"roles": []}, [], [], "", [])


@pytest.fixture
def job(growing: GrowingFolder) -> InCluster:
    growing.step(40)
    return InCluster(growing)


Make = Callable[[], ClusterSource]


@pytest.fixture
def made(job: InCluster, tmp_path: Path) -> ClusterSource:
    (tmp_path / "copies").mkdir()
    return ClusterSource(job, tmp_path / "copies", lambda seen: [seen.phase], lambda _: None)  # type: ignore[arg-type]


def page_of(folder: Path) -> dict[str, Any]:
    return json.loads(json.dumps(page_data.page_data(job_folder.load(folder), 0.0)))


def shown(document: LiveDocument) -> dict[str, Any]:
    return json.loads(json.dumps(document.all_data()))


def test_lanes_incidents_and_events_are_those_of_the_record(job: InCluster, made: ClusterSource) -> None:
    document = LiveDocument("d")
    while job.growing.left:
        job.growing.step(40)
        made.wait()
        made.look(document)
        now, page = shown(document), page_of(job.growing.path)
        assert now["lanes"] == page["lanes"]
        assert now["events"] == page["events"]
        assert [own["id"] for own in now["incidents"]] == [own["id"] for own in page["incidents"]]
    assert (now["job"]["phase"], now["job"]["name"], now["live"]) == ("Running", "x", True)
    assert now["placement"]
    assert made.older(OlderEvents(3)).events == page["events"][:2]
    job.phase = "Succeeded"
    assert made.look(document)
    assert made.over
    assert document.parts["live"] is False
    assert not made.look(document)


def test_events_of_the_operator_are_merged_by_time_without_its_echoes(job: InCluster, made: ClusterSource) -> None:
    document = LiveDocument("d")
    first = page_of(job.growing.path)["events"][0]
    echo = {"time": first["time"] + 1, "reason": first["reason"], "message": f"PrimeMaster: {first['message']}"}
    job.published = [echo, {"time": first["time"] - 5, "reason": "Admitted", "target": "job", "message": "m"}]
    made.look(document)
    assert [event["reason"] for event in document.events][:2] == ["Admitted", first["reason"]]
    assert len(document.events) == len(page_of(job.growing.path)["events"]) + 1
    assert document.all_data()["eventsLeftOut"] == 0
    job.published = [{"time": first["time"] + 1e6, "reason": "Late", "target": "job", "message": "m"}]
    assert made.look(document)
    assert document.events[-1]["reason"] == "Late"


def test_a_head_that_is_away_is_told_while_the_dljob_goes_on(job: InCluster, made: ClusterSource) -> None:
    document = LiveDocument("d")
    made.look(document)
    lanes = shown(document)["lanes"]
    job.silent, job.phase = "pod x does not answer", "Recovering"
    with pytest.raises(SourceSilentError, match="pod x does not answer"):
        made.look(document)
    assert document.parts["job"]["phase"] == "Recovering"
    assert shown(document)["lanes"] == lanes
    job.phase = "Failed"
    made.look(document)
    assert made.over


def test_the_next_attempt_begins_the_page_anew(job: InCluster, made: ClusterSource, tmp_path: Path) -> None:
    document = LiveDocument("d")
    made.look(document)
    version = document.version
    job.attempt = 0
    made.look(document)
    assert document.version.startswith("d+."), "between two attempts the last one is shown"
    job.growing, job.attempt = GrowingFolder(tmp_path / "second", case_of(4)), 2
    job.growing.step(30)
    made.look(document)
    assert shown(document)["lanes"] == page_of(job.growing.path)["lanes"]
    assert shown(document)["events"] == page_of(job.growing.path)["events"]
    assert "since" not in json.loads(document.answer(version) or b"")


def test_without_a_record_the_page_is_what_the_cluster_tells(job: InCluster, made: ClusterSource) -> None:
    document = LiveDocument("d")
    job.without = True
    made.look(document)
    assert document.parts["lanes"] is None
    assert "lanes, stages, logs: the job's folder is in its cluster" in document.parts["unrecorded"]
    assert made.older(OlderEvents(3)) == ([], 1)
    assert not made.over
    job.without = False
    made.look(document)
    assert document.parts["lanes"]


def test_it_is_asked_once_a_second(job: InCluster, tmp_path: Path) -> None:
    pauses: list[float] = []
    ClusterSource(job, tmp_path, lambda seen: [seen.phase], pauses.append).wait()  # type: ignore[arg-type]
    assert pauses == [sources.ASK_S]
