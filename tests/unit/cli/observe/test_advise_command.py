"""advise: from folders to a table, data and a changed file, and what it says where there is nothing to say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from simulated_folder import simulated

from dljob.api import registry
from dljob.api.registry import RegistryEntry
from dljob.cli import main
from dljob.report.advice import past_jobs
from dljob.report.advice.proposals import Advice
from dljob.runtime.journal.sample_rows import SampleRow
from dljob.runtime.journal.samples import SampleWriter
from dljob.testing.simulate.drive import Case, Durations
from dljob.testing.world.fault_schedule import Timed
from dljob.testing.world.model import FaultMove
from dljob.testing.world.state import EPOCH_S

FILE = """\
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: j}
spec:
  # steps of a second
  checkpoint: {everySteps: 2}
  roles:
    - name: w  # works
      replicas: 2
      entrypoint: {class: m.W}
      resources: {cpu: "4", memory: 4Gi}  # guessed
"""
ROLE: dict[str, Any] = {
    "name": "w",
    "replicas": 2,
    "entrypoint": {"class": "m.W"},
    "resources": {"cpu": "4", "memory": "4Gi"},
    "restartPolicy": {"maxRestarts": 50},
}
KILLS = tuple(Timed(200.0 * n, FaultMove("kill", 0, 1, f"w/{n % 2}")) for n in range(1, 5))


def past(folder: Path, *, replicas: int = 2, work: float = 1200.0) -> Path:
    """A job of so many seconds that lost four ranks, and saved after every second step."""
    role = {**ROLE, "replicas": replicas}
    manifest = {"metadata": {"name": "j"}, "spec": {"checkpoint": {"everySteps": 2}, "roles": [role]}}
    simulated(folder, Case(3, manifest, KILLS), Durations(work=(work, work)))
    writer = SampleWriter(folder)
    for second in range(0, int(work), 10):
        row: dict[str, Any] = {"accounts/w": "pp", "steps/w": [second, second], "peak/w": [700, 800]}
        row |= {"cpu/w": [second * 80, second * 90], "saves/w": [second // 2] * 2, "saving/w": [second * 250] * 2}
        writer.append(SampleRow(EPOCH_S + second, row))
    writer.close()
    return folder


@pytest.fixture(autouse=True)
def no_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds, and has tests of its own."""
    monkeypatch.setattr(past_jobs.rules, "advise", lambda _folder: Advice())


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return past(tmp_path_factory.mktemp("past") / "job")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main.run(["advise", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_proposals_are_shown_with_gain_reason_and_numbers(job, capsys):
    code, out, err = told(capsys, str(job))
    assert (code, err) == (0, "")
    assert out.startswith("advice for j (01234567)\n\nWHAT")
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith(("roles.w.res", "checkpoint.e"))}
    assert "4Gi" in out
    table = out.split("\n\n")[1].splitlines()
    assert [line.split()[:3] for line in table[1:3]] == [
        ["roles.w.resources.memory", "4Gi", "960Mi"],
        ["roles.w.resources.cpu", "4", "1.5"],
    ]
    assert table[3].startswith("checkpoint.everySteps")
    assert "points of goodput, +/-" in table[3]
    assert "77 % less memory, +/- 4" in table[1]
    assert "62 % fewer CPUs, +/- 0" in table[2]
    assert "2 ranks of 1 run had at most 800 MiB resident" in rows["roles.w.resources.memory:"]


def test_same_for_programs_has_shares(job, capsys):
    found = json.loads(told(capsys, str(job), str(job), "-o", "json")[1])
    assert set(found) == {"job", "proposals", "slowness", "noAdvice"}
    assert found["slowness"] == []
    memory = found["proposals"][0]
    assert (memory["field"], memory["now"], memory["proposed"]) == ("roles.w.resources.memory", "4Gi", "960Mi")
    assert memory["gain"] == {"of": "memory", "share": 0.7656, "uncertainty": 0.0391}


def test_file_is_changed_once_the_table_is_shown(job, tmp_path, capsys):
    file = tmp_path / "j.yaml"
    file.write_text(FILE)
    code, out, err = told(capsys, str(job), "--write", str(file))
    assert code == 0
    assert "PREDICTED GAIN" in out
    assert "changed roles.w.resources.memory, roles.w.resources.cpu, checkpoint.everySteps" in err
    made = file.read_text()
    steps = made.partition("everySteps: ")[2].partition("}")[0]
    assert int(steps) > 10
    assert made == FILE.replace('"4"', '"1.5"').replace("4Gi", "960Mi").replace("everySteps: 2", f"everySteps: {steps}")
    assert "nothing to change" in told(capsys, str(job), "--write", str(file))[2]


def test_file_that_cannot_be_read_is_told_before_the_work(job, capsys):
    code, out, err = told(capsys, str(job), "--write", "gone.yaml")
    assert (code, out) == (2, "")
    assert "cannot read gone.yaml: No such file" in err


@pytest.mark.usefixtures("home")
def test_name_stands_for_all_its_jobs_that_ended(capsys):
    for number, (phase, replicas) in enumerate((("Succeeded", 1), ("Succeeded", 2), ("Running", 2))):
        uid = f"{number}" * 32
        folder = registry.folder_of("j", uid)
        if phase == "Succeeded":
            past(folder, replicas=replicas, work=400.0)
            status = json.loads((folder / "status.json").read_text()) | {"name": "j", "uid": uid}
            (folder / "status.json").write_text(json.dumps(status))
        registry.register(RegistryEntry(name="j", uid=uid, dir=str(folder), started=float(number + 1)))
    out = told(capsys, "j")[1]
    assert out.startswith("advice for j (11111111)")
    assert "j (00000000): another shape of job than j (11111111): roles.w.replicas is 1, not 2" in out
    assert told(capsys, "1111")[1].startswith("advice for j (11111111)")
    for number in (0, 1):
        (registry.folder_of("j", f"{number}" * 32) / "job.json").unlink()
    code, _, err = told(capsys, "j")
    assert code == 3
    assert "no job j has ended" in err
    assert told(capsys, "nobody")[0] == 3


def test_job_of_one_minute_gets_no_advice(tmp_path, capsys):
    out = told(capsys, str(past(tmp_path / "job", work=60.0)))[1]
    assert "nothing to propose" in out
    assert out.count("too little history") == 3


def test_torn_record_says_what_is_missing(tmp_path, capsys):
    folder = past(tmp_path / "job", work=400.0)
    (folder / "spec.json").write_text('{"spec": ')
    out = told(capsys, str(folder))[1]
    assert "spec: spec.json is damaged" in out
    assert "its folder has no spec: what it asked for is not known" in out
    assert told(capsys, str(tmp_path))[0] == 3


def test_what_slowed_the_job_down_is_listed(tmp_path, capsys):
    folder = past(tmp_path / "job", work=60.0)
    words = "w/1 is throttled 94% of the time by its cgroup, whose quota is 0.06 of a CPU"
    note = {"seq": 10**6, "time": EPOCH_S + 5, "reason": "CpuThrottled", "target": "w", "message": words}
    over = {"reason": "ProblemOver", "target": "w", "message": "CpuThrottled is over after 40.0 s"}
    with (folder / "events.jsonl").open("a") as file:
        for event in (note, {**over, "seq": 10**6 + 1, "time": EPOCH_S + 45}):
            file.write(json.dumps(event) + "\n")
    out = told(capsys, str(folder))[1]
    line = next(line for line in out.splitlines() if "CpuThrottled" in line)
    assert line.endswith(f"Z, for 40.0 s: CpuThrottled: {words}")
    assert "\nwhat slowed it down\n" in out
