"""The chart's monitors for a Prometheus that cannot read them: its configuration, and the targets that they select.

Debian's Prometheus is built without discovery in Kubernetes, so objects are matched here, as the Prometheus operator
and Prometheus would, and given to it as a file of targets. What a monitor has beyond that is an error, not left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Object = Mapping[str, Any]

_ENDPOINTS = {"ServiceMonitor": "endpoints", "PodMonitor": "podMetricsEndpoints"}
_ENDPOINT = {"port", "path", "interval", "honorLabels", "metricRelabelings"}
_RELABELING = {"action": "action", "sourceLabels": "source_labels", "regex": "regex"}
"""Fields of a relabeling -> their names in Prometheus' configuration."""


def scrape_config(monitor: Object, targets_file: str) -> dict[str, Any]:
    """The scrape configuration of a monitor, whose targets stand in a file.

    Raises:
        ValueError: The monitor is of another kind, or has a field that is not known here.
    """
    endpoint, meta = _endpoint(monitor), monitor["metadata"]
    config: dict[str, Any] = {
        "job_name": f"{monitor['kind']}/{meta['namespace']}/{meta['name']}",
        "honor_labels": bool(endpoint.get("honorLabels")),
        "metrics_path": endpoint.get("path", "/metrics"),
        "file_sd_configs": [{"files": [targets_file], "refresh_interval": "1s"}],
    }
    if "interval" in endpoint:
        config["scrape_interval"] = endpoint["interval"]
    if "sampleLimit" in monitor["spec"]:
        config["sample_limit"] = monitor["spec"]["sampleLimit"]
    if relabelings := endpoint.get("metricRelabelings"):
        config["metric_relabel_configs"] = [_relabeling(relabeling) for relabeling in relabelings]
    return config


def _relabeling(relabeling: Object) -> dict[str, Any]:
    _refuse(relabeling, set(_RELABELING), "metricRelabelings")
    return {_RELABELING[key]: value for key, value in relabeling.items()}


def targets(monitor: Object, objects: Sequence[Object]) -> list[dict[str, Any]]:
    """What a monitor selects among Pods, Services and EndpointSlices, as groups of a file of targets.

    Raises:
        ValueError: As for `scrape_config`.
    """
    endpoint, namespaces = _endpoint(monitor), _namespaces(monitor)
    chosen = [
        candidate
        for candidate in objects
        if candidate["kind"] == ("Service" if monitor["kind"] == "ServiceMonitor" else "Pod")
        and (namespaces is None or candidate["metadata"]["namespace"] in namespaces)
        and _selects(monitor["spec"]["selector"], candidate["metadata"].get("labels", {}))
    ]
    if monitor["kind"] == "PodMonitor":
        name = f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"
        return [group for pod in chosen for group in _of_pod(pod, endpoint["port"], name)]
    return [group for service in chosen for group in _of_service(service, endpoint["port"], objects)]


def _of_pod(pod: Object, port: str, job: str) -> Iterator[dict[str, Any]]:
    status = pod["status"]
    if status["phase"] in ("Succeeded", "Failed") or not status.get("podIP"):
        return
    for container in pod["spec"]["containers"]:
        for container_port in container.get("ports", ()):
            if container_port.get("name") == port:
                labels = {
                    "namespace": pod["metadata"]["namespace"],
                    "pod": pod["metadata"]["name"],
                    "container": container["name"],
                    "job": job,
                }
                yield {"targets": [f"{status['podIP']}:{container_port['containerPort']}"], "labels": labels}


def _of_service(service: Object, port: str, objects: Iterable[Object]) -> Iterator[dict[str, Any]]:
    meta = service["metadata"]
    for piece in objects:
        if (
            piece["kind"] != "EndpointSlice"
            or piece["metadata"]["namespace"] != meta["namespace"]
            or piece["metadata"]["labels"].get("kubernetes.io/service-name") != meta["name"]
        ):
            continue
        numbers = [slice_port["port"] for slice_port in piece.get("ports") or () if slice_port.get("name") == port]
        for endpoint in piece["endpoints"]:
            labels = {"namespace": meta["namespace"], "service": meta["name"], "job": meta["name"]}
            if (target := endpoint.get("targetRef", {})).get("kind") == "Pod":
                labels["pod"] = target["name"]
            for number in numbers:
                yield {"targets": [f"{address}:{number}" for address in endpoint["addresses"]], "labels": labels}


def _endpoint(monitor: Object) -> Object:
    kind, spec = monitor["kind"], monitor["spec"]
    if kind not in _ENDPOINTS:
        raise ValueError(f"{kind} is neither ServiceMonitor nor PodMonitor")
    _refuse(spec, {"selector", "namespaceSelector", "sampleLimit", _ENDPOINTS[kind]}, f"{kind} spec")
    (endpoint,) = spec[_ENDPOINTS[kind]]
    _refuse(endpoint, _ENDPOINT, f"{kind} endpoint")
    return endpoint


def _namespaces(monitor: Object) -> set[str] | None:
    """Where the monitor looks; None: everywhere."""
    chosen = monitor["spec"].get("namespaceSelector", {})
    _refuse(chosen, {"any", "matchNames"}, "namespaceSelector")
    if chosen.get("any"):
        return None
    return set(chosen.get("matchNames") or [monitor["metadata"]["namespace"]])


def _selects(selector: Object, labels: Mapping[str, str]) -> bool:
    _refuse(selector, {"matchLabels", "matchExpressions"}, "selector")
    for expression in selector.get("matchExpressions", ()):
        if expression["operator"] != "Exists":
            raise ValueError(f"selector: operator {expression['operator']} is not known here, only Exists")
        if expression["key"] not in labels:
            return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def _refuse(mapping: Object, known: set[str], place: str) -> None:
    if unknown := set(mapping) - known:
        raise ValueError(f"{place}: {', '.join(sorted(unknown))} is not known here")
