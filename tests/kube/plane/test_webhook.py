"""The admission webhook behind a real API server: what it refuses and warns of, and what happens while it is away."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import cache, processes
from cluster.certs import YEAR, Authority
from cluster.handle import Cluster, KubectlError
from operator_kit import Operator, found, job, namespaced, running, until
from ruamel.yaml import YAML

REFUSED = Path(__file__).parents[2] / "golden/refused"
NAME = "dljobs-of-a-test"


@pytest.fixture
def namespace(plane: Cluster) -> Iterator[str]:
    yield from namespaced(plane, "webhook")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


def certify(authority: Authority, valid: timedelta) -> None:
    """Give the operator a certificate as its mounted Secret has it."""
    authority.issue("apiserver", ["127.0.0.1"], "https://127.0.0.1", valid)
    for name in ("crt", "key"):
        (authority.folder.parent / f"tls.{name}").write_bytes((authority.folder / f"apiserver.{name}").read_bytes())


@pytest.fixture
def operator(plane: Cluster, namespace: str, authority: Authority, tmp_path: Path) -> Iterator[Operator]:
    """An operator that this API server asks, as the chart has it but for the way."""
    (port,) = processes.free_ports(1)
    certify(authority, YEAR)
    text = subprocess.check_output([cache.program("helm"), "template", "dljob", cache.ROOT / "charts/dljob"], text=True)
    made = next(one for one in yaml.safe_load_all(text) if one and one["kind"] == "ValidatingWebhookConfiguration")
    (hook,) = made["webhooks"]
    bundle = base64.b64encode(authority.ca).decode()
    hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}/validate", "caBundle": bundle}
    hook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    plane.apply({**made, "metadata": {"name": NAME}})
    flags = (f"--webhook-port={port}", f"--webhook-certificate={tmp_path}", f"--namespace={namespace}")
    with running(plane, tmp_path / "operator", *flags) as operator:
        yield operator
    plane.kubectl("delete", "validatingwebhookconfiguration", NAME)


def applied(plane: Cluster, namespace: str, *documents: dict[str, Any]) -> str:
    """What kubectl says of documents that are refused, or admitted with a warning."""
    text = "\n---\n".join(json.dumps(document) for document in documents)
    with pytest.raises(KubectlError) as caught:
        plane.kubectl("apply", "-n", namespace, "-f", "-", "--warnings-as-errors", stdin=text)
    return str(caught.value)


def jobs(plane: Cluster, namespace: str) -> list[dict[str, Any]]:
    return plane.get("dljobs", "-n", namespace)["items"]


def bad() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for path in sorted(REFUSED.glob("*.yaml")):
        body = YAML(typ="safe").load(path.read_text())
        name = body["metadata"]["name"]
        made.append({**body, "metadata": {"name": name if len(name) > 40 else f"bad-{path.stem}"}})
    return made


def test_bad_jobs_are_refused_as_they_are_applied_and_invalid_while_the_webhook_is_away(
    plane: Cluster, namespace: str, operator: Operator, authority: Authority
) -> None:
    until(
        lambda: operator.metrics().get("dljob_webhook_certificate_remaining_seconds", 0) > 300 * 86400,
        "the certificate is loaded",
    )
    said = applied(plane, namespace, *bad())
    assert jobs(plane, namespace) == []
    for words in (
        "DLJob bad-17-privileged has 1 problem:",
        "spec.head.template.spec.containers[0].securityContext.privileged: privileged is true",
        "DLJob bad-21-root-on-node has 5 problems:",
    ):
        assert words in said

    code = {"code": {"configMap": "nowhere"}}
    waits = f"spec.code.configMap: no ConfigMap nowhere in {namespace} yet; the pods wait for it"
    paused = {"name": "good", "annotations": {"dljob.io/pause": "true"}}
    assert waits in applied(plane, namespace, {**job("good", **code), "metadata": paused})

    status = {"status": {"submissionId": "good-1", "attempt": 1}}
    plane.kubectl(
        *("patch", "dljob", "good", "-n", namespace, "--subresource=status", "--type=merge"), "-p", json.dumps(status)
    )
    edited = {**job("good", **code)["spec"], "env": [{"name": "A", "value": "1"}]}
    effect = "spec.env: attempt 1 goes on without it; the next attempt takes it"
    assert effect in applied(plane, namespace, {**job("good"), "spec": edited, "metadata": paused})
    results = {key: value for key, value in operator.metrics().items() if key.startswith("dljob_webhook_requests")}
    assert results['dljob_webhook_requests_total{result="unjudged"}'] == 0
    plane.kubectl("delete", "dljob", "good", "-n", namespace)

    operator.stop()
    applied(plane, namespace, *bad())  # the schema refuses some
    taken = [one["metadata"]["name"] for one in jobs(plane, namespace)]
    assert "bad-17-privileged" in taken
    operator.start()

    def invalid() -> bool:
        return all(one.get("status", {}).get("phase") == "Invalid" for one in jobs(plane, namespace))

    until(invalid, "all are Invalid", 5)
    line = plane.kubectl("get", "dljob", "bad-17-privileged", "-n", namespace).splitlines()[1].split()
    assert line[1:3] == ["Invalid", "ForbiddenPod"]
    assert found(plane, "dljob", taken[0], namespace)["status"]["message"]

    operator.stop()
    certify(authority, timedelta(minutes=-1))
    operator.start()
    left = "dljob_webhook_certificate_remaining_seconds"
    until(lambda: operator.metrics().get(left, 0) < 0, "the certificate is loaded, and has expired")
    plane.kubectl("delete", "dljob", "bad-17-privileged", "-n", namespace)
    (privileged,) = (one for one in bad() if one["metadata"]["name"] == "bad-17-privileged")
    plane.apply({**privileged, "metadata": {**privileged["metadata"], "namespace": namespace}})  # and not refused
    until(invalid, "it is Invalid", 5)
    assert "the webhook's certificate expired" in operator.log.read_text()
