"""What PrimeMaster hands on: kept while it changes, given to the next attempt once, and counts that only grow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from reconcile_kit import NOW, UID, World, dljob
from test_reference import world as on_shared

from dljob.master.placement.previous_attempt import carried
from dljob.raycluster.pods import CARRIED_FILE
from dljob.reconcile.children.children import CARRIED_KEY
from dljob.reconcile.state import names
from dljob.reconcile.state.model import Submit
from dljob.reconcile.state.snapshot import MAX_CARRY

WORN = {"v": 1, "restarts": {"Process": 2, "Role": 1}, "marks": {"worker": [NOW + 5.0]}}
COUNTS = {"process": 2, "roleGroup": 0, "role": 1, "job": 0, "master": 0}


def worn(world: World) -> World:
    """A job that runs and was restarted within."""
    return world.running().later(60).master(restarts=COUNTS, carry=WORN, progress={"step": 120}).settle()


def again(world: World) -> World:
    """The head is lost, and the next attempt's is ready."""
    world.new_session().settle().later(60).settle()
    return world.head_ready("pod-2")


def submitted(world: World) -> Submit:
    """The next submission, before it is made."""
    for _ in range(10):
        for action in world.look().actions:
            if isinstance(action, Submit):
                return action
        world.step()
    raise AssertionError(world.log)


def spec_map(world: World) -> dict[str, str]:
    return world.maps[names.spec_map(names.cluster_name("hello", UID, world.status["attempt"]))]["data"]


def handed(world: World) -> Any:
    return json.loads(spec_map(world)[CARRIED_KEY])


def test_the_handover_of_primemaster_is_kept_as_it_was_told():
    world = worn(World())
    assert world.status["carried"] == {"attempt": 1, "state": WORN}
    assert CARRIED_KEY not in spec_map(world)
    world.master(restarts=COUNTS, carry=WORN, progress={"step": 121}).later(1)
    assert world.look().status is None, "nothing new is nothing to write"


def test_a_job_without_restarts_has_nothing_to_hand_on():
    world = again(World().running().later(60))
    assert "carried" not in world.status
    assert "--carried" not in submitted(world).argv
    assert CARRIED_KEY not in spec_map(world)


def test_the_next_attempt_gets_the_handover_beside_its_spec():
    world = again(worn(World()))
    argv = submitted(world).argv
    assert argv[argv.index("--carried") + 1] == CARRIED_FILE
    assert handed(world) == {"job": names.job_uid(UID), "attempt": 1, "step": 120, "state": WORN}
    told = carried(spec_map(world)[CARRIED_KEY], names.job_uid(UID), 2)
    assert (told.why, told.attempt, told.restarts, told.step) == ("", 1, (("Process", 2), ("Role", 1)), 120)
    assert world.status["restarts"] == {"process": 2, "role": 1, "cluster": 1}
    assert world.status["restartsTotal"] == 4


def test_the_attempt_after_that_gets_what_was_said_last():
    world = again(worn(World(dljob(faultTolerance={"maxClusterRestarts": 5}))))
    world.settle()
    more = {**WORN, "restarts": {"Process": 3, "Role": 1}}
    world.master(restarts={**COUNTS, "process": 3}, carry=more, progress={"step": 130}).settle()
    assert world.status["carried"] == {"attempt": 2, "state": more}
    assert world.status["restartsTotal"] == 5
    again(world).settle()
    assert handed(world) == {"job": names.job_uid(UID), "attempt": 2, "step": 130, "state": more}


def test_an_attempt_that_never_spoke_hands_on_what_it_was_given():
    world = again(worn(World(dljob(faultTolerance={"maxClusterRestarts": 5}))))
    world.settle()
    assert world.status["attempt"] == 2
    again(world).settle()
    assert (world.status["attempt"], handed(world)["attempt"]) == (3, 1)


def test_counts_never_shrink_though_primemaster_counts_anew():
    world = again(worn(World()))
    world.settle().master(restarts={**COUNTS, "process": 1, "role": 0}).settle()
    assert {key: world.status["restarts"][key] for key in ("process", "role", "job")} == {
        "process": 2,
        "role": 1,
        "job": 0,
    }
    assert world.status["restartsTotal"] == 4
    assert world.status["carried"]["attempt"] == 1


@pytest.mark.parametrize("carry", [None, [], "x", {"big": "x" * MAX_CARRY}])
def test_a_handover_that_is_malformed_or_too_large_is_not_kept(carry: Any):
    world = worn(World()).master(restarts=COUNTS, carry=carry).settle()
    assert world.status["carried"] == {"attempt": 1, "state": WORN}


