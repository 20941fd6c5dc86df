"""Pods with the rights of the operator or of the machine are refused, wherever a template hides them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from control_kit import SETTINGS, World, dljob

GROUP = {"name": "cpu", "cpu": "4"}
ACCOUNT = {"spec": {"serviceAccountName": "dljob-operator"}}
PRIVILEGED = {"securityContext": {"privileged": True}}


def refused(namespace: str = "dljob-system", **spec: object) -> str:
    job = dljob(**spec)
    job["metadata"]["namespace"] = namespace
    world = World(job)
    world.step()
    kind, reason = world.cond("Accepted")
    if kind == "True":
        return ""
    assert reason == "ForbiddenPod"
    assert world.clusters == {}
    return world.message("Accepted")


def test_the_operators_service_account_in_its_namespace():
    assert "service account dljob-operator is the operator's own" in refused(head={"template": ACCOUNT})
    assert refused(nodeGroups=[{**GROUP, "template": ACCOUNT}]).startswith("node group cpu:")
    assert "operator's own" in refused(
        head={"template": {"spec": {"serviceAccount": "dljob-operator"}}},
    )


def test_an_account_of_that_name_elsewhere_is_another_one():
    assert refused(namespace="team", head={"template": ACCOUNT}) == ""


TOKEN = {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
CODE = {"name": "code", "projected": {"sources": [{"configMap": {"name": "code"}}]}}


@pytest.mark.parametrize(
    ("pod", "wrong"),
    [
        ({}, False),
        ({"volumes": [CODE]}, False),
        ({"serviceAccountName": "mine", "automountServiceAccountToken": True}, False),
        ({"serviceAccountName": "default"}, True),
        ({"automountServiceAccountToken": True}, True),
        ({"volumes": [CODE, TOKEN]}, True),
    ],
)
def test_an_operator_whose_account_is_that_of_pods_that_name_none(pod: dict[str, Any], wrong: bool):
    job = dljob(nodeGroups=[{**GROUP, "template": {"spec": pod}}])
    job["metadata"]["namespace"] = "dljob-system"
    world = World(job, replace(SETTINGS, service_account="dljob-system/default"))
    world.step()
    assert world.cond("Accepted") == (("False", "ForbiddenPod") if wrong else ("True", "SpecAccepted"))


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_privileged_container(kind: str):
    template = {"spec": {kind: [{"name": "side", "image": "x", **PRIVILEGED}]}}
    assert "container side is privileged" in refused(head={"template": template})
    overlay = {"spec": {"headGroupSpec": {"template": template}}}
    assert "container side is privileged" in refused(rayClusterTemplate=overlay)


def test_a_container_that_says_it_is_not_privileged():
    template = {"spec": {"containers": [{"name": "ray-head", "securityContext": {"privileged": False}}]}}
    assert refused(head={"template": template}) == ""
