"""A Kubernetes node that goes wrong, on fake nodes with the real KubeRay and a head that is a stub."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.handle import Cluster
from cluster.kwok import LABEL
from operator_kit import Head, condition, found, job, renewed, run_head, running, said, token, until, warned

from dljob.reconcile.policies.machines import FORCE_SECONDS

HEAD = "127.0.61.1"

ROOM = {"cpu": "4", "memory": "64Gi", "pods": "16"}
"""Of a node: one pod of a job, and no two."""
NAME = "mine"


class Job:
    """A job of two ranks on two machines, a third one free, and its head."""

    def __init__(self, plane: Cluster, namespace: str, head: Head, prefix: str) -> None:
        self.plane, self.namespace, self.head, self.prefix = plane, namespace, head, prefix
        self.uid = self.cluster = ""

    def start(self, **spec: Any) -> Job:
        """It runs, one rank on each worker."""
        group = {"name": "cpu", "cpu": "3", "replicas": 2, "template": self._here()}
        role = {"name": "worker", "replicas": 2, "entrypoint": {"class": "hello.main"}, "resources": {"cpu": "2"}}
        body = job(NAME, nodeGroups=[group], roles=[role], head={"template": self._here()}, **spec)
        body["spec"]["head"]["cpu"] = "3"
        self.plane.apply({**body, "metadata": {"name": NAME, "namespace": self.namespace}})
        self.uid = self.body["metadata"]["uid"]
        self.attempt(1)
        return self

    def _here(self) -> dict[str, Any]:
        """On fake nodes of this test alone, and by a word of the user's that must stay."""
        expression = {"key": "dljob.test/of", "operator": "In", "values": [self.prefix]}
        term = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}
        return {"spec": {"affinity": affinity, "terminationGracePeriodSeconds": 2}}

    def attempt(self, number: int) -> None:
        """The head of an attempt comes up, takes the submission and says that the job runs."""

        def made() -> str:
            status = self.status
            cluster = status.get("rayCluster", {})
            there = status.get("attempt") == number and cluster.get("uid") and cluster["name"] != self.cluster
            return cluster["name"] if there else ""

        self.cluster = until(made, f"attempt {number} has its RayCluster")
        self.head.do(lambda: renewed(self.head, token(self.uid, self.cluster), number))
        until(
            lambda: self.pods("head") and self.pods("head")[0]["status"].get("phase") == "Running", "the head is there"
        )
        run_head(self.plane, self.cluster, self.head.ip, self.namespace)
        until(lambda: len(self.head.stub.posted) == number, f"attempt {number} is submitted")
        until(lambda: len(self.ready()) == 2, "two workers are there")
        self.placed()
        self.say("Running")
        until(lambda: self.status["phase"] == "Running", "it runs")
        until(lambda: all(ray_node(pod) for pod in self.ready()), "pods say what they hold")

    def placed(self) -> None:
        """PrimeMaster has a rank on each worker."""
        rows = [
            {"pod": name, "node": f"ray-{name}", "units": [f"worker-{at}"], "ranks": f"worker/{at}"}
            for at, name in enumerate(sorted(pod["metadata"]["name"] for pod in self.ready()))
        ]
        self.head.do(lambda: self.head.stub.places.update({self.uid.replace("-", ""): {"version": 9, "nodes": rows}}))

    def say(self, phase: str, ready: int = 2, excluded: list[dict[str, Any]] | None = None) -> None:
        """PrimeMaster says something."""
        role = {"name": "worker", "desired": 2, "ready": ready, "running": ready, "succeeded": 0, "failed": 0}
        units = {"units": 2, "ready": ready, "pending": 2 - ready, "notReady": []}
        nodes = {"desired": 2, "ready": ready, "replaced": 0, "excluded": excluded or []}
        news = {"phase": phase, "epoch": 1, "roles": [{**role, "restarts": 0}], "placement": units, "nodes": nodes}
        self.head.do(lambda: self.head.stub.say(self.uid.replace("-", ""), **news))

    @property
    def body(self) -> dict[str, Any]:
        return found(self.plane, "dljob", NAME, self.namespace)

    @property
    def status(self) -> dict[str, Any]:
        return self.body.get("status", {})

    @property
    def ray_cluster(self) -> dict[str, Any]:
        return found(self.plane, "raycluster", self.cluster, self.namespace)

    def pods(self, kind: str = "worker") -> list[dict[str, Any]]:
        selector = f"ray.io/cluster={self.cluster},ray.io/node-type={kind}"
        return self.plane.get("pods", "-n", self.namespace, "-l", selector)["items"]

    def ready(self) -> list[dict[str, Any]]:
        return [pod for pod in self.pods() if pod["status"].get("phase") == "Running" and not leaving(pod)]

    def excluded(self) -> list[dict[str, Any]]:
        return self.status.get("nodes", {}).get("excluded", [])

    def events(self) -> dict[str, str]:
        """Reason -> the last note of the Events about the job."""
        listed = self.plane.get("events.events.k8s.io", "-n", self.namespace)["items"]
        return {event["reason"]: event["note"] for event in listed if event["regarding"]["name"] == NAME}

    def told(self) -> list[dict[str, Any]]:
        """The causes that went down to PrimeMaster."""
        return self.head.stub.causes

    def away(self) -> list[list[str]]:
        """The nodes that each group of the RayCluster keeps away from."""
        spec = self.ray_cluster["spec"]
        return [kept_from(group["template"]["spec"]) for group in [spec["headGroupSpec"], *spec["workerGroupSpecs"]]]


