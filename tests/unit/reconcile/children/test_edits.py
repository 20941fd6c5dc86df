"""A RayCluster that somebody changed by hand is told of, and left as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from reconcile_kit import SETTINGS, World, dljob

from dljob.reconcile.children import children
from dljob.reconcile.state import names

GROUPS = [{"name": "a", "cpu": "2", "replicas": 2}, {"name": "b", "cpu": "2"}]


def edited(change: Callable[[dict[str, Any]], object]) -> World:
    world = World(dljob(nodeGroups=GROUPS)).running()
    change(world.cluster["spec"])
    world.cluster["metadata"]["generation"] += 1
    before = len(world.log)
    world.settle()
    assert not any(call for call in world.log[before:] if not call.startswith("status"))
    return world


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda spec: spec["workerGroupSpecs"][0].update(replicas=5),
            "spec.workerGroupSpecs[0].replicas is 5, 2 was made",
        ),
        (lambda spec: spec["workerGroupSpecs"].pop(), "spec.workerGroupSpecs has 1 item, 2 were made"),
        (lambda spec: spec.update(rayVersion="2.9.0"), "spec.rayVersion is '2.9.0', '2.60.0' was made"),
        (lambda spec: spec.pop("authOptions"), "spec.authOptions is None"),
    ],
)
def test_an_edited_raycluster_is_told_and_the_job_runs_on(change: Callable[[dict[str, Any]], object], words: str):
    world = edited(change)
    assert world.cond("ClusterReady") == ("True", "ClusterEdited")
    assert words in world.message("ClusterReady")
    assert world.phase == "Running"
    assert "ClusterEdited" in world.reasons()


def test_an_edit_of_a_raycluster_that_is_not_ready_is_named_as_a_possible_cause():
    world = World(dljob(nodeGroups=GROUPS)).settle()
    world.cluster["spec"]["rayVersion"] = "2.9.0"
    world.cluster["metadata"]["generation"] += 1
    world.later(15).settle()
    assert world.cond("ClusterReady") == ("False", "HeadPending")
    words = "there is no head pod yet; somebody edited the RayCluster: spec.rayVersion is '2.9.0'"
    assert world.message("ClusterReady").startswith(words)


def test_fields_added_by_others_are_no_edit():
    def queue(spec: dict[str, Any]) -> None:
        spec["suspend"] = False
        for group in spec["workerGroupSpecs"]:
            group["template"]["spec"]["nodeSelector"] = {"pool": "a"}
            group["template"]["spec"]["tolerations"].append({"key": "x"})
        spec["workerGroupSpecs"].append({"groupName": "c"})

    assert edited(queue).cond("ClusterReady") == ("True", "PodsReady")


def test_many_edits_are_told_in_part():
    def wild(spec: dict[str, Any]) -> None:
        for group in spec["workerGroupSpecs"]:
            group.update(replicas=9, minReplicas=9, maxReplicas=9)

    assert edited(wild).message("ClusterReady").count("was made") == 3


def test_another_version_of_the_operator_tells_no_edit():
    world = World(dljob(nodeGroups=GROUPS)).running()
    world.cluster["spec"]["suspend"] = False
    world.cluster["metadata"]["generation"] = 2
    world.settings = replace(SETTINGS, init_image="example.org/dljob:0.2.0")
    assert world.settle().cond("ClusterReady") == ("True", "PodsReady")


def test_after_a_spec_change_an_edit_of_the_raycluster_is_not_told():
    world = World(dljob(nodeGroups=GROUPS)).running()
    world.cluster["spec"]["rayVersion"] = "2.9.0"
    world.cluster["metadata"]["generation"] = 2
    world.job["spec"]["rayVersion"] = "2.59.1"
    assert world.settle().cond("ClusterReady") == ("True", "PodsReady")
    world.job["spec"]["roles"] = []
    assert world.settle().cond("ClusterReady") == ("True", "PodsReady")


def test_a_raycluster_admitted_by_a_queue_is_rendered_once(monkeypatch):
    made: list[object] = []
    make = children.ray_cluster
    monkeypatch.setattr(children, "ray_cluster", lambda *given: made.append(1) or make(*given))
    world = World(dljob(nodeGroups=GROUPS, runtimeEnv={"env_vars": {"OF": "this test"}})).running()
    world.cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["nodeSelector"] = {"pool": "a"}
    world.cluster["metadata"]["generation"] = 2
    made.clear()
    for _ in range(5):
        world.look()
    assert len(made) == 1


def test_an_exclusion_of_ours_is_no_edit_and_a_change_of_it_is_one():
    world = World(dljob(nodeGroups=GROUPS)).running()
    world.job["metadata"]["annotations"][names.EXCLUDE_NODES] = "n1"
    world.settle()
    assert world.cluster["metadata"]["generation"] == 2
    assert world.settle().cond("ClusterReady") == ("True", "PodsReady")
    world.cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"].pop("affinity")
    assert world.settle().cond("ClusterReady") == ("True", "ClusterEdited")
    assert "workerGroupSpecs[0].template.spec.affinity is None" in world.message("ClusterReady")
