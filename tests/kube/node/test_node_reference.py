"""Jobs on a RayCluster that somebody else made, on real pods: they end well, and it stays as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cluster.handle import Cluster
from operator_kit import IMAGES, Operator, condition, found, until, with_images

SPACE = "lent"
HOLD = "import socket, time; s = socket.create_server(('', 8266)); time.sleep(3600)"
"""What a process does that has the gateway's port and knows nothing of it."""


@pytest.fixture(scope="module")
def operator(node: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    node.kubectl("create", "namespace", SPACE)
    try:
        with with_images(node, tmp_path_factory.mktemp("operator"), f"--namespace={SPACE}") as operator:
            yield operator
    finally:
        node.kubectl("delete", "namespace", SPACE, "--wait=false")


def container(name: str, **more: Any) -> dict[str, Any]:
    """A container of the project's runtime image: no port of ours, no volume, no token."""
    return {"name": name, "image": IMAGES["runtime"], "imagePullPolicy": "Never", **more}


def ray_cluster(name: str, *beside: dict[str, Any], workers: int) -> dict[str, Any]:
    """The RayCluster that a user would write; `beside` are more containers of its head."""
    room = {"limits": {"cpu": "2", "memory": "2Gi"}, "requests": {"cpu": "50m", "memory": "128Mi"}}
    head, worker = container("ray-head", resources=room), container("ray-worker", resources=room)
    group = {"groupName": "any", "replicas": workers, "minReplicas": workers, "maxReplicas": workers}
    spec = {
        "rayVersion": "2.60.0",
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0"},
            "template": {"spec": {"containers": [head, *beside]}},
        },
        "workerGroupSpecs": [{**group, "rayStartParams": {}, "template": {"spec": {"containers": [worker]}}}],
    }
    meta = {"name": name, "namespace": SPACE, "annotations": {"example.test/whose": "mine"}}
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": meta, "spec": spec}


def job(name: str, cluster: str, then: str = "true") -> dict[str, Any]:
    """A rank that says who it is, and does something then."""
    role = {
        "name": "w",
        "entrypoint": {"command": ["sh", "-c", f"echo I am $ROLE; {then}"]},
        "resources": {"cpu": "500m"},
        "env": [{"name": "ROLE", "value": name}],
    }
    spec = {"rayClusterRef": {"name": cluster}, "roles": [role]}
    meta = {"name": name, "namespace": SPACE}
    return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": meta, "spec": spec}


def own(node: Cluster, name: str) -> dict[str, Any]:
    """What of a RayCluster is its owner's, and what its pods say of us."""
    body = found(node, "raycluster", name, SPACE)
    meta = {key: value for key, value in body["metadata"].items() if key not in ("resourceVersion", "managedFields")}
    pods = node.get("pods", "-n", SPACE, "-l", f"ray.io/cluster={name}")["items"]
    marks = [key for pod in pods for key in pod["metadata"].get("annotations", {}) if "dljob" in key]
    return {"metadata": meta, "spec": body["spec"], "marks": marks, "uids": sorted(p["metadata"]["uid"] for p in pods)}


def test_two_jobs_succeed_side_by_side_and_the_cluster_stays(node: Cluster, operator: Operator) -> None:
    held = ray_cluster("held", container("other", command=["python", "-c", HOLD]), workers=1)
    node.apply(
        ray_cluster("shared", workers=1),
        held,
        job("one", "shared"),
        job("two", "shared"),
        job("deaf", "held", "sleep 600"),
    )
    until(lambda: len(own(node, "shared")["uids"]) == 2, "the pods are made")
    before = own(node, "shared")
    for name in ("one", "two"):
        over = until(lambda name=name: let_go(node, name), f"{name} is over", 150)
        assert over["status"]["phase"] == "Succeeded", over["status"]
        until(lambda name=name: kept(node, name), f"the condition of {name} says that the RayCluster stays", 30)
        logs = until(
            lambda name=name: found(node, "configmap", f"{name}-logs", SPACE), f"the logs of {name} are kept", 60
        )
        assert f"I am {name}" in logs["data"]["w-0.log"]
    after = own(node, "shared")
    assert after == before
    assert after["marks"] == []
    assert after["metadata"]["generation"] == 1


def test_a_gateway_that_cannot_be_reached_is_said_with_what_to_do(node: Cluster, operator: Operator) -> None:
    """Another process has its port: Ray takes the submission, and nobody hears of the job."""

    def words() -> str:
        one = condition(found(node, "dljob", "deaf", SPACE), "MasterReady")
        return one["message"] if one.get("reason") == "MasterUnreachable" else ""

    said = until(words, "the condition says so", 120)
    pod = node.get("pods", "-n", SPACE, "-l", "ray.io/cluster=held,ray.io/node-type=head")["items"][0]["metadata"][
        "name"
    ]
    assert f"a NetworkPolicy must let the operator reach port 8266 of pod {pod}" in said
    assert "no other process may hold it" in said
    assert own(node, "held")["metadata"]["generation"] == 1


def kept(node: Cluster, name: str) -> bool:
    """Whether ClusterReady says that the RayCluster stays; the status is written after the finalizer is taken off."""
    return condition(found(node, "dljob", name, SPACE), "ClusterReady").get("reason") == "ClusterKept"


def let_go(node: Cluster, name: str) -> dict[str, Any]:
    """The job when it is over and nothing holds it."""
    body = found(node, "dljob", name, SPACE)
    over = body.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return body if over and not body["metadata"].get("finalizers") else {}
