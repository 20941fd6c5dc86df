"""What is generated is in the repository as it is made, asks only what is served, and points at pages that exist."""

from __future__ import annotations

import json
import re

import pytest
from generate import generated, main
from queries import asked, load, metrics, panels, variable_queries
from rules import ALERTS, RECORDINGS

from dljob.telemetry.catalog import served

PAGES = [text for path, text in generated().items() if path.endswith(".json")]
OF_PROMETHEUS = {"ALERTS"}
VARIABLES = {"namespace": "ns", "dljob": "name", "operator": ".*", "datasource": "d"}
SECTIONS = ["Meaning", "Impact", "First three commands", "Causes, likeliest first", "Silence"]


def title(text):
    return json.loads(text)["title"]


def test_the_repository_holds_what_is_generated(root, capsys):
    assert main(["--check"], root) == 0, capsys.readouterr().err


def test_a_stale_file_is_named_and_then_written(tmp_path, capsys):
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    (tmp_path / "docs/reference/metrics.md").write_text("old")
    capsys.readouterr()
    assert main(["--check"], tmp_path) == 1
    assert capsys.readouterr().err == (
        "docs/reference/metrics.md is out of date: run python observability/generate.py\n"
    )
    assert (tmp_path / "docs/reference/metrics.md").read_text() == "old", "--check writes nothing"
    assert main(["--chekc"], tmp_path) == 2


@pytest.mark.parametrize("text", PAGES, ids=title)
def test_a_dashboard_asks_only_metrics_of_the_catalogue(text):
    page = load(text)
    exprs = [query.expr for panel in panels(page) for query in asked(panel, VARIABLES)]
    exprs += [series for _, series, _ in variable_queries(page, VARIABLES)]
    assert len(exprs) > 10
    unknown = {name for expr in exprs for name in metrics(expr)} - served() - OF_PROMETHEUS
    assert not unknown


def test_a_metric_that_nobody_serves_would_be_seen():
    expr = 'sum by (le) (rate(dljob_nonsense_total{job="dljob_step"}[5m] offset 1h)) / on (a) group_left dljob_step'
    assert metrics(expr) >= {"dljob_nonsense_total", "dljob_step"}
    assert "dljob_nonsense_total" not in served()


@pytest.mark.parametrize("text", PAGES, ids=title)
def test_a_dashboard_is_well_made(text):
    page = load(text)
    assert page["uid"].startswith("dljob-")
    shown = list(panels(page))
    ids = [panel["id"] for panel in page["panels"]]
    assert sorted(set(ids)) == sorted(ids)
    for panel in shown:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
    titles = [panel["title"] for panel in shown if panel["type"] != "stat"]
    assert len(titles) == len(set(titles))


UNITS = {"none", "short", "percentunit", "s", "dtdurations", "ops", "reqps", "suffix: /min"}
COLUMN, LETTER = 58.5, 8.2
"""Pixels: of a column of the grid on a window of 1440, and of a letter of a title, which is bold."""


@pytest.mark.parametrize("text", PAGES, ids=title)
def test_every_panel_has_a_unit_and_a_share_ends_at_one_hundred_percent(text):
    for panel in panels(load(text)):
        defaults = panel["fieldConfig"]["defaults"]
        if panel["type"] in ("stat", "timeseries"):
            assert defaults["unit"] in UNITS, panel["title"]
        if panel["type"] == "timeseries":
            assert defaults["min"] == 0, panel["title"]
            assert defaults.get("max") == (1 if defaults["unit"] == "percentunit" else None), panel["title"]
        if panel["type"] == "table":
            (names,) = (t["options"]["renameByName"] for t in panel["transformations"] if t["id"] == "organize")
            having = {
                override["matcher"]["options"]
                for override in panel["fieldConfig"]["overrides"]
                for one in override["properties"]
                if one["id"] == "unit" and one["value"] in UNITS
            }
            assert {to for field, to in names.items() if field.startswith("Value")} <= having, panel["title"]


