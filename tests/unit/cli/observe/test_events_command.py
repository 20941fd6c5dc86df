"""events: the last entries, of a job, a folder or a cluster; and entries that no terminal should obey."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_kube import add_event, add_job

from dljob.api import registry
from dljob.api.registry import RegistryEntry
from dljob.cli import main, timeline

UID = "a7efe1" * 5 + "00"


def fill(folder: Path, count: int = 5) -> None:
    folder.mkdir(exist_ok=True)
    said = {"name": "ppo", "uid": UID, "phase": "Succeeded", "startTime": "1970-01-01T00:01:40Z"}
    (folder / "status.json").write_text(json.dumps(said))
    notes = [{"seq": n, "time": 100.0 + n, "reason": "R", "target": "job", "message": f"m{n}"} for n in range(count)]
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(note)}\n" for note in notes[1:]))


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.split()[-1] for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("words", "messages"), [([], "m1 m2 m3 m4"), (["--tail", "2"], "m3 m4"), (["--tail", "0"], "")]
)
def test_a_folder_shows_its_entries_or_the_last_of_them(words, messages, tmp_path, capsys):
    fill(tmp_path)
    assert main.run(["events", f"{tmp_path}/", *words]) == 0
    assert shown(capsys) == messages.split()


def test_a_folders_entries_count_from_the_submission_if_it_is_known(tmp_path, capsys):
    fill(tmp_path)
    assert main.run(["events", f"{tmp_path}/", "--tail", "1"]) == 0
    assert capsys.readouterr().out.startswith("     4.0s  R")
    (tmp_path / "job.json").write_text('{"started": 99.0}')
    assert main.run(["events", f"{tmp_path}/", "--tail", "1"]) == 0
    assert capsys.readouterr().out.startswith("     5.0s  R")


def test_a_folder_of_no_job_and_a_folder_to_follow_are_refused(tmp_path, capsys):
    assert main.run(["events", f"{tmp_path}/"]) == 3
    fill(tmp_path)
    assert main.run(["events", f"{tmp_path}/", "-f"]) == 2
    assert "nothing follows in it" in capsys.readouterr().err
    assert main.run(["events", f"{tmp_path}/", "--tail", "-1"]) == 2


def test_the_last_entries_of_an_ended_job_come_from_its_folder(home, capsys):
    record = registry.register(RegistryEntry("ppo", UID, str(registry.folder_of("ppo", UID)), started=100.0))
    fill(record.folder)
    assert main.run(["events", "ppo", "--tail", "2", "-o", "json"]) == 0
    assert [json.loads(line)["seq"] for line in capsys.readouterr().out.splitlines()] == [3, 4]
    assert main.run(["events", "ppo", "--tail", "0"]) == 0
    assert capsys.readouterr().out == ""
    (record.folder / "events.jsonl").unlink()
    assert main.run(["events", "ppo", "--tail", "2"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("more", [[], ["-f"]])
def test_on_a_cluster_the_last_entries_are_shown_too(more, kube, dljob):
    job = add_job(kube, phase="Succeeded", completionTime="2026-01-01T00:00:00Z")
    for n in range(3):
        add_event(kube, job, f"R{n}", f"m{n}", f"2026-01-01T00:00:0{n}Z")
    code, out, _ = dljob("events", "hello", "-n", "team", "--tail", "2", *more)
    assert (code, [line.split()[-1] for line in out.splitlines()]) == (0, ["m1", "m2"])


def test_an_entry_of_another_version_or_with_escapes_is_one_plain_line():
    odd: dict[str, Any] = {"seq": 1, "time": "late", "seconds": "2", "reason": "A\nB", "level": "L\tM"}
    assert timeline.line(odd, 0.0) == "        -  A B                -              [L M] "
    bad = {"seq": 1, "time": 5.0, "reason": "R", "target": "w/0", "message": "a\n\x1b[31mred\x1b]0;x\x07 \u202eevil"}
    assert timeline.line(bad, 10.0) == "    -5.0s  R                  w/0            a red\\x1b]0;x\\x07 \\u202eevil"


def test_a_folder_without_a_timeline_says_so(tmp_path, capsys):
    fill(tmp_path)
    (tmp_path / "events.jsonl").unlink()
    assert main.run(["events", f"{tmp_path}/"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"{tmp_path} has no events.jsonl: the job never started, or the file was not copied" in printed.err
