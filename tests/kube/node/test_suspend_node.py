"""A job on real pods that is suspended, then stopped, and goes on each time: from what was in memory, on new pods."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from cluster.handle import Cluster
from node_kit import volume
from operator_kit import Operator, children, condition, found, until

STEPS = 800
CODE = """
import time
from dljob import checkpoint, current_worker, progress

def main():
    me = current_worker()
    found = checkpoint.load()
    step = found[0] if found else 0
    print(f"begins at {step} of {me.config['steps']}", flush=True)
    while step < me.config["steps"]:
        step += 1
        checkpoint.save(step, {"sum": step * (step + 1) // 2}, persist=False)  # in memory alone
        progress(step)
        time.sleep(0.05)
    print(f"ends at {step}", flush=True)
"""


def job(namespace: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """One rank that counts, and its code."""
    role = {
        "name": "worker",
        "entrypoint": {"class": "count.main"},
        "config": {"steps": STEPS},
        "resources": {"cpu": "500m", "memory": "1Gi"},
    }
    spec = {
        "code": {"configMap": "code"},
        "head": {"cpu": "250m", "memory": "2Gi"},
        "master": {"cpu": "100m", "memory": "512Mi"},
        "checkpoint": {"path": "/ckpt", "claimName": "ckpt", "gracePeriodSeconds": 30},
        "roles": [role],
    }
    meta = {"name": "long", "namespace": namespace}
    code = {"name": "code", "namespace": namespace}
    return (
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": code, "data": {"count.py": CODE}},
        {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": meta, "spec": spec},
    )


def test_a_step_goes_on_where_it_was_after_suspension_and_stop(
    node: Cluster, operator: Operator, namespace: str
) -> None:
    volume(node, namespace)
    node.apply(*job(namespace))

    def look() -> dict[str, Any]:
        return found(node, "dljob", "long", namespace)

    def log() -> str:
        return found(node, "configmap", "long-logs", namespace).get("data", {}).get("worker-0.log", "")

    def suspend(on: bool) -> None:
        patch = json.dumps({"spec": {"suspend": on}})
        node.kubectl("patch", "dljob", "long", "-n", namespace, "--type=merge", "-p", patch)

    def seen(check: Callable[[dict[str, Any]], Any], what: str, seconds: float) -> None:
        try:
            until(lambda: check(look().get("status", {})), what, seconds)
        except TimeoutError as error:
            raise AssertionError(json.dumps(look().get("status"), indent=1)) from error

    seen(lambda status: status.get("progress", {}).get("step", 0) > 0, "it steps", 150)
    suspend(True)
    seen(lambda status: status["phase"] == "Suspended", "it is suspended", 90)
    assert condition(look(), "Suspended")["status"] == "True"
    assert node.get("pods,rayclusters", "-n", namespace)["items"] == []
    status = look()["status"]
    reached = status["progress"]["lastCheckpointStep"]
    assert reached >= 1
    assert f"its last checkpoint is of step {reached}" in status["message"]
    suspend(False)
    seen(lambda status: status["attempt"] == 2 and status["phase"] == "Running", "it steps again", 90)
    annotate = ("annotate", "dljob", "long", "-n", namespace, "--overwrite")
    node.kubectl(*annotate, "dljob.io/stop=now")
    seen(lambda status: status["phase"] == "Stopped", "it is stopped", 90)
    until(lambda: f"begins at {reached} of {STEPS}" in log(), "the log of what goes on is kept", 60)
    stopped_at = look()["status"]["progress"]["lastCheckpointStep"]
    assert reached <= stopped_at < STEPS
    node.kubectl(*annotate, "dljob.io/stop-", "dljob.io/resume=now")
    seen(lambda status: status["phase"] in ("Succeeded", "Failed"), "it ends", 180)
    body = look()
    assert body["status"]["phase"] == "Succeeded", body["status"]
    assert (body["status"]["attempt"], body["status"]["restartsTotal"]) == (3, 0)
    orders = [(one["kind"], one["state"]) for one in body["status"]["lastCommands"]]
    assert orders == [("stop", "Sent"), ("resume", "Sent")]
    gone = [child for child in children(node, body["metadata"]["uid"], namespace) if child.startswith("RayCluster/")]
    until(lambda: not gone or found(node, "raycluster", gone[0].partition("/")[2], namespace) == {}, "it goes")
    assert f"begins at {stopped_at} of {STEPS}" in log()
    assert f"ends at {STEPS}" in log()
