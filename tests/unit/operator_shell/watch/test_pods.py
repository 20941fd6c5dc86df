"""Pods as the kubelet and the scheduler report them, digested."""

from __future__ import annotations

from typing import Any

import pytest

from dljob.reconcile.state.model import ImageVersions
from dljob_operator.watch.pods import digest

META = {
    "name": "hello-1-head-x",
    "uid": "p",
    "labels": {"ray.io/node-type": "head", "ray.io/group": "headgroup"},
    "annotations": {"dljob.io/ranks": "0-3", "other": "x"},
}
SPEC = {"nodeName": "node1", "containers": [{"name": "ray-head"}, {"name": "autoscaler"}]}


def pod(status: dict[str, Any], **meta: Any) -> Any:
    return digest({"metadata": {**META, **meta}, "spec": SPEC, "status": status})


def container(name: str = "ray-head", **more: Any) -> dict[str, Any]:
    return {"name": name, "ready": False, "restartCount": 0, "containerID": "", **more}


def test_a_running_heads_address_and_restarts_are_read() -> None:
    ray = container(ready=True, restartCount=2, containerID="c://1", lastState={"terminated": {"exitCode": 137}})
    other = container("autoscaler", containerID="c://2")
    conditions = [{"type": "Ready", "status": "True"}]
    found = pod({"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions, "containerStatuses": [other, ray]})
    assert (found.name, found.uid, found.head, found.group) == ("hello-1-head-x", "p", True, "headgroup")
    assert (found.phase, found.ready, found.ip, found.node) == ("Running", True, "10.0.0.1", "node1")
    assert (found.container, found.restarts) == ("c://1", 2)
    assert found.annotations == {"dljob.io/ranks": "0-3"}
    assert (found.leaving, found.trouble, found.trouble_reason) == (False, "", "")


def test_a_pod_that_was_just_made_has_no_trouble() -> None:
    found = digest({"metadata": {"name": "a", "uid": "p"}, "status": {}})
    assert (found.phase, found.head, found.trouble) == ("Pending", False, "")
    waiting = container(state={"waiting": {"reason": "PodInitializing"}})
    assert pod({"containerStatuses": [waiting]}).trouble == ""
    assert pod({}, deletionTimestamp="2026-01-01T00:00:00Z").leaving


def test_a_pods_times_and_excluded_nodes_are_read() -> None:
    found = pod({}, deletionTimestamp="2026-01-01T00:00:30Z", creationTimestamp="2026-01-01T00:00:00Z")
    assert (found.created, found.ends) == (1767225600.0, 1767225630.0)
    assert (pod({}).created, pod({}).ends, pod({}).away) == (0.0, None, ())
    away = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [away]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert digest({"metadata": META, "spec": {**SPEC, "affinity": affinity}}).away == ("n1", "n2")


@pytest.mark.parametrize(
    ("status", "reason", "trouble"),
    [
        (
            {
                "containerStatuses": [
                    container(state={"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}})
                ]
            },
            "ImagePullBackOff",
            "ImagePullBackOff: container ray-head: no such tag",
        ),
        (
            {
                "initContainerStatuses": [
                    container(
                        "dljob-init",
                        state={"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
                        lastState={"terminated": {"exitCode": 2, "reason": "Error", "message": "no dljob in it\n"}},
                    )
                ]
            },
            "CrashLoopBackOff",
            "CrashLoopBackOff: container dljob-init: back-off 10s; it ended with exit code 2: no dljob in it",
        ),
        (
            {"containerStatuses": [container(lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}})]},
            "OOMKilled",
            "OOMKilled: container ray-head ended with exit code 137 (OOMKilled)",
        ),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
                ]
            },
            "Unschedulable",
            "Unschedulable: 0/1 nodes",
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "Evicted", "Evicted: low on memory"),
        (
            {
                "phase": "Failed",
                "containerStatuses": [container(state={"terminated": {"exitCode": 3}}), container("side")],
            },
            "Failed",
            "Failed: container ray-head ended with exit code 3",
        ),
        (
            {"containerStatuses": [container(state={"waiting": {"reason": "CreateContainerConfigError"}})]},
            "CreateContainerConfigError",
            "CreateContainerConfigError: container ray-head",
        ),
    ],
)
def test_the_trouble_of_a_pod_is_read_from_its_status(status: dict[str, Any], reason: str, trouble: str) -> None:
    found = pod(status)
    assert found.trouble_reason == reason
    assert found.trouble == trouble


KILLED = {"exitCode": 137, "reason": "OOMKilled"}
OOM = "OOMKilled: container ray-head ended with exit code 137 (OOMKilled)"
DRAINED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "evicting"}


@pytest.mark.parametrize(
    ("status", "end"),
    [
        ({"phase": "Running", "containerStatuses": [container(ready=True)]}, ""),
        ({"containerStatuses": [container(ready=True, lastState={"terminated": KILLED})]}, OOM),
        ({"containerStatuses": [container(state={"terminated": KILLED})]}, OOM),
        ({"containerStatuses": [container(state={"terminated": {"exitCode": 0, "reason": "Completed"}})]}, ""),
        ({"containerStatuses": [container("autoscaler", state={"terminated": KILLED})]}, ""),
        (
            {"containerStatuses": [container(lastState={"terminated": {"exitCode": 139}})]},
            "Error: container ray-head ended with exit code 139",
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory. "},
            "Evicted: The node was low on resource: memory.",
        ),
        (
            {"conditions": [DRAINED], "containerStatuses": [container(state={"terminated": KILLED})]},
            "EvictionByEvictionAPI: evicting",
        ),
        ({"conditions": [{**DRAINED, "status": "False"}]}, ""),
    ],
)
def test_the_reason_why_a_pod_ends_is_read_from_its_status(status: dict[str, Any], end: str) -> None:
    assert pod(status).end == end


def test_a_pod_that_is_deleted_says_so_when_nothing_says_more() -> None:
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert pod({}, **gone).end == "Deleted: somebody deleted it"
    assert pod({}, **gone, deletionGracePeriodSeconds=30).end == "Deleted: somebody deleted it"
    assert pod({}, **gone, deletionGracePeriodSeconds=0).end == "Deleted: somebody deleted it", "none of it runs"
    running = {"containerStatuses": [{"name": "ray-head", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]}
    assert pod(running, **gone, deletionGracePeriodSeconds=0).end == "Removed: somebody deleted it by force"
    assert pod({"conditions": [DRAINED]}, deletionTimestamp="2026-01-01T00:00:00Z").end == (
        "EvictionByEvictionAPI: evicting"
    )


@pytest.mark.parametrize(
    ("state", "said", "found"),
    [
        ("state", '{"python": "3.12.4", "ray": "2.60.0", "dljob": ""}', ImageVersions("3.12.4", "2.60.0", "")),
        ("lastState", '{"python": "3.12.4"}', ImageVersions("3.12.4", "", "")),
        ("state", f'{{"python": "{"3" * 99}", "ray": null}}', ImageVersions("3" * 32, "", "")),
        ("state", "Traceback", None),
        ("state", "[]", None),
        ("state", "", None),
    ],
)
def test_the_versions_of_an_image_are_read_whatever_it_tells(
    state: str, said: str, found: ImageVersions | None
) -> None:
    check = container("dljob-image", **{state: {"terminated": {"exitCode": 1, "message": said}}})
    assert pod({"initContainerStatuses": [container("dljob-init"), check]}).image == found
