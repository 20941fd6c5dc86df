"""The page of figures is made of figures.json, and says of each script when and where it ran, and what is missed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
ROW = {
    "name": "x-1",
    "what": "a thing",
    "target": "<= 1 s",
    "value": 0.25,
    "limit": 1.0,
    "unit": "s",
    "samples": {"dljob": [0.5, 0.25, 0.125], "bare": [2.0, 1.0]},
    "facts": {"all there": True, "count": 3, "none lost": False},
    "note": "0.25 x",
    "met": False,
}


@pytest.fixture(scope="module")
def bench() -> Any:
    sys.path.insert(0, str(BENCH))
    import figures

    return figures


@pytest.fixture(scope="module")
def scripts(bench: Any) -> tuple[str, ...]:
    import run

    assert run.figures is bench
    return run.SCRIPTS


def test_page_is_what_the_kept_figures_make(bench: Any) -> None:
    page = bench.PAGE.read_text()
    assert page.count(bench.BEGIN) == page.count(bench.END) == 1
    assert bench.rendered(page, bench.known()) == page, "run: python tests/bench/figures.py"


def test_table_of_readme_has_the_kept_figures(bench: Any) -> None:
    import readme_table

    page = readme_table.PAGE.read_text()
    assert page.count(readme_table.BEGIN) == page.count(readme_table.END) == 1
    assert readme_table.rendered(page, bench.known()) == page, "run: python tests/bench/readme_table.py"
    with pytest.raises(LookupError, match=r"submit: no row begins with 'no such'"):
        readme_table.Ref("submit", "no such").value(bench.known())


def test_kept_figures_are_in_the_order_of_scripts_that_exist(bench: Any, scripts: tuple[str, ...]) -> None:
    kept = list(bench.known())
    assert kept == [name for name in scripts if name in kept]
    assert all(bench.script(name).exists() for name in scripts)


def test_rows_of_a_script_replace_its_earlier_ones(bench: Any) -> None:
    facts = {"when": "today", "where": "here", "how": "quiet"}
    once = bench.merged({}, "hang", [ROW, ROW], facts, ("restart", "hang"))
    twice = bench.merged(
        bench.merged(once, "restart", [ROW], facts, ("restart", "hang")), "hang", [ROW], facts, ("hang",)
    )
    assert list(bench.merged(once, "restart", [ROW], facts, ("restart", "hang"))) == ["restart", "hang"]
    assert len(twice["hang"]["rows"]) == 1


def test_section_has_cells_facts_spread_and_verdict(bench: Any) -> None:
    kept = bench.merged({}, "hang", [ROW], {"when": "today", "where": "here", "how": "quiet"}, ("hang",))
    text = bench.section("hang", kept["hang"])
    assert "today, here; quiet." in text
    assert "| a thing | <= 1 s | 0.250 s (all there: yes; count: 3; none lost: NO; 0.25 x) | 1.00 s | **no** |" in text
    assert "Smallest / median / largest: dljob 0.125 / 0.25 / 0.5 (n=3); bare 1 / 1.5 / 2 (n=2)." in text
    assert bench.summary(kept).splitlines()[0] == "0 of 1 figures are within their limits. Missed:"
    assert "([hang](#hang))" in bench.summary(kept)


def test_figure_without_a_limit_is_told_and_not_counted(bench: Any) -> None:
    told = ROW | {"limit": None, "met": True}
    kept = bench.merged({}, "hang", [told, ROW | {"met": True}], {"when": "", "where": "", "how": ""}, ("hang",))
    assert "| none |  |" in bench.line(kept["hang"]["rows"][0])
    assert bench.summary(kept) == "1 of 1 figures are within their limits."
    wrong = bench.merged({}, "hang", [told | {"met": False}], {"when": "", "where": "", "how": ""}, ("hang",))
    assert bench.summary(wrong).startswith("0 of 1 figures are within their limits. Missed:"), "a condition is False"


@pytest.mark.parametrize(("limit", "one_false", "met"), [(None, False, True), (None, True, False), (1.0, False, False)])
def test_row_without_a_limit_is_missed_by_its_conditions_alone(
    bench: Any, capsys: pytest.CaptureFixture[str], limit: float | None, one_false: bool, met: bool
) -> None:
    sys.path.insert(0, str(bench.HERE / "kits"))
    from bench_common import Row

    Row("x", "a thing", "", 2.0, limit, facts={"all there": not one_false}).emit()
    said = json.loads(capsys.readouterr().out)
    assert (said["limit"], said["met"]) == (limit, met)
