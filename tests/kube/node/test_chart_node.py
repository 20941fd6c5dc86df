"""The chart's package on a real node: the operator is a pod of the project's image, with the chart's rights alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chaos_kit
import pytest
import yaml
from cluster import cache
from cluster.handle import Cluster, KubectlError
from cluster.node import load
from helm_kit import CHART, VERSION, HelmError, Release
from images import build
from operator_kit import job, until

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SPACE = "dljob-system"
FILE_S = 240
"""Seconds for the faults of one file: a pod that is lost is made again, and its node joins Ray."""
RESTRICTED = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
OPERATOR = """
import importlib.util, os, shutil, sys
import dljob_operator.main, kopf
print(os.getuid(), [name for name in ("ray", "torch", "pip") if importlib.util.find_spec(name)], shutil.which("uv"))
"""
USER = """
import getpass, os, tempfile
with open(os.path.expanduser("~/cache"), "w"), tempfile.NamedTemporaryFile():
    print("user", getpass.getuser(), os.path.expanduser("~"))
"""
RUNTIME = """
import os, ray, dljob.runtime.launcher
print(os.getuid(), ray.__version__, os.path.expanduser("~"))
"""


@pytest.fixture(scope="module")
def images(node: Cluster) -> None:
    """Both images as the tree has them now, on the node."""
    if node.run is None:
        pytest.skip("an existing cluster does not get our images: unset DLJOB_E2E")
    try:
        load(node.run, build.archives())
    except cache.MissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def release(node: Cluster, images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    node.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE, "labels": labels}})
    package = tmp_path_factory.mktemp("chart")
    subprocess.run([cache.program("helm"), "package", CHART, "--destination", package], check=True, timeout=30)
    made = Release(node, SPACE, chart=package / f"dljob-{VERSION}.tgz")
    made.install("--values", str(Path(build.__file__).with_name("values.yaml")))
    try:
        node.kubectl("rollout", "status", "deployment/dljob", "-n", SPACE, "--timeout=60s")
    except KubectlError as error:
        why = node.kubectl("describe", "pods", "-n", SPACE) + node.kubectl("logs", "deployment/dljob", "-n", SPACE)
        pytest.fail(f"{error}\n{why}")
    yield made
    made.helm("uninstall", made.name)
    node.kubectl("delete", "namespace", SPACE, "--wait=false")


def printed(node: Cluster, image: str, program: str, uid: int, namespace: str) -> str:
    """What a program prints in a restricted pod of an image."""
    name = image.partition("/")[2].partition(":")[0]
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["python", "-c", program],
        "securityContext": {**RESTRICTED, "runAsUser": uid},
    }
    metadata = {"name": name, "namespace": namespace}
    spec = {"restartPolicy": "Never", "containers": [container]}
    node.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    node.kubectl("wait", f"pod/{name}", "-n", namespace, "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
    return node.kubectl("logs", name, "-n", namespace)


def least_pod(container: str) -> dict[str, Any]:
    """A template of pods with no right that they could do without, under a uid that no image knows."""
    own = ("allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities")
    pod = {name: value for name, value in RESTRICTED.items() if name not in own} | {
        "runAsUser": 1000660000,
        "runAsGroup": 0,
    }
    ray = {"name": container, "securityContext": {name: RESTRICTED[name] for name in own}}
    return {"spec": {"securityContext": pod, "containers": [ray]}}


def logs(node: Cluster) -> list[str]:
    """What both operators say."""
    return node.kubectl("logs", "-n", SPACE, "-l", "app.kubernetes.io/component=operator", "--tail=-1").splitlines()


def test_the_images_hold_what_they_should(node: Cluster, images: None, namespace: str) -> None:
    assert printed(node, build.image("operator"), OPERATOR, 65532, namespace) == "65532 [] None\n"
    assert printed(node, build.image("runtime"), RUNTIME, 1000, namespace) == "1000 2.60.0 /home/ray\n"


def test_helm_test_passes(release: Release) -> None:
    try:
        said = release.helm("test", "dljob", "--timeout=120s")
    except HelmError as error:
        pod = ("-n", SPACE, "dljob-test")
        why = release.cluster.kubectl("describe", "pod", *pod) + release.cluster.kubectl("logs", *pod)
        pytest.fail(f"{error}\n{why}")
    assert "Succeeded" in said


def test_the_operator_is_restricted_and_tells_json(release: Release) -> None:
    pods = release.cluster.get("pods", "-n", SPACE, "-l", "app.kubernetes.io/component=operator")["items"]
    assert [pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods] == [0, 0]
    lines = logs(release.cluster)
    levels = {json.loads(line)["level"] for line in lines}
    assert levels
    assert not levels & {"error", "critical"}, lines


def test_no_job_has_the_operators_own_rights(release: Release, node: Cluster) -> None:
    pod = {"template": {"spec": {"serviceAccountName": release.name}}}
    role = {"name": "worker", "nodeGroup": "g", "entrypoint": {"class": "hello.main"}, "resources": {"cpu": "500m"}}
    group = {"name": "g", "cpu": "1", **pod}
    for name, spec in (("thief", {"head": pod}), ("helper", {"nodeGroups": [group], "roles": [role]})):
        made = job(name, **spec)
        with pytest.raises(KubectlError, match="service account dljob is the operator's own"):
            node.apply({**made, "metadata": {"name": name, "namespace": SPACE}})
    assert node.get("dljobs", "-n", SPACE)["items"] == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_faults_in_pods_come_to_the_decisions_of_the_simulator(
    release: Release, node: Cluster, namespace: str, tmp_path: Path
) -> None:
    """The five faults files of tests/chaos; one kills the operator's pods."""
    body = chaos_kit.manifest()
    body["spec"].update(head={"cpu": "250m", "memory": "2Gi"}, master={"cpu": "100m", "memory": "512Mi"})
    (tmp_path / "hurt.yaml").write_text(yaml.safe_dump(body))
    shutil.copy(chaos_kit.USER, tmp_path)
    env = {**os.environ, "KUBECONFIG": str(node.kubeconfig), "DLJOB_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}

    def dljob(*words: str) -> str:
        command = [sys.executable, "-m", "dljob.cli", *words, "-n", namespace]
        done = subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=FILE_S, check=False
        )
        assert done.stdout, done.stderr
        return done.stdout

    dljob("submit", "hurt.yaml")
    until(lambda: json.loads(dljob("status", "hurt", "-o", "json"))["phase"] == "Running", "the job runs", FILE_S)
    chaos_kit.compare(lambda file: dljob("chaos", "hurt", str(file), "--yes", "-o", "json"))
    node.kubectl("delete", "dljob", "hurt", "-n", namespace, "--wait=false")