@pytest.mark.parametrize("kept", [None, {}, {"state": WORN}, {"attempt": "1"}, {"attempt": 2, "state": WORN}, [1]])
def test_a_damaged_handover_in_the_status_is_not_handed_on(kept: Any):
    world = worn(World())
    world.new_session().step()
    world.status["carried"] = kept
    world.settle().later(60).settle().head_ready("pod-2")
    assert "--carried" not in submitted(world).argv
    assert CARRIED_KEY not in spec_map(world)


def test_a_handover_without_a_step_tells_none():
    world = World().running().master(carry=WORN).settle()
    world.status["progress"].pop("step", None)
    again(world)
    assert "step" not in handed(world)


def test_the_handed_on_step_may_come_from_the_status():
    """The operator died, and came back when the head was lost."""
    world = worn(World()).restarted()
    world.head_ready("pod-2").settle().later(60).settle()
    assert handed(world)["step"] == 120


def test_the_handover_is_removed_when_the_job_is_over():
    world = worn(World()).master("Succeeded").settle()
    assert "carried" not in world.status


def test_on_an_existing_raycluster_ray_keeps_the_handover_beside_the_spec():
    world = on_shared()
    world.settle().head_ready().settle().workers_ready()
    world.master(restarts=COUNTS, carry=WORN, progress={"step": 120}).settle().later(60)
    world.head_ready("pod-2").new_session().settle().later(60)
    submit = submitted(world)
    names_of = {flag: submit.argv[submit.argv.index(flag) + 1] for flag in ("--spec", "--carried")}
    assert [f"gcs://{name}" for name in submit.packages] == list(names_of.values())
    told = json.loads(submit.packages[names_of["--carried"].removeprefix("gcs://")])
    assert told == {"job": names.job_uid(UID), "attempt": 1, "step": 120, "state": WORN}


# -- memory


GROWS = {"outOfMemory": {"maxMemory": "8Gi"}}


def hungry(memory: Any = "4Gi", policy: Any = GROWS, **spec: Any) -> dict[str, Any]:
    job = dljob(**spec)
    for role in job["spec"]["roles"]:
        role["resources"] = {"cpu": "1", **({"memory": memory} if memory else {})}
        role["restartPolicy"], role["replicas"] = policy, 1
    return job


def pods(world: World) -> dict[str, str]:
    """Memory of the worker's container: request and limit."""
    (group,) = world.cluster["spec"]["workerGroupSpecs"]
    found = group["template"]["spec"]["containers"][0]["resources"]
    return {name: found[name].get("memory") for name in ("requests", "limits")}


def starved(job: dict[str, Any], memory: Any) -> World:
    world = World(job).running().later(60)
    world.master(restarts=COUNTS, carry={"v": 1, "memory": memory}).settle()
    again(world)
    assert world.status["attempt"] == 2
    return world


@pytest.mark.parametrize(("wanted", "made"), [("6Gi", "6Gi"), ("20Gi", "8Gi")])
def test_pods_of_the_next_attempt_have_room_for_what_its_ranks_came_to_need(wanted: str, made: str) -> None:
    job = hungry()
    role = job["spec"]["roles"][0]["name"]
    world = starved(job, {role: wanted})
    assert pods(world) == {"requests": made, "limits": made}
    world.master(carry={"v": 1, "memory": {role: wanted}}).settle()
    assert "edited" not in world.message("ClusterReady")


@pytest.mark.parametrize(
    "wanted", [{}, {"nobody": "6Gi"}, {"": 6}, {"worker": 6}, {"worker": "6 GB"}, {"worker": "1Gi"}]
)
def test_malformed_memory_in_a_handover_makes_no_larger_pods(wanted: dict[str, Any]) -> None:
    job = hungry()
    assert job["spec"]["roles"][0]["name"] == "worker"
    assert pods(starved(job, wanted)) == {"requests": "4Gi", "limits": "4Gi"}


@pytest.mark.parametrize(("memory", "policy"), [("4Gi", {}), (None, {})])
def test_a_role_without_the_memory_policy_keeps_its_pod_size(memory: Any, policy: Any) -> None:
    job = hungry(memory, policy)
    assert pods(starved(job, {"worker": "6Gi"})) == {"requests": memory, "limits": memory}


def test_machines_that_the_user_declares_stay_as_they_are() -> None:
    job = hungry(nodeGroups=[{"name": "n", "cpu": "4", "memory": "5Gi"}])
    assert pods(starved(job, {"worker": "6Gi"})) == {"requests": "5Gi", "limits": "5Gi"}
