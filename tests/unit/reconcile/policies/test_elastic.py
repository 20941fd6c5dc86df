"""Elastic roles on Kubernetes: edits become orders, and what a job wants becomes pods, none of which holds anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reconcile_kit import World, dljob

from dljob.reconcile.children.drift import edits
from dljob.reconcile.children.patches import operations, scaled
from dljob.reconcile.policies import elastic
from dljob.reconcile.state import reasons
from dljob.reconcile.state.context import ReconcileContext
from dljob.reconcile.state.model import Command, MasterView, PatchCluster, Scale, Trouble, label

ROLE: dict[str, Any] = {
    "name": "worker",
    "type": "Elastic",
    "entrypoint": {"class": "a.B"},
    "replicas": 2,
    "minReplicas": 1,
    "maxReplicas": 4,
}
GROUP = {"name": "cpu1", "cpu": "1", "replicas": 2, "minReplicas": 1, "maxReplicas": 4}


def elastic_job(**spec: Any) -> World:
    world = World(dljob(roles=[ROLE], nodeGroups=[GROUP], **spec)).running().workers_ready(2, 2)
    return wants(world, 2).settle()


def wants(world: World, machines: int, ranks: int = 2, held: tuple[int, ...] = (0, 1)) -> World:
    row = {"name": "worker", "desired": 2, "ready": 2, "wanted": ranks}
    world.master(roles=[row], nodes={"wanted": {"cpu1": machines}})
    assert isinstance(world.view, MasterView)
    world.view = replace(world.view, placement=tuple(place(f"{world.name}-w{at}") for at in held))
    return world


def place(pod: str) -> dict[str, Any]:
    return {"node": "n", "pod": pod, "units": [], "roles": [], "ranks": ""}


def case(world: World) -> ReconcileContext:
    return ReconcileContext(world.observed(), world.settings, world.now)


def replicas(world: World) -> int:
    return world.cluster["spec"]["workerGroupSpecs"][0]["replicas"]


def test_an_edit_is_an_order_and_no_other_attempt():
    world = elastic_job()
    made_of = world.status["attemptSpecHash"]
    world.edit(roles=[{**ROLE, "replicas": 3}], nodeGroups=[{**GROUP, "replicas": 3}])
    step = elastic.scale(case(world))
    assert step is not None
    (order,) = step.actions
    assert isinstance(order, Command)
    assert (order.kind, order.target, order.by) == ("scale", "worker=3", "spec")
    assert order.id.startswith("scale/worker=3/")
    world.settle()
    assert elastic.scale(case(world)) is None, "it was taken"
    assert world.status["attemptSpecHash"] == made_of
    assert world.cond("Accepted") == ("True", reasons.SPEC_ACCEPTED)


def test_an_order_that_makes_no_sense_is_not_given_again_and_again():
    world = elastic_job().edit(roles=[{**ROLE, "replicas": 3}], nodeGroups=[{**GROUP, "replicas": 3}])
    observed = world.observed()
    step = elastic.scale(case(world))
    assert step is not None
    for code, action, again in (
        (400, label(step.actions[0]), False),
        (500, label(step.actions[0]), True),
        (400, "Command restart/worker=3/1", True),
    ):
        seen = replace(observed, troubles=(Trouble(action, code, "'worker=3' cannot be scaled", 1),))
        assert (elastic.scale(ReconcileContext(seen, world.settings, world.now)) is not None) is again


def test_a_master_that_does_not_report_sizes_gets_no_scale_order():
    world = elastic_job().edit(roles=[{**ROLE, "replicas": 3}], nodeGroups=[{**GROUP, "replicas": 3}])
    world.master(roles=[{"name": "worker", "desired": 2}], nodes={})
    assert elastic.scale(case(world)) is None
    assert elastic.machines(case(world)) is None
    world = elastic_job().edit(roles=[{**ROLE, "replicas": 5}])
    assert elastic.scale(case(world)) is None, "a spec that is refused orders nothing"


def test_pods_follow_what_is_wanted_within_the_bounds():
    world = wants(elastic_job(), 9).settle()
    assert replicas(world) == 4
    assert not edits(case(world)), "what we did is nobody's edit"
    assert elastic.machines(case(world)) is None


def test_only_pods_that_hold_no_unit_are_removed_and_named():
    world = wants(elastic_job(), 1)
    assert elastic.machines(case(world)) is None, "both hold units"
    wants(world, 1, 1, (0,))
    step = elastic.machines(case(world))
    assert step is not None
    (action,) = step.actions
    assert isinstance(action, PatchCluster)
    assert action.scales == (Scale("cpu1", 1, (f"{world.name}-w1",)),)
    patch = operations(world.cluster, action)
    assert [one["op"] for one in patch] == ["test", "test", "test", "add", "add"]
    assert patch[2]["path"] == "/spec/workerGroupSpecs/0/groupName"
    assert patch[-1]["value"] == {"workersToDelete": [f"{world.name}-w1"]}
    world.settle()
    assert replicas(world) == 1


def test_no_pod_is_removed_while_the_placement_is_unknown():
    world = wants(elastic_job(), 1, 1, ())
    assert elastic.machines(case(world)) is None


def test_no_pod_is_removed_while_a_unit_looks_for_a_place():
    for held, some in ((1, False), (2, True)):
        world = wants(elastic_job(), 1, 1, (0,))
        assert isinstance(world.view, MasterView)
        units = {"placement": {"units": 2, "ready": held}}
        world.view = replace(world.view, snapshot={**world.view.snapshot, **units})
        assert (elastic.machines(case(world)) is not None) is some


def test_a_queue_keeps_its_pods_and_a_cluster_that_is_there_too():
    world = wants(elastic_job(scheduling={"queueName": "q"}), 4)
    assert elastic.machines(case(world)) is None


def test_groups_that_nobody_speaks_of_stay_as_they_are():
    world = elastic_job()
    world.master(roles=[], nodes={"wanted": {"other": 3}})
    assert elastic.machines(case(world)) is None
    spec = world.cluster["spec"]
    action = PatchCluster(world.name, "u", scales=(Scale("other", 3), Scale("cpu1", replicas(world))))
    assert operations(world.cluster, action) == []
    beyond = {"spec": {"workerGroupSpecs": [{"groupName": "cpu1", "replicas": 9}]}}
    assert scaled(spec, beyond) == spec
