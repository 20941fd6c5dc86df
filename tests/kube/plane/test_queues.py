"""A job in a queue, on a real API server with KubeRay: the queue's word on the RayCluster is never undone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.handle import Cluster
from operator_kit import Head, Operator, children, condition, found, job, run_head, running, token, until
from queue_kit import ADMITTED, FLAVOR, QUEUE, TOLERATION, Kueue, Seen, no_webhook, webhook

from dljob.kube.api import DLJOBS, RAYCLUSTERS
from dljob.reconcile.state import names

HEAD = "127.0.51.1"

PLAN_HASH = "dljob.io/placement-plan-hash"


@pytest.fixture(scope="module")
def operator(plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    webhook(plane)
    with running(plane, tmp_path_factory.mktemp("operator"), "--init-image=example.test/init:1") as operator:
        yield operator
    no_webhook(plane)


@pytest.fixture
def seen(plane: Cluster, namespace: str) -> Iterator[dict[str, Seen]]:
    """Every version of the RayClusters and DLJobs of the namespace."""
    made = {resource.kind: Seen(plane, namespace, resource) for resource in (RAYCLUSTERS, DLJOBS)}
    yield made
    for one in made.values():
        one.close()


class Queued:
    """A job of a queue, and what can be seen of it."""

    def __init__(self, plane: Cluster, namespace: str, head: Head) -> None:
        self.plane, self.namespace, self.head = plane, namespace, head
        spec = {"scheduling": {"queueName": "team", "priorityClassName": "high"}}
        plane.apply({**job("q", **spec), "metadata": {"name": "q", "namespace": namespace}})

    def body(self) -> dict[str, Any]:
        return found(self.plane, "dljob", "q", self.namespace)

    def status(self) -> dict[str, Any]:
        return self.body().get("status", {})

    def cluster(self, attempt: int) -> dict[str, Any]:
        """The RayCluster of an attempt, once the status names it: at first it names that of the attempt before."""
        name = names.cluster_name("q", self.body()["metadata"]["uid"], attempt)

        def look() -> dict[str, Any]:
            recorded = self.status().get("rayCluster", {})
            there = recorded.get("name") == name and recorded.get("uid")
            body = found(self.plane, "raycluster", name, self.namespace) if there else {}
            return body if body.get("metadata", {}).get("uid") == recorded.get("uid", "") else {}

        return until(look, f"attempt {attempt} has a RayCluster")

    def pods(self) -> list[dict[str, Any]]:
        return self.plane.get("pods", "-n", self.namespace)["items"]

    def waits(self, name: str) -> None:
        """It stands in the queue: nothing runs, and everything that one can ask says so."""
        until(lambda: self.status().get("phase") == "Queued", "the phase is Queued")
        held = lambda: found(self.plane, "raycluster", name, self.namespace).get("status", {}).get("state")  # noqa: E731
        until(lambda: held() == "suspended", "KubeRay has seen that it is suspended")
        until(lambda: not self.pods(), "no pod is left")

        def told() -> dict[str, tuple[str, str]]:
            body = self.body()
            return {
                kind: (condition(body, kind).get("status", ""), condition(body, kind).get("reason", ""))
                for kind in WAITING
            }

        until(lambda: told() == WAITING, f"the conditions are {WAITING}")

    def runs(self, name: str, attempt: int) -> None:
        """It was admitted, and the head comes up."""
        body = self.body()
        uid = body["metadata"]["uid"]
        self.head.do(lambda: self._renew(token(uid, name), attempt))
        run_head(self.plane, name, self.head.ip, self.namespace)
        until(lambda: len(self.head.stub.posted) == attempt, f"attempt {attempt} is submitted")
        role = {"name": "worker", "desired": 2, "ready": 2, "running": 2, "succeeded": 0, "failed": 0, "restarts": 0}
        self.head.do(lambda: self.head.stub.say(uid.replace("-", ""), phase="Running", epoch=1, roles=[role]))
        until(lambda: self.status().get("phase") == "Running", "the job runs")

    def _renew(self, word: str, attempt: int) -> None:
        self.head.stub.token, self.head.stub.session = word, f"session_{attempt}"
        self.head.stub.jobs.clear()
        self.head.stub.snapshots.clear()


WAITING = {"Accepted": ("True", "SpecAccepted"), "QuotaReserved": ("False", "WaitsInQueue")}
WAITING |= {"ClusterReady": ("False", "WaitsInQueue"), "MasterReady": ("False", "WaitsForHead")}


def boasts(body: dict[str, Any]) -> str:
    """What a version of the DLJob claims to have that a job in a queue, or on its way back there, has not."""
    status = body.get("status", {})
    true = {one["type"] for one in status.get("conditions", []) if one["status"] == "True"}
    lost = condition(body, "ClusterReady").get("reason") in ("WaitsInQueue", "Preempted")
    has = true & {"QuotaReserved", "ClusterReady", "MasterReady", "PlacementReady", "RolesReady"}
    return f"attempt {status['attempt']} {status['phase']}: {has}" if lost and has else ""


def test_a_job_is_admitted_from_the_queue_and_returns_to_it_when_preempted(
    plane: Cluster, operator: Operator, namespace: str, head: Head, seen: dict[str, Seen]
) -> None:
    queued, kueue = Queued(plane, namespace, head), Kueue(plane, namespace)
    first = queued.cluster(1)
    name, uid = first["metadata"]["name"], first["metadata"]["uid"]
    assert first["metadata"]["labels"][QUEUE] == "team"
    assert first["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"
    queued.waits(name)
    assert "startTime" not in queued.status()  # deadlines do not count in the queue
    assert not head.stub.posted

    kueue.admit(name)
    until(lambda: condition(queued.body(), "QuotaReserved").get("status") == "True", "the quota is reserved")
    until(lambda: len(queued.pods()) == 2, "KubeRay makes the pods")
    for pod in queued.pods():
        assert pod["spec"]["nodeSelector"] == FLAVOR
        assert TOLERATION in pod["spec"]["tolerations"]
        assert ADMITTED.items() <= pod["metadata"]["labels"].items()
    queued.runs(name, 1)
    assert "startTime" in queued.status()
    # What somebody takes away from our annotations is written again: a write of ours to an admitted RayCluster.
    plane.kubectl("annotate", "raycluster", name, "-n", namespace, f"{PLAN_HASH}-")
    annotated = lambda: found(plane, "raycluster", name, namespace)["metadata"]["annotations"].get(PLAN_HASH)  # noqa: E731
    until(annotated, "the plan is told again")

    kueue.preempt(name)
    second = queued.cluster(2)["metadata"]["name"]
    assert second != name
    queued.waits(second)
    status = queued.status()
    assert (status["lastFault"]["reason"], status["restarts"]["cluster"]) == ("Preempted", 0)
    assert not found(plane, "raycluster", name, namespace)
    assert len(head.stub.posted) == 1

    kueue.admit(second)
    queued.runs(second, 2)
    assert [posted["submission_id"].rpartition("-")[2] for posted in head.stub.posted] == ["1", "2"]
    assert condition(queued.body(), "QuotaReserved")["status"] == "True"
    assert queued.status()["restartsTotal"] == 0
    assert seen["RayCluster"].by("kueue", uid)
    assert kueue.undone(seen["RayCluster"].versions) == []
    assert [words for body in seen["DLJob"].versions if (words := boasts(body))] == []


def test_a_quota_that_is_taken_back_before_the_head_came_costs_no_attempt(
    plane: Cluster, operator: Operator, namespace: str, head: Head, seen: dict[str, Seen]
) -> None:
    queued, kueue = Queued(plane, namespace, head), Kueue(plane, namespace)
    name = queued.cluster(1)["metadata"]["name"]
    queued.waits(name)
    kueue.admit(name)
    until(lambda: condition(queued.body(), "QuotaReserved").get("status") == "True", "the quota is reserved")
    kueue.preempt(name)
    queued.waits(name)
    kueue.admit(name)
    queued.runs(name, 1)
    assert queued.status()["attempt"] == 1
    assert kueue.undone(seen["RayCluster"].versions) == []


def test_a_job_deleted_in_the_queue_leaves_nothing(
    plane: Cluster, operator: Operator, namespace: str, head: Head
) -> None:
    queued = Queued(plane, namespace, head)
    uid = queued.body()["metadata"]["uid"]
    queued.waits(queued.cluster(1)["metadata"]["name"])
    plane.kubectl("delete", "dljob", "q", "-n", namespace)
    until(lambda: not children(plane, uid, namespace), "everything of the job is gone")
    assert uid not in json.dumps(plane.get("rayclusters,pods,secrets,configmaps", "-n", namespace))
