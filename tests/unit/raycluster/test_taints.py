"""Pods stay for a while where no kubelet answers: its containers may run on."""

from __future__ import annotations

from typing import Any

import pytest

from dljob.plan.plan import plan
from dljob.raycluster.render import RenderOptions, render_raycluster
from dljob.raycluster.taints import LOST, TOLERATION_SECONDS
from dljob.spec.loading.load import parse

NOT_READY, UNREACHABLE = LOST


def tolerations(seconds: int = TOLERATION_SECONDS, **spec: Any) -> list[list[dict[str, Any]]]:
    """Of the head and of the workers."""
    role = {"name": "worker", "entrypoint": {"class": "hello.main"}, "resources": {"cpu": "1"}}
    data = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "hello"}}
    manifest = parse({**data, "spec": {"roles": [role], "image": "ray:1", "rayVersion": "2.60.0", **spec}})
    made = render_raycluster(plan(manifest), manifest, RenderOptions("hello", toleration_seconds=seconds))["spec"]
    return [
        group["template"]["spec"].get("tolerations", []) for group in (made["headGroupSpec"], *made["workerGroupSpecs"])
    ]


def ours(key: str, seconds: int) -> dict[str, Any]:
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}


def group(*given: dict[str, Any]) -> dict[str, Any]:
    return {"nodeGroups": [{"name": "cpu", "cpu": "2", "template": {"spec": {"tolerations": list(given)}}}]}


def test_all_pods_stay_where_a_kubelet_is_silent_for_as_long_as_the_operator_says():
    assert tolerations() == [[ours(NOT_READY, 300), ours(UNREACHABLE, 300)]] * 2
    assert tolerations(60) == [[ours(NOT_READY, 60), ours(UNREACHABLE, 60)]] * 2


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}, [NOT_READY, UNREACHABLE]),
        ({"key": NOT_READY, "operator": "Exists", "effect": "NoSchedule"}, [NOT_READY, UNREACHABLE]),
        ({"key": NOT_READY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 600}, [UNREACHABLE]),
        ({"key": UNREACHABLE, "operator": "Exists"}, [NOT_READY]),
        ({"operator": "Exists"}, []),
    ],
)
def test_tolerations_of_a_template_are_kept(given: dict[str, Any], added: list[str]):
    head, workers = tolerations(**group(given))
    assert workers == [given, *(ours(key, 300) for key in added)]
    assert head == [ours(NOT_READY, 300), ours(UNREACHABLE, 300)]


def test_where_nobody_looks_after_nodes_kubernetes_decides():
    assert tolerations(faultTolerance={"node": {"action": "Ignore"}}) == [[], []]
