"""Helpers of the shell's tests: an operator's parts on an in-memory API server and a stub head."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Container
from dataclasses import dataclass
from typing import Any

from fake_cluster import FakeCluster, client_of
from stub_head import StubHead

from dljob.kube.api import Kube
from dljob.kube.token_key import TokenKey
from dljob.reconcile.reconcile import reconcile
from dljob.reconcile.state import names
from dljob.reconcile.state.model import Observed, ReconcileResult, Settings
from dljob_operator.controller.controller import Controller, Parts
from dljob_operator.controller.events import Recorder
from dljob_operator.controller.execute import ActionExecutor
from dljob_operator.controller.heads import Heads
from dljob_operator.controller.metrics import Metrics
from dljob_operator.controller.observe import Observer, OperatorMemory
from dljob_operator.controller.poller import Pollers
from dljob_operator.controller.references import References
from dljob_operator.controller.startup import Startup
from dljob_operator.controller.turns import Turns
from dljob_operator.watch.cache import Cache
from dljob_operator.watch.workqueue import Key, WorkQueue

JOB = Key("default", "hello")
SETTINGS = Settings(version="0.1.0", image="img:{rayVersion}", ray_version="2.60.0", init_image="init:1")
ROLE = {"name": "worker", "replicas": 2, "entrypoint": {"class": "hello.main"}, "resources": {"cpu": "1"}}


UID = "11111111-2222-3333-4444-555555555555"


def dljob(name: str = "hello", **spec: Any) -> dict[str, Any]:
    body = {"roles": [ROLE], **spec}
    return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": name}, "spec": body}


@dataclass
class Shell:
    """One life of an operator without kopf; `sync` delivers the server's changes."""

    fake: FakeCluster
    head: StubHead
    kube: Kube
    cache: Cache
    queue: WorkQueue
    heads: Heads
    pollers: Pollers
    observer: Observer
    executor: ActionExecutor
    controller: Controller
    metrics: Metrics
    turns: Turns

    def sync(self) -> None:
        """Deliver the API server's present objects, as the watches would."""
        for (plural, _, _), body in list(self.fake.objects.items()):
            put = {"dljobs": self.cache.put_job, "rayclusters": self.cache.put_cluster, "pods": self.cache.put_pod}
            if plural in put and (key := put[plural](body)):
                self.queue.add(key)
        kinds = {"dljobs": self.cache.jobs, "rayclusters": self.cache.clusters, "pods": self.cache.pods}
        drops = {"dljobs": self.cache.drop_job, "rayclusters": self.cache.drop_cluster, "pods": self.cache.drop_pod}
        for plural, store in kinds.items():
            for key in list(store.entries):
                if (plural, *key) not in self.fake.objects and (job := drops[plural](key)):
                    self.queue.add(job)

    async def settle(self, passes: int = 60) -> int:
        """Run passes until none is due at once; returns their number."""
        for count in range(passes):
            self.sync()
            key = self.queue.take()
            if key is None:
                return count
            try:
                await self.controller.step(key)
            finally:
                self.queue.done(key)
        raise AssertionError(f"not at rest after {passes} passes")

    def memory(self, key: Key = JOB) -> OperatorMemory:
        body = self.fake.one("dljobs", key.name, key.namespace)
        return self.observer.memory(key, body["metadata"]["uid"], body.get("status", {}).get("attempt", 1))

    def status(self, key: Key = JOB) -> dict[str, Any]:
        return self.fake.one("dljobs", key.name, key.namespace).get("status", {})


@contextlib.asynccontextmanager
async def shell(
    fake: FakeCluster | None = None,
    head: StubHead | None = None,
    decide: Callable[[Observed, Settings, float], ReconcileResult] = reconcile,
    *,
    head_url: Callable[[str, int], str] | None = None,
    served: Container[str] | None = None,
) -> AsyncIterator[Shell]:
    """Yield an operator's parts; a second shell on the same cluster and head is its next life."""
    fake, head = fake or FakeCluster(), head or StubHead()
    api, port = await fake.serve(), await head.serve()
    kube = client_of(api, manager="dljob-operator")
    key = TokenKey(b"k" * 32)
    heads = Heads(key, url=head_url or (lambda _host, _port: str(port.make_url("")).rstrip("/")))
    cache, queue, metrics = Cache(), WorkQueue(), Metrics("0")
    pollers = Pollers(heads, queue)
    observer = Observer(cache, pollers, kube, References(kube, cache, heads, "sys/operator"))
    turns = Turns(2)
    hands = ActionExecutor(kube, cache, heads, turns)
    startup = Startup(metrics.stage)
    cache.first_seen = startup.begin
    parts = Parts(queue, observer, hands, pollers, Recorder(kube), metrics, startup)
    controller = Controller(parts, SETTINGS, decide=decide, served=served)
    made = Shell(fake, head, kube, cache, queue, heads, pollers, observer, hands, controller, metrics, turns)
    try:
        yield made
    finally:
        await pollers.close()
        await heads.close()
        await kube.close()
        fake.cut()
        await api.close()
        await port.close()


def token(uid: str, cluster: str) -> str:
    return TokenKey(b"k" * 32).token(uid, cluster)


def cluster_of(fake: FakeCluster, name: str = "hello", attempt: int = 1) -> str:
    uid = fake.one("dljobs", name)["metadata"]["uid"]
    return names.cluster_name(name, uid, attempt)


def run_head(
    fake: FakeCluster, head: StubHead, name: str = "hello", attempt: int = 1, container: str = "containerd://a"
) -> None:
    """Play KubeRay and the kubelet: make the head of the job's RayCluster ready."""
    cluster = cluster_of(fake, name, attempt)
    body = fake.one("rayclusters", cluster)
    uid = fake.one("dljobs", name)["metadata"]["uid"]
    head.token = token(uid, cluster)
    ready = {"type": "HeadPodReady", "status": "True", "reason": "HeadPodRunningAndReady"}
    status = {"state": "ready", "head": {"podIP": "10.0.0.1", "podName": f"{cluster}-head-x"}, "conditions": [ready]}
    fake.put("rayclusters", {**body, "status": {**status, "desiredWorkerReplicas": 0, "readyWorkerReplicas": 0}})
    labels = {names.LABEL_NAME: name, names.LABEL_UID: uid, "ray.io/cluster": cluster, "ray.io/node-type": "head"}
    pod = {
        "metadata": {"name": f"{cluster}-head-x", "labels": labels, "ownerReferences": [_owner(body)]},
        "spec": {"containers": [{"name": "ray-head"}], "nodeName": "n1"},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "ray-head", "containerID": container, "ready": True}],
        },
    }
    fake.put("pods", pod)


def _owner(body: dict[str, Any]) -> dict[str, Any]:
    meta = body["metadata"]
    return {"kind": "RayCluster", "name": meta["name"], "uid": meta["uid"], "controller": True}
