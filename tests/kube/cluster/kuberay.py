"""The real KubeRay operator: its CRDs and manifests come out of the module version that it is built from."""

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
"""How often KubeRay looks at each RayCluster unasked; 300 by default.

A head pod that KubeRay 1.6.2 makes and deletes between two of its looks (admitted, suspended, admitted again) stays
expected for 30 s (`ExpectationsTimeout`), and no look is planned for their end: the cluster has no head until the next
unasked look. Back to the default when KubeRay plans one, or forgets what it expected when it suspends.
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
    """Apply KubeRay's CRDs, and wait until they are served."""
    cluster.apply(cache.kube() / "kuberay" / "crd" / "bases")
    cluster.crds(*CRDS)


def start(cluster: Cluster, run: Path) -> None:
    """Run the operator as a process of this machine, and wait until it is healthy.

    It asks dashboards through the API server, as it is not in the pods' network.
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
    """Run the operator as a pod, from its own manifests, and wait until it is ready.

    Two lines of them are changed: it is asked at once whether it is ready, and may use more than a tenth of a core.
    The CRDs are there already.
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
