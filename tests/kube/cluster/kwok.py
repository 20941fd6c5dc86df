"""Fake nodes for scale tests: KWOK reports them ready, and every pod on them Running."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from cluster import cache, processes
from cluster.handle import Cluster

LABEL = "dljob.test/fake"
MANY = {"cpu": "64", "memory": "512Gi", "pods": "256", "nvidia.com/gpu": "8", "huawei.com/Ascend910": "16"}
STAGES = (
    "node/fast/node-initialize",
    "node/heartbeat-with-lease/node-heartbeat-with-lease",
    *(f"pod/fast/pod-{s}" for s in ("ready", "complete", "delete")),
)


def start(cluster: Cluster, run: Path) -> None:
    """Start KWOK for the nodes with our label, once per cluster."""
    if processes.find(run, "kwok"):
        return
    stages = [f"--config={cache.kube() / 'kwok' / stage}.yaml" for stage in STAGES]
    ours = ["--manage-all-nodes=false", f"--manage-nodes-with-label-selector={LABEL}=true"]
    where = [
        "--cidr=10.200.0.0/14",
        "--node-ip=10.204.0.1",
        "--server-address=127.0.0.1:0",
        "--node-lease-duration-seconds=40",
    ]
    command = [cache.program("kwok"), f"--kubeconfig={cluster.kubeconfig}", *ours, *where, *stages]
    processes.start(run, "kwok", command)


def node(name: str, resources: Mapping[str, str]) -> dict[str, object]:
    """Return the manifest of a fake node with resources."""
    labels = {LABEL: "true", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": dict(resources), "capacity": dict(resources)},
    }


def add(cluster: Cluster, run: Path, count: int, prefix: str = "fake", resources: Mapping[str, str] = MANY) -> None:
    """Add the missing ones of the fake nodes `<prefix>-0`, `<prefix>-1`, ... and wait until they are ready."""
    start(cluster, run)
    names = {f"{prefix}-{i}" for i in range(count)}
    there = cluster.kubectl("get", "nodes", "-o", "name").replace("node/", "").split()
    if items := [node(name, resources) for name in sorted(names.difference(there))]:
        cluster.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))

    def ready() -> bool:
        path = '{range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Ready")].status}{"\\n"}{end}'
        lines = cluster.kubectl("get", "nodes", "-l", LABEL, "-o", f"jsonpath={path}").splitlines()
        return names <= {line.partition(" ")[0] for line in lines if line.endswith(" True")}

    processes.until(ready, 120, f"{count} fake nodes", run, ["kwok"])
