"""Real pods, scraped by a real Prometheus as the chart's monitors say: every panel of every dashboard has data.

`DLJOB_PICTURES=folder` leaves pictures of the dashboards as they then are; it needs Chromium.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import cache
from cluster.handle import Cluster
from cluster.node import load
from helm_kit import CHART, Release
from images import build
from observability_kit import Server, available, draw, following, without_data
from operator_kit import found, until

SYSTEM, NAMESPACE, JOB = "dljob-observed", "observed-jobs", "steps"
VALUES: dict[str, Any] = {
    "image": {"registry": "dljob.local", "repository": "operator", "tag": "dev", "pullPolicy": "Never"},
    "jobs": {"image": build.image("runtime")},
}
MONITORS = {"metrics": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}}
STEPS = """
import os, pathlib, time
from dljob import current_worker, progress

def main():
    me, died = current_worker(), pathlib.Path("/tmp/died")
    end = pathlib.Path("/tmp/end")
    step = 0
    while not end.exists():
        step += 1
        progress(step)
        time.sleep(0.2)
        if me.rank == 1 and step == 40 and not died.exists():
            died.touch()
            os._exit(3)
"""


@pytest.fixture
def chart(node: Cluster) -> Iterator[Release]:
    """The operator as a pod, by the chart, of the tree's images."""
    if node.run is None:
        pytest.skip("an existing cluster does not get our images: unset DLJOB_E2E")
    try:
        load(node.run, build.archives())
    except cache.MissingError as error:
        pytest.skip(str(error))
    node.kubectl("create", "namespace", SYSTEM)
    made = Release(node, SYSTEM)
    try:
        made.install(**VALUES)
        node.kubectl("rollout", "status", "deployment/dljob", "-n", SYSTEM, "--timeout=60s")
        yield made
    finally:
        made.helm("uninstall", made.name, "--ignore-not-found")
        node.kubectl("delete", "namespace", SYSTEM, "--wait=false")


@pytest.fixture
def job(node: Cluster, chart: Release) -> Iterator[str]:
    """A DLJob that makes steps, one of whose ranks dies once."""
    node.kubectl("create", "namespace", NAMESPACE)
    role = {"name": "trainer", "replicas": 2, "entrypoint": {"class": "steps.main"}, "resources": {"cpu": "300m"}}
    spec = {
        "code": {"configMap": JOB},
        "head": {"cpu": "250m", "memory": "2Gi"},
        "master": {"cpu": "100m", "memory": "512Mi"},
        "roles": [role],
    }
    node.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": JOB, "namespace": NAMESPACE},
         "data": {"steps.py": STEPS}},
        {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": JOB, "namespace": NAMESPACE},
         "spec": spec},
    )  # fmt: skip
    yield JOB
    node.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def monitors(chart: Release) -> list[dict[str, Any]]:
    """The ServiceMonitor and the PodMonitor that the chart would make where their kinds are known."""
    text = chart.helm("template", chart.name, str(CHART), **VALUES, **MONITORS)
    return [one for one in yaml.safe_load_all(text) if one and one["kind"].endswith("Monitor")]


def check_targets(server: Server) -> None:
    """One operator and one gateway are scraped, without an error."""
    seen = {one["labels"]["job"]: one for one in server.targets()}
    assert set(seen) == {"dljob-metrics", f"{SYSTEM}/dljob-jobs"}
    for one in seen.values():
        assert (one["health"], one["lastError"]) == ("up", ""), one["scrapeUrl"]


@pytest.mark.timeout(270)
def test_every_panel_has_data_of_real_pods(node: Cluster, chart: Release, job: str, tmp_path: Path) -> None:
    available()
    begin = time.time()
    with following(node, monitors(chart), tmp_path) as server:
        of = f'namespace="{NAMESPACE}",dljob="{job}"'
        until(lambda: server.query(f"dljob_last_recovery_seconds{{{of}}} offset 5s"), "a rank died and came back", 150)
        until(lambda: server.query(f'dljob_phase{{{of},phase="Running"}} == 1'), "the job runs again", 30)
        check_targets(server)
        chosen = {
            "fleet": {"namespace": ".*"},
            "job": {"namespace": NAMESPACE, "dljob": job},
            "operator": {"operator": "dljob-metrics"},
        }
        for name, variables in chosen.items():
            try:
                until(lambda n=name, v=variables: not without_data(server, n, v), name, 40)
            except TimeoutError:
                assert without_data(server, name, variables) == [], name
        (restarts,) = server.query(f"sum(dljob_restarts_total{{{of}}})")
        assert restarts["value"][1] == "1"
        (ready,) = server.query(f'dljob_workers{{{of},role="trainer",state="ready"}}')
        assert ready["value"][1] == "2"
        assert ready["metric"]["job"] == f"{SYSTEM}/dljob-jobs"
        assert not server.query('ALERTS{alertstate="firing"}')
        if folder := os.environ.get("DLJOB_PICTURES"):
            draw(server, begin, chosen["job"], Path(folder))

        pods = node.get("pods", "-n", NAMESPACE, "-l", "ray.io/node-type=worker")["items"]
        for pod in pods:
            node.kubectl("exec", "-n", NAMESPACE, pod["metadata"]["name"], "--", "touch", "/tmp/end")
        over = f'dljob_status_phase{{{of},phase="Succeeded"}} == 1'
        until(lambda: server.query(over), "the operator tells the end", 60)
        until(lambda: not server.query(f"dljob_info{{{of}}}"), "the job's own series go with its cluster", 60)
        assert found(node, "dljob", job, NAMESPACE)["status"]["phase"] == "Succeeded"
