"""An elastic role on a real API server with the real KubeRay, fake nodes, and a head that is a stub."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.handle import Cluster
from operator_kit import Head, condition, found, job, run_head, running, token, until
from queue_kit import FLAVOR, QUEUE, TOLERATION, Kueue, Seen, no_webhook, webhook

HEAD = "127.0.62.1"

ROOM = {"cpu": "4", "memory": "64Gi", "pods": "16"}
"""Of a node: one pod of a job, and no two."""
NAME = "elastic"
BOUNDS = {"minReplicas": 1, "maxReplicas": 3}


@pytest.fixture
def seen(plane: Cluster, namespace: str) -> Iterator[Seen]:
    """Every version of the RayClusters of the namespace."""
    made = Seen(plane, namespace)
    yield made
    made.close()


LABELS = tuple(f"{key}={value}" for key, value in FLAVOR.items())
TEAM = "blue"
SOMEBODYS = (TEAM, True)


def somebodys(body: dict[str, Any]) -> tuple[Any, Any]:
    """What `somebody_writes` wrote."""
    template = body["spec"]["workerGroupSpecs"][0]["template"]
    return template["metadata"]["labels"].get("example.test/team"), TOLERATION in template["spec"]["tolerations"]


class Job:
    """A job of two ranks, at least one and at most three, each on a machine of its own, and what its head says."""

    def __init__(self, plane: Cluster, namespace: str, head: Head, prefix: str) -> None:
        self.plane, self.namespace, self.head, self.prefix = plane, namespace, head, prefix
        self.step = 0

    def apply(self, **spec: Any) -> None:
        template = {"spec": {"nodeSelector": {"dljob.test/of": self.prefix}, "terminationGracePeriodSeconds": 2}}
        group = {"name": "cpu", "cpu": "3", "replicas": 2, "template": template, **BOUNDS}
        role = {"name": "worker", "type": "Elastic", "replicas": 2, "entrypoint": {"class": "hello.main"}, **BOUNDS}
        body = job(
            NAME,
            nodeGroups=[group],
            roles=[{**role, "resources": {"cpu": "2"}}],
            head={"cpu": "3", "template": template},
            **spec,
        )
        self.plane.apply({**body, "metadata": {"name": NAME, "namespace": self.namespace}})

    def run(self) -> None:
        """The head comes up and takes the submission; a rank is on each of two workers."""
        self.head.do(lambda: setattr(self.head.stub, "token", token(self.uid, self.cluster)))
        head = lambda: self._listed("head")  # noqa: E731
        until(lambda: head() and head()[0]["status"].get("phase") == "Running", "the head is there")
        run_head(self.plane, self.cluster, self.head.ip, self.namespace)
        until(lambda: self.head.stub.posted, "it is submitted")
        until(lambda: len(self.workers()) == 2, "two workers are there")
        self.say(*self.workers())
        until(lambda: self.status["phase"] == "Running", "it runs")

    def say(self, *held: str, ranks: int = 2, machines: int | None = None) -> None:
        """PrimeMaster says which pods hold a rank each, and what it wants; the operator has heard it."""
        self.step += 1
        rows = [
            {"pod": pod, "node": f"ray-{pod}", "units": [f"worker-{at}"], "roles": ["worker"], "ranks": f"worker/{at}"}
            for at, pod in enumerate(held)
        ]
        many = len(held)
        role = {"name": "worker", "desired": many, "ready": many, "running": many, "succeeded": 0, "failed": 0}
        news = {
            "phase": "Running",
            "epoch": 1,
            "roles": [{**role, "restarts": self.step, "wanted": ranks}],
            "placement": {"units": many, "ready": many, "pending": 0, "notReady": []},
            "nodes": {"desired": 2, "ready": 2, "replaced": 0, "excluded": [], "wanted": {"cpu": machines or ranks}},
        }
        stub, uid = self.head.stub, self.uid.replace("-", "")
        self.head.do(lambda: stub.places.update({uid: {"version": self.step, "nodes": rows}}))
        self.head.do(lambda: stub.say(uid, **news))
        until(lambda: self._restarts() == self.step, "the operator has heard it")

    def _restarts(self) -> int:
        roles = self.status.get("roles") or [{}]
        return roles[0].get("restarts", 0)

    def edit(self, replicas: int) -> None:
        """As `kubectl edit` does."""
        places = ("/spec/roles/0/replicas", "/spec/nodeGroups/0/replicas")
        patch = [{"op": "replace", "path": path, "value": replicas} for path in places]
        self.plane.kubectl("patch", "dljob", NAME, "-n", self.namespace, "--type=json", "-p", json.dumps(patch))

    @property
    def body(self) -> dict[str, Any]:
        return found(self.plane, "dljob", NAME, self.namespace)

    @property
    def uid(self) -> str:
        return self.body["metadata"]["uid"]

    @property
    def status(self) -> dict[str, Any]:
        return self.body.get("status", {})

    @property
    def cluster(self) -> str:
        return until(lambda: self.status.get("rayCluster", {}).get("uid") and self.status["rayCluster"]["name"], "made")

    @property
    def ray_cluster(self) -> dict[str, Any]:
        return found(self.plane, "raycluster", self.cluster, self.namespace)

    @property
    def group(self) -> dict[str, Any]:
        return self.ray_cluster["spec"]["workerGroupSpecs"][0]

    def _listed(self, kind: str) -> list[dict[str, Any]]:
        selector = f"ray.io/cluster={self.cluster},ray.io/node-type={kind}"
        return self.plane.get("pods", "-n", self.namespace, "-l", selector)["items"]

    def pods(self) -> dict[str, str]:
        """Worker pods that are not about to go, and their uids."""
        listed = [pod["metadata"] for pod in self._listed("worker")]
        return {meta["name"]: meta["uid"] for meta in listed if "deletionTimestamp" not in meta}

    def workers(self) -> list[str]:
        """Those that are ready."""
        ready = [pod for pod in self._listed("worker") if pod["status"].get("phase") == "Running"]
        return sorted(pod["metadata"]["name"] for pod in ready if "deletionTimestamp" not in pod["metadata"])

    def somebody_writes(self) -> int:
        """Somebody puts words of theirs into the list that replicas are in; the version since when they are there."""
        template = "/spec/workerGroupSpecs/0/template"
        patch = [
            {"op": "add", "path": f"{template}/metadata/labels/example.test~1team", "value": TEAM},
            {"op": "add", "path": f"{template}/spec/tolerations/-", "value": TOLERATION},
        ]
        where = (self.cluster, "-n", self.namespace, "--field-manager=somebody", "--type=json", "-o", "json")
        made = json.loads(self.plane.kubectl("patch", "raycluster", *where, "-p", json.dumps(patch)))
        assert somebodys(made) == SOMEBODYS
        return int(made["metadata"]["resourceVersion"])

    def orders(self) -> list[str]:
        return [order["target"] for order in self.head.stub.commands if order["kind"] == "scale"]


@pytest.fixture
def its(plane: Cluster, namespace: str, head: Head, kwok: Callable[..., None], tmp_path: Path) -> Iterator[Job]:
    """A job that is not applied yet, an operator, and nodes for its head and three workers."""
    prefix = f"e{time.time_ns() % 1000000}"
    kwok(4, prefix=prefix, resources=ROOM)
    plane.kubectl("label", "node", *(f"{prefix}-{at}" for at in range(4)), f"dljob.test/of={prefix}", *LABELS)
    with running(plane, tmp_path, f"--namespace={namespace}"):
        yield Job(plane, namespace, head, prefix)
        plane.kubectl("delete", "dljob", NAME, "-n", namespace, "--wait=false", "--ignore-not-found")
        plane.kubectl("delete", "pods", "--all", "-n", namespace, "--force", "--grace-period=0")


def test_pods_follow_what_the_job_wants_and_the_one_that_holds_nothing_goes(its: Job, seen: Seen) -> None:
    its.apply()
    its.run()
    version = its.somebody_writes()
    cluster, first, generation = its.ray_cluster["metadata"]["uid"], its.pods(), its.body["metadata"]["generation"]

    its.edit(3)
    until(lambda: its.orders() == ["worker=3"], "the edit is an order")
    its.say(*first, ranks=3)
    until(lambda: its.group["replicas"] == 3, "three machines are wanted")
    until(lambda: len(its.workers()) == 3, "KubeRay makes a third pod")
    grown = its.pods()
    assert first.items() <= grown.items(), "nobody else is touched"
    assert its.body["metadata"]["generation"] == generation + 1, "nobody but the user wrote the spec"

    its.say(*grown, ranks=3)
    its.edit(2)
    until(lambda: its.orders() == ["worker=3", "worker=2"], "so is this one")
    for _ in range(2):
        its.say(*grown, ranks=2)
    assert its.group["replicas"] == 3, "as long as each holds a rank, none goes"
    free = sorted(grown)[1]
    held = {pod: uid for pod, uid in grown.items() if pod != free}
    its.say(*held, ranks=2)
    until(lambda: its.group["replicas"] == 2, "two machines are wanted")
    assert its.group["scaleStrategy"]["workersToDelete"] == [free]
    until(lambda: free not in its.pods(), "KubeRay ends that one")
    until(lambda: its.ray_cluster["status"]["desiredWorkerReplicas"] == 2, "KubeRay wants no more than two")
    assert its.pods() == held, "and no other"

    its.say(*held, ranks=3)
    until(lambda: len(its.workers()) == 3, "it grows again")
    assert held.items() <= its.pods().items()
    assert (its.ray_cluster["metadata"]["uid"], its.status["attempt"]) == (cluster, 1)
    assert len(its.head.stub.posted) == 1
    later = [body for body in seen.versions if int(body["metadata"]["resourceVersion"]) >= version]
    assert len(later) > 3
    assert [words for body in later if (words := somebodys(body)) != SOMEBODYS] == [], "nothing of theirs is undone"
    until(lambda: condition(its.body, "ClusterReady")["reason"] == "PodsReady", "our own edit is no stranger's")


def test_bounds_hold_whatever_is_wanted_and_pods_without_a_node_go_first(its: Job) -> None:
    its.plane.kubectl("delete", "node", f"{its.prefix}-3")  # there is no room for a third worker
    its.apply()
    its.run()
    first = its.pods()
    its.say(*first, machines=9)
    until(lambda: len(its.pods()) == 3, "three are the most")
    (waits,) = its.pods().keys() - first.keys()
    assert its.group["replicas"] == 3
    its.say(next(iter(first)), ranks=1, machines=2)  # two hold nothing: one runs, the other has no node
    until(lambda: its.group["replicas"] == 2, "two are wanted")
    assert its.group["scaleStrategy"]["workersToDelete"] == [waits]
    until(lambda: its.pods() == first, "the one that never ran goes")


def suspended(plane: Cluster, namespace: str) -> bool:
    """Whether the webhook has its way with a RayCluster of a queue."""
    pod = {"containers": [{"name": "ray-head", "image": "example.test/ray:1"}]}
    spec = {"rayVersion": "2.60.0", "headGroupSpec": {"rayStartParams": {}, "template": {"spec": pod}}}
    meta = {"name": "asks", "namespace": namespace, "labels": {QUEUE: "team"}}
    body = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": meta, "spec": spec}
    made = plane.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(body))
    return json.loads(made)["spec"].get("suspend", False)


def test_in_a_queue_pods_stay_as_many_as_they_are(its: Job, seen: Seen, plane: Cluster) -> None:
    webhook(plane)
    try:
        until(lambda: suspended(plane, its.namespace), "the server knows of the webhook")
        its.apply(scheduling={"queueName": "team"})
        kueue = Kueue(plane, its.namespace)
        until(lambda: its.status.get("phase") == "Queued", "it stands in the queue")
        kueue.admit(its.cluster)
    finally:
        no_webhook(plane)
    its.run()
    first = its.pods()
    its.edit(3)
    until(lambda: its.orders() == ["worker=3"], "PrimeMaster is told of the edit")
    for machines in (3, 1, 3):
        its.say(*list(first)[:machines], ranks=machines)
    assert (its.group["replicas"], its.pods()) == (2, first)
    assert kueue.undone(seen.versions) == []
    assert its.status["phase"] == "Running"
