"""Whole jobs on the real node: apply -> first user line, held against a RayJob of the same RayCluster and a plain Job
of the same image, and the moment between a head that is ready and the submission.

The DLJob's first line is printed by rank 0 in its worker pod; the RayJob's by its entrypoint, on the head, which then
runs one task in its worker pod, where user code with devices would be. The plain Job has one pod and no Ray.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import HERE, Row, folder, runs, say

sys.path[:0] = [str(HERE.parent / "kube"), str(HERE.parent / "kube" / "kits"), str(HERE.parent / "unit" / "kube")]
from cluster import up  # noqa: E402 - the folders above have no packages
from cluster.handle import Cluster  # noqa: E402 - the folders above have no packages
from operator_kit import found, token, until, with_images  # noqa: E402 - the folders above have no packages

from dljob.kube.api import RAYCLUSTERS, Kube  # noqa: E402 - the folders above have no packages

SCRIPT = """\
import time
print("first line at", repr(time.time()), flush=True)
import ray
ray.init(log_to_driver=False)
began = ray.remote(num_cpus=0.1)(lambda: time.time())
print("task began at", repr(ray.get(began.remote())), flush=True)
"""
CODE = "import time\n\n\ndef main():\n    print(f'first line at {time.time()!r}', flush=True)\n"
FIRST = re.compile(r"first line at ([0-9.]+)")
TASK = re.compile(r"task began at ([0-9.]+)")
SMALL = {"head": {"cpu": "250m", "memory": "2Gi"}, "master": {"cpu": "100m", "memory": "512Mi"}}
NAMESPACE = "default"


def job(name: str) -> dict[str, Any]:
    """One rank that prints the time."""
    role = {"name": "worker", "entrypoint": {"class": "first.main"}, "resources": {"cpu": "500m"}}
    spec = {"code": {"configMap": "first"}, "roles": [role], **SMALL}
    return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": meta(name), "spec": spec}


def meta(name: str) -> dict[str, str]:
    """In the namespace of all of this."""
    return {"name": name, "namespace": NAMESPACE}


def ray_job(name: str, cluster: dict[str, Any]) -> dict[str, Any]:
    """A RayJob of the same RayCluster: head, worker, probes and init container; without what only we mount."""
    spec = json.loads(json.dumps(cluster))
    spec.pop("upgradeStrategy", None)
    spec["authOptions"].pop("secretName", None)
    pod = spec["headGroupSpec"]["template"]["spec"]
    pod["volumes"] = [volume for volume in pod["volumes"] if not volume["name"].endswith("spec")]
    for container in pod["containers"]:
        container["volumeMounts"] = [m for m in container["volumeMounts"] if not m["name"].endswith("spec")]
    line = f"python -c {shlex.quote(SCRIPT)}"
    body = {"entrypoint": line, "shutdownAfterJobFinishes": True, "rayClusterSpec": spec}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": meta(name), "spec": body}


def plain_job(name: str, cluster: dict[str, Any]) -> dict[str, Any]:
    """A Job of Kubernetes whose only pod has the image of the RayCluster's worker, and prints the time."""
    worker = cluster["workerGroupSpecs"][0]["template"]["spec"]
    own = worker["containers"][0]
    kept = {key: own[key] for key in ("image", "imagePullPolicy", "securityContext") if key in own}
    command = ["python", "-c", f"{CODE}\n\nmain()"]
    container = {"name": "main", "command": command, "resources": {"requests": {"cpu": "500m"}}, **kept}
    pod = {"restartPolicy": "Never", "containers": [container]}
    pod |= {key: worker[key] for key in ("securityContext",) if key in worker}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta(name), "spec": {"template": {"spec": pod}}}


