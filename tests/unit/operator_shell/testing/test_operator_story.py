"""The operator in its world: seeds break no law, bugs that are planted do, and what breaks one happens again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from operator_bugs import BUGS

from dljob.cli.main import run
from dljob.testing.simulate.shrink import fewest
from dljob_operator.testing import scenario as stories
from dljob_operator.testing.faults import HARMLESS, KINDS

FOUND: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "forgets_the_last_cluster": (("head restarts", "head deleted"), {"two clusters"}),
    "counts_no_restart": (("head restarts", "head deleted"), {"budget"}),
    "waits_for_dead_kubelets": (("node lost for ever",), {"stuck", "no end", "left"}),
    "never_lets_go": ((), {"held"}),
    "lets_go_too_early": (("deleted",), {"left running"}),
    "annotates_again_and_again": ((), {"restless", "storm"}),
    "does_not_wait_for_ranks": (("head restarts", "head deleted", "worker's node lost"), {"two live"}),
    "keeps_the_cluster": ((), {"left"}),
    "forgets_what_it_made": ((), {"restless", "storm"}),
    "hears_no_verdict": ((), {"no end"}),
    "suspends_without_waiting": (("job suspended",), {"not gone"}),
    "counts_a_suspension": (("job suspended",), {"budget"}),
    "never_resumes": (("job suspended",), {"no end"}),
    "obeys_an_order_from_before_the_end": (("resume", "stop", "deadline changed"), {"order"}),
    "believes_a_late_watch": (("rewound",), {"false loss", "cost"}),
    "polls_the_last_head": (("head restarts", "head deleted"), {"restless", "no end"}),
    "forgets_news_during_a_pass": ((), {"no end", "left"}),
    "tries_no_second_time": (("api",), {"no end"}),
    "reads_without_a_timeout": (("api slow", "cluster deleted"), {"hung"}),
    "polls_without_a_timeout": (("head slow",), {"hung"}),
    "never_lists_again": (("lost", "cluster deleted"), {"no end"}),
}
"""Bug -> the kinds of mishaps that show it (none: all), and the laws that it breaks, one of them first."""
FOUND_IN: dict[str, tuple[str, set[str]]] = {
    "counts_no_grace": ("a-head-that-outlives-its-suspended-attempt", {"two live"}),
    "lets_go_of_a_suspended_cluster": ("deleted-while-a-shared-raycluster-is-suspended", {"left running"}),
    "stops_with_a_suspended_cluster": ("a-shared-raycluster-suspended-for-a-moment", {"left running"}),
    "releases_a_living_head": ("a-shared-raycluster-deleted-under-a-job-that-goes", {"left running"}),
    "suspends_without_force": ("suspended-while-a-lost-node-holds-a-pod", {"no end"}),
    "keeps_a_late_cluster": ("a-raycluster-that-comes-after-its-attempt", {"left"}),
    "forgets_earlier_attempts": ("suspended-while-a-lost-node-holds-an-earlier-pod", {"not gone"}),
}
"""Bug -> the case that shows it, and the laws that it breaks: seeds hardly ever bring these faults in this order.

Each seed draws other delays for the faults of the case, so that no change of the order of draws hides a bug.
"""
SEEDS = 120
CASES = Path(__file__).resolve().parents[3] / "replay" / "cases" / "operator"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_seeds_break_no_law_whatever_goes_wrong(part):
    found = stories.many(range(part * 60, part * 60 + 60))
    assert found["failures"] == []
    assert found["seeds"] == 60
    assert found["mostWritesUnprovoked"] < 20


def test_every_bug_is_looked_for():
    assert FOUND.keys() | FOUND_IN.keys() == BUGS.keys()
    assert all(set(kinds) <= set(KINDS) for kinds, _ in FOUND.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FOUND))
def test_a_planted_bug_is_found(name, monkeypatch, record_property):
    kinds, laws = FOUND[name]
    BUGS[name](monkeypatch)
    for seed in range(SEEDS):
        problems = stories.tell(stories.story_of(seed, kinds)).problems
        if problems:
            record_property("seed", seed)
            assert problems[0].partition(":")[0] in laws
            return
    pytest.fail(f"not found by {SEEDS} seeds")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FOUND_IN))
def test_a_bug_that_was_mended_is_found_when_it_is_back(name, monkeypatch, record_property):
    case, laws = FOUND_IN[name]
    story = stories.load(json.loads((CASES / f"{case}.json").read_text()))
    BUGS[name](monkeypatch)
    for seed in range(SEEDS):
        problems = stories.tell(replace(story, seed=seed)).problems
        if problems:
            record_property("seed", seed)
            assert problems[0].partition(":")[0] in laws
            return
    pytest.fail(f"not found by {SEEDS} draws of its delays")


def test_a_failure_is_cut_down_and_happens_again(monkeypatch, tmp_path, capsys):
    BUGS["keeps_the_cluster"](monkeypatch)
    seed = next(seed for seed in range(50) if stories.tell(stories.story_of(seed)).problems)
    assert run(["sim", "--operator", "--seeds", str(seed + 1), "--save", str(tmp_path)]) == 1
    assert "violated an invariant" in capsys.readouterr().out
    (saved,) = tmp_path.glob(f"seed-{seed}.json")
    case = json.loads(saved.read_text())
    assert case["faults"] == []
    assert run(["sim", "--replay", str(saved), "-o", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["problems"][0].startswith("left:")
    assert told["case"] == case


def test_a_seed_is_one_story():
    story = stories.story_of(7)
    assert stories.run_story(story) == stories.run_story(stories.load(json.loads(json.dumps(stories.dump(story)))))
    assert stories.run_story(story)["trace"]


@pytest.mark.parametrize("case", sorted(CASES.glob("*.json")), ids=lambda case: case.stem)
def test_a_case_that_broke_a_law_once_breaks_none_any_more(case):
    assert stories.tell(stories.load(json.loads(case.read_text()))).problems == ()


def test_a_harmless_planted_bug_is_named():
    assert set(KINDS) > HARMLESS


def test_shrinking_finds_the_fewest_items_that_still_fail():
    assert fewest(tuple(range(40)), lambda tried: {3, 17, 18} <= set(tried)) == (3, 17, 18)
    assert fewest((), lambda tried: True) == ()
    assert fewest((1,), lambda tried: True) == ()
