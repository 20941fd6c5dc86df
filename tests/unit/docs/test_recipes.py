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


def test_pages_have_the_figures_that_were_measured(recipes: Any) -> None:
    for framework, name in recipes.FRAMEWORKS.items():
        page = (recipes.PAGES / f"{name}.md").read_text()
        assert f"<!-- events of {framework} -->" in page
        assert recipes.rendered(page) == page, "run: make recipes ARGS=--table"


def test_a_table_says_what_was_not_measured_and_why_an_event_is_absent(recipes: Any, tmp_path: Path) -> None:
    kept, recipes.FIGURES = recipes.FIGURES, tmp_path / "figures.jsonl"
    try:
        recipes.note(recipes.Figure("trl_sft", "rank", "alone", 12.0, 1))
        recipes.note(recipes.Figure("trl_sft", "rank", "alone", 12.5, 1))  # measured anew
        recipes.note(recipes.Figure("trl_sft", "hang", "alone", 90.0, 2, again="nothing for 60 s: started again"))
        recipes.note(recipes.Figure("trl_sft", "error", "here", ended=7.0, lives=2))
        *lines, _, machine = recipes.table("trl_sft").splitlines()
    finally:
        recipes.FIGURES = kept
    rows = dict(line.split("|")[1:3] for line in lines)
    here = dict(line.split("|")[1:4:2] for line in lines)
    assert rows[" one rank killed "] == " 12.5 s, 1 step "
    assert rows[" a rank stopped by SIGSTOP "] == " 90.0 s, 2 steps; nothing for 60 s: started again "
    assert rows[" two ranks killed "] == " not measured yet "
    assert rows[" the master killed "].startswith(" n/a, because ")
    assert here[" the same error twice "] == " ends after 7.0 s, in life 2 "
    assert machine == "Measured with 4 ranks on 0 processors, a load of 0.0 to 0.0 before it."
