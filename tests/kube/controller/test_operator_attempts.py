"""What outlives an attempt, on a real API server with KubeRay and a stub head: its counts, and what was posted."""

from __future__ import annotations

import json
import shlex
from typing import Any

from cluster.handle import Cluster
from operator_kit import Head, Operator, begun, children, found, job, renewed, token, until

HEAD = "127.0.44.1"

WORN = {"v": 1, "restarts": {"Process": 2}, "roles": {"worker": 2}, "marks": {"worker": [1.5, 2.5]}}
COUNTS = {"process": 2, "roleGroup": 0, "role": 0, "job": 0, "master": 0}


def status(plane: Cluster, namespace: str) -> dict[str, Any]:
    return found(plane, "dljob", "j", namespace)["status"]


def test_a_lost_head_renews_no_budget(plane: Cluster, operator: Operator, namespace: str, head: Head) -> None:
    plane.apply({**job("j"), "metadata": {"name": "j", "namespace": namespace}})
    name, uid = begun(plane, namespace, head, 1)
    hex_uid = uid.replace("-", "")
    say = {"phase": "Running", "epoch": 1, "restarts": COUNTS, "carry": WORN, "progress": {"step": 120}}
    head.do(lambda: head.stub.say(hex_uid, **say))
    until(lambda: status(plane, namespace).get("carried"), "what is handed on is kept")
    assert status(plane, namespace)["carried"] == {"attempt": 1, "state": WORN}
    assert "carried.json" not in found(plane, "configmap", f"{name}-spec", namespace)["data"]
    plane.kubectl("delete", "raycluster", name, "-n", namespace)

    second, _ = begun(plane, namespace, head, 2)
    until(
        lambda: not any(name in one for one in children(plane, uid, namespace)),
        "nothing of the first attempt is left, of which the operator deletes no Secret itself",
    )
    assert {f"ConfigMap/{second}-spec", f"Secret/{second}-token"} <= set(children(plane, uid, namespace))
    data = found(plane, "configmap", f"{second}-spec", namespace)["data"]
    assert json.loads(data["carried.json"]) == {"job": hex_uid, "attempt": 1, "step": 120, "state": WORN}
    argv = shlex.split(head.stub.posted[1]["entrypoint"])
    assert argv[argv.index("--carried") + 1] == "/etc/dljob/spec/carried.json"
    counts = {key: count for key, count in status(plane, namespace)["restarts"].items() if count}
    assert (counts, status(plane, namespace)["restartsTotal"]) == ({"process": 2, "cluster": 1}, 3)
    head.do(lambda: head.stub.say(hex_uid, phase="Running", epoch=1, restarts={**COUNTS, "process": 3}, carry=WORN))
    until(lambda: status(plane, namespace)["restarts"]["process"] == 3, "it counts on")
    assert status(plane, namespace)["restartsTotal"] == 4


def test_a_head_that_restarts_while_the_operator_is_dead_is_not_posted_to_twice(
    plane: Cluster, operator: Operator, namespace: str, head: Head
) -> None:
    plane.apply({**job("j"), "metadata": {"name": "j", "namespace": namespace}})
    name, uid = begun(plane, namespace, head, 1)
    operator.kill()
    try:
        pod = plane.get("pods", "-n", namespace, "-l", f"ray.io/cluster={name},ray.io/node-type=head")["items"][0]
        containers = [{**one, "containerID": "fake://again"} for one in pod["status"]["containerStatuses"]]
        patch = json.dumps({"status": {"containerStatuses": containers}})
        where = (pod["metadata"]["name"], "-n", namespace, "--subresource=status", "--type=merge")
        plane.kubectl("patch", "pod", *where, "-p", patch)
        head.do(lambda: renewed(head, token(uid, name), 1))
    finally:
        operator.start()
    until(lambda: status(plane, namespace)["attempt"] == 2, "the attempt is lost")
    fault = status(plane, namespace)["lastFault"]
    assert (fault["level"], fault["reason"]) == ("Cluster", "HeadLost")
    assert [posted["submission_id"].rpartition("-")[2] for posted in head.stub.posted] == ["1"]
    begun(plane, namespace, head, 2)
    assert [posted["submission_id"].rpartition("-")[2] for posted in head.stub.posted] == ["1", "2"]
