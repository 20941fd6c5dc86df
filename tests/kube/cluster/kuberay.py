"""The real KubeRay operator; its CRDs and manifests come from the module version that it is built from."""

from __future__ import annotations

import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from cluster import cache, processes
from cluster.handle import Cluster

IMAGE = "dljob.test/kuberay"
NAMESPACE = "kuberay-system"
LOOKS_AGAIN_SECONDS = "10"
"""Seconds between KubeRay's periodic reconciles of each RayCluster; 300 by default.

A head pod that KubeRay 1.6.2 creates and deletes between two reconciles (admitted, suspended, admitted again) stays
expected for 30 s (`ExpectationsTimeout`), and no reconcile is queued for the end of that time: the cluster has no head
until the next periodic reconcile. Go back to the default once KubeRay queues one or clears expectations at suspend.
"""
CRDS = ("rayclusters.ray.io", "rayjobs.ray.io", "rayservices.ray.io")
PATCH = """
- op: replace
  path: /spec/template/spec/containers/0/readinessProbe
  value: {httpGet: {path: /metrics, port: http}, periodSeconds: 1}
- op: remove
  path: /spec/template/spec/containers/0/resources/limits/cpu
"""


def crds(cluster: Cluster) -> None:
    """Apply KubeRay's CRDs and wait until they are served."""
    cluster.apply(cache.kube() / "kuberay" / "crd" / "bases")
    cluster.crds(*CRDS)


def start(cluster: Cluster, run: Path) -> None:
    """Run the operator as a process of this machine and wait until it is healthy.

    It reaches dashboards through the API server's proxy, because it is outside the pods' network.
    """
    crds(cluster)
    metrics, health = processes.free_ports(2)
    where = [f"--metrics-addr=127.0.0.1:{metrics}", f"--health-probe-bind-address=127.0.0.1:{health}"]
    flags = ["--enable-leader-election=false", "--use-kubernetes-proxy"]
    env = {"KUBECONFIG": str(cluster.kubeconfig), "RAYCLUSTER_DEFAULT_REQUEUE_SECONDS_ENV": LOOKS_AGAIN_SECONDS}
    processes.start(run, "kuberay", [cache.program("kuberay"), *where, *flags], env)

    def healthy() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{health}/readyz", timeout=5) as reply:
                return reply.status == 200
        except (OSError, urllib.error.URLError):
            return False

    processes.until(healthy, 60, "the KubeRay operator", run, ["kuberay"])


def deploy(cluster: Cluster) -> None:
    """Run the operator as a pod from its own manifests and wait until it is ready.

    Two settings are changed: the readiness probe starts at once, and the CPU limit is above a tenth of a core. The CRDs
    must be applied before.
    """
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    with tempfile.TemporaryDirectory() as work:
        overlay = Path(work)
        for part in ("rbac", "manager"):
            (overlay / part).mkdir()
            for file in (cache.kube() / "kuberay" / part).glob("*.yaml"):
                (overlay / part / file.name).write_bytes(file.read_bytes())
        (overlay / "patch.yaml").write_text(PATCH)
        (overlay / "kustomization.yaml").write_text(
            f"namespace: {NAMESPACE}\n"
            "resources: [rbac, manager]\n"
            f"images: [{{name: kuberay/operator, newName: {IMAGE}, newTag: '1'}}]\n"
            "patches: [{path: patch.yaml, target: {kind: Deployment, name: kuberay-operator}}]\n"
        )
        cluster.kubectl("apply", "--server-side", "-k", work)
    cluster.kubectl("-n", NAMESPACE, "rollout", "status", "deployment/kuberay-operator", "--timeout=120s", seconds=130)
