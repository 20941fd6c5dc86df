"""What a pod does before it is told to end, and how long it has."""

from __future__ import annotations

from typing import Any

import pytest
from kuberay_fields import unknown
from test_overlay import made


def parting(template: dict[str, Any], *, container: str) -> tuple[Any, str, str | None]:
    """(seconds that it has, what runs before SIGTERM, how long Ray waits after it)."""
    ray = next(one for one in template["spec"]["containers"] if one["name"] == container)
    command = ray.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [""])
    env = {entry["name"]: entry.get("value") for entry in ray["env"]}
    seconds = template["spec"].get("terminationGracePeriodSeconds")
    return seconds, command[-1], env.get("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S")


def hook(seconds: int) -> str:
    return f"cd / && python -m dljob.runtime.leave {seconds} || :"


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({}, (30, hook(20), "0")),
        ({"checkpoint": {"path": "/c"}}, (150, hook(140), "0")),
        ({"checkpoint": {"path": "/c", "gracePeriodSeconds": 5}}, (35, hook(25), "0")),
    ],
)
def test_a_pod_has_the_time_that_its_checkpoints_may_take(spec: dict[str, Any], wanted: tuple[Any, ...]) -> None:
    cluster, head, worker = made(nodeGroups=[{"name": "g"}], **spec)
    assert parting(head, container="ray-head") == wanted
    assert parting(worker, container="ray-worker") == wanted
    assert list(unknown(cluster)) == []


def test_a_pod_has_the_time_that_the_drains_of_its_servers_may_take() -> None:
    server = {"driver": False, "entrypoint": {"module": "s.py"}, "ports": [{"name": "http"}]}
    roles = [
        {"name": "a", "entrypoint": {"class": "pkg.Class"}, "nodeGroup": "g"},
        {"name": "b", **server, "nodeGroup": "g", "drain": {"timeoutSeconds": 40}},
        {"name": "c", **server, "nodeGroup": "h", "drain": {"timeoutSeconds": 600}},
    ]
    _, head, worker = made(nodeGroups=[{"name": "g", "cpu": "8"}, {"name": "h", "cpu": "8"}], roles=roles)
    # Ranks have one half of the hook's time to leave; nothing is drained on the head.
    assert parting(worker, container="ray-worker") == (110, hook(100), "0")
    assert parting(head, container="ray-head") == (30, hook(20), "0")


def test_a_template_may_give_it_another_time() -> None:
    checkpoint = {"path": "/c"}
    groups = [{"name": "g", "template": {"spec": {"terminationGracePeriodSeconds": 600}}}]
    assert parting(made(nodeGroups=groups, checkpoint=checkpoint)[2], container="ray-worker") == (600, hook(590), "0")
    groups = [{"name": "g", "template": {"spec": {"terminationGracePeriodSeconds": 4}}}]
    assert parting(made(nodeGroups=groups, checkpoint=checkpoint)[2], container="ray-worker") == (4, hook(2), "0")


def test_a_template_has_its_own_way_to_end() -> None:
    own = {"preStop": {"exec": {"command": ["sleep", "5"]}}}
    container = {"name": "ray-worker", "lifecycle": own}
    groups = [{"name": "g", "template": {"spec": {"containers": [container]}}}]
    assert parting(made(nodeGroups=groups)[2], container="ray-worker") == (None, "5", None)
    drain = {"name": "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "value": "7"}
    groups = [{"name": "g", "template": {"spec": {"containers": [{"name": "ray-worker", "env": [drain]}]}}}]
    assert parting(made(nodeGroups=groups)[2], container="ray-worker") == (30, hook(20), "7")