@pytest.mark.parametrize("text", PAGES, ids=title)
def test_every_title_fits_into_its_panel(text):
    for panel in load(text)["panels"]:
        assert len(panel["title"]) * LETTER < panel["gridPos"]["w"] * COLUMN - 28, panel["title"]


@pytest.mark.parametrize("text", PAGES, ids=title)
def test_what_is_counted_has_no_halves_on_its_axis(text):
    counted = re.compile(r"^(?:round|sum|max)\b[^/]*dljob_(?:workers|units|jobs|restarts|step|master_epoch)\w*\{")
    for panel in panels(load(text)):
        exprs = [query.expr for query in asked(panel, VARIABLES)]
        if panel["type"] == "timeseries" and all(counted.match(expr) for expr in exprs):
            assert panel["fieldConfig"]["defaults"].get("decimals") == 0, panel["title"]


def test_the_pages_name_the_commands_that_know_the_cause():
    """And each of them is one that dljob has, with these flags."""
    from dljob.cli.main import build

    named = 0
    for text in PAGES:
        for panel in load(text)["panels"]:
            if panel["type"] != "text":
                continue
            lines = re.findall(r"`dljob ([^`]+)`", panel["options"]["content"])
            assert {"why", "open"} <= {line.split()[0] for line in lines}
            assert len(lines) * 21 + 48 <= panel["gridPos"]["h"] * 38, "a line of text is cut"
            for line in lines:
                words = line.replace("$dljob", "JOB").replace("$namespace", "NAMESPACE").split()
                build().parse_args(words, exit_on_error=False, print_error=False)
                named += 1
    assert named == 6


@pytest.mark.parametrize("text", PAGES, ids=title)
def test_panels_fill_the_grid_without_overlap(text):
    taken = set()
    for panel in load(text)["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len(taken) == 24 * (max(y for _, y in taken) + 1), "a hole in the grid"


def test_links_between_dashboards_lead_somewhere():
    uids = {load(text)["uid"] for text in PAGES}
    for text in PAGES:
        assert set(re.findall(r'"/d/([a-z-]+)\?', text)) <= uids


def test_rules_ask_only_metrics_of_the_catalogue():
    recorded = {rule.record for rule in RECORDINGS}
    for rule in (*RECORDINGS, *ALERTS):
        names = metrics(rule.expr)
        assert names
        assert names <= served() | recorded, rule


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a.name)
def test_an_alert_names_its_job_and_its_runbook(alert, root):
    assert alert.name.startswith("DLJob")
    assert re.fullmatch(r"\d+m", alert.wait)
    about_one_job = "dljob_status_phase" in alert.expr or "dljob_phase" in alert.expr or "namespace_dljob" in alert.expr
    assert ("$labels.dljob" in alert.summary) == about_one_job
    page = (root / alert.runbook).read_text()
    assert page.startswith(f"# {alert.name}\n")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == SECTIONS
    commands = page.split("## First three commands\n```\n")[1].split("```")[0].splitlines()
    assert len(commands) == 3
    assert re.search(r"^1\. \*\*", page, re.MULTILINE), "causes are numbered by likelihood"
    assert f"alertname={alert.name}" in page


def test_every_runbook_has_its_alert_and_its_links_exist(root):
    folder = root / "docs/runbooks"
    assert {path.stem for path in folder.glob("*.md")} == {alert.name for alert in ALERTS}
    for path in folder.glob("*.md"):
        for link in re.findall(r"\]\(([^)]+)\)", path.read_text()):
            assert (folder / link).exists(), f"{path.name}: {link}"


def test_the_runbooks_commands_are_ones_that_dljob_has(root):
    from dljob.cli.main import build

    found = 0
    for path in (root / "docs/runbooks").glob("*.md"):
        for block in path.read_text().split("```")[1::2]:
            for line in block.splitlines():
                if line.startswith("dljob "):
                    words = line.replace("RANK", "1").split()[1:]
                    build().parse_args(words, exit_on_error=False, print_error=False)
                    found += 1
    assert found >= 5
