"""Pods do not stay for long where no kubelet answers, unless somebody says how long."""

from __future__ import annotations

from typing import Any

import pytest

from dljob.plan.plan import plan
from dljob.raycluster.render import RenderOptions, render_raycluster
from dljob.raycluster.taints import LOST
from dljob.spec.loading.load import parse

NOT_READY, UNREACHABLE = LOST


def tolerations(**spec: Any) -> list[list[dict[str, Any]]]:
    """Of the head and of the workers."""
    role = {"name": "worker", "entrypoint": {"class": "hello.main"}, "resources": {"cpu": "1"}}
    data = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "hello"}}
    manifest = parse({**data, "spec": {"roles": [role], "image": "ray:1", "rayVersion": "2.60.0", **spec}})
    made = render_raycluster(plan(manifest), manifest, RenderOptions("hello"))["spec"]
    return [
        group["template"]["spec"].get("tolerations", []) for group in (made["headGroupSpec"], *made["workerGroupSpecs"])
    ]


def ours(key: str, seconds: int) -> dict[str, Any]:
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}


def group(*given: dict[str, Any]) -> dict[str, Any]:
    return {"nodeGroups": [{"name": "cpu", "cpu": "2", "template": {"spec": {"tolerations": list(given)}}}]}


def test_all_pods_leave_a_node_without_a_kubelet_soon():
    assert tolerations() == [[ours(NOT_READY, 30), ours(UNREACHABLE, 30)]] * 2
    later = {"faultTolerance": {"node": {"unreachableSeconds": 5}}}
    assert tolerations(**later) == [[ours(NOT_READY, 5), ours(UNREACHABLE, 5)]] * 2


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
    assert workers == [given, *(ours(key, 30) for key in added)]
    assert head == [ours(NOT_READY, 30), ours(UNREACHABLE, 30)]


def test_where_nobody_looks_after_nodes_kubernetes_decides():
    assert tolerations(faultTolerance={"node": {"action": "Ignore"}}) == [[], []]
