"""replay: a moment of a job's past, what changed between two, and what a user may give."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from past_kit import WORKERS, PastJob, past_of

from dljob.cli import main
from dljob.master.status import rfc3339
from dljob.runtime.journal.job_record import FINAL
from dljob.runtime.journal.sample_rows import SampleRow
from dljob.runtime.journal.samples import SampleWriter
from dljob.testing.simulate.drive import Case
from dljob.testing.world.fault_schedule import Timed
from dljob.testing.world.model import FaultMove

CASE = Case(3, WORKERS, tuple(Timed(20.0 * n, FaultMove("kill", n, 1)) for n in range(1, 6)))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> PastJob:
    return past_of(tmp_path_factory.mktemp("past") / "job", CASE, every=12)


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main.run(["replay", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_last_moment_is_shown_with_its_ledger_and_first_cause(
    job: PastJob, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = shown(capsys, str(job.folder))
    assert code == 0
    assert "(the job's start), written by dljob" in out
    assert "led there: Released" in out
    assert "past (5eed0000): Succeeded" in out
    assert "goodput: " in out
    assert "earlier: 2001-09-09T01:48:20.006Z w/1: Killed, exit code 137" in out
    assert "steps: unknown: the folder has no sample" in err


def test_a_moment_can_be_given_by_seconds_by_date_and_by_event(
    job: PastJob, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(job.folder)
    first = json.loads(shown(capsys, folder, "--event", "1", "-o", "json")[1])
    assert first["event"] >= 1
    assert first["journal"]["complete"]
    assert first["status"]["ledger"]["processes"] == 2
    assert json.loads(shown(capsys, folder, "--at", "+0", "-o", "json")[1])["cause"] is None
    at = "2001-09-09T01:46:50"  # ten seconds after the simulator's beginning
    texts = [shown(capsys, folder, "--at", text, "-o", "json")[1] for text in (at, f"{at}Z", "+10")]
    assert len(set(texts)) == 1
    assert 0 <= json.loads(texts[0])["seconds"] <= 10


def test_steps_come_from_the_samples_of_that_time(
    job: PastJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "job"
    shutil.copytree(job.folder, folder)
    writer = SampleWriter(folder)
    start = job.times[0]
    writer.append(SampleRow(start + 5.0, {"steps/w": [7, None], "progress/loss": 0.5, "progress/reward": None}))
    writer.append(SampleRow(start + 9.0, {"steps/w": [11, 12]}))
    early, late = (json.loads(shown(capsys, str(folder), "--at", at, "-o", "json")[1]) for at in ("+2", "+8"))
    assert early["unrecorded"]
    assert late["unrecorded"] == []
    ranks = {rank["rank"]: rank["step"] for rank in late["status"]["ranks"]}
    # As of the time that was asked for, whenever the last event before it was.
    assert ranks == {0: 7, 1: None}
    last = json.loads(shown(capsys, str(folder), "-o", "json")[1])
    assert [rank["step"] for rank in last["status"]["ranks"]] == [11, 12]


def test_the_oldest_moment_has_no_event_before_it(job: PastJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert "led there" not in shown(capsys, str(job.folder), "--at", "+0")[1]


def test_a_difference_names_each_value_that_changed(job: PastJob, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(job.folder)
    code, out, _ = shown(capsys, folder, "--diff", "1", str(job.seqs[-1]))
    assert code == 0
    assert 'phase: "Scheduling" -> "Succeeded"' in out
    assert 'ranks[w/0].phase: "Waiting" -> "Succeeded"' in out or "ranks[w/0].phase" in out
    same = shown(capsys, folder, "--diff", "2", "2")[1]
    assert same == "nothing changed between event 2 and event 2\n"
    listed = json.loads(shown(capsys, folder, "--diff", "1", "2", "-o", "json")[1])
    assert listed["from"] == 1
    assert listed["changes"]


def test_a_folder_of_another_version_says_how_it_is_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = past_of(tmp_path / "job", CASE, core="9.9.9 f00f00f00f00", every=12)
    for path in sorted((made.folder / "journal").glob("*.jsonl"))[:1]:
        path.unlink()
    out = shown(capsys, str(made.folder))[1]
    assert "written by dljob 9.9.9 f00f00f00f00" in out
    assert "replayed by the changes that were written" in out
    assert "its parts before were dropped" in out


def test_a_what_if_tells_both_goodputs_and_the_uncertainty(
    job: PastJob, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dljob.report.what_if.SEEDS", 2)
    rule = ("--what-if", "faultTolerance.backoff.initialSeconds=60")
    code, out, _ = shown(capsys, str(job.folder), *rule)
    assert code == 0
    assert out.startswith("what if faultTolerance.backoff.initialSeconds=60\ngoodput: ")
    assert "points, +/- " in out
    data = json.loads(shown(capsys, str(job.folder), *rule, "-o", "json")[1])
    assert data["difference"] < 0 < data["goodput"] < data["measured"]
    code, _, err = shown(capsys, str(job.folder), "--what-if", "faultTolerance.spares.procesesPerNode=1")
    assert code == 2
    assert "did you mean processesPerNode?" in err
    assert shown(capsys, str(job.folder), *rule, "--at", "+1")[0] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--at", "+1", "--event", "1"), "exclude each other"),
        (("--event", "1", "--diff", "1", "2"), "exclude each other"),
        (("--at", "+soon"), "no number of seconds"),
        (("--at", "yesterday"), "no time"),
        (("--at", "+1e9"), "is after the last moment recorded"),
        (("--at", "2000-01-01"), "is before the oldest moment kept"),
        (("--event", "100000"), "there is no event 100000"),
    ],
)
def test_a_moment_that_cannot_be_is_a_usage_error(
    job: PastJob, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    code, _, err = shown(capsys, str(job.folder), *words)
    assert code == 2
    assert said in err


def test_a_folder_without_a_journal_is_not_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = shown(capsys, f"{tmp_path}/")
    assert code == 3
    assert "has no journal" in err


def test_a_report_has_the_best_what_ifs_where_they_are_asked_for(
    job: PastJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dljob.report.what_if.FEW", 2)
    folder = tmp_path / "job"
    shutil.copytree(job.folder, folder)
    status = json.loads(shown(capsys, str(job.folder), "-o", "json")[1])["status"]
    (folder / "status.json").write_text(json.dumps(status))
    page = tmp_path / "job.html"
    assert main.run(["report", str(folder), "-o", str(page), "--what-if"]) == 0
    assert '"whatifs":[' in page.read_text()
    assert main.run(["report", str(folder), "-o", str(page), "--force"]) == 0
    assert '"whatifs":null' in page.read_text()
    shutil.rmtree(folder / "journal")
    assert main.run(["report", str(folder), "-o", str(page), "--force", "--what-if"]) == 0
    assert "whatifs: " in page.read_text()
    assert main.run(["report", "past", "-o", str(page), "--force", "--what-if", "-n", "team"]) == 2


def running(job: PastJob, folder: Path) -> Path:
    """A copy of the job's folder as it was while the job ran, with samples of 60 s behind its last event."""
    shutil.copytree(job.folder, folder)
    last = max((folder / "journal").glob("*.jsonl"))
    lines = last.read_bytes().splitlines(keepends=True)
    while b'"phase":["v","Succeeded"]' in last.read_bytes() or b"JobEnded" in last.read_bytes():
        lines.pop()
        last.write_bytes(b"".join(lines))
    return folder


