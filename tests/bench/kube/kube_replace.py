"""A worker pod is deleted by force, its image present: until its rank is in user code again, held against KubeRay's own
replacement of a pod of the same RayCluster, until that is Ready.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import HERE, Row, in_turn, runs
from kube_jobs import NAMESPACE, SMALL, meta, node

sys.path[:0] = [str(HERE.parent / "kube"), str(HERE.parent / "kube" / "kits")]
from cluster.handle import Cluster, KubectlError  # noqa: E402 - the folders above have no packages
from operator_kit import found, until  # noqa: E402 - the folders above have no packages

CODE = """\
import time
from dljob import progress

def main():
    with open("/tmp/began", "w") as file:
        file.write(repr(time.time()))
    for step in range(10**9):
        progress(step)
        time.sleep(0.5)
"""
NAME = "replaced"
GROUP = {"name": "cpu", "cpu": "250m", "memory": "1500Mi"}
"""Of a machine of two cores two RayClusters are to have room."""


def job() -> dict[str, Any]:
    """One rank in one worker pod."""
    role = {"name": "worker", "entrypoint": {"class": "stays.main"}, "resources": {"cpu": "250m"}}
    spec = {"code": {"configMap": "stays"}, "roles": [role], "nodeGroups": [GROUP], **SMALL}
    return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": meta(NAME), "spec": spec}


def plain(cluster: dict[str, Any]) -> dict[str, Any]:
    """A RayCluster of the same pods that nobody but KubeRay looks after."""
    spec = json.loads(json.dumps(cluster["spec"]))
    spec["authOptions"].pop("secretName", None)
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        group["template"].get("metadata", {}).pop("labels", None)
        pod["volumes"] = [volume for volume in pod["volumes"] if not volume["name"].endswith("spec")]
        for container in pod["containers"]:
            container["volumeMounts"] = [m for m in container["volumeMounts"] if not m["name"].endswith("spec")]
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": meta("plain"), "spec": spec}


class Pods:
    """Worker pods that are deleted and come again."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.after: list[float] = []
        """Seconds from our pod being Ready, as the watch told, to user code; negative where that came first."""

    def worker(self, ray_cluster: str, other: str = "") -> str:
        """The worker pod that is not that other one, as soon as it is Ready: a watch tells."""

        def look() -> str:
            selector = f"ray.io/cluster={ray_cluster},ray.io/node-type=worker"
            listed = self.cluster.get("pods", "-n", NAMESPACE, "-l", selector)["items"]
            return next((pod["metadata"]["name"] for pod in listed if pod["metadata"]["name"] != other), "")

        pod = until(look, f"{ray_cluster} has a worker", 180)
        self.cluster.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", "-n", NAMESPACE, "--timeout=180s")
        return pod

    def delete(self, pod: str) -> float:
        """By force; when."""
        at = time.time()
        self.cluster.kubectl("delete", "pod", pod, "-n", NAMESPACE, "--force", "--grace-period=0")
        return at

    def began(self, pod: str) -> float:
        """When the rank in a pod came to user code."""

        def look() -> str:
            try:
                where = (pod, "-n", NAMESPACE, "-c", "ray-worker")
                return self.cluster.kubectl("exec", *where, "--", "cat", "/tmp/began")
            except KubectlError:
                return ""

        return float(until(look, f"the rank in {pod} is in user code", 120))

    def ours(self) -> float:
        """Seconds until the rank is in user code again."""
        name = found(self.cluster, "dljob", NAME)["status"]["rayCluster"]["name"]
        old = self.worker(name)
        self.began(old)
        at = self.delete(old)
        pod = self.worker(name, old)
        ready = time.time()
        began = self.began(pod)
        self.after.append(began - ready)
        return began - at

    def theirs(self) -> float:
        """Seconds until KubeRay's pod is Ready again."""
        old = self.worker("plain")
        at = self.delete(old)
        self.worker("plain", old)
        return time.time() - at


def main() -> None:
    """One row."""
    with node() as jobs:
        cluster = jobs.cluster
        code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("stays"), "data": {"stays.py": CODE}}
        cluster.apply(code, job())
        until(lambda: found(cluster, "dljob", NAME).get("status", {}).get("phase") == "Running", "it runs", 180)
        made = found(cluster, "raycluster", found(cluster, "dljob", NAME)["status"]["rayCluster"]["name"])
        cluster.apply(plain(made))
        pods = Pods(cluster)
        ours, theirs = in_turn(pods.ours, pods.theirs, runs(3))
    ratio = median(ours) / median(theirs)
    Row(
        "kube-replace",
        "worker pod deleted by force, image present -> its rank in user code",
        "<= 1.1 x KubeRay's own replacement of the pod",
        median(ours),
        1.1 * median(theirs),
        samples={"DLJob, to user code": ours, "KubeRay, to Ready": theirs, "DLJob, Ready to user code": pods.after},
        note=f"{ratio:.2f} x KubeRay",
    ).emit()


if __name__ == "__main__":
    main()