def ray_node(pod: dict[str, Any]) -> str:
    return pod["metadata"].get("annotations", {}).get("dljob.io/ray-node-id", "")


def leaving(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def node_of(pod: dict[str, Any]) -> str:
    return pod["spec"]["nodeName"]


def uid_of(pod: dict[str, Any]) -> str:
    return pod["metadata"]["uid"]


def kept_from(pod: dict[str, Any]) -> list[str]:
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    mine, *ours = term["matchExpressions"]
    assert mine["key"] == "dljob.test/of", "the user's own word stays"
    return [node for expression in ours for node in expression["values"]]


@pytest.fixture
def begin(
    plane: Cluster, namespace: str, head: Head, kwok: Callable[..., None], tmp_path: Path
) -> Iterator[Callable[..., Job]]:
    """A job that runs; `begin(**spec)`. Four nodes: the head's, two workers', and a free one."""
    prefix = f"n{time.time_ns() % 1000000}"
    kwok(4, prefix=prefix, resources=ROOM)
    plane.kubectl("label", "node", *(f"{prefix}-{at}" for at in range(4)), f"dljob.test/of={prefix}")
    made = Job(plane, namespace, head, prefix)
    with running(plane, tmp_path, f"--namespace={namespace}", "--unreachable-toleration=30"):
        yield made.start
        plane.kubectl("delete", "dljob", NAME, "-n", namespace, "--wait=false", "--ignore-not-found")
        plane.kubectl("delete", "pods", "--all", "-n", namespace, "--force", "--grace-period=0")


def terms(**node: Any) -> dict[str, Any]:
    return {"faultTolerance": {"node": node}}


def exclusion(pod: dict[str, Any], seconds: float = 3600.0, reason: str = "NodeFrozen") -> dict[str, Any]:
    """PrimeMaster's word on the Ray node of a pod."""
    now = time.time()
    since, until = (time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(at)) for at in (now, now + seconds))
    return {"name": ray_node(pod), "reason": reason, "since": since, "until": until}


