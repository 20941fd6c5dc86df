"""The metrics as data: names, labels, units."""

from __future__ import annotations

import re

import pytest

from dljob.telemetry.catalog import CATALOG, GATEWAY, OPERATOR, served

FORBIDDEN = {"job", "instance", "rank", "pod", "node", "le", "quantile"}


@pytest.mark.parametrize("metric", CATALOG.values(), ids=lambda m: m.name)
def test_a_metric_keeps_the_rules_of_names(metric):
    assert re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert not FORBIDDEN & set(metric.labels), "Prometheus or the cardinality rule keeps these labels"
    assert metric.help.endswith(".")
    assert "\n" not in metric.help


def test_names_are_unique_and_each_has_one_server():
    assert len(CATALOG) == len(OPERATOR) + len(GATEWAY)
    assert {m.by for m in OPERATOR} == {"operator"}
    assert {m.by for m in GATEWAY} == {"gateway"}
    assert all({"namespace", "dljob"} <= set(m.labels) for m in GATEWAY)


def test_a_metrics_unit_is_the_suffix_of_its_name():
    units = {name: CATALOG[name].unit for name in CATALOG}
    assert units["dljob_startup_seconds"] == units["dljob_running_seconds"] == "seconds"
    assert units["dljob_operator_build_info"] == "info"
    assert units["workqueue_depth"] == units["dljob_restarts_total"] == ""


def test_a_histogram_is_queried_by_its_three_series():
    names = served()
    assert {"dljob_startup_seconds_bucket", "dljob_startup_seconds_sum", "dljob_startup_seconds_count"} <= names
    assert "dljob_startup_seconds" not in names
    assert "dljob_step" in names
