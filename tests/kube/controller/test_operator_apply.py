"""From `kubectl apply` to RayCluster and pods, and back to nothing, on a real API server with the real KubeRay."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from cluster.handle import Cluster
from operator_kit import Head, Operator, children, condition, found, job, run_head, token, until

HEAD = "127.0.42.1"

ROOT = Path(__file__).resolve().parents[3]
HELLO = ROOT / "examples" / "hello-cpu" / "dljob.yaml"


def made(plane: Cluster, name: str, namespace: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The job, and the RayCluster that it was given."""

    def cluster() -> Any:
        body = found(plane, "dljob", name, namespace)
        recorded = body.get("status", {}).get("rayCluster", {})
        return (body, found(plane, "raycluster", recorded["name"], namespace)) if recorded.get("uid") else None

    return until(cluster, f"{name} has a RayCluster")


def test_an_applied_job_gets_all_that_it_needs(plane: Cluster, operator: Operator, namespace: str) -> None:
    plane.kubectl("apply", "-n", namespace, "-f", str(HELLO))
    body, cluster = made(plane, "hello", namespace)
    uid, name = body["metadata"]["uid"], cluster["metadata"]["name"]
    owner = cluster["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("DLJob", uid, True)
    assert cluster["spec"]["authOptions"] == {"mode": "token", "secretName": f"{name}-token"}
    assert cluster["spec"]["upgradeStrategy"] == {"type": "None"}
    secret = found(plane, "secret", f"{name}-token", namespace)
    assert base64.b64decode(secret["data"]["auth_token"]).decode() == token(uid, name)
    spec = found(plane, "configmap", f"{name}-spec", namespace)
    assert spec["immutable"] is True
    assert json.loads(spec["data"]["spec.json"])["spec"]["roles"][0]["entrypoint"] == {"class": "hello.main"}
    pods = until(lambda: [c for c in children(plane, uid, namespace) if c.startswith("Pod/")], "KubeRay makes pods")
    assert any("-head-" in pod for pod in pods)
    head = plane.get("pods", "-n", namespace, "-l", f"ray.io/cluster={name},ray.io/node-type=head")["items"][0]
    assert head["spec"]["initContainers"][0]["image"] == "example.test/init:1"
    assert {port["containerPort"] for port in head["spec"]["containers"][0]["ports"]} >= {8265, 8266, 6379}
    assert condition(body, "Accepted")["status"] == "True"


def test_a_deleted_job_leaves_nothing(plane: Cluster, operator: Operator, namespace: str) -> None:
    plane.apply({**job("gone"), "metadata": {"name": "gone", "namespace": namespace}})
    body, _ = made(plane, "gone", namespace)
    uid = body["metadata"]["uid"]
    until(lambda: any(child.startswith("Pod/") for child in children(plane, uid, namespace)), "KubeRay makes pods")
    assert not body["metadata"].get("finalizers")
    assert "kopf" not in json.dumps(body)
    plane.kubectl("delete", "dljob", "gone", "-n", namespace)
    until(lambda: not children(plane, uid, namespace), "everything of the job is gone")


def test_a_job_runs_ends_keeps_its_logs_and_comes_to_rest(
    plane: Cluster, operator: Operator, namespace: str, head: Head
) -> None:
    plane.apply({**job("run"), "metadata": {"name": "run", "namespace": namespace}})
    body, cluster = made(plane, "run", namespace)
    uid, name = body["metadata"]["uid"], cluster["metadata"]["name"]
    head.stub.token = token(uid, name)
    run_head(plane, name, head.ip, namespace)
    until(lambda: head.stub.posted, "the launcher is submitted")
    posted = head.stub.posted[0]
    assert posted["entrypoint"].startswith("python -m dljob.runtime.launcher --spec /etc/dljob/spec/spec.json --uid ")
    said = {"name": "worker", "desired": 2, "ready": 2, "running": 2, "succeeded": 0, "failed": 0, "restarts": 0}
    hex_uid = uid.replace("-", "")
    head.do(lambda: head.stub.say(hex_uid, phase="Running", epoch=1, roles=[said]))

    def phase() -> str:
        return found(plane, "dljob", "run", namespace)["status"]["phase"]

    until(lambda: phase() == "Running", "the status is Running")
    status = found(plane, "dljob", "run", namespace)["status"]
    assert (status["rolesReady"], status["submissionId"]) == ("2/2", posted["submission_id"])

    def bring_all_news_in() -> bool:
        before = operator.writes()
        return until(lambda: operator.health()["waiting"] == 0, "no key waits") and operator.writes() == before

    until(lambda: len(plane.get("dljobs,rayclusters", "-A")["items"]) == 2, "the jobs of other tests are gone")
    until(bring_all_news_in, "the writes cease")
    before = operator.writes()
    operator_passes(operator)
    assert operator.writes() == before

    head.do(lambda: head.stub.tails.update({"worker/0": "the last line\n"}))
    head.do(lambda: head.stub.say(hex_uid, phase="Succeeded", reason="Completed", message="all drivers ended well"))
    until(lambda: phase() == "Succeeded", "the status is Succeeded")
    until(lambda: not found(plane, "raycluster", name, namespace), "the RayCluster gives its machines back")
    kept = found(plane, "configmap", "run-logs", namespace)["data"]
    assert kept["worker-0.log"] == "the last line\n"
    assert json.loads(kept["status.json"])["phase"] == "Succeeded"
    assert kept.keys() == {"worker-0.log", "status.json"}
    ended = found(plane, "dljob", "run", namespace)
    assert condition(ended, "Complete")["status"] == "True"
    reasons = {event["reason"] for event in events(plane, namespace) if event["regarding"]["uid"] == uid}
    assert "Completed" in reasons
    assert len(head.stub.posted) == 1


def operator_passes(operator: Operator) -> None:
    """Let a while pass in which the operator would do something if it were not at rest: two polls and a reminder."""
    import time

    time.sleep(3)
    assert operator.health()["waiting"] == 0


def events(plane: Cluster, namespace: str) -> list[dict[str, Any]]:
    return plane.get("events.events.k8s.io", "-n", namespace)["items"]