def test_the_smallest_job_completes_where_the_least_is_allowed(release: Release, node: Cluster, namespace: str) -> None:
    """By a release that serves that namespace alone, under a uid that no image knows, with a read-only root.

    The last one of this file: the release has no ClusterRole any more.
    """
    values = ("--values", str(Path(build.__file__).with_name("values.yaml")))
    scope = {"rbac": {"scope": "Namespaced"}, "watchNamespaces": [namespace]}
    release.helm("upgrade", release.name, str(release.chart), *values, **scope)
    node.kubectl("rollout", "status", f"deployment/{release.name}", "-n", SPACE, "--timeout=60s")
    assert not release.may("list", "dljobs.dljob.io", SPACE)
    node.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted", "--overwrite")
    job, code = yaml.safe_load_all((EXAMPLES / "hello-cpu" / "dljob.yaml").read_text())
    user = {"name": "user", "entrypoint": {"command": ["python", "-c", USER]}, "resources": {"cpu": "50m"}}
    job["spec"]["roles"].append(user)
    job["spec"]["head"]["template"] = least_pod("ray-head")
    job["spec"]["nodeGroups"] = [{"name": "g", "cpu": "1100m", "memory": "2Gi", "template": least_pod("ray-worker")}]
    for each in (code, job):
        each["metadata"]["namespace"] = namespace
        node.apply(each)
    node.kubectl("wait", "dljob/hello", "-n", namespace, "--for=condition=Complete", "--timeout=150s", seconds=170)
    # The tails of the logs are saved, then the RayCluster goes.
    node.kubectl("wait", "raycluster", "--all", "-n", namespace, "--for=delete", "--timeout=60s")
    # Namespaces of other tests may be on their way out.
    lines = [line for line in logs(node) if "forbidden" in line and "is being terminated" not in line]
    assert lines == [], "the chart's rights suffice"
    said = node.get("configmap", "hello-logs", "-n", namespace)["data"]
    assert "hello from rank 1 of 2" in said["worker-1.log"]
    assert "user uid-1000660000 /dljob/user" in said["user-0.log"]
    events: list[dict[str, Any]] = node.get("events.events.k8s.io", "-n", namespace)["items"]
    assert [event["reason"] for event in events if event["regarding"]["kind"] == "DLJob"], "it may tell Events"
