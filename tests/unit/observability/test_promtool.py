"""Rules and metrics as Prometheus' own tool reads them."""

from __future__ import annotations

import re

import pytest
from rules import ALERTS

from dljob.telemetry.catalog import CATALOG
from dljob.telemetry.exposition import exposition, sample


def test_promtool_accepts_the_rule_file(promtool, root):
    done = promtool(
        "check", "rules", "--lint=all", "--lint-fatal", root / "charts/dljob/observability/rules/dljob.yaml"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "15 rules found" in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["jobs", "operator"])
def test_alerts_fire_when_they_should_and_only_then(promtool, root, name):
    done = promtool("test", "rules", root / f"observability/tests/{name}.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_to_fire_and_not_to_fire(root):
    text = "".join(path.read_text() for path in (root / "observability/tests").glob("*.yaml"))
    for alert in ALERTS:
        assert re.search(rf"eval_time: \d+m, alertname: {alert.name}\}}", text), f"{alert.name} never has to be silent"
        assert re.search(rf"alertname: {alert.name}\n +exp_alerts:", text), f"{alert.name} never has to fire"


def test_promtool_finds_nothing_wrong_with_the_metrics(promtool):
    plain = [m for m in CATALOG.values() if m.kind != "histogram"]
    text = exposition(sample(m.name, tuple("x" for _ in m.labels), 1) for m in plain)
    done = promtool("check", "metrics", stdin=text)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = text.replace("dljob_restarts_total", "dljob_restarts")
    assert promtool("check", "metrics", stdin=wrong).returncode == 3, "a counter without _total is seen"
