"""What the chart's monitors select, and the configuration that a real Prometheus accepts for it."""

from __future__ import annotations

import json

import pytest
from monitors import scrape_config, targets

SERVICE = {
    "kind": "ServiceMonitor",
    "metadata": {"name": "dljob", "namespace": "dljob-system"},
    "spec": {
        "selector": {"matchLabels": {"app.kubernetes.io/name": "dljob"}},
        "endpoints": [{"port": "metrics", "path": "/metrics", "interval": "30s", "honorLabels": True}],
    },
}
POD = {
    "kind": "PodMonitor",
    "metadata": {"name": "dljob-jobs", "namespace": "dljob-system"},
    "spec": {
        "namespaceSelector": {"any": True},
        "selector": {
            "matchLabels": {"ray.io/node-type": "head"},
            "matchExpressions": [{"key": "dljob.io/name", "operator": "Exists"}],
        },
        "podMetricsEndpoints": [
            {
                "port": "dljob",
                "path": "/metrics",
                "interval": "15s",
                "metricRelabelings": [{"action": "keep", "sourceLabels": ["__name__"], "regex": "dljob_step"}],
            }
        ],
    },
}


def pod(name="head", phase="Running", ip="10.1.0.2", port="dljob", **labels):
    ports = [{"name": "metrics", "containerPort": 8080}, {"name": port, "containerPort": 8266}]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "research", "labels": labels},
        "spec": {"containers": [{"name": "ray-head", "ports": ports}, {"name": "sidecar"}]},
        "status": {"phase": phase, "podIP": ip},
    }


HEAD = {"ray.io/node-type": "head", "dljob.io/name": "job"}


def test_a_head_of_ours_is_a_target_under_the_labels_that_monitors_give():
    assert targets(POD, [pod(**HEAD)]) == [
        {
            "targets": ["10.1.0.2:8266"],
            "labels": {
                "namespace": "research",
                "pod": "head",
                "container": "ray-head",
                "job": "dljob-system/dljob-jobs",
            },
        }
    ]


@pytest.mark.parametrize(
    "other",
    [
        pod(**{**HEAD, "ray.io/node-type": "worker"}),
        pod(**{"ray.io/node-type": "head"}),
        pod(phase="Succeeded", **HEAD),
        pod(ip="", **HEAD),
        pod(port="other", **HEAD),
    ],
    ids=["worker", "a head without a DLJob", "ended", "without address", "without our port"],
)
def test_pods_that_are_no_heads_of_ours_are_no_targets(other):
    assert targets(POD, [other]) == []


def test_a_monitor_looks_only_where_it_is_told():
    spec = {**POD["spec"], "namespaceSelector": {"matchNames": ["vision"]}}
    assert targets({**POD, "spec": spec}, [pod(**HEAD)]) == []
    spec = {**POD["spec"], "namespaceSelector": {"matchNames": ["vision", "research"]}}
    assert len(targets({**POD, "spec": spec}, [pod(**HEAD)])) == 1


def service(namespace="dljob-system"):
    meta = {"name": "dljob-metrics", "namespace": namespace, "labels": {"app.kubernetes.io/name": "dljob"}}
    return {"kind": "Service", "metadata": meta}


SLICE = {
    "kind": "EndpointSlice",
    "metadata": {
        "name": "x",
        "namespace": "dljob-system",
        "labels": {"kubernetes.io/service-name": "dljob-metrics"},
    },
    "ports": [{"name": "metrics", "port": 8080}, {"name": "health", "port": 8081}],
    "endpoints": [{"addresses": ["10.1.0.3"], "targetRef": {"kind": "Pod", "name": "dljob-abc"}}],
}


def test_a_service_gives_the_addresses_behind_it():
    foreign = {**SLICE, "metadata": {**SLICE["metadata"], "labels": {"kubernetes.io/service-name": "other"}}}
    assert targets(SERVICE, [service(), SLICE, foreign, pod(**HEAD)]) == [
        {
            "targets": ["10.1.0.3:8080"],
            "labels": {
                "namespace": "dljob-system",
                "service": "dljob-metrics",
                "job": "dljob-metrics",
                "pod": "dljob-abc",
            },
        }
    ]
    assert targets(SERVICE, [service("elsewhere"), SLICE]) == []


def test_prometheus_accepts_the_configuration(promtool, tmp_path):
    path = tmp_path / "prometheus.yml"
    (tmp_path / "t.json").write_text(json.dumps(targets(POD, [pod(**HEAD)])))
    configs = [scrape_config(SERVICE, "s.json"), scrape_config(POD, "t.json")]
    assert [c["honor_labels"] for c in configs] == [True, False]
    assert [c["scrape_interval"] for c in configs] == ["30s", "15s"]
    kept = {"action": "keep", "source_labels": ["__name__"], "regex": "dljob_step"}
    assert [c.get("metric_relabel_configs") for c in configs] == [None, [kept]]
    path.write_text(json.dumps({"scrape_configs": configs}))
    done = promtool("check", "config", path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (("spec", "targetLimit"), "targetLimit is not known"),
        (("spec", "podMetricsEndpoints", 0, "relabelings"), "relabelings is not known"),
        (("spec", "selector", "matchExpressions", 0, "operator"), "operator In is not known"),
        (("kind",), "In is neither ServiceMonitor nor PodMonitor"),
    ],
    ids=str,
)
def test_an_unsupported_field_of_a_monitor_is_refused(path, error):
    monitor = json.loads(json.dumps(POD))
    place = monitor
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = "In"
    with pytest.raises(ValueError, match=error):
        targets(monitor, [pod(**HEAD)])


def test_an_unsupported_field_of_a_relabeling_is_refused():
    monitor = json.loads(json.dumps(POD))
    monitor["spec"]["podMetricsEndpoints"][0]["metricRelabelings"][0]["modulus"] = 2
    with pytest.raises(ValueError, match="metricRelabelings: modulus is not known"):
        scrape_config(monitor, "t.json")