class Jobs:
    """Runs one job after another, and keeps what was measured."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.spec: dict[str, Any] = {}
        self.posted: list[float] = []
        self.tasks: list[float] = []
        """Seconds from apply to the start of a RayJob's task in its worker pod."""

    async def ours(self, name: str) -> float:
        """Seconds from apply to the first user line of a DLJob."""
        async with await Kube.connect(kubeconfig=str(self.cluster.kubeconfig)) as kube:
            watch = asyncio.create_task(self._head(kube, name))
            begin = time.time()
            await asyncio.to_thread(self.cluster.apply, job(name))
            ready, body = await watch
            self.spec = body["spec"]
            self.posted.append(await self._submitted(body) - ready)
        data = await asyncio.to_thread(until, lambda: found(self.cluster, "configmap", f"{name}-logs"), name, 120)
        await asyncio.to_thread(self.cluster.kubectl, "delete", "dljob", name)
        await asyncio.to_thread(self._alone)
        return float(FIRST.search(data["data"]["worker-0.log"])[1]) - begin

    async def _head(self, kube: Kube, name: str) -> tuple[float, dict[str, Any]]:
        """When the RayCluster's HeadPodReady was first seen, and the RayCluster."""
        async for _, body in kube.watch(RAYCLUSTERS, NAMESPACE, labels=f"dljob.io/name={name}"):
            conditions = body.get("status", {}).get("conditions", [])
            if any(c["type"] == "HeadPodReady" and c["status"] == "True" for c in conditions):
                return time.time(), body
        raise RuntimeError("the watch ended")

    async def _submitted(self, cluster: dict[str, Any]) -> float:
        """When Ray's Job API took the submission."""
        owner = cluster["metadata"]["ownerReferences"][0]["uid"]
        where = f"http://{cluster['status']['head']['podIP']}:8265/api/jobs/"
        headers = {"x-ray-authorization": f"Bearer {token(owner, cluster['metadata']['name'])}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            while True:
                with suppress(aiohttp.ClientError):
                    async with session.get(where) as reply:
                        for info in await reply.json() if reply.ok else []:
                            return info["start_time"] / 1000
                await asyncio.sleep(0.1)

    def theirs(self, name: str) -> float:
        """Seconds from apply to the first line of a RayJob's entrypoint."""
        begin = time.time()
        self.cluster.apply(ray_job(name, self.spec))
        over = ("Complete", "Failed")
        until(
            lambda: found(self.cluster, "rayjob", name).get("status", {}).get("jobDeploymentStatus") in over, name, 180
        )
        printed = self.cluster.kubectl("logs", f"job/{name}", "-n", NAMESPACE)
        self.cluster.kubectl("delete", "rayjob", name)
        self._alone()
        self.tasks.append(float(TASK.search(printed)[1]) - begin)
        return float(FIRST.search(printed)[1]) - begin

    def plain(self, name: str) -> float:
        """Seconds from apply to the first line of a plain Job."""
        begin = time.time()
        self.cluster.apply(plain_job(name, self.spec))
        until(lambda: found(self.cluster, "job", name).get("status", {}).get("succeeded"), name, 120)
        printed = self.cluster.kubectl("logs", f"job/{name}", "-n", NAMESPACE)
        self.cluster.kubectl("delete", "job", name)
        self._alone()
        return float(FIRST.search(printed)[1]) - begin

    def _alone(self) -> None:
        """Wait until no pod is left: the next job has the machine to itself."""
        until(lambda: not self.cluster.get("pods", "-n", NAMESPACE)["items"], "the pods go", 120)


@contextmanager
def node() -> Iterator[Jobs]:
    """The real node with the operator beside it."""
    run = up.owned("bench")  # one that was killed leaves nothing that the next one does not end
    with folder() as work:
        try:
            cluster = up.real(run)
            code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("first"), "data": {"first.py": CODE}}
            cluster.apply(code)
            with with_images(cluster, Path(work) / "operator"):
                yield Jobs(cluster)
        finally:
            up.down(run)


def main() -> None:
    """Two rows."""
    with node() as jobs:
        asyncio.run(jobs.ours("warm"))
        jobs.posted.clear()
        ours, theirs, plain = list[float](), list[float](), list[float]()
        for number in range(runs()):
            ours.append(asyncio.run(jobs.ours(f"ours-{number}")))
            theirs.append(jobs.theirs(f"theirs-{number}"))
            plain.append(jobs.plain(f"plain-{number}"))
            say(f"  {number + 1}: DLJob {ours[-1]:.2f} s, RayJob {theirs[-1]:.2f} s, its task {jobs.tasks[-1]:.2f} s,")
            say(f"     a plain Job {plain[-1]:.2f} s")
        while len(jobs.posted) < 10:
            asyncio.run(jobs.ours(f"more-{len(jobs.posted)}"))
    ratio = median(ours) / median(theirs)
    Row(
        "kube-first-line",
        "apply -> first user line, real pods, image present",
        "<= 0.8 x a RayJob with the same RayCluster",
        median(ours),
        0.8 * median(theirs),
        samples={"DLJob": ours, "RayJob": theirs, "RayJob's task": jobs.tasks, "plain Job": plain},
        note=f"{ratio:.2f} x RayJob; {median(ours) / median(jobs.tasks):.2f} x its first task in a worker pod; "
        f"a plain Job {median(plain):.1f} s",
    ).emit()
    Row(
        "kube-submit",
        "HeadPodReady seen -> submission taken by Ray's Job API",
        "median <= 200 ms, max <= 500 ms",
        median(jobs.posted),
        0.2,
        samples={"seconds": jobs.posted},
        facts={"max <= 0.5 s": max(jobs.posted) <= 0.5},
    ).emit()


if __name__ == "__main__":
    main()
