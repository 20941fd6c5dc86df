"""How values and axes look in the pictures."""

from __future__ import annotations

import pytest
from drawn_panels import Span, series_of, table, text, timeseries
from drawn_values import legend, shown, threshold, ticks


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.5, "percentunit", "50 %"),
        (1234, "none", "1234"),
        (1234, "short", "1.23 K"),
        (0.25, "ops", "0.25 ops/s"),
        (0.0175, "s", "17.5 ms"),
        (90, "s", "1.5 min"),
        (0, "s", "0 s"),
        (7384, "dtdurations", "2h 3m"),
        (0, "dtdurations", "0s"),
        (3.35, "suffix: /min", "3.35 /min"),
        (float("nan"), "s", "NaN"),
    ],
)
def test_values_are_shown_in_their_unit(value, unit, text):
    assert shown(value, unit) == text


@pytest.mark.parametrize(
    ("top", "unit", "marks"),
    [
        (0, "", [0, 1]),
        (7, "", [0, 2, 4, 6, 8]),
        (100, "", [0, 25, 50, 75, 100]),
        (100, "s", [0, 30, 60, 90, 120]),
        (0.4, "s", [0, 0.1, 0.2, 0.3, 0.4]),
    ],
)
def test_axes_have_round_numbers(top, unit, marks):
    assert ticks(top, unit) == pytest.approx(marks)


def test_an_axis_of_counts_has_no_halves():
    assert ticks(1, whole_numbers=True) == [0, 1]
    assert ticks(10, whole_numbers=True) == [0, 3, 6, 9, 12]


def test_series_are_named_by_their_labels():
    assert legend("{{phase}}", {"phase": "Running"}) == "Running"
    assert legend("{{missing}}!", {}) == "!"
    assert legend("__auto", {"__name__": "up", "a": "1"}) == "a=1"


def panel(**more):
    config = {
        "defaults": {
            "unit": "none",
            "custom": {},
            "thresholds": {"steps": [{"value": None, "color": "green"}, {"value": 5, "color": "red"}]},
        },
        "overrides": [
            {
                "matcher": {"id": "byRegexp", "options": "/^(bad)$/"},
                "properties": [{"id": "color", "value": {"fixedColor": "red"}}],
            }
        ],
    }
    options = {"legend": {"placement": "bottom"}}
    return {"fieldConfig": config, "options": options, "targets": [{"legendFormat": "{{a}}", "refId": "A"}], **more}


def test_a_threshold_and_an_override_give_the_colour():
    assert threshold(4.9, panel()["fieldConfig"]) == "green"
    assert threshold(5, panel()["fieldConfig"]) == "red"
    answer = [{"metric": {"a": name}, "values": [[0, "1"]]} for name in ("good", "bad")]
    assert [(s.name, s.colour == "red") for s in series_of(panel(), [answer])] == [("bad", True), ("good", False)]


def test_a_gap_ends_a_line_and_nan_is_left_out():
    values = [[0, "1"], [30, "2"], [60, "NaN"], [90, "2"], [300, "1"]]
    html = timeseries(panel(), [[{"metric": {"a": "x"}, "values": values}]], Span(0, 300, 30), 400, 300)
    assert html.count("<polyline") == 3
    assert "nan" not in html.lower()


def test_an_axis_ends_where_the_panel_says():
    made = panel()
    made["fieldConfig"]["defaults"] |= {"unit": "percentunit", "max": 1}
    answer = [{"metric": {"a": "x"}, "values": [[0, "1"], [30, "0.99"]]}]
    html = timeseries(made, [answer], Span(0, 300, 30), 400, 300)
    assert ">100 %<" in html
    assert ">125 %<" not in html
    assert ">150 %<" not in html


def test_a_legend_of_names_has_no_values():
    made = panel()
    made["options"]["legend"]["displayMode"] = "list"
    html = timeseries(made, [[{"metric": {"a": "x"}, "values": [[0, "1"]]}]], Span(0, 300, 30), 400, 300)
    assert "</i>x</span>" in html
    assert "Last" not in html


def test_a_text_has_the_chosen_job_in_its_commands():
    made = {"options": {"content": "`dljob why $dljob -n $namespace` tells <why>  \n`dljob open $dljob` opens it"}}
    html = text(made, {"dljob": "a", "namespace": "b"})
    assert "<code>dljob why a -n b</code> tells &lt;why&gt;" in html
    assert "<code>dljob open a</code> opens it" in html


def test_a_table_joins_its_queries_on_the_labels_they_share():
    organize = {
        "indexByName": {"a": 0, "b": 1, "Value #B": 2},
        "renameByName": {"a": "A", "b": "B", "Value #B": "Steps"},
        "includeByName": {"a": True, "b": True, "Value #B": True},
    }
    targets = [{"legendFormat": "", "refId": ref} for ref in "AB"]
    made = panel(
        targets=targets, transformations=[{"id": "merge", "options": {}}, {"id": "organize", "options": organize}]
    )
    first = [{"metric": {"a": "<1>", "b": "x"}, "value": [0, "1"]}, {"metric": {"a": "2", "b": "y"}, "value": [0, "1"]}]
    html = table(made, [first, [{"metric": {"a": "<1>"}, "value": [0, "7"]}]])
    assert "<tr><th>A</th><th>B</th><th>Steps</th></tr>" in html
    assert "<tr><td>&lt;1&gt;</td><td>x</td><td>7</td></tr>" in html
    assert "<tr><td>2</td><td>y</td><td></td></tr>" in html
    empty = table(made, [[], []])
    assert "No data" in empty
