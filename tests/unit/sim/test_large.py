"""A large job in small: weeks of the failures that were published, and what they cost."""

from __future__ import annotations

import json

import pytest

from dljob.cli import main
from dljob.sim import faults
from dljob.sim.large import CAUSES, DAYS, GPUS, PER_NODE, Size, mix, run


def test_the_table_adds_up_and_comes_at_its_rate():
    assert sum(count for _, count, _ in CAUSES) == 419
    size = Size(GPUS // PER_NODE, DAYS, world=128, seed=1)
    drawn = [cause for cause, _ in mix(size, faults.chance("rate")) if cause != "repaired"]
    assert 419 * 0.85 < len(drawn) < 419 * 1.15
    assert 0.25 < drawn.count("faulty GPU") / len(drawn) < 0.45


def test_a_job_goes_on_through_weeks_of_failures():
    found = run(Size(nodes=60, days=60.0, world=6, seed=2))
    assert found["problems"] == []
    assert (found["phase"], found["reason"], found["ranks"]) == ("Succeeded", "Completed", 481)
    assert found["simulatedDays"] == pytest.approx(60.0, abs=0.1)
    assert sum(found["faults"].values()) > 5
    assert found["restarts"]["RoleGroup"] > 3
    assert 0 < found["recoverySeconds"]["p50"] < 60


@pytest.mark.parametrize("words", [["--nodes", "0"], ["--nodes", "4", "--world", "5"], ["--nodes", "4", "--days", "0"]])
def test_sizes_that_make_no_sense_are_refused(words, capsys):
    assert main.run(["sim", *words]) == 2
    assert "nodes for" in capsys.readouterr().err


def test_the_command_simulates_seeds_one_seed_and_a_file(tmp_path, capsys):
    assert main.run(["sim", "--seeds", "3", "-o", "json", "--save", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["seeds"], found["failures"]) == (3, [])
    assert main.run(["sim", "--seed", "3", "-o", "json"]) == 0
    one = json.loads(capsys.readouterr().out)
    (tmp_path / "case.json").write_text(json.dumps(one["case"]))
    assert main.run(["sim", "--replay", str(tmp_path / "case.json"), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == one
    assert main.run(["sim", "--replay", str(tmp_path / "none.json")]) == 2
    assert main.run(["sim", "--nodes", "3", "--world", "1", "--days", "1"]) == 0
