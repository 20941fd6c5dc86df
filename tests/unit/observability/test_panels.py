"""Every panel of every dashboard gets data from a real Prometheus that holds three hours of a fleet."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import preview
import pytest
import real_prometheus
import scenario
from drawn_panels import Span
from queries import asked, load, panels, variable_queries

pytestmark = [pytest.mark.slow, pytest.mark.live]
BEGIN = scenario.END - 3600 * scenario.HOURS
VALUES = {
    "fleet": {"namespace": ".*"},
    "job": scenario.SHOWN,
    "operator": {"operator": ".*"},
}


@pytest.fixture(scope="module")
def server(promtool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prometheus")
    real_prometheus.backfill(scenario.recording(), folder / "data")
    with real_prometheus.serving(folder, flags=scenario.FLAGS) as running:
        yield running


@pytest.mark.parametrize("name", VALUES)
def test_every_panel_gets_data(server, root, name):
    page = load((root / f"charts/dljob/observability/dashboards/{name}.json").read_text())
    empty = []
    for panel in panels(page):
        for query in asked(panel, VALUES[name]):
            if query.instant:
                found = server.query(query.expr, scenario.END)
            else:
                found = server.query_range(query.expr, BEGIN, scenario.END, 30)
            if not found:
                empty.append(f"{query.panel} {query.ref}: {query.expr}")
    assert not empty


def units(panel: Mapping) -> set[str]:
    """The units of a panel's values: of a table, those of its columns."""
    own = panel["fieldConfig"]["defaults"].get("unit")
    columns = (one for override in panel["fieldConfig"].get("overrides", ()) for one in override["properties"])
    return {own} - {None} | {one["value"] for one in columns if one["id"] == "unit"}


@pytest.mark.parametrize("name", VALUES)
def test_every_value_is_a_number_that_its_axis_can_show(server, root, name):
    page = load((root / f"charts/dljob/observability/dashboards/{name}.json").read_text())
    wrong = []
    for panel in panels(page):
        most = panel["fieldConfig"]["defaults"].get("max", math.inf)
        for query in asked(panel, VALUES[name]):
            if query.instant:
                values = [series["value"][1] for series in server.query(query.expr, scenario.END)]
            else:
                found = server.query_range(query.expr, BEGIN, scenario.END, 30)
                values = [value for series in found for _, value in series["values"]]
            odd = [value for value in map(float, values) if not (math.isfinite(value) and 0 <= value <= most + 1e-9)]
            wrong += [(query.panel, query.ref, odd[:3])] if odd else []
            if units(panel) == {"percentunit"}:
                assert max(map(float, values)) <= 1 + 1e-9, query.panel
    assert not wrong


def test_the_job_of_the_pictures_meets_every_kind_of_restart(server):
    of = ",".join(f'{label}="{value}"' for label, value in scenario.SHOWN.items())
    found = server.query(f"dljob_restarts_total{{{of}}} > 0", scenario.END)
    levels = {series["metric"]["level"] for series in found}
    assert levels == {"InProcess", "Process", "RoleGroup", "Role", "Job", "Node"}
    assert float(server.query(f"max(dljob_master_epoch{{{of}}})", scenario.END)[0]["value"][1]) == 2


@pytest.mark.parametrize("name", VALUES)
def test_every_panel_can_be_drawn(server, root, name):
    text = (root / f"charts/dljob/observability/dashboards/{name}.json").read_text()
    span = Span(BEGIN, scenario.END, 30)
    html, _ = preview.page(text, server, VALUES[name], span)
    assert html.count('class="panel"') == sum(panel["type"] != "row" for panel in load(text)["panels"])
    assert 'class="none"' not in html
    assert "NaN" not in html


@pytest.mark.parametrize("name", VALUES)
def test_every_variable_has_values(server, root, name):
    page = load((root / f"charts/dljob/observability/dashboards/{name}.json").read_text())
    for variable, series, label in variable_queries(page, VALUES[name]):
        found = server.label_values(label, series, BEGIN, scenario.END)
        assert found, variable
        assert VALUES[name][variable] in (".*", *found)


def test_a_table_has_one_line_a_job(server, root):
    """The table joins on labels that all its queries give: what one gives beyond that would double lines."""
    page = load((root / "charts/dljob/observability/dashboards/fleet.json").read_text())
    (table,) = [panel for panel in panels(page) if panel["title"] == "DLJobs"]
    first, *others = asked(table, VALUES["fleet"])
    jobs = [(s["metric"]["namespace"], s["metric"]["dljob"]) for s in server.query(first.expr, scenario.END)]
    assert len(set(jobs)) == len(jobs) == len(scenario.STORIES)
    for query in others:
        found = server.query(query.expr, scenario.END)
        assert all(set(series["metric"]) == {"namespace", "dljob"} for series in found), query.expr


def test_the_story_is_one_that_rules_would_tell(server, root):
    """The alerts in the recording are those whose expressions hold at its end."""
    from rules import ALERTS, RECORDINGS

    recorded = {rule.record: f"({rule.expr})" for rule in RECORDINGS}
    for alert in ALERTS:
        expr = alert.expr
        for name, inner in recorded.items():
            expr = expr.replace(name, inner)
        holds = {s["metric"].get("dljob", "") for s in server.query(expr, scenario.END)}
        query = json.dumps(alert.name)
        told = {s["metric"].get("dljob", "") for s in server.query(f"ALERTS{{alertname={query}}}", scenario.END)}
        assert told == holds, alert.name
