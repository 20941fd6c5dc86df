"""A large job in small: weeks of the failures that were published, and what they cost."""

from __future__ import annotations

import json

import pytest

from dljob.cli import main
from dljob.testing.simulate import report
from dljob.testing.simulate.large import CAUSES, DAYS, GPUS, PER_NODE, Size, mix, run
from dljob.testing.world import fault_schedule
from dljob_operator.testing import scenario as stories

EMPTY = {"seeds": 3, "writes": 0, "ends": {}, "failures": []}


def test_the_table_adds_up_and_comes_at_its_rate():
    assert sum(count for _, count, _ in CAUSES) == 419
    size = Size(GPUS // PER_NODE, DAYS, world=128, seed=1)
    drawn = [cause for cause, _ in mix(size, fault_schedule.chance("rate")) if cause != "repaired"]
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


def test_the_command_sim_runs_seeds_one_seed_or_a_file(tmp_path, capsys):
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


@pytest.mark.parametrize("operator", [[], ["--operator"]])
def test_a_range_of_seeds_begins_at_the_one_that_is_named(operator, monkeypatch, capsys):
    tried = []
    monkeypatch.setattr(stories if operator else report, "many", lambda seeds, *_: tried.extend(seeds) or EMPTY)
    assert main.run(["sim", *operator, "--from", "5000000", "--seeds", "3"]) == 0
    assert tried == [5_000_000, 5_000_001, 5_000_002]
    assert "3 seeds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["job.yaml", "--nodes", "200", "--days", "1"], "--nodes does not use job.yaml"),
        (["job.yaml", "--explore"], "--explore does not use job.yaml"),
        (["--operator", "--seeds", "2", "--nodes", "200"], "--nodes does not use --seeds, --operator"),
        (["job.yaml", "--operator"], "--operator does not use job.yaml"),
        (["job.yaml", "--operator", "--seed", "1"], "--operator does not use job.yaml"),
        (["--seed", "3", "--save", "out"], "--seed does not use --save"),
        (["--seed", "3", "--seeds", "3"], "--seed does not use --seeds"),
        (["--seeds", "1", "--days", "3"], "--seeds does not use --days"),
        (["--world", "5"], "--seeds does not use --world"),
        (["job.yaml", "--most", "3"], "--seeds does not use --most"),
        (["job.yaml", "--faults", "f.yaml", "--seed", "1"], "--faults does not use --seed"),
        (["job.yaml", "--replay", "r.json", "--operator"], "--replay does not use job.yaml, --operator"),
        (["--seeds", "-1"], "--seeds -1"),
        (["--seeds", "0"], "--seeds 0"),
        (["--from", "-1"], "--from -1"),
        (["--seed", "3", "--from", "3"], "--seed does not use --from"),
    ],
)
def test_options_that_would_be_ignored_are_refused(words, said, capsys):
    assert main.run(["sim", *words]) == 2
    assert said in capsys.readouterr().err


def test_sim_refuses_a_folder_it_cannot_write_and_a_file_that_is_no_case(tmp_path, capsys):
    place = tmp_path / "place"
    place.write_text("")
    for folder, why in ((place, "File exists"), (place / "below", "Not a directory")):
        assert main.run(["sim", "--seeds", "1", "--save", str(folder)]) == 2
        assert f"cannot write into {folder}: {why}" in capsys.readouterr().err
    manifest = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}, "spec": {"roles": []}}
    for data in ([], 3, {"seed": 1}, {"operator": True, "manifest": 1}, {"seed": 1, "manifest": manifest}):
        place.write_text(json.dumps(data))
        assert main.run(["sim", "--replay", str(place)]) == 2
        assert f"{place} is no case that --save wrote" in capsys.readouterr().err
