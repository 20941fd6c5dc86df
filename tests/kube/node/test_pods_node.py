"""What happens to real pods, as `kubectl describe` tells it: evicted, deleted by force, a rank too large for them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cluster.handle import Cluster
from operator_kit import Operator, found, until

SMALL = {"cpu": "250m", "memory": "1500Mi"}
STEPS = """
import time
from pathlib import Path
from dljob import progress

def main():
    held, eat = [], Path("/tmp/eat")
    for step in range(10**9):
        progress(step)
        if eat.exists():
            eat.unlink()
            while True:
                held.append(bytearray(16 << 20))
        time.sleep(0.1)
"""
# Ray's own monitor would be first.
ALONE = {"containers": [{"name": "ray-worker", "env": [{"name": "RAY_memory_monitor_refresh_ms", "value": "0"}]}]}
NAME = "steps"


class Job:
    """Two ranks, each in a pod of its own."""

    def __init__(self, node: Cluster, namespace: str) -> None:
        self.node, self.namespace = node, namespace
        # A quarter of a CPU counts as a whole one with Ray, so it is memory that keeps the ranks apart.
        needs = {"cpu": "200m", "memory": "1Gi"}
        more = {"level": "Process", "outOfMemory": {"memoryFactor": "1.5", "maxMemory": "1200Mi"}}
        role = {"name": "worker", "replicas": 2, "entrypoint": {"class": "steps.main"}, "resources": needs}
        spec = {
            "code": {"configMap": "code"},
            "head": {"cpu": "250m", "memory": "2Gi"},
            "master": {"cpu": "100m", "memory": "512Mi"},
            "nodeGroups": [{"name": "cpu", **SMALL, "replicas": 2, "template": {"spec": ALONE}}],
            "roles": [{**role, "restartPolicy": more}],
        }
        meta = {"name": "code", "namespace": namespace}
        node.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"steps.py": STEPS}},
            {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {**meta, "name": NAME}, "spec": spec},
        )
        until(lambda: self.status.get("phase") == "Running", "it runs", 120)

    @property
    def status(self) -> dict[str, Any]:
        return found(self.node, "dljob", NAME, self.namespace).get("status", {})

    def pod(self, rank: int) -> str:
        """The pod that says that it holds a rank."""

        def look() -> str:
            pods = self.node.get("pods", "-n", self.namespace, "-l", "ray.io/node-type=worker")["items"]
            held = {pod["metadata"].get("annotations", {}).get("dljob.io/ranks"): pod["metadata"] for pod in pods}
            meta = held.get(f"worker/{rank}", {})
            return "" if "deletionTimestamp" in meta else meta.get("name", "")

        return until(look, f"a pod holds rank {rank}", 60)

    def again(self, faults: int) -> dict[str, Any]:
        """The newest fault, when there are so many and the job runs again."""

        def look() -> dict[str, Any]:
            status = self.status
            newest = status.get("lastFault", {})
            many = len(status.get("recentFaults", [])) >= faults and status["rolesReady"] == "2/2"
            return newest if many and status["phase"] == "Running" and newest.get("recoveredAt") else {}

        return until(look, f"it runs again after fault {faults}", 120)

    def describe(self) -> str:
        """The Events of `kubectl describe`."""
        words = self.node.kubectl("describe", "dljob", NAME, "-n", self.namespace)
        return words[words.index("Events:") :]


@pytest.mark.timeout(300)
def test_a_rank_that_outgrows_its_pod_is_told_so_and_gets_more(
    node: Cluster, operator: Operator, namespace: str
) -> None:
    it = Job(node, namespace)
    pod = it.pod(1)
    node.kubectl("exec", pod, "-n", namespace, "-c", "ray-worker", "--", "touch", "/tmp/eat")

    def told() -> dict[str, Any]:
        # Where the count comes after the restart has begun, the last fault is the restart with more memory.
        killed = [fault for fault in it.status.get("recentFaults", []) if fault["reason"] == "OOMKilled"]
        return next((fault for fault in killed if "oom_kill +1, peak" in fault["firstCause"]), {})

    fault = until(told, "the kill is told as what it was, counted by the agent of its node", 120)
    assert fault["target"] == "worker/1", fault

    def wanted() -> dict[str, str]:
        return it.status.get("carried", {}).get("state", {}).get("memory", {})

    assert until(wanted, "PrimeMaster has asked for more memory", 120) == {"worker": "1200Mi"}
    it.again(1)
    assert it.pod(1) == pod, "the container lived on"
    words = it.describe()
    print(words)
    assert "OOMKilled" in words
    assert "oom_kill +1, peak" in words
    assert it.status["attempt"] == 1


@pytest.mark.timeout(420)
def test_the_ends_of_pods_are_told_by_their_causes(node: Cluster, operator: Operator, namespace: str) -> None:
    it = Job(node, namespace)
    # The Eviction API, as `kubectl drain` uses it.
    name = it.pod(0)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    node.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    fault = it.again(1)
    assert fault["reason"] == "Preempted", fault
    assert "EvictionByEvictionAPI" in fault["firstCause"], fault
    # Nobody is asked, and nobody waited for.
    node.kubectl("delete", "pod", it.pod(1), "-n", namespace, "--force", "--grace-period=0")
    fault = it.again(2)
    assert fault["reason"] in ("NodeLost", "Preempted"), fault
    told = it.describe()
    print(told)
    assert "EvictionByEvictionAPI" in told
    assert it.status["attempt"] == 1
