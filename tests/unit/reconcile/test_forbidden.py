"""Pods with the rights of the operator or of the machine are refused, wherever a template hides them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from reconcile_kit import SETTINGS, World, dljob

from dljob.raycluster.pod_security import PodPolicy

GROUP = {"name": "cpu", "cpu": "4"}
ACCOUNT = {"spec": {"serviceAccountName": "dljob-operator"}}


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


def test_the_operators_service_account_is_refused_in_its_namespace():
    assert "service account dljob-operator is the operator's own" in refused(head={"template": ACCOUNT})
    assert refused(nodeGroups=[{**GROUP, "template": ACCOUNT}]).startswith("spec.nodeGroups[0].template.spec.")
    assert "operator's own" in refused(
        head={"template": {"spec": {"serviceAccount": "dljob-operator"}}},
    )


def test_an_account_of_that_name_elsewhere_is_accepted():
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
def test_pods_without_an_account_are_refused_where_the_operator_uses_the_default_one(pod: dict[str, Any], wrong: bool):
    job = dljob(nodeGroups=[{**GROUP, "template": {"spec": pod}}])
    job["metadata"]["namespace"] = "dljob-system"
    world = World(job, replace(SETTINGS, pods=PodPolicy(operator="dljob-system/default")))
    world.step()
    assert world.cond("Accepted") == (("False", "ForbiddenPod") if wrong else ("True", "SpecAccepted"))


HOST_PID = {"template": {"spec": {"hostPID": True}}}


def test_a_forbidden_pod_is_invalid_and_the_refusal_names_the_value():
    world = World(dljob(head=HOST_PID)).settle()
    assert (world.phase, world.status["reason"]) == ("Invalid", "ForbiddenPod")
    words = "spec.head.template.spec.hostPID: hostPID is true, which the operator's jobs.podSecurity=baseline forbids"
    assert world.message("Accepted").startswith(words)
    world.settings = replace(SETTINGS, pods=PodPolicy("privileged"))
    assert world.calm().phase == "Succeeded"


def test_a_stricter_policy_leaves_a_running_attempt_alone_and_holds_the_next_one():
    world = World(dljob(head=HOST_PID), replace(SETTINGS, pods=PodPolicy("privileged"))).running()
    world.settings = SETTINGS
    world.settle()
    assert (world.phase, world.cond("Accepted")) == ("Running", ("True", "SpecAccepted"))
    world.new_session().settle()
    assert (world.phase, world.status["reason"], world.clusters) == ("Invalid", "ForbiddenPod", {})
    world.job["spec"] = dljob()["spec"]
    assert world.calm().phase == "Succeeded"


def test_an_edit_that_the_policy_forbids_waits_beside_the_attempt_that_runs():
    world = World().running()
    world.job["spec"]["head"] = HOST_PID
    world.job["metadata"]["generation"] = 2
    world.settle()
    assert (world.phase, world.cond("Accepted")) == ("Running", ("False", "ForbiddenPod"))


def test_a_job_that_has_ended_keeps_its_end_and_its_ttl_under_a_stricter_policy():
    world = World(dljob(head=HOST_PID, ttlSecondsAfterFinished=60), replace(SETTINGS, pods=PodPolicy("privileged")))
    assert world.calm().phase == "Succeeded"
    world.settings = SETTINGS
    assert world.settle().phase == "Succeeded"
    world.now += 61
    world.step()
    assert world.job is None