def test_a_bad_node_is_kept_away_from_and_left(
    begin: Callable[..., Job],
) -> None:
    it = begin()
    bad, good = it.ready()
    (its_head,) = it.pods("head")
    it.say("Recovering", 1, [exclusion(bad)])
    until(lambda: uid_of(bad) not in {uid_of(pod) for pod in it.pods()}, "its pod is gone")
    until(lambda: len(it.ready()) == 2, "KubeRay has made another")
    assert it.away() == [[node_of(bad)]] * 2
    fresh = next(pod for pod in it.ready() if uid_of(pod) != uid_of(good))
    assert node_of(fresh) not in (node_of(bad), node_of(good), node_of(its_head))
    assert kept_from(fresh["spec"]) == [node_of(bad)]
    assert uid_of(good) in {uid_of(pod) for pod in it.ready()}, "no pod is touched by the edit"
    assert uid_of(its_head) == uid_of(it.pods("head")[0])
    (one,) = it.excluded()
    assert (one["kubernetesNode"], one["pod"], one["avoided"]) == (node_of(bad), bad["metadata"]["name"], True)
    note = it.events()["NodeExcluded"]
    assert note.startswith(f"pod {bad['metadata']['name']} on Kubernetes node {node_of(bad)} is replaced: NodeFrozen")
    until(lambda: condition(it.body, "ClusterReady")["reason"] == "PodsReady", "our own edit is no stranger's")


def test_an_exclusion_holds_in_the_next_attempt_until_its_time_is_over(begin: Callable[..., Job]) -> None:
    it = begin()
    bad, *_ = it.ready()
    ends = time.time() + 75
    it.say("Recovering", 1, [exclusion(bad, ends - time.time())])
    until(lambda: it.away() == [[node_of(bad)]] * 2, "new pods keep away")
    it.plane.kubectl("delete", "raycluster", it.cluster, "-n", it.namespace, "--wait=false")
    # Its own pods alone: KubeRay makes no other head for half a minute after one it has not seen yet is deleted.
    old = f"ray.io/cluster={it.cluster}"
    it.plane.kubectl("delete", "pods", "-l", old, "-n", it.namespace, "--force", "--grace-period=0")
    it.attempt(2)
    assert time.time() < ends, "the attempt began in time to be of use here"
    assert it.away() == [[node_of(bad)]] * 2, "from its start"
    places = [node_of(pod) for pod in (*it.pods("head"), *it.ready())]
    assert node_of(bad) not in places
    until(lambda: it.away() == [[]] * 2, "its time is over", 120)
    assert time.time() >= ends
    until(lambda: it.excluded() == [], "nothing is excluded any more")
    assert it.events()["NodeReadmitted"].endswith(f"Kubernetes node {node_of(bad)}: it is excluded no longer")
    assert places == [node_of(pod) for pod in (*it.pods("head"), *it.ready())], "running pods stay"


def test_nodes_that_the_annotation_names_are_left_and_taken_back(begin: Callable[..., Job]) -> None:
    it = begin()
    unwanted, good = it.ready()
    mark = ("annotate", "dljob", NAME, "-n", it.namespace)
    it.plane.kubectl(*mark, f"dljob.io/exclude-nodes={node_of(unwanted)}")
    until(lambda: uid_of(unwanted) not in {uid_of(pod) for pod in it.pods()}, "its pod is gone")
    until(lambda: len(it.ready()) == 2, "KubeRay has made another")
    assert it.away() == [[node_of(unwanted)]] * 2
    assert node_of(unwanted) not in {node_of(pod) for pod in it.ready()}
    assert uid_of(good) in {uid_of(pod) for pod in it.ready()}
    note = f"annotation dljob.io/exclude-nodes names Kubernetes node {node_of(unwanted)}: the job's pods leave it"
    assert it.events()["NodeExcluded"] == note
    it.plane.kubectl(*mark, "dljob.io/exclude-nodes-")
    until(lambda: it.away() == [[]] * 2, "it may be used again")
    until(lambda: "NodeReadmitted" in it.events(), "that is told")


def test_a_pod_that_no_good_node_takes_waits_with_the_schedulers_words_and_goes_to_a_bad_one(
    begin: Callable[..., Job],
) -> None:
    it = begin(**terms(pendingTimeoutSeconds=40))
    bad, good = it.ready()
    used = {node_of(pod) for pod in (bad, good, *it.pods("head"))}
    (free,) = {f"{it.prefix}-{at}" for at in range(4)} - used
    it.plane.kubectl("cordon", free)
    it.say("Recovering", 1, [exclusion(bad)])
    # On a busy machine KubeRay may take half a minute to make the pod; the exclusion is lifted 20 s after that.
    words = said(it.plane, it.namespace, NAME, "Unschedulable", seconds=90)
    assert "nodes are available" in words
    assert "didn't match Pod's node affinity/selector" in words
    assert words.endswith("; make room, or ask for less; the pod then goes on by itself")
    assert "nodes are available" in warned(it.plane, it.namespace, NAME, "Unschedulable")
    until(lambda: len(it.ready()) == 2, "a bad node is better than none")
    fresh = next(pod for pod in it.ready() if uid_of(pod) != uid_of(good))
    assert node_of(fresh) == node_of(bad)
    until(lambda: condition(it.body, "ClusterReady").get("reason") == "PodsReady", "that is told")
    assert it.events()["NodeReadmitted"].endswith(f"Kubernetes node {node_of(bad)}: no other node takes them")
    assert it.status["attempt"] == 1


