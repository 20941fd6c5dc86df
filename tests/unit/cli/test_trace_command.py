"""`dljob trace`: a file that Perfetto opens, of a folder with a journal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from simulated_folder import simulated
from trace_format import parse

from dljob.calls.trace_rows import CallerRow, encode, header
from dljob.cli import main
from dljob.testing.simulate.drive import case_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    simulated(tmp_path / "job", case_of(5))
    return tmp_path / "job"


def run(*words: str | Path) -> int:
    return main.run([str(word) for word in words])


def test_a_trace_of_a_folder_has_its_ranks_and_incidents(folder, tmp_path, capsys):
    file = tmp_path / "trace.json"
    assert run("trace", f"{folder}/", "-o", file) == 0
    assert f"wrote {file} (" in capsys.readouterr().err
    made = parse(file.read_text())
    status = json.loads((folder / "status.json").read_text())
    assert set(made.threads.values()) >= {f"{row['role']}/{row['rank']}" for row in status["ranks"]}
    assert made.spans
    assert made.flows
    assert len(file.read_text().splitlines()) == len(json.loads(file.read_text())["traceEvents"]) + 2


def test_traced_calls_are_in_the_trace_and_what_is_missing_is_told(folder, tmp_path, capsys):
    file = tmp_path / "trace.json"
    assert run("trace", f"{folder}/", "-o", file) == 0
    role, _, rank = min(parse(file.read_text()).threads.values()).rpartition("/")
    begin = min(json.loads(line)["time"] for line in (folder / "events.jsonl").read_text().splitlines())
    (folder / "calls").mkdir()
    row = CallerRow("ab:1", role, 0, "m", begin, 0.0, 1.0, 1, begin, "ok", 0, 1, 1)
    (folder / "calls" / f"{role}-{rank}.ab.jsonl").write_text(header(role, int(rank)) + encode(row) + '["c","to')
    assert run("trace", f"{folder}/", "-o", file, "--force") == 0
    assert f"call {role}.m" in {name for _, _, name in parse(file.read_text()).slices[f"{role}/{rank} calls"]}
    assert "calls: 1 damaged line left out" in capsys.readouterr().err
    assert "calls: 1 damaged line" in json.loads(file.read_text())["otherData"]["unrecorded"][-1]


def test_a_trace_that_is_there_is_kept_without_force(folder, tmp_path):
    file = tmp_path / "trace.json"
    file.write_text("mine")
    assert run("trace", f"{folder}/", "-o", file) == 2
    assert file.read_text() == "mine"
    assert run("trace", f"{folder}/", "-o", file, "--force") == 0
    assert parse(file.read_text()).slices


def test_a_folder_without_a_journal_has_nothing_to_trace(folder, tmp_path, capsys):
    shutil.rmtree(folder / "journal")
    assert run("trace", f"{folder}/", "-o", tmp_path / "t.json") != 0
    assert "nothing to trace: lanes, stages: the folder has no journal" in capsys.readouterr().err
    assert not (tmp_path / "t.json").exists()
