"""Helpers of the operator's benchmarks: a control plane, the operator's process, jobs, and stub heads.

KubeRay's CRDs are served, but except in `kube_scale.py` KubeRay does not run: the benchmarks measure the operator
together with the API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kube"))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "kube" / "kits"))

from cluster import kuberay, up
from cluster.handle import Cluster
from operator_kit import Head, Operator, job

from dljob.kube.api import DLJOBS, PODS, RAYCLUSTERS, ApiError, Kube

HEAD = "127.0.43.1"


@contextlib.contextmanager
def plane(*, operator: bool = False) -> Iterator[Cluster]:
    """Run a control plane with DLJobs and RayClusters; without KubeRay's operator only our operator acts on them."""
    run = up.owned("bench")
    try:
        cluster = up.plane(run, operator=operator)
        kuberay.crds(cluster)
        yield cluster
    finally:
        up.down(run)


@contextlib.asynccontextmanager
async def operating(cluster: Cluster, folder: Path) -> AsyncIterator[tuple[Kube, Operator]]:
    """Run the operator as a process; yields a client and the operator."""
    operator = Operator(cluster, folder).start()
    try:
        async with await Kube.connect(kubeconfig=str(cluster.kubeconfig)) as kube:
            yield kube, operator
    finally:
        operator.stop()


class Made:
    """The times at which RayClusters appeared in a watch, by the name of their DLJob."""

    def __init__(self, kube: Kube) -> None:
        self.at: dict[str, float] = {}
        self.cluster: dict[str, str] = {}
        self._kube = kube
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for kind, item in self._kube.watch(RAYCLUSTERS, "default"):
            if kind == "ADDED":
                name = item["metadata"]["labels"]["dljob.io/name"]
                self.at.setdefault(name, time.perf_counter())
                self.cluster[name] = item["metadata"]["name"]
                self._news.set()

    async def wait(self, name: str) -> float:
        """Wait for the job's RayCluster; returns when it appeared."""
        while name not in self.at:
            self._news.clear()
            await self._news.wait()
        return self.at[name]

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def create(kube: Kube, name: str) -> float:
    """Create a DLJob; returns when the request was sent."""
    sent = time.perf_counter()
    await kube.create(DLJOBS, job(name), "default")
    return sent


async def create_all(kube: Kube, names: list[str], hands: int = 32) -> float:
    """Create many DLJobs at once; returns when the first request was sent."""
    began = time.perf_counter()
    left = iter(names)

    async def hand() -> None:
        for name in left:
            await create(kube, name)

    await asyncio.gather(*(hand() for _ in range(hands)))
    return began


async def head_ready(kube: Kube, cluster: str) -> None:
    """Write the status of a RayCluster and its head pod as KubeRay and a kubelet do when the head is ready."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    runs: dict[str, Any] = {"phase": "Running", "podIP": HEAD, "podIPs": [{"ip": HEAD}]}
    runs["conditions"] = [{"type": "Ready", "status": "True", "lastTransitionTime": now}]
    for pod in await kube.list(PODS, "default", labels=f"ray.io/cluster={cluster},ray.io/node-type=head"):
        await kube.patch(PODS, pod["metadata"]["name"], "default", {"status": runs}, sub="status")
    ready = {"type": "HeadPodReady", "status": "True", "reason": "HeadPodRunningAndReady", "message": ""}
    status = {
        "state": "ready",
        "head": {"podIP": HEAD, "podName": f"{cluster}-head"},
        "conditions": [{**ready, "lastTransitionTime": now}],
        "desiredWorkerReplicas": 0,
        "readyWorkerReplicas": 0,
    }
    for _ in range(5):
        with contextlib.suppress(ApiError):
            await kube.patch(RAYCLUSTERS, cluster, "default", {"status": status}, sub="status")
            return
    raise RuntimeError(f"cannot say that the head of {cluster} is ready")


def running(head: Head, uid: str, **more: Any) -> None:
    """Let a job's stub PrimeMaster report that it runs."""
    role = {"name": "worker", "desired": 2, "ready": 2, "running": 2, "succeeded": 0, "failed": 0, "restarts": 0}
    held = {"units": 1, "ready": 1, "pending": 0, "notReady": []}
    said = {"phase": "Running", "epoch": 1, "roles": [role], "placement": held, **more}
    head.do(lambda: head.stub.say(uid.replace("-", ""), **said))


async def quiet(operator: Operator, seconds: float = 3.0, limit: float = 120.0) -> None:
    """Wait until the operator has written nothing for a while."""
    end = time.monotonic() + limit
    last = operator.writes()
    since = time.monotonic()
    while time.monotonic() - since < seconds:
        if time.monotonic() > end:
            raise TimeoutError(f"the operator still writes after {limit:g} s")
        await asyncio.sleep(0.25)
        now = operator.writes()
        if now != last:
            last, since = now, time.monotonic()


def process_of(operator: Operator) -> psutil.Process:
    assert operator.process is not None
    return psutil.Process(operator.process.pid)


def percentile(samples: list[float], share: float) -> float:
    """Return the sample below which this share of all samples lies."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
