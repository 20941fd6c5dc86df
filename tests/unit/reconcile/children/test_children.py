"""What a job owns in Kubernetes."""

from __future__ import annotations

import json
from contextlib import suppress

from reconcile_kit import UID, CrashError, World, dljob

from dljob.reconcile.state import names
from dljob.spec.loading.load import load

CLUSTER = names.cluster_name("hello", UID, 1)
LABELS = {"dljob.io/name": "hello", "dljob.io/uid": UID, "app.kubernetes.io/managed-by": "dljob"}


def test_children_are_owned_and_labelled():
    world = World()
    spec, token, cluster = world.look().actions
    for body in (spec.body, cluster.body):
        (owner,) = body["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["kind"], owner["controller"]) == (UID, "DLJob", True)
        assert body["metadata"]["namespace"] == "team"
        assert LABELS.items() <= body["metadata"]["labels"].items()
    assert token.labels == LABELS


def test_the_cluster_is_the_plans_in_the_jobs_dress():
    *_, cluster = World(dljob(labels={"kueue.x-k8s.io/queue-name": "research"})).look().actions
    spec = cluster.body["spec"]
    assert spec["authOptions"] == {"mode": "token", "secretName": f"{CLUSTER}-token"}
    assert spec["rayVersion"] == "2.60.0"
    assert cluster.body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert {names.PLAN, names.PLAN_HASH, names.SPEC_HASH} <= cluster.body["metadata"]["annotations"].keys()
    head = spec["headGroupSpec"]["template"]["spec"]
    assert {"name": "dljob-spec", "configMap": {"name": f"{CLUSTER}-spec"}} in head["volumes"]
    assert head["initContainers"][0]["image"] == "example.org/dljob:0.1.0"
    assert "suspend" not in spec


def test_the_spec_map_holds_the_effective_spec_as_the_loader_reads_it():
    spec, *_ = World().look().actions
    made = load(spec.body["data"]["spec.json"])
    assert (made.spec.image, made.spec.ray_version) == ("example.org/ray:2.60.0", "2.60.0")
    assert json.loads(spec.body["data"]["spec.json"])["kind"] == "DLJob"
    assert spec.body["metadata"]["name"] == f"{CLUSTER}-spec"


def test_a_failed_creation_is_tried_again_and_said():
    world = World().settle()
    world.clusters.clear()
    world.job["status"]["rayCluster"].pop("uid")
    outcome = world.look()
    assert [type(action).__name__ for action in outcome.actions] == ["Create", "CreateToken", "Create"]


def test_no_children_are_made_without_kuberay():
    world = World(kuberay="missing").settle()
    assert world.log == ["status Pending/KubeRayMissing"]
    world.kuberay = ""
    assert world.settle().clusters


def test_a_foreign_cluster_of_the_name_is_left_alone():
    world = World()
    world.clusters[CLUSTER] = {
        "metadata": {"name": CLUSTER, "uid": "x", "ownerReferences": [{"kind": "RayService", "name": "s", "uid": "y"}]},
        "spec": {},
    }
    world.pods[CLUSTER] = []
    world.settle()
    assert world.cond("ClusterReady") == ("False", "NameTaken")
    assert "RayService s" in world.message("ClusterReady")
    assert not any("Delete" in call or "Create" in call for call in world.log)
    world.condition("HeadPodReady").settle()
    assert world.submissions == []
    world.clusters.clear()
    assert world.settle().cond("ClusterReady") == ("False", "HeadPending")


def test_a_foreign_raycluster_without_owner_is_named():
    world = World()
    world.clusters[CLUSTER] = {"metadata": {"name": CLUSTER, "uid": "x"}, "spec": {}}
    assert "belongs to nobody" in world.settle().message("ClusterReady")


def test_an_attempt_that_is_over_leaves_neither_spec_nor_token():
    world = World().running()
    first = world.name
    assert (list(world.maps), list(world.secrets)) == ([f"{first}-spec"], [f"{first}-token"])
    world.new_session().settle()
    second = world.name
    assert second != first
    assert (list(world.maps), list(world.secrets)) == ([f"{second}-spec"], [f"{second}-token"])
    assert world.calm().phase == "Succeeded"
    assert (f"{second}-spec" in world.maps, world.secrets) == (False, {})


def test_an_operator_that_dies_before_the_token_is_made_makes_it_later():
    """Between the calls that make an attempt's children, one after another."""
    for calls in range(5):
        world = World(fuse=calls)
        with suppress(CrashError):
            world.settle()
        assert list(world.clusters) <= [names.cluster_name("hello", UID, 1)]
        assert world.secrets or not world.clusters
        world.fuse = None
        world.settle()
        assert (list(world.maps), list(world.secrets)) == ([f"{CLUSTER}-spec"], [f"{CLUSTER}-token"])
        assert list(world.clusters) == [CLUSTER]


def test_a_raycluster_that_is_kept_keeps_its_spec_and_its_token():
    world = World(dljob(cleanupPolicy="Retain")).running()
    kept = {f"{world.name}-spec", f"{world.name}-token"}
    assert world.calm().phase == "Succeeded"
    assert kept <= {*world.maps, *world.secrets}
