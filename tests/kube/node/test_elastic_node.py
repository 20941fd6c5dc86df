"""An elastic role on real pods, with torch: without room for another pod it goes on with fewer ranks; then it grows."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import torch_volume
from cluster.handle import Cluster
from cluster.node import NAME as NODE
from node_kit import volume
from operator_kit import Operator, children, found, until

ROOM = "example.test/room"
"""Of the node: each worker pod takes one."""
TORCH = "/torch"
NAME = "elastic"
CODE = """
import time
import torch
import torch.distributed as dist
from dljob import Worker, checkpoint, current_worker, progress

class Counter(Worker):
    def run(self):
        me = current_worker()
        found = checkpoint.load()
        step = found[0] + 1 if found else 0
        while True:
            ones = torch.ones(1)
            dist.all_reduce(ones)
            assert int(ones.item()) == me.world_size
            checkpoint.save(step, {"step": step}, persist=step % 10 == 0)
            progress(step, world=me.world_size)
            step += 1
            time.sleep(0.1)
"""


def job(namespace: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two torch ranks, at least one, each in a pod of its own, and their code."""
    role = {
        "name": "worker",
        "type": "Elastic",
        "replicas": 2,
        "minReplicas": 1,
        "entrypoint": {"class": "count.Counter"},
        "comm": {"backend": "gloo", "preCheck": False},
        # Two ranks have room for their CPUs in one machine, so it is memory that keeps them apart.
        "resources": {"cpu": "200m", "memory": "1200Mi"},
    }
    container = {
        "name": "ray-worker",
        "resources": {"limits": {ROOM: "1"}, "requests": {ROOM: "1"}},
        "volumeMounts": [{"name": "torch", "mountPath": TORCH, "readOnly": True}],
        "env": [{"name": "PYTHONPATH", "value": TORCH}],
    }
    claim = {"claimName": torch_volume.NAME, "readOnly": True}
    pod = {"containers": [container], "volumes": [{"name": "torch", "persistentVolumeClaim": claim}]}
    spec = {
        "code": {"configMap": "code"},
        "head": {"cpu": "250m", "memory": "2Gi"},
        "master": {"cpu": "100m", "memory": "512Mi"},
        "nodeGroups": [{"name": "cpu", "cpu": "500m", "memory": "2Gi", "replicas": 2, "template": {"spec": pod}}],
        "checkpoint": {"path": "/ckpt", "claimName": "ckpt", "gracePeriodSeconds": 20},
        "faultTolerance": {"elastic": {"shrinkAfterSeconds": 3, "growAfterSeconds": 2}},
        "roles": [role],
    }
    meta = {"name": NAME, "namespace": namespace}
    code = {"name": "code", "namespace": namespace}
    return (
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": code, "data": {"count.py": CODE}},
        {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": meta, "spec": spec},
    )


class Job:
    """What can be seen of it."""

    def __init__(self, node: Cluster, namespace: str) -> None:
        self.node, self.namespace = node, namespace

    @property
    def body(self) -> dict[str, Any]:
        return found(self.node, "dljob", NAME, self.namespace)

    def works_with(self, ranks: int, beyond: int) -> dict[str, Any]:
        """The status once a world of so many ranks has made a step beyond one."""

        def look() -> dict[str, Any]:
            status = self.body.get("status", {})
            desired = [role["desired"] for role in status.get("roles", [])]
            progress = status.get("progress", {})
            world = [float(metric["value"]) for metric in progress.get("metrics", []) if metric["name"] == "world"]
            works = (status.get("phase"), desired, world) == ("Running", [ranks], [ranks])
            return status if works and progress["step"] > beyond else {}

        try:
            return until(look, f"{ranks} ranks are beyond step {beyond}", 180)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.described()}") from error

    def described(self) -> str:
        return self.node.kubectl("describe", "dljob", NAME, "-n", self.namespace)

    def pods(self) -> list[dict[str, Any]]:
        return self.node.get("pods", "-n", self.namespace, "-l", "ray.io/node-type=worker")["items"]

    def pod(self, rank: int) -> str:
        """The pod that says that it holds a rank."""

        def look() -> str:
            held = {p["metadata"].get("annotations", {}).get("dljob.io/ranks"): p["metadata"] for p in self.pods()}
            return held.get(f"worker/{rank}", {}).get("name", "")

        return until(look, f"a pod holds rank {rank}")


@pytest.mark.timeout(600)
def test_a_role_goes_on_with_fewer_pods_and_grows_back(node: Cluster, operator: Operator, namespace: str) -> None:
    if node.run is None or not (node.run / "node" / torch_volume.NAME).exists():
        pytest.skip("torch is not installed here: `make setup` brings it")
    torch_volume.volume(node, namespace)
    volume(node, namespace)
    node.declare(NODE, ROOM, 2)
    node.apply(*job(namespace))
    it = Job(node, namespace)
    begun = it.works_with(2, 10)
    cluster, survivor = begun["rayCluster"], it.pod(1)

    node.declare(NODE, ROOM, 1)
    node.kubectl("delete", "pod", it.pod(0), "-n", namespace, "--wait=false")
    fewer = it.works_with(1, begun["progress"]["step"])
    phases = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in it.pods()}
    assert phases.pop(survivor) == "Running"
    assert list(phases.values()) == ["Pending"], "KubeRay has made another, for which there is no room"

    node.declare(NODE, ROOM, 2)
    more = it.works_with(2, fewer["progress"]["step"])
    assert more["rayCluster"] == cluster
    assert (more["attempt"], more["submissionId"]) == (1, begun["submissionId"])
    assert survivor in {it.pod(0), it.pod(1)}
    said = it.described()
    print(said[said.index("Events:") :])
    assert "worker has 1 rank instead of 2" in said
    assert "2 ranks instead of 1: there is room for more" in said

    uid = it.body["metadata"]["uid"]
    node.kubectl("delete", "dljob", NAME, "-n", namespace, "--timeout=120s")
    until(lambda: not children(node, uid, namespace), "nothing of it is left", 120)
