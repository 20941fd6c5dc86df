"""A job that was stopped or that failed goes on: by annotation, as its next attempt, once for each value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from reconcile_kit import UID, World, dljob

from dljob.master.placement.previous_attempt import carried
from dljob.raycluster.pods import CARRIED_KEY
from dljob.reconcile.state import names

CARRY = {"v": 1, "restarts": {"Process": 3}, "marks": {"job": [1.0]}, "checkpoints": {"worker": [1, 1, 15, 1.0]}}


def ended(phase: str = "Stopped", *, carry: Any = CARRY, **fields: Any) -> World:
    """A job that ended after its checkpoint of step 15; `path` None: without a place for checkpoints."""
    world = World(dljob(**{"checkpoint": {"path": "/ckpt"}, **fields})).running()
    told = {"carry": carry, "progress": {"step": 17, "metrics": {}}, "restarts": {"process": 3}}
    return world.master("Running", **told).settle().later(60).master(phase, **told).settle()


def failed_on_shared_cluster() -> World:
    """A job that failed after a checkpoint, on a RayCluster that stays."""
    world = World(dljob(rayClusterRef={"name": "shared"}, checkpoint={"path": "/ckpt"}))
    meta = {"name": "shared", "namespace": "team", "uid": "uid-shared", "generation": 3, "labels": {}}
    world.clusters["shared"] = {"metadata": meta, "spec": {"rayVersion": "2.60.1"}}
    world.pods["shared"] = []
    return world.running().master("Failed", carry=CARRY).settle()


def resumed(world: World, value: str = "1") -> World:
    world.job["metadata"]["annotations"] |= {names.RESUME: value}
    return world


def order(world: World) -> tuple[str, str]:
    entry = world.status["lastCommands"][-1]
    assert entry["kind"] == "resume"
    return entry["state"], entry["message"]


@pytest.mark.parametrize("phase", ["Stopped", "Failed"])
def test_an_ended_job_goes_on_as_its_next_attempt_with_new_budgets_and_deadlines(phase: str):
    world = ended(phase, activeDeadlineSeconds=100)
    assert (world.phase, world.clusters) == (phase, {})
    assert world.status["restartsTotal"] == 3
    resumed(world.later(1000)).step()
    assert (world.phase, world.status["reason"], world.status["attempt"]) == ("Provisioning", "JobResumed", 2)
    assert order(world)[0] == "Sent"
    kinds = {one["type"] for one in world.status["conditions"]}
    assert not kinds & {"Complete", "Failed", "Stopped"}
    assert not {"completionTime", "startTime"} & set(world.status)
    assert "JobResumed" in world.reasons()
    world.settle()
    assert world.status["startTime"] == "2027-01-15T08:17:40Z"
    assert world.status["restartsTotal"] == 0
    text = world.maps[names.spec_map(world.name)]["data"][CARRIED_KEY]
    taken = carried(text, names.job_uid(UID), 2)
    assert (taken.why, taken.step, taken.restarts, taken.marks) == ("", 17, (), ())
    assert [(name, save.mark.step) for name, save in taken.saves] == [("worker", 15)]
    assert world.head_ready("pod-2").settle().workers_ready().master("Running").settle().phase == "Running"
    assert world.later(99).settle().phase == "Running"
    assert world.master("Succeeded").settle().phase == "Succeeded"
    assert world.cond("Complete")[0] == "True"
    assert "carried" not in world.status


def test_an_order_is_obeyed_once_also_when_others_came_after_it():
    world = resumed(ended()).settle().head_ready("pod-2").settle().workers_ready().master("Running").settle()
    for at in range(12):
        world.job["metadata"]["annotations"] |= {names.RESTART: f"{at}"}
        world.settle()
    assert len(world.status["lastCommands"]) == 10
    world.master("Failed", carry=CARRY).settle()
    assert (world.phase, world.status["attempt"]) == ("Failed", 2)
    assert resumed(world, "2").settle().status["attempt"] == 3


def test_an_order_to_a_job_that_has_not_ended_is_ignored_for_good():
    world = resumed(World(dljob(checkpoint={"path": "/ckpt"})).running()).settle()
    assert order(world) == ("Ignored", "the job has not ended")
    assert "CommandIgnored" in world.reasons()
    assert world.master("Failed", carry=CARRY).settle().phase == "Failed"


def test_a_job_that_ends_before_its_order_is_looked_at_does_not_go_on_by_itself():
    world = resumed(World(dljob(checkpoint={"path": "/ckpt"})).running())
    world.master("Failed", carry=CARRY).settle()
    assert order(world) == ("Ignored", "the job has not ended")
    assert (world.phase, world.status["attempt"], world.reasons().count("CommandIgnored")) == ("Failed", 1, 1)
    assert resumed(world, "2").settle().status["attempt"] == 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"phase": "Succeeded"}, "the job has succeeded"),
        ({"checkpoint": {}}, "spec.checkpoint.path is not set"),
        ({"carry": {"v": 1, "restarts": {"Process": 1}}}, "no complete checkpoint"),
        ({"carry": {}}, "no complete checkpoint"),
    ],
)
def test_what_cannot_go_on_is_refused_once(given: dict[str, Any], words: str):
    world = ended(**given)
    before = world.phase
    resumed(world).settle()
    state, message = order(world)
    assert (state, world.phase, world.status["attempt"]) == ("Refused", before, 1)
    assert words in message
    assert world.reasons().count("CommandRefused") == 1
    assert world.restarted().settle().reasons().count("CommandRefused") == 1


def test_a_job_whose_stop_still_stands_is_not_resumed_only_to_be_stopped():
    world = ended()
    world.job["metadata"]["annotations"] |= {names.STOP: "now"}
    assert "remove it" in order(resumed(world).settle())[1]
    del world.job["metadata"]["annotations"][names.STOP]
    assert world.settle().phase == "Stopped"
    assert resumed(world, "2").settle().phase == "Provisioning"


def test_a_kept_cluster_goes_before_the_job_goes_on():
    world = ended(cleanupPolicy="Retain")
    (old,) = world.clusters
    resumed(world.later(100)).settle()
    assert old not in world.clusters
    assert world.status["attempt"] == 2
    assert json.loads(world.maps[names.spec_map(world.name)]["data"][CARRIED_KEY])["attempt"] == 1


def test_on_a_cluster_that_stays_the_lease_of_the_last_ranks_is_waited_for():
    world = failed_on_shared_cluster()
    assert resumed(world).settle().phase == "Failed"
    assert world.later(34).settle().phase == "Failed"
    assert world.look().requeue == 1
    world.later(1).settle()
    assert (world.status["attempt"], world.submissions[-1][0].rpartition("-")[2]) == (2, "2")
    packages = world.posted[world.submissions[-1][0]].packages.values()
    assert any(json.loads(text).get("newBudgets") for text in packages)


def test_answer_of_the_ended_attempt_does_not_end_the_next_one_on_a_cluster_that_stays():
    world = failed_on_shared_cluster()
    resumed(world.later(60)).settle()
    assert world.status["attempt"] == 2
    # The head answers for the last attempt until PrimeMaster of this one begins.
    assert world.master("Failed", attempt=1, carry=CARRY).settle().phase == "Scheduling"
    assert world.master("Running").settle().phase == "Running"
    assert world.master("Failed").settle().phase == "Failed"
