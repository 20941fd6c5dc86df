"""Whole jobs on real pods: from `kubectl apply` to Complete, with the images of the project's own Dockerfile."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cluster import torch_volume
from cluster.handle import Cluster
from cluster.node import NAME as NODE
from node_kit import ended, logs, told
from operator_kit import Operator, found, until

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TORCH = "/torch"
ITERATIONS = 120
DEVICES = """
import os
from dljob import current_worker, progress

def main():
    me = current_worker()
    progress(1)
    for name in ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "DLJOB_FORKED_WORKERS"):
        print(f"{name}={os.environ.get(name, '-')}", flush=True)
"""


def test_machines_of_half_a_cpu_hold_one_rank_of_half_a_cpu_each(
    node: Cluster, operator: Operator, namespace: str
) -> None:
    """KubeRay starts Ray with whole CPUs: by those alone both ranks would be in one pod."""
    rank = {"entrypoint": {"command": ["hostname"]}, "replicas": 2, "resources": {"cpu": "500m"}}
    spec = {
        "head": {"cpu": "200m", "memory": "2Gi"},
        "master": {"cpu": "100m", "memory": "512Mi"},
        "nodeGroups": [{"name": "w", "replicas": 2, "cpu": "500m", "memory": "1Gi"}],
        "roles": [{"name": "a", **rank}],
    }
    metadata = {"name": "half", "namespace": namespace}
    node.apply({"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": metadata, "spec": spec})
    pods: set[str] = until(lambda: workers(node, namespace), "both machines are there")
    body = ended(node, "half", namespace, 120)
    assert body["status"]["phase"] == "Succeeded", told(body)
    assert {text.split()[-1] for text in logs(node, "half", namespace).values()} == pods


def workers(node: Cluster, namespace: str) -> set[str]:
    """The names of two worker pods; empty until both are there."""
    pods = node.get("pods", "-n", namespace, "-l", "ray.io/node-type=worker")["items"]
    return {pod["metadata"]["name"] for pod in pods} if len(pods) == 2 else set()


def role(name: str, resource: str, count: str, replicas: int, **fields: Any) -> dict[str, Any]:
    accelerator = {"type": resource, "count": count}
    return {
        "name": name,
        "entrypoint": {"class": "devices.main"},
        "replicas": replicas,
        "accelerator": accelerator,
        "resources": {"cpu": "50m"},
        **fields,
    }


def test_each_rank_gets_its_own_devices_and_shares_what_it_shares(
    node: Cluster, operator: Operator, namespace: str
) -> None:
    resources = {"NPU": "huawei.com/Ascend910", "GPU": "nvidia.com/gpu"}
    for resource in resources.values():
        node.declare(NODE, resource, 4)
    small = {"cpu": "500m", "memory": "2Gi"}
    spec = {
        "code": {"configMap": "code"},
        "head": {"cpu": "250m", "memory": "2Gi"},
        "master": {"cpu": "100m", "memory": "512Mi"},
        "nodeGroups": [
            {"name": "npu", **small, "accelerator": {"type": "NPU", "count": 4, "resourceName": resources["NPU"]}},
            {"name": "gpu", **small, "accelerator": {"type": "GPU", "count": 2}},
        ],
        "roles": [
            role("whole", "NPU", "2", 1, nodeGroup="npu"),
            role("actor", "NPU", "0.6", 2, nodeGroup="npu"),
            role("critic", "NPU", "0.4", 2, nodeGroup="npu"),
            role("gpu", "GPU", "1", 2, nodeGroup="gpu"),
        ],
        "collocations": [{"name": "both", "roles": ["actor", "critic"], "level": "Device"}],
    }
    node.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code", "namespace": namespace},
         "data": {"devices.py": DEVICES}},
        {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "mixed", "namespace": namespace},
         "spec": spec},
    )  # fmt: skip
    asked: dict[str, dict[str, str]] = until(lambda: limits(node, namespace), "the worker pods ask for devices")
    assert asked["npu"]["huawei.com/Ascend910"] == "4"
    assert asked["gpu"]["nvidia.com/gpu"] == "2"
    body = ended(node, "mixed", namespace, 150)
    assert body["status"]["phase"] == "Succeeded", told(body)
    said = logs(node, "mixed", namespace)
    seen = {name.removesuffix(".log"): visible(text) for name, text in said.items()}
    assert len(seen["whole-0"]["NPU"]) == 2
    assert seen["actor-0"]["NPU"] == seen["critic-0"]["NPU"]
    assert seen["actor-1"]["NPU"] == seen["critic-1"]["NPU"]
    taken = [*seen["whole-0"]["NPU"], *seen["actor-0"]["NPU"], *seen["actor-1"]["NPU"]]
    assert sorted(taken) == ["0", "1", "2", "3"]
    assert sorted(seen["gpu-0"]["GPU"] + seen["gpu-1"]["GPU"]) == ["0", "1"]
    assert seen["gpu-0"]["NPU"] == []
    # Not in all: a worker that Ray starts with the raylet is Ray's own.
    assert any("DLJOB_FORKED_WORKERS=1" in text.splitlines() for text in said.values())


def limits(node: Cluster, namespace: str) -> dict[str, dict[str, str]]:
    """What the first container of each worker pod asks for, by node group; empty until both are there."""
    pods = node.get("pods", "-n", namespace, "-l", "ray.io/node-type=worker")["items"]
    found = {
        p["metadata"]["labels"]["dljob.io/node-group"]: p["spec"]["containers"][0]["resources"]["limits"] for p in pods
    }
    return found if len(found) == 2 else {}


def visible(log: str) -> dict[str, list[str]]:
    """The ids that a rank saw."""
    names = {"NPU": "ASCEND_RT_VISIBLE_DEVICES=", "GPU": "CUDA_VISIBLE_DEVICES="}
    lines = {kind: next(line for line in log.splitlines() if line.startswith(name)) for kind, name in names.items()}
    return {kind: [i for i in line.partition("=")[2].split(",") if i.isdigit()] for kind, line in lines.items()}


@pytest.mark.timeout(420)
def test_five_roles_learn_and_one_restarts_by_annotation(node: Cluster, operator: Operator, namespace: str) -> None:
    if node.run is None or not (node.run / "node" / torch_volume.NAME).exists():
        pytest.skip("torch is not installed here: `make setup` brings it")
    torch_volume.volume(node, namespace)
    listed = node.kubectl("apply", "-k", str(EXAMPLES / "grpo-tiny"), "--dry-run=client", "-o", "json")
    for item in json.loads(listed)["items"]:
        item["metadata"] = {"name": item["metadata"]["name"], "namespace": namespace}
        node.apply(with_torch(item) if item["kind"] == "DLJob" else item)

    def phase() -> str:
        return found(node, "dljob", "grpo-tiny", namespace).get("status", {}).get("phase", "")

    until(lambda: phase() == "Running", "all roles are ready", 240)
    before = {pod["metadata"]["uid"] for pod in node.get("pods", "-n", namespace)["items"]}
    at = datetime.now(UTC).isoformat()
    orders = (f"dljob.io/restart={at}", "dljob.io/restart-target=rollout/1")
    node.kubectl("annotate", "dljob", "grpo-tiny", "-n", namespace, *orders)
    until(
        lambda: found(node, "dljob", "grpo-tiny", namespace)["status"]["restarts"]["process"] == 1,
        "the operator passes the order on, and PrimeMaster tells of it",
        60,
    )
    assert {pod["metadata"]["uid"] for pod in node.get("pods", "-n", namespace)["items"]} == before
    body = ended(node, "grpo-tiny", namespace, 180)
    assert body["status"]["phase"] == "Succeeded", told(body)
    assert body["status"]["restarts"]["process"] == 1
    assert body["status"]["attempt"] == 1
    assert body["status"]["progress"]["step"] == ITERATIONS


def with_torch(job: dict[str, Any]) -> dict[str, Any]:
    """The example with torch from the claim of that name, as the images here have none, and long enough to be met."""
    job["spec"]["config"]["iterations"] = ITERATIONS
    group = job["spec"]["nodeGroups"][0]
    pod = group.setdefault("template", {}).setdefault("spec", {})
    pod["volumes"] = [{"name": "torch", "persistentVolumeClaim": {"claimName": torch_volume.NAME, "readOnly": True}}]
    container = next(c for c in pod["containers"] if c["name"] == "ray-worker")
    container["volumeMounts"] = [{"name": "torch", "mountPath": TORCH, "readOnly": True}]
    container["env"] = [{"name": "PYTHONPATH", "value": TORCH}]
    return job
