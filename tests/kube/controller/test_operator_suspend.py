"""A job that is suspended, edited and resumed, on a real API server with KubeRay and a stub head."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from cluster.handle import Cluster, KubectlError
from operator_kit import Head, Operator, begun, condition, found, job, until

HEAD = "127.0.45.1"

COUNTS = {"process": 2, "roleGroup": 0, "role": 0, "job": 0, "master": 0}
CARRY = {"v": 1, "restarts": {"Process": 2}, "checkpoints": {"worker": [1, 1, 118, 1.5]}}
STEPS = {"step": 120, "lastCheckpointStep": 118}


class Job:
    """The job of a test, as its user sees it."""

    def __init__(self, plane: Cluster, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace

    @property
    def body(self) -> dict[str, Any]:
        return found(self.plane, "dljob", "j", self.namespace)

    @property
    def status(self) -> dict[str, Any]:
        return self.body.get("status", {})

    def patch(self, **spec: Any) -> None:
        words = json.dumps({"spec": spec})
        self.plane.kubectl("patch", "dljob", "j", "-n", self.namespace, "--type=merge", "-p", words)

    def refused(self, **spec: Any) -> str:
        with pytest.raises(KubectlError) as caught:
            self.patch(**spec)
        return str(caught.value)

    def suspended(self) -> bool:
        one = condition(self.body, "Suspended")
        return (self.status["phase"], one.get("status"), one.get("reason")) == ("Suspended", "True", "JobSuspended")

    def handed(self, cluster: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The spec that a RayCluster runs, and what the last attempt handed on to it."""
        data = found(self.plane, "configmap", f"{cluster}-spec", self.namespace)["data"]
        return json.loads(data["spec.json"])["spec"], json.loads(data.get("carried.json", "{}"))

    def left(self, *kinds: str) -> list[str]:
        listed = self.plane.get(",".join(kinds), "-n", self.namespace)["items"]
        return [f"{one['kind']}/{one['metadata']['name']}" for one in listed]


def roles(replicas: int = 2) -> list[dict[str, Any]]:
    return [{**job("j")["spec"]["roles"][0], "replicas": replicas}]


def test_a_suspended_job_saves_and_resumes_with_its_edited_spec(
    plane: Cluster, operator: Operator, namespace: str, head: Head
) -> None:
    """The operator is killed while the job stops, while it is suspended, and after it was resumed."""
    it = Job(plane, namespace)
    plane.apply(
        {
            **job("j", activeDeadlineSeconds=86400, checkpoint={"path": "/ckpt"}),
            "metadata": {"name": "j", "namespace": namespace},
        }
    )
    first, uid = begun(plane, namespace, head, 1)
    job_uid = uid.replace("-", "")
    head.stub.tails["worker/0"] = "step 120\n"
    head.do(lambda: head.stub.say(job_uid, phase="Running", epoch=1, restarts=COUNTS, carry=CARRY, progress=STEPS))
    until(lambda: it.status.get("phase") == "Running", "it runs")
    began = it.status["startTime"]
    for change in ({"roles": roles(3)}, {"image": "example.test/ray:2"}, {"nodeGroups": [{"name": "g"}]}):
        assert re.search(rf"{next(iter(change))}\b.* cannot change while the job runs; suspend", it.refused(**change))

    it.patch(suspend=True)
    until(lambda: [one["kind"] for one in head.stub.commands] == ["suspend"], "PrimeMaster is asked")
    assert (it.status["phase"], head.stub.commands[0]["id"]) == ("Suspending", "suspend/1")
    it.patch(roles=roles(3))
    operator.kill()
    head.do(lambda: head.stub.say(job_uid, phase="Suspended", reason="JobSuspended"))
    operator.start()
    until(it.suspended, "nothing of it is left")
    assert it.left("rayclusters", "pods") == []
    assert found(plane, "configmap", "j-logs", namespace)["data"]["worker-0.log"] == "step 120\n"
    assert not {"startTime", "attemptSpecHash", "submissionId", "lastFault"} & it.status.keys()
    message = condition(it.body, "Suspended")["message"]
    assert message.startswith("attempt 1 was stopped; its last checkpoint is of step 118; to go on: `dljob resume j`")

    operator.kill()
    it.patch(image="example.test/ray:2", suspend=False)
    operator.start()
    second, _ = begun(plane, namespace, head, 2)
    operator.kill()
    operator.start()
    assert first != second
    spec, carried = it.handed(second)
    assert (spec["roles"][0]["replicas"], spec["image"]) == (3, "example.test/ray:2")
    assert carried == {"job": job_uid, "attempt": 1, "step": 120, "state": CARRY}
    assert "--carried" in shlex.split(head.stub.posted[1]["entrypoint"])
    assert it.status["startTime"] > began
    assert it.status["restarts"] == {"process": 2, "cluster": 0}
    head.do(lambda: head.stub.say(job_uid, phase="Failed", reason="UserErrorRepeats", restarts=COUNTS, carry=CARRY))
    until(lambda: it.status["phase"] == "Failed", "it ends")
    until(lambda: it.left("rayclusters") == [], "its machines are given back")

    # A failed job goes on when somebody resumes it.
    plane.kubectl("annotate", "dljob", "j", "-n", namespace, "dljob.io/resume=1")
    third, _ = begun(plane, namespace, head, 3)
    _, carried = it.handed(third)
    assert (carried["attempt"], carried["newBudgets"]) == (2, True)
    assert (it.status["restartsTotal"], condition(it.body, "Failed")) == (0, {})
    head.do(lambda: head.stub.say(job_uid, phase="Succeeded", restarts=COUNTS))
    until(lambda: it.status["phase"] == "Succeeded", "it ends")
    assert [one["submission_id"].rpartition("-")[2] for one in head.stub.posted] == ["1", "2", "3"]
    assert "Suspended" not in {one["type"] for one in it.status["conditions"]}


def test_a_job_that_is_applied_suspended_makes_nothing_until_it_is_resumed(
    plane: Cluster, operator: Operator, namespace: str
) -> None:
    it = Job(plane, namespace)
    plane.apply({**job("j", suspend=True), "metadata": {"name": "j", "namespace": namespace}})
    until(lambda: it.status and it.suspended(), "it is suspended")
    own = f"dljob.io/uid={it.body['metadata']['uid']}"
    assert plane.get("rayclusters,secrets,configmaps,pods", "-n", namespace, "-l", own)["items"] == []
    it.patch(roles=roles(5), image="example.test/ray:9")
    it.patch(suspend=False)
    name = until(lambda: it.left("rayclusters"), "it begins")[0].partition("/")[2]
    assert it.status["attempt"] == 1
    made, _ = it.handed(name)
    assert (made["roles"][0]["replicas"], made["image"]) == (5, "example.test/ray:9")
    it.patch(suspend=True)
    until(it.suspended, "it goes again, before anything ran")
    assert it.left("rayclusters", "pods") == []
    plane.kubectl("delete", "dljob", "j", "-n", namespace, "--timeout=30s")
    assert it.body == {}
