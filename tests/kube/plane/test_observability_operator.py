"""The operator's dashboard and rules over the real operator, scraped by a real Prometheus."""

from __future__ import annotations

import json
from pathlib import Path

from cluster.handle import Cluster
from observability_kit import Server, available, scraping, without_data
from operator_kit import Head, found, job, run_head, running, token, until

HEAD = "127.0.0.48"


def recorded(plane: Cluster, name: str, namespace: str) -> str:
    """The RayCluster that a DLJob's status names."""
    return found(plane, "dljob", name, namespace).get("status", {}).get("rayCluster", {}).get("name", "")


def full(server: Server) -> None:
    """Wait until every panel has data; those that get none are named."""
    chosen = {"operator": "dljob-metrics"}
    try:
        until(lambda: not without_data(server, "operator", chosen), "every panel has data", 30)
    except TimeoutError:
        assert without_data(server, "operator", chosen) == []


def test_every_panel_of_the_operator_has_data_of_a_real_one(plane: Cluster, head: Head, tmp_path: Path) -> None:
    available()
    namespace = "observed"
    plane.kubectl("create", "namespace", namespace)
    with running(plane, tmp_path / "operator") as operator:
        static = {"targets": [f"127.0.0.1:{operator.ports[0]}"], "labels": {"job": "dljob-metrics"}}
        configs = [{"job_name": "operator", "honor_labels": True, "static_configs": [static]}]
        with scraping(configs, tmp_path) as server:
            for name in ("one", "two"):
                plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(job(name)))
            made = until(lambda: recorded(plane, "one", namespace), "a RayCluster")
            head.stub.token = token(found(plane, "dljob", "one", namespace)["metadata"]["uid"], made)
            run_head(plane, made, head.ip, namespace)
            until(lambda: server.query('dljob_ray_api_requests_total{code="200"} > 1'), "Ray's API was asked")
            full(server)
            (jobs,) = server.query(f'sum by (namespace) (dljob_jobs{{namespace="{namespace}"}})')
            assert (jobs["metric"]["namespace"], jobs["value"][1]) == (namespace, "2"), (
                "honorLabels keeps the job's own"
            )
            each = server.query(f'dljob_status_phase{{namespace="{namespace}"}} == 1')
            assert sorted(one["metric"]["dljob"] for one in each) == ["one", "two"]
            assert not server.query('ALERTS{alertname="DLJobOperatorDown"}')
            recorded_series = "controller:controller_runtime_reconcile_time_seconds:p99_rate5m"
            until(lambda: server.query(recorded_series), "rules are evaluated")

            plane.kubectl("delete", "dljob", "two", "-n", namespace, "--wait=false")
            gone = 'dljob_status_phase{dljob="two"}'
            until(lambda: not server.query(gone), "the series of a deleted DLJob go")
    plane.kubectl("delete", "namespace", namespace, "--wait=false")
