"""The real node: its pods run and are reached, names resolve, devices are declared, and the end leaves nothing."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from cluster import cache, images, processes, up
from cluster import node as real
from cluster.handle import Cluster
from cluster.plane import SERVICES


def pod(name: str, image: str, **container: object) -> dict[str, Any]:
    spec = {
        "containers": [{"name": "c", "image": image, "imagePullPolicy": "Never", **container}],
        "terminationGracePeriodSeconds": 0,
    }
    metadata = {"name": name, "namespace": "default", "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def test_a_pod_runs_and_is_reached_by_address_and_by_service(node: Cluster) -> None:
    """CoreDNS is the program at hand that serves HTTP: its /ready and /health, on the pod's own address."""
    ip = node.get("pods", "-n", "kube-system", "-l", "k8s-app=kube-dns")["items"][0]["status"]["podIP"]
    with socket.create_connection((ip, 8181), timeout=10):
        pass
    with socket.create_connection(("10.96.0.10", 53), timeout=10):
        pass


def test_names_resolve_inside_and_nothing_outside(node: Cluster) -> None:
    assert lookup("kubernetes.default.svc.cluster.local") == 0
    assert lookup("example.com") == 3  # no such name


def lookup(name: str) -> int:
    """Ask the cluster's DNS for an address; the answer's code."""
    question = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0\0\1\0\1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(10)
        s.sendto(b"\0\1\1\0\0\1\0\0\0\0\0\0" + question, ("10.96.0.10", 53))
        return s.recv(512)[3] & 15


def test_pods_get_declared_devices_and_no_more(node: Cluster) -> None:
    node.declare(real.NAME, "huawei.com/Ascend910", 8)
    node.declare(real.NAME, "nvidia.com/gpu", 2)
    half = {"limits": {"huawei.com/Ascend910": "4", "nvidia.com/gpu": "1"}}
    for name in ("devices-1", "devices-2", "devices-3"):
        node.apply(pod(name, images.PAUSE, resources=half))
        if name != "devices-3":
            node.kubectl("wait", "--for=condition=Ready", "--timeout=90s", f"pod/{name}")
    try:
        no = "--for=jsonpath={.status.conditions[?(@.type=='PodScheduled')].reason}=Unschedulable"
        node.kubectl("wait", no, "--timeout=60s", "pod/devices-3")
    finally:
        node.kubectl("delete", "pod", "devices-1", "devices-2", "devices-3")


def test_kuberay_runs_as_a_pod(node: Cluster) -> None:
    deployment = node.get("deployment", "-n", "kuberay-system", "kuberay-operator")
    assert deployment["status"]["readyReplicas"] == 1


def test_a_second_real_node_is_refused_while_one_runs(
    node: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if node.run is None:
        pytest.skip("an existing cluster is not started here: unset DLJOB_E2E")
    wait = processes.until
    monkeypatch.setattr(processes, "until", lambda check, _seconds, what, *rest: wait(check, 0, what, *rest))
    with pytest.raises(RuntimeError, match=f"the node that runs already.*{real.LINK}"):
        up.real(tmp_path / "second")
    node.kubectl("get", "nodes")


def test_torch_is_imported_from_a_read_only_volume(node: Cluster) -> None:
    if node.run is None or not (node.run / "node" / "torch").exists():
        pytest.skip("torch is not installed here: `make setup` brings it, and this asks for our own real node")
    if not (cache.home() / "images" / "runtime.tar").exists():
        pytest.skip("no image with Python: `python tests/kube/images/build.py runtime` builds it")
    code = (
        "import torch, os; assert not os.access('/torch', os.W_OK); print(torch.__file__, torch.ones(3).sum().item())"
    )
    made = pod(
        "torch-check",
        "dljob.local/runtime:dev",
        command=["python", "-c", code],
        env=[{"name": "PYTHONPATH", "value": "/torch"}],
        volumeMounts=[{"name": "torch", "mountPath": "/torch", "readOnly": True}],
    )
    volume = {"name": "torch", "persistentVolumeClaim": {"claimName": "torch", "readOnly": True}}
    made["spec"] |= {"restartPolicy": "Never", "volumes": [volume]}
    node.apply(made)
    try:
        node.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s", "pod/torch-check")
        last = node.kubectl("logs", "torch-check").splitlines()[-1]  # after torch's own warnings
        assert last == "/torch/torch/__init__.py 3.0"
    finally:
        node.kubectl("delete", "pod", "torch-check")


def test_traces_of_a_running_node_are_found(node: Cluster) -> None:
    """Each end of a node is checked against these (`up.end`), so they must be seen while it runs."""
    if node.run is None:
        pytest.skip("an existing cluster is not started here: unset DLJOB_E2E")
    found = " ".join(real.traces())
    for trace in (f"link {real.LINK}", f"route {real.PODS}", f"route {SERVICES}", f"cgroup {real.CGROUP}"):
        assert trace in found
    assert "mount" not in found  # they are in the node's own namespace alone
