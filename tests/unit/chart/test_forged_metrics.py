"""A real Prometheus scrapes heads as the chart's PodMonitor says: each reports for its own namespace alone."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from chart_kit import ROOT, Helm

sys.path.append(str(ROOT / "observability"))

import real_prometheus
from monitors import scrape_config, targets

from dljob.telemetry.catalog import CATALOG, GATEWAY, OPERATOR
from dljob.telemetry.exposition import CONTENT_TYPE, exposition, sample

pytestmark = [pytest.mark.slow, pytest.mark.live]


@contextmanager
def serving(text: str) -> Iterator[tuple[int, threading.Semaphore]]:
    """Serve a text to every request; yields the port, and a semaphore that counts the requests."""
    scraped = threading.Semaphore(0)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.end_headers()
            self.wfile.write(text.encode())
            scraped.release()

        def log_message(self, *_: Any) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made.server_port, scraped
        made.shutdown()


def head(namespace: str, name: str, port: int) -> dict[str, Any]:
    """Return the head pod of a DLJob, whose gateway listens at a port of this machine."""
    labels = {"ray.io/node-type": "head", "dljob.io/name": name}
    container = {"name": "ray-head", "ports": [{"name": "dljob", "containerPort": port}]}
    return {
        "kind": "Pod",
        "metadata": {"name": f"{name}-head", "namespace": namespace, "labels": labels},
        "spec": {"containers": [container]},
        "status": {"phase": "Running", "podIP": "127.0.0.1"},
    }


def pod_monitor(helm: Helm) -> dict[str, Any]:
    return helm.render(metrics={"podMonitor": {"enabled": True}})["PodMonitor", "dljob-jobs"]


def test_a_head_cannot_report_for_another_namespace_or_for_the_operator(helm: Helm, tmp_path: Path) -> None:
    """User code runs on a head, so it may serve anything, under any labels."""
    try:
        real_prometheus.programs()
    except real_prometheus.UnavailableError as reason:
        pytest.skip(str(reason))
    honest = exposition([sample("dljob_step", ("theirs", "job"), 7), sample("dljob_step", ("theirs", "second"), 3)])
    forged = (
        'dljob_step{namespace="theirs",dljob="job",job="a",pod="b",exported_namespace="c"} 99\n'
        "dljob_operator_leader 1\n"
        "up 0\n"
    )
    monitor, file = pod_monitor(helm), tmp_path / "targets.json"
    monitor["spec"]["sampleLimit"] = 100
    flood = "".join(f'dljob_step{{dljob="{number}"}} 1\n' for number in range(101))
    with (
        serving(honest) as (port, scraped),
        serving(forged) as (forger, forger_scraped),
        serving(flood) as (flooder, flooder_scraped),
    ):
        heads = [head("theirs", "job", port), head("mine", "job", forger), head("more", "job", flooder)]
        file.write_text(json.dumps(targets(monitor, heads)))
        configuration = {**scrape_config(monitor, str(file)), "scrape_interval": "1s", "scrape_timeout": "1s"}
        with real_prometheus.serving(tmp_path, json.dumps({"scrape_configs": [configuration]})) as server:
            # The second scrape begins once the samples of the first are stored.
            for each in (scraped, scraped, forger_scraped, forger_scraped, flooder_scraped, flooder_scraped):
                assert each.acquire(timeout=30)
            steps = {json.dumps(one["metric"], sort_keys=True): one["value"][1] for one in server.query("dljob_step")}
            others = [server.query(query) for query in ("dljob_operator_leader", 'up{namespace!="more"} == 0')]
    same = {"__name__": "dljob_step", "container": "ray-head", "job": "here/dljob-jobs", "pod": "job-head"}
    rows = (("theirs", "job", port, "7"), ("theirs", "second", port, "3"), ("mine", "job", forger, "99"))
    assert steps == {
        json.dumps(
            {**same, "namespace": namespace, "dljob": name, "instance": f"127.0.0.1:{at}"}, sort_keys=True
        ): value
        for namespace, name, at, value in rows
    }
    assert others == [[], []]


def test_the_podmonitor_bounds_the_series_of_a_head(helm: Helm) -> None:
    assert pod_monitor(helm)["spec"]["sampleLimit"] == 20_000
    chosen = helm.render(metrics={"podMonitor": {"enabled": True, "sampleLimit": 7}})["PodMonitor", "dljob-jobs"]
    assert chosen["spec"]["sampleLimit"] == 7
    assert scrape_config(chosen, "x")["sample_limit"] == 7


def test_the_podmonitor_keeps_the_metrics_of_gateways_and_none_of_the_operator(helm: Helm) -> None:
    (endpoint,) = pod_monitor(helm)["spec"]["podMetricsEndpoints"]
    (kept,) = (re.compile(rule["regex"]) for rule in endpoint["metricRelabelings"] if rule["action"] == "keep")
    found = {name: bool(kept.fullmatch(name)) for metric in CATALOG.values() for name in metric.series}
    assert found == {
        **{name: True for metric in GATEWAY for name in metric.series},
        **{name: False for metric in OPERATOR for name in metric.series},
    }
