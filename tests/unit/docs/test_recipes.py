"""The tables of recipes show the figures that were measured, and say of each other one that it was not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def recipes() -> Any:
    sys.path.insert(0, str(ROOT / "tests" / "bench" / "frameworks"))
    import recipes

    return recipes


@pytest.fixture
def no_figures(recipes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module that keeps figures, in a folder without any."""
    import recipe_figures

    monkeypatch.setattr(recipe_figures, "FIGURES", tmp_path / "figures.jsonl")
    return recipe_figures


def test_pages_have_the_figures_that_were_measured(recipes: Any) -> None:
    for framework, recipe in recipes.RECIPES.items():
        page = (recipes.PAGES / f"{recipe.page}.md").read_text()
        assert f"<!-- events of {framework} -->" in page
        assert recipes.rendered(page) == page, "run: make recipes ARGS=--table"


def test_each_page_has_a_table_of_the_same_events(recipes: Any) -> None:
    assert {recipe.page for recipe in recipes.RECIPES.values()} == {path.stem for path in recipes.PAGES.glob("*.md")}
    for framework in recipes.RECIPES:
        titles = [line.split("|")[1].strip() for line in recipes.table(framework).splitlines() if line.startswith("|")]
        assert titles[2:] == list(recipes.EVENTS.values())


def test_only_what_can_be_measured_is_chosen_and_only_once(recipes: Any, no_figures: Any) -> None:
    chosen = recipes.chosen([])
    assert ("transformers_serve", "rank", "alone") in chosen
    assert ("vllm_serve", "two", "here") not in chosen, "one server has no second rank"
    assert not [one for one in chosen if one[0] == "sglang_serve"]
    assert "not run: needs a GPU" in recipes.table("sglang_serve")
    no_figures.note(no_figures.Figure("transformers_serve", "rank", "alone", 1.0, 1))
    assert ("transformers_serve", "rank", "alone") not in recipes.chosen([])
    assert recipes.chosen(["rank", "transformers_serve"]) == [
        ("transformers_serve", "rank", "alone"),
        ("transformers_serve", "rank", "here"),
    ]


def test_requests_without_an_answer_are_lost(recipes: Any) -> None:
    import server_events

    rows = [
        ("begun", 1.0, ""),
        ("lost", 2.0, "refused"),
        ("begun", 3.0, ""),
        ("begun", 9.0, ""),
        ("answered", 9.5, "w"),
    ]
    assert server_events.first_answer(rows, 1.0) == 9.5
    assert server_events.first_answer(rows, 9.5) is None
    assert server_events.lost(rows, 9.5) == 2, "one was refused, and one ended with its caller"
    with pytest.raises(RuntimeError, match="different answers"):
        server_events.first_answer([*rows, ("answered", 11.0, "x")], 1.0)


def test_steps_that_the_last_life_trained_again_are_counted(recipes: Any) -> None:
    import ppo_events

    assert ppo_events.trained_again([0, 1, 2, 3, 4], 3, resumed=False) == 0, "it went on"
    assert ppo_events.trained_again([0, 1, 2, 2, 3, 4], 3, resumed=False) == 1, "from the checkpoint of step 2"
    assert ppo_events.trained_again([0, 1, 2, 3, 2, 3, 4], 3, resumed=False) == 1
    assert ppo_events.trained_again([2, 3, 4], 3, resumed=True) == 1
    assert ppo_events.lives([0, 1, 2, 3, 2, 3, 4]) == 2
