"""What is secret is planted in a job, and looked for in everything that the operator says or writes.

And a namespace that takes restricted pods alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cluster.handle import Cluster
from operator_kit import KEY, Head, Operator, found, job, run_head, said, token, until

HEAD = "127.0.53.1"

ENV, ROLE_ENV, RUNTIME_ENV, ARGUMENT, CONFIG, OF_SECRET, OF_CODE = (
    f"planted-{what}-7f3c9a" for what in ("env", "role-env", "runtime-env", "argument", "config", "secret", "code")
)
WRITTEN = (ENV, ROLE_ENV, RUNTIME_ENV, ARGUMENT, CONFIG)
"""What somebody wrote into the spec himself."""


def planted() -> dict[str, Any]:
    """A job that has something secret wherever a user may put it."""
    role = {
        "name": "worker",
        "replicas": 2,
        "entrypoint": {"class": "hello.main"},
        "args": ["--key", ARGUMENT],
        "config": {"password": CONFIG},
        "env": [{"name": "ROLE_KEY", "value": ROLE_ENV}],
        "resources": {"cpu": "500m"},
    }
    return job(
        "s",
        roles=[role],
        env=[{"name": "KEY", "value": ENV}],
        envFrom=[{"secretRef": {"name": "keys"}}],
        code={"configMap": "code"},
        runtimeEnv={"env_vars": {"WANDB": RUNTIME_ENV}},
    )


def where(places: dict[str, str], word: str) -> set[str]:
    """The places that tell a word."""
    return {place for place, text in places.items() if word in text}


def test_secrets_appear_in_no_status_event_or_log(
    plane: Cluster, operator: Operator, namespace: str, head: Head
) -> None:
    data = {"API_KEY": OF_SECRET}
    plane.apply({"apiVersion": "v1", "kind": "Secret", "metadata": meta("keys", namespace), "stringData": data})
    code = {"hello.py": f"KEY = '{OF_CODE}'\n"}
    plane.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("code", namespace), "data": code})
    plane.apply({**planted(), "metadata": meta("s", namespace)})
    body = until(lambda: made(plane, namespace), "it has a RayCluster")
    uid, name = body["metadata"]["uid"], body["status"]["rayCluster"]["name"]
    word = token(uid, name)
    head.stub.token = word
    run_head(plane, name, head.ip, namespace)
    until(lambda: head.stub.posted, "it is submitted")
    role = {"name": "worker", "desired": 2, "ready": 2, "running": 2, "succeeded": 0, "failed": 0, "restarts": 0}
    head.do(lambda: head.stub.say(uid.replace("-", ""), phase="Running", epoch=1, roles=[role]))
    until(lambda: found(plane, "dljob", "s", namespace)["status"]["phase"] == "Running", "it runs")

    (posted,) = head.stub.posted
    body = found(plane, "dljob", "s", namespace)
    annotations = {**body["metadata"].get("annotations", {})}
    places = {
        "operator's log": operator.log.read_text(),
        "operator's arguments": " ".join(arguments(operator)),
        "operator's metrics": json.dumps(operator.metrics()),
        "DLJob's status": json.dumps(body["status"]),
        "DLJob's annotations": json.dumps(annotations),
        "Events": json.dumps(plane.get("events", "-n", namespace)),
        "kubectl get": plane.kubectl("get", "dljobs", "-n", namespace, "-o", "wide"),
        "RayCluster": json.dumps(plane.get("rayclusters", "-n", namespace)),
        "Pods": json.dumps(plane.get("pods,services", "-n", namespace)),
        "the launcher's command": posted["entrypoint"],
        "the submission's metadata": json.dumps(posted["metadata"]),
        "the submission's runtime env": json.dumps(posted["runtime_env"]),
    }
    for one in plane.get("configmaps", "-n", namespace)["items"]:
        places[f"ConfigMap {one['metadata']['name'].removeprefix(name)}"] = json.dumps(one)
    for one in plane.get("secrets", "-n", namespace)["items"]:
        places[f"Secret {one['metadata']['name'].removeprefix(name)}"] = json.dumps(one)
    assert where(places, OF_SECRET) == set()  # a Secret holds it in base64; nobody else does
    assert where(places, KEY) == set()
    assert where(places, word) == set()
    assert where(places, OF_CODE) == {"ConfigMap code"}
    # docs/howto/security.md says so: what is written into the spec is in the spec, and where ranks read it from.
    for text in (ENV, ROLE_ENV, ARGUMENT, CONFIG):
        assert where(places, text) == {"ConfigMap -spec"}, text
    assert where(places, RUNTIME_ENV) == {"ConfigMap -spec", "the submission's runtime env"}


def made(plane: Cluster, namespace: str) -> dict[str, Any]:
    body = found(plane, "dljob", "s", namespace)
    return body if body.get("status", {}).get("rayCluster", {}).get("uid") else {}


def meta(name: str, namespace: str) -> dict[str, str]:
    return {"name": name, "namespace": namespace}


def arguments(operator: Operator) -> list[str]:
    """The command line of the operator, as anybody on its machine sees it."""
    assert operator.process
    return Path(f"/proc/{operator.process.pid}/cmdline").read_text().split("\0")


def test_a_namespace_with_restricted_pod_security_tells_which_fields_to_set(
    plane: Cluster, operator: Operator, namespace: str
) -> None:
    plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    body = {**job("s"), "metadata": meta("s", namespace)}
    plane.apply(body)
    told = said(plane, namespace, "s", "FailedCreateHeadPod")
    assert 'violates PodSecurity "restricted:latest": runAsNonRoot != true' in told
    assert "head.template and nodeGroups[].template" in told
    user = {"template": {"spec": {"securityContext": {"runAsNonRoot": True, "runAsUser": 1000}}}}
    better = {"head": user, "nodeGroups": [{"name": "cpu", "replicas": 1, "cpu": "1", **user}]}
    where = ("dljob", "s", "-n", namespace, "--type=merge", "-p", json.dumps({"spec": better}))
    plane.kubectl("patch", *where)
    until(lambda: len(plane.get("pods", "-n", namespace)["items"]) == 2, "the head and the worker are admitted")
    kinds = {pod["metadata"]["labels"]["ray.io/node-type"] for pod in plane.get("pods", "-n", namespace)["items"]}
    assert kinds == {"head", "worker"}
    assert found(plane, "dljob", "s", namespace)["status"]["restartsTotal"] == 0
