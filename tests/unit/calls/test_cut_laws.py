"""Laws of consistent cuts, over seeded schedules of faults: each prompt is trained, or set aside, exactly once."""

from __future__ import annotations

import json

import pytest

from dljob.cli import main
from dljob.testing.simulate import cuts
from dljob.testing.simulate.cuts import SHAPES, CutStory, many, problems

SEEDS = 250


@pytest.mark.parametrize("seeds", [SEEDS // 5, pytest.param(SEEDS, marks=pytest.mark.slow)])
def test_each_prompt_is_trained_once_under_any_schedule(seeds):
    rows = {row["prompts from"]: row for row in many(range(seeds))}
    assert rows.keys() == SHAPES.keys()
    for row in rows.values():
        assert row["problems"] == []
        assert row["schedules"] == seeds
        assert min(row["cuts"], row["restores"]) > 5 * seeds
        # What a restore loses is the work since the last cut, a part of the job.
        assert 0 < row["lost per restore"] < 6
    assert rows["queues"]["passed over"] > seeds


def test_without_a_whole_cut_all_begins_anew():
    stories = [CutStory(seed) for seed in range(50)]
    assert not [story for story in stories if problems(story)]
    assert sum(story.anew for story in stories) > 10


@pytest.mark.parametrize(
    ("bug", "shape"),
    [
        *((bug, "queues") for bug in ("acknowledgement", "marker", "future", "logged", "alone")),
        *((bug, "shards") for bug in ("positions", "lease")),
        *((bug, "calls") for bug in ("answered", "stale answer", "marker")),
        ("set aside", "queues, failing ranks"),
    ],
)
def test_a_planted_bug_is_found(bug, shape):
    assert any(problems(CutStory(seed, bug, **SHAPES[shape])) for seed in range(SEEDS))


def test_the_command_shows_a_row_for_each_shape(capsys, monkeypatch):
    assert main.run(["sim", "--cuts", "--seeds", "2", "--from", "7", "-o", "json"]) == 0
    assert [row["schedules"] for row in json.loads(capsys.readouterr().out)] == [2] * len(SHAPES)
    monkeypatch.setattr(cuts, "wrong", lambda _: "twice [3], never []")
    assert main.run(["sim", "--cuts", "--seeds", "1"]) == 1
    output = capsys.readouterr().out
    assert "prompts from" in output
    assert "broken: prompts from calls, seed 0: twice [3], never []" in output
    assert main.run(["sim", "--cuts", "--nodes", "3"]) == 2