def test_a_pod_replaced_under_a_used_up_quota_waits_for_the_quota(begin: Callable[..., Job]) -> None:
    it = begin()
    gone, good = it.ready()
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "tight", "namespace": it.namespace}}
    it.plane.apply({**quota, "spec": {"hard": {"pods": "2"}}})

    def counted() -> bool:
        return it.plane.get("resourcequota", "tight", "-n", it.namespace).get("status", {}).get("used") == {"pods": "3"}

    until(counted, "the quota counts pods")
    it.plane.kubectl("delete", "pod", gone["metadata"]["name"], "-n", it.namespace, "--wait=false")
    it.say("Recovering", 1)
    words = said(it.plane, it.namespace, NAME, "FailedCreateWorkerPod")
    assert re.search(r"is forbidden: exceeded quota: tight, requested: pods=1, used: pods=\d, limited: pods=2", words)
    assert words.endswith("; raise the quota or give something back; it is tried again by itself")
    assert "exceeded quota: tight" in warned(it.plane, it.namespace, NAME, "FailedCreateWorkerPod")
    until(lambda: it.status["phase"] == "Recovering", "the job recovers")
    it.plane.apply({**quota, "spec": {"hard": {"pods": "3"}}})
    until(lambda: len(it.ready()) == 2, "KubeRay tries again")
    it.say("Running")
    until(lambda: it.status["phase"] == "Running", "it goes on")
    until(lambda: condition(it.body, "ClusterReady").get("reason") == "PodsReady", "that is told")
    assert uid_of(good) in {uid_of(pod) for pod in it.ready()}
    assert it.status["attempt"] == 1


def test_a_node_that_is_not_ready_loses_its_pod_by_force_when_no_kubelet_ends_it(begin: Callable[..., Job]) -> None:
    it = begin(**terms(unreachableSeconds=5))
    lost, good = it.ready()
    # KWOK, which is its kubelet, minds it no more; the node controller then hears that it is not ready.
    it.plane.kubectl("label", "node", node_of(lost), f"{LABEL}-")
    dead = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "PLEG is not healthy"}
    patch = json.dumps({"status": {"conditions": [dead]}})
    it.plane.kubectl("patch", "node", node_of(lost), "--subresource=status", "--type=strategic", "-p", patch)

    def ends() -> float:
        pods = [pod for pod in it.pods() if uid_of(pod) == uid_of(lost) and leaving(pod)]
        return time.time() if pods else 0.0

    since = until(ends, "the taint manager deletes its pod")
    (cause, *_) = until(it.told, "PrimeMaster is told why")
    assert cause["target"] == f"node/{ray_node(lost)}"
    assert "DeletionByTaintManager" in json.dumps(cause)
    until(lambda: uid_of(lost) not in {uid_of(pod) for pod in it.pods()}, "it is gone")
    assert time.time() - since >= FORCE_SECONDS, "not before a kubelet would have had its time"
    note = it.events()["PodForced"]
    assert note.startswith(f"pod {lost['metadata']['name']} should be gone since ")
    assert note.endswith(f"Kubernetes node {node_of(lost)} is not ready: it is deleted by force")
    until(lambda: len(it.ready()) == 2, "KubeRay has made another")
    assert node_of(lost) not in {node_of(pod) for pod in it.ready()}
    assert uid_of(good) in {uid_of(pod) for pod in it.ready()}
    it.plane.kubectl("delete", "node", node_of(lost))
