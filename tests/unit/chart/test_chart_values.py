"""What needs no helm: values, their schema, their page, and the operator's rights."""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
from typing import Any

import jsonschema
import pytest
from chart_kit import CHART, ROOT, load

from dljob.raycluster.pods import GATEWAY_PORT, GATEWAY_PORT_NAME

SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES = load("values.yaml")


def generate() -> Any:
    spec = importlib.util.spec_from_file_location("charts_generate", ROOT / "charts/generate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if isinstance(value, dict) and value:
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    return [path]


def with_value(path: str, value: Any) -> dict[str, Any]:
    values = copy.deepcopy(VALUES)
    *parents, last = path.split(".")
    at = values
    for name in parents:
        at = at[name]
    at[last] = value
    return values


def refusals(values: Any) -> list[str]:
    return [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(values)]


def test_generated_files_of_the_chart_are_up_to_date() -> None:
    made = subprocess.run(
        [sys.executable, str(ROOT / "charts/generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert made.stderr == ""
    assert made.returncode == 0


def test_the_defaults_are_allowed() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert refusals(VALUES) == []


def test_every_value_is_documented() -> None:
    documented = {tuple(name.split(".")) for name in generate().documented((CHART / "values.yaml").read_text())}
    bare = [leaf for leaf in leaves(VALUES) if not any(leaf[: len(name)] == name for name in documented)]
    assert bare == []


def test_every_value_is_in_the_schema_and_every_name_of_the_schema_is_a_value() -> None:
    def names(schema: dict[str, Any], path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
        if "$ref" in schema:
            schema = SCHEMA["definitions"][schema["$ref"].rsplit("/", 1)[-1]]
        inner = schema.get("properties", {})
        return {path} if not inner else {leaf for key, sub in inner.items() for leaf in names(sub, (*path, key))}

    free = {
        ("namespaceSelector",),
        ("resources",),
        ("affinity",),
        ("imagePullSecrets",),
        ("podSecurityContext",),
        ("securityContext",),
    }

    def cut(paths: set[tuple[str, ...]]) -> set[tuple[str, ...]]:
        known = {name for name in free for path in paths if path[:1] == name}
        return {path for path in paths if path[:1] not in free} | known

    assert cut(names(SCHEMA)) - {("global",)} == cut(
        {path[:3] if path[0] == "grafana" else path for path in leaves(VALUES)}
        - {("grafana", "dashboards", "labels", "grafana_dashboard")}
    )


def test_an_object_of_the_schema_refuses_what_it_does_not_know() -> None:
    def closed(schema: Any, path: str = "") -> list[str]:
        if not isinstance(schema, dict):
            return []
        open_ones = [path] if "properties" in schema and schema.get("additionalProperties") is not False else []
        inner = [(key, sub) for key, sub in schema.get("properties", {}).items()]
        return open_ones + [found for key, sub in inner for found in closed(sub, f"{path}.{key}")]

    assert closed({**SCHEMA, "if": {}, "then": {}}) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("replicas", 0),
        ("leaderElection.leaseDuration", "8"),
        ("leaderElection.leaseDuration", "2s"),
        ("leaderElection.leaseDuration", "1m"),
        ("leaderElection.retryPeriod", "0.5s"),
        ("image.pullPolicy", "Sometimes"),
        ("image.digest", "sha256:12"),
        ("image.tag", "a b"),
        ("image.repository", ""),
        ("jobs.rayVersion", "latest"),
        ("jobs.image", "image with spaces"),
        ("jobs.init", False),
        ("rbac.scope", "Namespace"),
        ("watchNamespaces", ["team-a"]),
        ("watchNamespaces", "team-a"),
        ("serviceAccount.create", False),
        ("workers", 0),
        ("workers", "8"),
        ("log.format", "xml"),
        ("resources.limits", {"memory": "lots"}),
        ("resources.limit", {}),
        ("metrics.port", 80),
        ("metrics.serviceMonitor.interval", "often"),
        ("metrics.podMonitor.labels", {"release": 1}),
        ("metrics.serviceMonitors", {}),
        ("metrics.prometheusRule.runbookUrl", ""),
        ("metrics.prometheusRule.runbookUrl", "https://x'y"),
        ("networkPolicy.egress.apiServerPorts", []),
        ("podDisruptionBudget.maxUnavailable", 2),
        ("podDisruptionBudget.maxUnavailable", "101%"),
        ("podDisruptionBudget.maxUnavailable", "1"),
        ("image.registry", "https://registry.example/team"),
        ("image.registry", "registry.example/team@sha256:0"),
        ("jobs.imagePullSecrets", ["regcred"]),
        ("jobs.imagePullSecrets", [{"name": "Regcred"}]),
        ("envFrom", [{"prefix": "X_"}]),
        ("extraVolumes", [{"name": "tmp", "emptyDir": {}}]),
        ("extraVolumes", [{"name": "ca"}]),
        ("extraVolumeMounts", [{"name": "ca", "mountPath": "/etc/dljob/token-key"}]),
        ("extraVolumeMounts", [{"name": "ca", "mountPath": "tmp"}]),
        ("tokenKey.key", "a/b"),
        ("namespaceSelector.matchLabels", {"team": "a'b"}),
        ("namespaceSelector.matchExpressions", [{"key": "team", "operator": "In"}]),
        ("namespaceSelector.matchExpressions", [{"key": "team", "operator": "Exists", "values": ["a"]}]),
        ("namespaceSelector.matchExpressions", [{"key": "team", "operator": "Equals", "values": ["a"]}]),
        ("affinity.nodeAffinities", {}),
        ("env", [{"value": "without a name"}]),
        ("terminationGracePeriodSeconds", 0),
        ("crds.keep", "yes"),
        ("podLabels", {"app.kubernetes.io/component": "x"}),
        ("commonLabels", {"helm.sh/chart": "x"}),
        ("resources.claims", [{"name": "gpu"}]),
    ],
)
def test_a_wrong_value_is_refused(path: str, value: Any) -> None:
    assert refusals(with_value(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("image.registry", "registry.example:5000/team"),
        ("image.registry", "registry.example/team/"),
        ("image.registry", ""),
        ("image.digest", "sha256:" + "0" * 64),
        ("podDisruptionBudget.maxUnavailable", "50%"),
        ("jobs.imagePullSecrets", [{"name": "regcred"}]),
        ("envFrom", [{"secretRef": {"name": "proxy"}}]),
        ("extraVolumeMounts", [{"name": "ca", "mountPath": "/etc/ssl/certs", "readOnly": True}]),
        ("jobs.image", "registry.example/ray:{rayVersion}-gpu"),
        ("resources", {"requests": {"cpu": 1, "memory": "1Gi"}}),
        ("metrics.prometheusRule", {"enabled": True, "labels": {"release": "prometheus"}}),
        ("metrics.prometheusRule.runbookUrl", "https://git.example/dljob/blob/v1/docs/runbooks/"),
        ("topologySpreadConstraints", [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]),
        ("env", [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]),
    ],
)
def test_a_right_value_is_taken(path: str, value: Any) -> None:
    assert refusals(with_value(path, value)) == []


def test_namespaces_go_with_the_namespaced_scope() -> None:
    values = with_value("rbac.scope", "Namespaced") | {"watchNamespaces": ["team-a", "team-b"]}
    assert refusals(values) == []


def test_every_right_has_a_reason_and_stands_in_the_page() -> None:
    page = (CHART / "README.md").read_text(encoding="utf-8")
    for rule in load("files/rights.yaml"):
        assert len(rule["apiGroups"]) == 1
        for verb, why in rule["verbs"].items():
            assert len(why.split()) >= 2, (rule, verb)
            assert f"| {verb} | {why} |" in page


def test_the_ports_are_those_of_the_pods() -> None:
    monitors = (CHART / "templates/monitors.yaml").read_text(encoding="utf-8")
    policy = (CHART / "templates/networkpolicy.yaml").read_text(encoding="utf-8")
    assert f"port: {GATEWAY_PORT_NAME}\n" in monitors
    assert f"port: {GATEWAY_PORT}, protocol" in policy


def test_the_ray_version_of_the_chart_is_the_one_of_the_lock() -> None:
    lock = (ROOT / "uv.lock").read_text(encoding="utf-8")
    assert f'name = "ray"\nversion = "{VALUES["jobs"]["rayVersion"]}"' in lock


def test_the_chart_has_the_version_of_the_project() -> None:
    from importlib.metadata import version

    chart = load("Chart.yaml")
    assert {chart["version"], chart["appVersion"]} == {version("dljob")}
