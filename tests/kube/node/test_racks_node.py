"""A rack that fails piece by piece, on real pods: the second lost node takes the rest of its rack with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster.handle import Cluster
from operator_kit import Operator, found, until

NAME = "racks"
STEPS = """
import time
from dljob import progress

def main():
    for step in range(10**9):
        progress(step)
        time.sleep(0.1)
"""
RACK = {"replicas": 3, "cpu": "150m", "memory": "1Gi"}


def objects(namespace: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return three ranks, and two racks of three nodes: either has room for all."""
    role = {"name": "w", "replicas": 3, "entrypoint": {"class": "steps.main"}}
    spec = {
        "code": {"configMap": "code"},
        "head": {"cpu": "250m", "memory": "2Gi"},
        "master": {"cpu": "100m", "memory": "512Mi"},
        "nodeGroups": [{"name": f"rack-{rack}", "labels": {"rack": rack}, **RACK} for rack in "ab"],
        "faultTolerance": {
            "backoff": {"initialSeconds": 0},
            "node": {"failureDomainLabel": "rack", "domainFailures": 2},
        },
        # Memory keeps the ranks apart: a node has room for one.
        "roles": [{**role, "resources": {"cpu": "100m", "memory": "600Mi"}}],
    }
    meta = {"name": "code", "namespace": namespace}
    return (
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"steps.py": STEPS}},
        {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {**meta, "name": NAME}, "spec": spec},
    )


class Racks:
    """What the pods say that they hold, and the faults that are done to them."""

    def __init__(self, node: Cluster, namespace: str, folder: Path) -> None:
        self.node, self.namespace, self.folder = node, namespace, folder
        self.env = {**os.environ, "KUBECONFIG": str(node.kubeconfig), "NO_COLOR": "1", "DLJOB_HOME": str(folder)}

    def held(self) -> dict[str, tuple[str, str]]:
        """Return rank -> its rack, and its Ray node."""
        pods = self.node.get("pods", "-n", self.namespace, "-l", "ray.io/node-type=worker")["items"]
        found: dict[str, tuple[str, str]] = {}
        for meta in (pod["metadata"] for pod in pods):
            told = meta.get("annotations", {})
            if (rank := told.get("dljob.io/ranks")) and "deletionTimestamp" not in meta:
                found[rank] = (meta["labels"]["ray.io/group"], told["dljob.io/ray-node-id"])
        return found

    def placed(self, faults: int) -> dict[str, tuple[str, str]]:
        """Return where the ranks are, once all run after so many faults."""

        def look() -> dict[str, tuple[str, str]]:
            status = found(self.node, "dljob", NAME, self.namespace).get("status", {})
            well = status.get("phase") == "Running" and status.get("rolesReady") == "3/3"
            held = self.held()
            many = len(status.get("recentFaults", []))
            return held if well and many == faults and len(held) == 3 else {}

        return until(look, f"all ranks run after {faults} faults", 180)

    def dljob(self, *words: str) -> str:
        command = [sys.executable, "-m", "dljob.cli", *words, "-n", self.namespace]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=120, check=False)
        assert done.stdout, done.stderr
        return done.stdout

    def lose(self, node: str) -> None:
        """Kill a Ray node without a word."""
        file = self.folder / "lose.yaml"
        fault = {"when": {"time": 0}, "target": f"node/{node}", "fault": "kill", "expect": {"cause": "NodeLost"}}
        file.write_text(yaml.safe_dump([fault]))
        told = json.loads(self.dljob("chaos", NAME, str(file), "--yes", "-o", "json"))
        assert [row["problem"] for row in told["faults"]] == [""], told


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_second_lost_node_of_a_rack_takes_the_rest_with_it(
    node: Cluster, operator: Operator, namespace: str, tmp_path: Path
) -> None:
    it = Racks(node, namespace, tmp_path)
    node.apply(*objects(namespace))
    before = it.placed(0)
    ((rack, _),) = Counter(rack for rack, _ in before.values()).most_common(1)
    first, second = sorted(rank for rank in before if before[rank][0] == rack)[:2]
    it.lose(before[first][1])
    # A single lost node leaves its rack in use.
    assert it.placed(1)[second] == before[second]
    it.lose(before[second][1])
    after = it.placed(2)
    assert {own for own, _ in after.values()} == {"rack-a", "rack-b"} - {rack}
    (why,) = {line for line in it.dljob("events", NAME).splitlines() if "DomainReplaced" in line}
    assert f"rack={rack[-1]} failed within 600 s; its other nodes are left with them" in why
