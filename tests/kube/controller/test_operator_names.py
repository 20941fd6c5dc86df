"""One name for two jobs, on a real API server with KubeRay and stub heads: at once, and one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cluster.handle import Cluster
from operator_kit import Head, Operator, children, found, job, namespaced, run_head, running, token, until

NAME = "same"
WORN = {"v": 1, "restarts": {"Process": 2}, "roles": {"worker": 2}, "marks": {"worker": [1.5, 2.5]}}
COUNTS = {"process": 2, "roleGroup": 0, "role": 0, "job": 0, "master": 0}


@pytest.fixture(scope="module")
def operator(plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    with running(plane, tmp_path_factory.mktemp("operator")) as operator:
        yield operator


@pytest.fixture
def other(plane: Cluster) -> Iterator[str]:
    yield from namespaced(plane, "other-team")


@pytest.fixture
def heads() -> Iterator[tuple[Head, Head]]:
    made = (Head("127.0.53.1"), Head("127.0.53.2"))
    yield made
    for head in made:
        head.close()


class One:
    """A job of that name, and its head."""

    def __init__(self, plane: Cluster, namespace: str, head: Head) -> None:
        self._plane = plane
        self.namespace = namespace
        self.head = head
        plane.apply({**job(NAME), "metadata": {"name": NAME, "namespace": namespace}})
        self.uid: str = self.body()["metadata"]["uid"]

    def body(self) -> dict[str, Any]:
        return found(self._plane, "dljob", NAME, self.namespace)

    def status(self) -> dict[str, Any]:
        return self.body().get("status", {})

    def submitted(self) -> str:
        """Its submission is with its head, which takes its own token only; the RayCluster's name."""

        def cluster() -> str:
            name = self.status().get("rayCluster", {}).get("name", "")
            return name if name and found(self._plane, "raycluster", name, self.namespace) else ""

        name = until(cluster, f"{self.namespace} has a RayCluster")
        word = token(self.uid, name)
        self.head.do(lambda: setattr(self.head.stub, "token", word))
        run_head(self._plane, name, self.head.ip, self.namespace)
        until(lambda: self.head.stub.posted, f"{self.namespace} is submitted")
        return name

    def say(self, **news: Any) -> None:
        uid = self.uid.replace("-", "")
        self.head.do(lambda: self.head.stub.say(uid, **news))

    def ends(self, **tails: str) -> dict[str, str]:
        """It succeeds, and these are the ends of its logs; what is kept of them."""
        said = {f"worker/{rank[1:]}": text for rank, text in tails.items()}
        self.head.do(lambda: self.head.stub.tails.update(said))
        self.say(phase="Succeeded", reason="Completed", message="all drivers ended well")
        until(lambda: self.status().get("phase") == "Succeeded", f"{self.namespace} ends")

        def kept() -> dict[str, str]:
            map_ = found(self._plane, "configmap", f"{NAME}-logs", self.namespace)
            owners = [owner["uid"] for owner in map_.get("metadata", {}).get("ownerReferences", ())]
            logs = {name: text for name, text in map_.get("data", {}).items() if name.endswith(".log")}
            return logs if self.uid in owners else {}

        return until(kept, f"the logs of {self.namespace} are kept")

    def children(self) -> list[str]:
        return children(self._plane, self.uid, self.namespace)


def test_two_jobs_of_one_name_know_nothing_of_each_other(
    plane: Cluster, operator: Operator, namespace: str, other: str, heads: tuple[Head, Head]
) -> None:
    one, two = (One(plane, space, head) for space, head in zip((namespace, other), heads, strict=True))
    assert one.submitted() != two.submitted()
    assert [len(head.stub.posted) for head in heads] == [1, 1]
    assert one.status()["submissionId"] != two.status()["submissionId"]
    one.say(phase="Running", epoch=1, restarts=COUNTS, carry=WORN, progress={"step": 5})
    two.say(phase="Running", epoch=1, progress={"step": 9})
    until(lambda: one.status()["phase"] == two.status()["phase"] == "Running", "both run")
    assert (one.status()["restartsTotal"], two.status().get("restartsTotal", 0)) == (2, 0)
    assert [each.status()["progress"]["step"] for each in (one, two)] == [5, 9]
    assert one.ends(r0="from one\n") == {"worker-0.log": "from one\n"}
    assert two.status()["phase"] == "Running"
    plane.kubectl("delete", "dljob", NAME, "-n", namespace)
    until(lambda: not one.children(), "all of one goes")
    assert {kind.split("/")[0] for kind in two.children()} >= {"RayCluster", "Secret", "ConfigMap", "Pod"}
    assert two.ends(r0="from two\n") == {"worker-0.log": "from two\n"}


def test_the_same_name_again_right_after_is_another_job(
    plane: Cluster, operator: Operator, namespace: str, heads: tuple[Head, Head]
) -> None:
    first = One(plane, namespace, heads[0])
    name = first.submitted()
    first.say(phase="Running", epoch=1, restarts=COUNTS, carry=WORN, progress={"step": 120})
    until(lambda: first.status().get("carried"), "what is handed on is kept")
    first.ends(r0="first\n", r1="first\n")
    before = first.status()
    plane.kubectl("delete", "dljob", NAME, "-n", namespace)

    second = One(plane, namespace, heads[1])
    assert second.uid != first.uid
    again = second.submitted()
    assert (again, token(second.uid, again)) != (name, token(first.uid, name))
    now = second.status()
    assert (now["attempt"], now.get("restartsTotal", 0), now.get("carried")) == (1, 0, None)
    assert now["submissionId"] != before["submissionId"]
    assert now.get("progress", {}).get("step") is None
    posted = heads[1].stub.posted
    assert [body["submission_id"] for body in posted] == [now["submissionId"]]
    assert "--carried" not in posted[0]["entrypoint"]
    kept = second.ends(r0="second\n")
    assert kept == {"worker-0.log": "second\n"}, "nothing of the first one's rank 1"
    until(lambda: not first.children(), "all of the first one goes")
    assert second.ends(r0="second\n") == kept, "and takes nothing of the second along"