def test_a_job_that_runs_is_shown_as_of_its_last_sample(
    job: PastJob, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = running(job, tmp_path / "job")
    before = json.loads(shown(capsys, str(folder), "-o", "json")[1])
    assert before["status"]["phase"] not in FINAL
    end = round(before["unixTime"], 2)  # as samples are
    writer = SampleWriter(folder)
    for n in range(1, 61):
        writer.append(SampleRow(end + n, {"steps/w": [n, n]}))
    now = json.loads(shown(capsys, str(folder), "-o", "json")[1])
    assert now["unixTime"] == pytest.approx(end + 60)
    assert now["seconds"] == pytest.approx(before["seconds"] + 60, abs=0.01)
    assert [rank["step"] for rank in now["status"]["ranks"]] == [60, 60]
    assert now["unrecorded"] == []
    monkeypatch.setattr(time, "time", lambda: end + 60.7)
    for at, step in (("10s", 50), ("0s", 60), ("1m", None), (rfc3339(end + 30), 30)):
        found = json.loads(shown(capsys, str(folder), "--at", at, "-o", "json")[1])
        assert found["status"]["ranks"][0]["step"] == step, at
    assert shown(capsys, str(folder), "--at", rfc3339(end + 61))[0] == 2
    assert shown(capsys, str(folder), "--at", "1000000d")[0] == 2


def test_a_span_before_now_of_an_ended_job_is_its_last_moment_if_it_ended_before(
    job: PastJob, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: job.times[-1] + 5.0)
    texts = [shown(capsys, str(job.folder), *at, "-o", "json")[1] for at in ((), ("--at", "2s"))]
    assert texts[0] == texts[1]
    assert json.loads(shown(capsys, str(job.folder), "--at", "1m", "-o", "json")[1])["unixTime"] == job.times[-1] - 55.0
