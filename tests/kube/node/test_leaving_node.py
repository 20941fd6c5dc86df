"""Pods that are told to end while no operator is there: neither a step that was saved in memory is lost nor a log."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.handle import Cluster
from operator_kit import Operator, found, until, with_images

SPACE = "leaving"
NAME = "job"
CODE = """
import os, time
from pathlib import Path
from dljob import checkpoint

def main():
    folder = Path(os.environ["DLJOB_CHECKPOINT"])
    found = checkpoint.load()
    step = found[0] if found else 0
    print(f"begins after step {step}", flush=True)
    life = len(list(folder.glob("from-*"))) + 1
    (folder / f"from-{life}").write_text(str(step))
    while True:
        step += 1
        checkpoint.save(step, {"data": bytes(1 << 20)}, persist=False)
        (folder / ".at").write_text(str(step))
        (folder / ".at").replace(folder / "at")
        print(f"saved {step}", flush=True)
        time.sleep(0.05)
"""
SPEC = {
    "code": {"configMap": "code"},
    "head": {"cpu": "100m", "memory": "2Gi"},
    "master": {"cpu": "50m", "memory": "512Mi"},
    "nodeGroups": [{"name": "g", "cpu": "500m", "memory": "2Gi"}],
    "roles": [{"name": "w", "entrypoint": {"class": "steps.main"}, "resources": {"cpu": "200m"}}],
    "checkpoint": {"path": "/ckpt", "claimName": "ckpt"},
}


@pytest.fixture(scope="module")
def operator(node: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    node.kubectl("create", "namespace", SPACE)
    try:
        with with_images(node, tmp_path_factory.mktemp("operator"), f"--namespace={SPACE}") as operator:
            yield operator
    finally:
        node.kubectl("delete", "namespace", SPACE, "--wait=false")


@pytest.fixture
def volume(node: Cluster) -> Iterator[Path]:
    """The claim `ckpt`, a folder of the node that every user may write to."""
    if node.run is None:
        pytest.skip("an existing cluster's volumes cannot be looked into: unset DLJOB_E2E")
    folder = node.run / "node" / "ckpt"
    folder.mkdir()
    folder.chmod(0o777)
    size, mode = {"storage": "10Gi"}, ["ReadWriteMany"]
    claim = {"accessModes": mode, "storageClassName": "", "volumeName": "ckpt", "resources": {"requests": size}}
    spec = {
        "accessModes": mode,
        "capacity": size,
        "storageClassName": "",
        "claimRef": {"namespace": SPACE, "name": "ckpt"},
        "hostPath": {"path": str(folder), "type": "Directory"},
    }
    node.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "ckpt"}, "spec": spec},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "ckpt", "namespace": SPACE},
            "spec": claim,
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "code", "namespace": SPACE},
            "data": {"steps.py": CODE},
        },
    )
    yield folder
    shutil.rmtree(folder)
    node.kubectl("delete", "pv", "ckpt", "--wait=false")


class Seen:
    """What the volume has of the job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def at(self) -> int:
        """The last step of which `save` has returned."""
        return int((self.folder / "at").read_text()) if (self.folder / "at").exists() else 0

    def began(self, life: int) -> int:
        """From where the rank's process of that number, counted over all attempts, went on."""
        return int(self.word(life))

    def word(self, life: int) -> str:
        """What that process wrote first; empty until it has."""
        file = self.folder / f"from-{life}"
        return file.read_text() if file.exists() else ""

    def steps(self) -> list[int]:
        """The steps that are whole."""
        marks = sorted(self.folder.glob(f"{NAME}-*/w/0/step-*/manifest.json"))
        return sorted(json.loads(mark.read_text())["step"] for mark in marks)

    def log(self, attempt: int, incarnation: int) -> str:
        (path,) = self.folder.glob(f"{NAME}-*/logs/attempt-{attempt}/w-0.{incarnation}.log")
        return path.read_text()

    def whole(self, attempt: int, incarnation: int) -> int:
        """The newest step, when nothing that the process has saved and told is missing."""
        told, newest = self.at(), self.steps()[-1]
        assert newest in (told, told + 1), "it may have been ended before it told of its last one"
        assert f"saved {told - 1}\n" in self.log(attempt, incarnation)
        return newest


def pods(node: Cluster, kind: str) -> dict[str, str]:
    """Name -> uid of the job's pods."""
    items = node.get("pods", "-n", SPACE, "-l", f"ray.io/node-type={kind}")["items"]
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in items}


def gone(node: Cluster, uids: set[str], what: str) -> float:
    """Wait until none of these pods is there; how many seconds that took."""
    begin = time.monotonic()
    until(lambda: not uids & {*pods(node, "head").values(), *pods(node, "worker").values()}, what, 60)
    return time.monotonic() - begin


def evict(node: Cluster, pod: str, body: Path) -> None:
    body.write_text(
        json.dumps(
            {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": SPACE}},
        )
    )
    node.kubectl("create", "--raw", f"/api/v1/namespaces/{SPACE}/pods/{pod}/eviction", "-f", str(body))


@pytest.mark.timeout(420)
def test_no_step_in_memory_is_lost_while_the_operator_is_down(
    node: Cluster, operator: Operator, volume: Path, tmp_path: Path
) -> None:
    seen = Seen(volume)
    meta = {"name": NAME, "namespace": SPACE}
    node.apply({"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": meta, "spec": SPEC})
    until(lambda: seen.at() > 5, "the rank saves", 120)
    until(lambda: found(node, "dljob", NAME, SPACE)["status"].get("phase") == "Running", "the operator knows", 30)
    operator.stop()

    ((pod, uid),) = pods(node, "worker").items()
    evict(node, pod, tmp_path / "eviction.json")
    took = {"evicted worker": gone(node, {uid}, "the evicted pod goes")}
    last = seen.whole(1, 1)
    until(lambda: seen.word(2), "KubeRay makes another pod, and the rank goes on there", 100)
    assert seen.began(2) == last
    until(lambda: seen.at() > last + 5, "it saves", 30)

    both = {*pods(node, "head").values(), *pods(node, "worker").values()}
    (cluster,) = node.get("rayclusters", "-n", SPACE)["items"]
    node.kubectl("delete", "raycluster", cluster["metadata"]["name"], "-n", SPACE, "--wait=false")
    took["deleted RayCluster"] = gone(node, both, "its pods go")
    last = seen.whole(1, 2)
    operator.start()
    until(lambda: seen.word(3), "attempt 2 goes on", 100)
    assert seen.began(3) == last
    until(lambda: seen.at() > last + 5, "it saves", 30)

    operator.stop()
    both = {*pods(node, "head").values(), *pods(node, "worker").values()}
    node.kubectl("delete", "dljob", NAME, "-n", SPACE, "--wait=false")
    took["deleted DLJob"] = gone(node, both, "its pods go")
    seen.whole(2, 1)
    print(json.dumps(took))
