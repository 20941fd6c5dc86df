"""A DLJob on a RayCluster that somebody else made, on a real API server with the real KubeRay and a stub head."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import cache
from cluster.handle import Cluster, kubectl
from operator_kit import Head, Operator, children, condition, found, job, run_head, running, until


@pytest.fixture(scope="module")
def operator(plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    with running(plane, tmp_path_factory.mktemp("operator")) as operator:
        yield operator


@pytest.fixture
def head() -> Iterator[Head]:
    made = Head("127.0.43.1")
    made.stub.token = ""
    yield made
    made.close()


def shared(plane: Cluster, namespace: str) -> None:
    """The smallest RayCluster that a user would write: no port of ours, no token."""
    container = {
        "name": "ray-head",
        "image": "example.test/ray:1",
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
    }
    group = {"rayStartParams": {}, "template": {"spec": {"containers": [container]}}}
    spec = {"rayVersion": "2.60.0", "headGroupSpec": group}
    meta = {"name": "shared", "namespace": namespace}
    plane.apply({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": meta, "spec": spec})


def on_shared(name: str, namespace: str, **spec: Any) -> dict[str, Any]:
    body = job(name, rayClusterRef={"name": "shared"}, **spec)
    del body["spec"]["image"]
    return {**body, "metadata": {"name": name, "namespace": namespace}}


def test_two_jobs_share_an_existing_raycluster(plane: Cluster, operator: Operator, namespace: str, head: Head) -> None:
    def look(name: str) -> dict[str, Any]:
        return found(plane, "dljob", name, namespace)

    for name in ("one", "two"):
        plane.apply(on_shared(name, namespace))
    until(lambda: condition(look("one"), "ClusterReady").get("reason") == "RayClusterNotFound", "it waits")
    shared(plane, namespace)
    run_head(plane, "shared", head.ip, namespace)
    until(lambda: len(head.stub.posted) == 2, "both launchers are submitted", 30)
    before = found(plane, "raycluster", "shared", namespace)
    uids = {name: look(name)["metadata"]["uid"] for name in ("one", "two")}
    role = {"name": "worker", "desired": 2, "ready": 2, "running": 2, "succeeded": 0, "failed": 0, "restarts": 0}
    for uid in uids.values():
        head.do(lambda uid=uid: head.stub.say(uid.replace("-", ""), phase="Running", epoch=1, roles=[role]))
    for name in uids:
        until(lambda name=name: look(name)["status"]["phase"] == "Running", f"{name} runs")
        assert look(name)["status"]["rolesReady"] == "2/2"
    kept = {name: json.loads(text)["metadata"]["name"] for name, text in head.stub.kept.items()}
    assert sorted(kept.values()) == ["one", "two"]

    one = uids["one"].replace("-", "")
    head.do(lambda: head.stub.say(one, phase="Succeeded", reason="Completed", message="all drivers ended well"))
    until(lambda: look("one")["status"]["phase"] == "Succeeded", "one ends")
    until(lambda: not look("one")["metadata"].get("finalizers"), "one is let go")
    assert condition(look("one"), "ClusterReady")["reason"] == "ClusterKept"
    assert look("two")["status"]["phase"] == "Running"

    plane.kubectl("delete", "dljob", "two", "-n", namespace, "--wait=false")
    until(lambda: [c["kind"] for c in head.stub.commands] == ["stop"], "two is stopped")
    assert look("two")
    two = uids["two"].replace("-", "")
    head.do(lambda: head.stub.say(two, phase="Failed", reason="Stopped"))
    until(lambda: not look("two"), "two is gone")

    after = found(plane, "raycluster", "shared", namespace)
    assert (after["spec"], after["metadata"]["uid"]) == (before["spec"], before["metadata"]["uid"])
    assert after["metadata"].get("annotations") == before["metadata"].get("annotations")
    assert {child for uid in uids.values() for child in children(plane, uid, namespace)} <= {"ConfigMap/one-logs"}


def test_one_of_two_is_stopped_another_deleted_and_the_third_goes_on(
    plane: Cluster, operator: Operator, namespace: str, head: Head
) -> None:
    names = ("stopped", "deleted", "stays")
    shared(plane, namespace)
    for name in names:
        plane.apply(on_shared(name, namespace))
    run_head(plane, "shared", head.ip, namespace)
    until(lambda: len(head.stub.posted) == len(names), "all launchers are submitted", 30)
    uids = {name: found(plane, "dljob", name, namespace)["metadata"]["uid"].replace("-", "") for name in names}
    for uid in uids.values():
        head.do(lambda uid=uid: head.stub.say(uid, phase="Running", epoch=1))

    def phase(name: str) -> str:
        return found(plane, "dljob", name, namespace).get("status", {}).get("phase", "")

    def ordered() -> list[str]:
        return [path for path in head.stub.asked if path.startswith("POST") and path.endswith("/commands")]

    until(lambda: {phase(name) for name in names} == {"Running"}, "all run")
    plane.kubectl("annotate", "dljob", "stopped", "-n", namespace, "dljob.io/stop=2026-01-01T00:00:00Z")
    until(ordered, "one is stopped")
    head.do(lambda: head.stub.say(uids["stopped"], phase="Failed", reason="Stopped"))
    until(lambda: phase("stopped") == "Stopped", "it is over")
    plane.kubectl("delete", "dljob", "deleted", "-n", namespace, "--wait=false")
    until(lambda: len(ordered()) > 1, "the next one is stopped, as it is deleted")
    head.do(lambda: head.stub.say(uids["deleted"], phase="Failed", reason="Stopped"))
    until(lambda: not found(plane, "dljob", "deleted", namespace), "it is gone")
    assert ordered() == [f"POST /v1/jobs/{uids[name]}/commands" for name in ("stopped", "deleted")]
    assert [command["kind"] for command in head.stub.commands] == ["stop", "stop"]
    assert phase("stays") == "Running"
    assert found(plane, "raycluster", "shared", namespace)["metadata"]["generation"] == 1

    operator.stop()
    plane.kubectl("delete", "namespace", namespace, "--wait=false")

    def remaining() -> str:
        conditions = found(plane, "namespace", namespace).get("status", {}).get("conditions", [])
        return next((item["message"] for item in conditions if item["type"] == "NamespaceFinalizersRemaining"), "")

    until(lambda: "dljob.io/" in remaining(), "the namespace waits for the job that nobody stops")
    page = (cache.ROOT / "charts/dljob/README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"`(kubectl get dljobs -n NAMESPACE .*finalizers.*)`", page)
    env = {**os.environ, "KUBECONFIG": str(plane.kubeconfig), "PATH": f"{kubectl().parent}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", line.replace("NAMESPACE", namespace)], env=env, check=True, timeout=60)
    until(lambda: not found(plane, "namespace", namespace), "it is gone")
    operator.start()
