"""From `kubectl apply` to RayCluster and pods, and back to nothing, on a real API server with the real KubeRay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.handle import Cluster
from operator_kit import Operator, children, found, running, token, until

ROOT = Path(__file__).resolve().parents[2]
HELLO = ROOT / "examples" / "hello-cpu" / "dljob.yaml"


@pytest.fixture(scope="module")
def operator(plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    with running(plane, tmp_path_factory.mktemp("operator")) as operator:
        yield operator


@pytest.fixture
def namespace(plane: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.replace("_", "-").removeprefix("test-")[:40].strip("-")
    plane.kubectl("create", "namespace", name)
    yield name
    plane.kubectl("delete", "namespace", name, "--wait=false")


def made(plane: Cluster, name: str, namespace: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The job, and the RayCluster that it was given."""

    def cluster() -> Any:
        body = found(plane, "dljob", name, namespace)
        recorded = body.get("status", {}).get("rayCluster", {})
        return (body, found(plane, "raycluster", recorded["name"], namespace)) if recorded.get("uid") else None

    return until(cluster, f"{name} has a RayCluster")


def test_an_applied_job_gets_all_that_it_needs(plane: Cluster, operator: Operator, namespace: str) -> None:
    plane.kubectl("apply", "-n", namespace, "-f", str(HELLO))
    body, cluster = made(plane, "hello", namespace)
    uid, name = body["metadata"]["uid"], cluster["metadata"]["name"]
    assert name.startswith("hello-")
    owner = cluster["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("DLJob", uid, True)
    assert cluster["spec"]["authOptions"] == {"mode": "token", "secretName": f"{name}-token"}

    import base64

    secret = found(plane, "secret", f"{name}-token", namespace)
    assert base64.b64decode(secret["data"]["auth_token"]).decode() == token(uid, name)
    spec = found(plane, "configmap", f"{name}-spec", namespace)
    assert spec["immutable"] is True
    assert '"hello.main"' in spec["data"]["spec.json"]

    pods = until(lambda: [c for c in children(plane, uid, namespace) if c.startswith("Pod/")], "KubeRay makes pods")
    assert any("-head-" in pod for pod in pods)
