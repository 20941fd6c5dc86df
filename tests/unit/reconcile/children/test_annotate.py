"""Annotations out: the plan on DLJob and RayCluster, and what each pod holds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from reconcile_kit import World, dljob

from dljob.reconcile.children import annotate
from dljob.reconcile.state import names
from dljob.reconcile.state.model import Annotate

GROUPS = [{"name": "cpu", "cpu": "2", "replicas": 3}]


def place(pod: str, ranks: str = "worker/0", *units: str, node: str = "n1") -> dict[str, Any]:
    return {"node": node, "pod": pod, "units": list(units or ["worker/0"]), "roles": ["worker"], "ranks": ranks}


def world_with(*places: dict[str, Any], workers: int = 2) -> World:
    world = World(dljob(nodeGroups=GROUPS)).running().workers_ready(workers, workers).settle()
    world.view = replace(world.view, placement=places)
    return world


def worker(world: World, at: int) -> dict[str, str]:
    return dict(next(pod for pod in world.pods[world.name] if pod.name == f"{world.name}-w{at}").annotations)


# -- plans


def test_the_plan_is_on_job_and_cluster():
    world = World().settle()
    on_job, on_cluster = (body["metadata"]["annotations"] for body in (world.job, world.cluster))
    assert on_job[names.PLAN] == on_cluster[names.PLAN]
    assert on_job[names.PLAN_HASH] == on_cluster[names.PLAN_HASH]
    assert json.loads(on_job[names.PLAN])["units"][0]["units"] == "worker/0-1"


def test_the_plan_is_not_patched_beside_a_status():
    world = World()
    while outcome := world.step():
        job = [action for action in outcome.actions if isinstance(action, Annotate) and action.kind == "DLJob"]
        assert not (job and outcome.status is not None)
        if not outcome.actions and outcome.status is None:
            break
    assert names.PLAN in world.job["metadata"]["annotations"]


def test_the_plan_is_kept_true():
    world = World().running()
    world.job["metadata"]["annotations"].pop(names.PLAN)
    world.cluster["metadata"]["annotations"][names.PLAN_HASH] = "edited"
    actions = world.look().actions
    assert [(action.kind, action.name) for action in actions] == [("RayCluster", world.name), ("DLJob", "hello")]
    assert world.settle().look().actions == ()
    world.cluster["metadata"]["annotations"].pop(names.PLAN_HASH)
    assert [action.kind for action in world.look().actions] == ["RayCluster"]


def test_the_plan_of_a_changed_spec_waits_for_its_attempt():
    world = World().running()
    world.job["spec"]["roles"][0]["resources"] = {"cpu": "250m"}
    before = dict(world.job["metadata"]["annotations"])
    world.settle()
    assert world.job["metadata"]["annotations"] == before
    world.new_session().settle()
    assert world.job["metadata"]["annotations"] != before


# -- pods


def test_pods_are_annotated_with_the_units_and_ranks_they_hold():
    world = world_with()
    world.view = replace(
        world.view,
        placement=(
            place(f"{world.name}-w0", "actor/0-7,9,critic/3", "actor/0", "critic/3"),
            place(f"{world.name}-w1", node="n2"),
        ),
    )
    outcome = world.look()
    assert [action.kind for action in outcome.actions] == ["Pod", "Pod"]
    world.settle()
    assert worker(world, 0) == {
        "dljob.io/units": "actor/0,critic/3",
        "dljob.io/roles": "actor,critic",
        "dljob.io/ranks": "actor/0-7,9,critic/3",
        "dljob.io/ray-node-id": "n1",
        "dljob.io/attempt": "1",
    }
    assert world.look().actions == ()


def test_units_that_move_take_their_annotations_along():
    world = world_with()
    world.view = replace(world.view, placement=(place(f"{world.name}-w0"),))
    world.settle()
    assert worker(world, 0)
    assert worker(world, 1) == {}
    world.view = replace(world.view, placement=(place(f"{world.name}-w1"),))
    actions = world.look().actions
    assert {action.name: set(action.annotations.values()) == {None} for action in actions} == {
        f"{world.name}-w0": True,
        f"{world.name}-w1": False,
    }
    world.settle()
    assert worker(world, 0) == {}
    assert worker(world, 1)["dljob.io/units"] == "worker/0"


def test_one_patch_has_only_what_changed():
    world = world_with()
    world.view = replace(world.view, placement=(place(f"{world.name}-w0"),))
    world.settle()
    world.view = replace(world.view, placement=(place(f"{world.name}-w0", node="n9"),))
    (action,) = world.look().actions
    assert action.annotations == {"dljob.io/ray-node-id": "n9"}


def test_without_news_no_annotation_changes():
    world = world_with()
    world.view = replace(world.view, placement=(place(f"{world.name}-w0"),))
    world.settle()
    known = worker(world, 0)
    world.silent(5.0).settle()
    world.view = replace(world.view, error="", placement=())
    world.settle()
    world.restarted().settle()
    assert worker(world, 0) == known


def test_a_pod_that_is_leaving_or_unknown_is_left_alone():
    world = world_with()
    pods = world.pods[world.name]
    world.pods[world.name] = [*pods[:-1], replace(pods[-1], leaving=True)]
    world.view = replace(world.view, placement=(place(pods[-1].name), place("gone")))
    assert world.look().actions == ()


def test_a_placement_that_has_no_snapshot_is_not_believed():
    world = world_with()
    world.view = replace(world.view, snapshot={}, placement=(place(f"{world.name}-w0"),))
    assert world.look().actions == ()


def test_many_pods_are_annotated_in_portions_of_fifty():
    world = world_with(workers=120)
    world.view = replace(world.view, placement=tuple(place(f"{world.name}-w{n}") for n in range(120)))
    first = world.step()
    assert len(first.actions) == 50
    assert first.requeue == 0.0
    world.step()
    last = world.step()
    assert len(last.actions) == 20
    assert world.look().actions == ()


def test_long_values_are_cut():
    world = world_with()
    units = [f"worker/{n}" for n in range(2000)]
    world.view = replace(world.view, placement=(place(f"{world.name}-w0", ",".join(units), *units),))
    world.settle()
    assert len(worker(world, 0)["dljob.io/units"]) == 4096
    assert worker(world, 0)["dljob.io/roles"] == "worker"


def test_each_pass_over_many_pods_leaves_fewer_to_annotate():
    pods = 3 * annotate.PODS_A_PASS
    world = world_with(workers=pods)
    world.view = replace(world.view, placement=tuple(place(f"{world.name}-w{at}") for at in range(pods)))
    left = []
    while (outcome := world.step()).actions:
        left.append(outcome.postponed)
    assert left == [2 * annotate.PODS_A_PASS, annotate.PODS_A_PASS, 0]
