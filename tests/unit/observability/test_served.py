"""What the operator's code serves is what the catalogue says, as promtool likes it."""

from __future__ import annotations

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dljob.telemetry.catalog import CONTROLLER, OPERATOR
from dljob_operator.controller.metrics import Metrics
from dljob_operator.watch.cache import Cache, CachedObject
from dljob_operator.watch.workqueue import Key, WorkQueue


def served():
    """The operator's page after one of everything."""
    metrics, queue, cache = Metrics("0.1.0"), WorkQueue(), Cache()
    metrics.observe(queue, cache, lambda: True)
    key = Key("ns", "job")
    cache.jobs.entries[key] = CachedObject("uid", 1, key, {"status": {"phase": "Running", "master": {"epoch": 1}}})
    metrics.reconciled("error", 0.02)
    metrics.called("GET", 200)
    metrics.called("PATCH", 0)
    metrics.count_call(503)
    metrics.missed("Pod", 2)
    metrics.stage("head", 12.0)
    return generate_latest(metrics.registry).decode()


def families():
    found = {}
    for family in text_string_to_metric_families(served()):
        if not family.name.endswith("_created"):
            found[family.name + ("_total" if family.type == "counter" else "")] = family
    return found


def test_the_operator_serves_the_catalogue_and_nothing_else():
    found = families()
    assert set(found) == {metric.name for metric in OPERATOR}
    for metric in OPERATOR:
        family = found[metric.name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        for one in family.samples:
            assert set(one.labels) - {"le"} == set(metric.labels), one
        if metric.buckets:
            bounds = {float(one.labels["le"]) for one in family.samples if "le" in one.labels}
            assert bounds == {*metric.buckets, float("inf")}


def test_the_values_that_dashboards_select_are_those_that_are_served():
    found = families()
    for name in ("controller_runtime_reconcile_total", "controller_runtime_reconcile_time_seconds"):
        assert {one.labels["controller"] for one in found[name].samples} == {CONTROLLER}
    assert {one.labels["name"] for one in found["workqueue_depth"].samples} == {CONTROLLER}
    (phase,) = found["dljob_status_phase"].samples
    assert phase.labels == {"namespace": "ns", "dljob": "job", "phase": "Running"}


def test_promtool_finds_nothing_wrong_with_the_operators_page(promtool):
    done = promtool("check", "metrics", stdin=served())
    assert done.returncode == 0, done.stdout + done.stderr
