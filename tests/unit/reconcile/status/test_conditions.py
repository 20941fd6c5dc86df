"""Conditions: each with a reason, a message, a generation, and the time of its last flip."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from reconcile_kit import World, dljob, snapshot

from dljob.reconcile.state import reasons
from dljob.reconcile.state.model import Pod, Trouble
from dljob.reconcile.status.conditions import ORDER


def condition(world: World, kind: str) -> dict[str, object]:
    return next(one for one in world.status["conditions"] if one["type"] == kind)


def test_the_first_status_has_all_conditions():
    world = World()
    world.step()
    assert [one["type"] for one in world.status["conditions"]] == [
        *("Ready", "Reconciling", "Stalled"),
        *("Accepted", "ClusterReady", "MasterReady", "PlacementReady", "RolesReady"),
    ]
    for one in world.status["conditions"]:
        assert set(one) == {"type", "status", "reason", "message", "observedGeneration", "lastTransitionTime"}


def test_the_order_of_the_conditions_is_fixed():
    world = World().running().master("Recovering").settle().master("Failed").settle()
    kinds = [one["type"] for one in world.status["conditions"]]
    assert kinds == [kind for kind in ORDER if kind in kinds]


def test_the_transition_time_changes_only_when_the_status_flips():
    world = World().settle()
    born = condition(world, "ClusterReady")["lastTransitionTime"]
    world.later(30).head_ready().settle()
    assert condition(world, "ClusterReady")["reason"] == "WorkersPending"
    assert condition(world, "ClusterReady")["lastTransitionTime"] == born
    world.later(30).workers_ready().settle()
    assert condition(world, "ClusterReady")["lastTransitionTime"] == "2027-01-15T08:01:00Z"


def test_conditions_carry_the_generation_of_the_spec():
    world = World().running()
    world.job["metadata"]["generation"] = 5
    world.settle()
    assert {one["observedGeneration"] for one in world.status["conditions"]} == {5}


def test_messages_of_conditions_are_bounded():
    world = World(troubles=(Trouble("CreateRayCluster", 403, "x" * 5000, 1),))
    world.step()
    assert len(condition(world, "ClusterReady")["message"]) == 1024
    assert len(world.status["message"]) == 1024


def test_recovering_is_said_once_it_was_true():
    world = World().running()
    assert "Recovering" not in [one["type"] for one in world.status["conditions"]]
    fault = {"level": "Role", "reason": "NodeLost", "target": "worker", "firstCause": "node n1 is gone"}
    world.master("Recovering", lastFault={**fault, "detectedAt": "t"}).settle()
    assert world.cond("Recovering") == ("True", "NodeLost")
    assert world.message("Recovering") == "worker: node n1 is gone"
    world.master("Stopping").settle()
    assert world.cond("Recovering") == ("True", "NodeLost")
    world.master("Running").settle()
    assert world.cond("Recovering") == ("False", "Steady")


def test_a_job_that_stands_still_says_so_until_it_goes_on():
    world = World().running()
    stall = {"name": "r/0@4", "words": "t/0 has waited since T for r/0", "since": "T", "hung": False}
    world.master("Running", stalls=[stall]).settle()
    assert world.cond("RanksStalled") == ("True", "StallFound")
    assert world.message("RanksStalled") == "t/0 has waited since T for r/0"
    assert "Hung" not in [one["type"] for one in world.status["conditions"]]
    world.master("Running", stalls=[{**stall, "hung": True}]).settle()
    assert world.cond("Hung") == ("True", "HangFound")
    world.master("Running").settle()
    assert world.cond("RanksStalled") == world.cond("Hung") == ("False", "Steady")


def test_a_suspended_job_and_a_new_attempt_do_not_stand_still():
    world = World().running().master("Running", stalls=[{"name": "x", "words": "t/0 waits"}]).settle()
    world.new_session().head_ready("pod-2")
    world.step()
    assert world.cond("RanksStalled")[0] == "False"
    world = World().running().master("Running", stalls=[{"name": "x", "words": "t/0 waits"}]).settle()
    world.edit(suspend=True).settle().master("Suspended").settle()
    assert world.cond("RanksStalled")[0] == "False"


def test_recovering_without_a_known_fault_has_a_reason_of_its_own():
    assert World().running().master("Recovering").settle().cond("Recovering") == ("True", "Recovering")


@pytest.mark.parametrize(
    ("more", "reason", "words"),
    [
        ({"placement": {"units": 4, "ready": 1, "notReady": []}}, "UnitsPending", "1 of 4 units"),
        (
            {
                "placement": {
                    "units": 4,
                    "ready": 3,
                    "notReady": [{"name": "w/3", "why": "being reserved"}, {"name": "w/4"}],
                }
            },
            "UnitsPending",
            "3 of 4 units; w/3: being reserved",
        ),
        (
            {"reason": "NoRoom", "message": "4 GPU missing", "placement": {"units": 4, "ready": 0}},
            "NoRoom",
            "0 of 4 units; 4 GPU missing",
        ),
        ({"placement": None}, "UnitsPending", "0 of 0 units"),
        (
            {"reason": "PlacementPending", "message": "it needs 9 GPU", "placement": {"units": 4, "ready": 4}},
            "PlacementPending",
            "it needs 9 GPU",
        ),
    ],
)
def test_the_placement_condition_tells_what_is_missing(more: dict, reason: str, words: str):
    world = World().running().master("Scheduling", **more).settle()
    assert world.cond("PlacementReady") == ("False", reason)
    assert world.message("PlacementReady") == words


def test_the_placement_condition_tells_the_schedulers_words():
    world = World().running()
    pod = Pod("w9", "u", False, "cpu1", "Pending", False, trouble="0/3 nodes", trouble_reason="Unschedulable")
    world.pods[world.name].append(pod)
    world.master("Scheduling", placement={"units": 4, "ready": 0}).settle()
    assert world.cond("PlacementReady") == ("False", "Unschedulable")
    assert world.message("PlacementReady") == (
        "0 of 4 units; pod w9: 0/3 nodes; make room, or ask for less; the pod then goes on by itself"
    )


def test_equal_messages_of_a_unit_and_of_the_job_are_told_once():
    why = "one process of role worker needs a machine; there is none"
    waiting = {"units": 1, "ready": 0, "notReady": [{"name": "worker/0", "why": why}]}
    world = World().running().master("Scheduling", reason="NoRoom", message=why, placement=waiting).settle()
    assert world.message("PlacementReady") == f"0 of 1 units; worker/0: {why}"


def test_the_roles_condition_counts_ready_ranks_of_each_role():
    roles = [{**snapshot()["roles"][0], "name": name, "ready": ready} for name, ready in (("a", 1), ("b", 2), ("c", 0))]
    world = World().running().master("Scheduling", roles=roles).settle()
    assert world.cond("RolesReady") == ("False", "RanksPending")
    assert world.message("RolesReady") == "ready: a 1/2, c 0/2"


def test_a_silent_master_is_unreachable_until_it_answers():
    world = World().running().silent(9.9).settle()
    assert world.cond("MasterReady") == ("True", "MasterReady")
    world.silent(10).settle()
    assert world.cond("MasterReady") == ("Unknown", "MasterUnreachable")
    assert world.message("MasterReady") == "connection refused"
    assert world.status["master"]["state"] == "Unreachable"
    world.master().settle()
    assert world.cond("MasterReady") == ("True", "MasterReady")


def test_a_master_that_never_answers_is_unreachable_after_a_minute():
    world = World().settle().head_ready().settle().silent(59, "connect: no route to host").settle()
    assert world.cond("MasterReady") == ("False", "Submitted")
    world.silent(60, "connect: no route to host").settle()
    assert world.cond("MasterReady") == ("Unknown", "MasterUnreachable")
    assert world.phase == "Scheduling"


def test_every_reason_is_camel_case_and_explained():
    lines = [line for line in Path(reasons.__file__).read_text().splitlines() if re.match(r'[A-Z_]+ = "', line)]
    for line in lines:
        assert re.search(r'= "([A-Z]+[a-z]+)+"  # .', line), line
    values = [value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)]
    assert len(values) == len(lines)
    assert set(values) >= reasons.WARNINGS


def test_a_head_that_misbehaves_is_named_at_once():
    """It is not asked again for a while, so nobody waits for patience with a silent one to end."""
    world = World().running()
    world.view = replace(world.view, age=0.5, error="http://10.0.0.1:8266 answers with too much", misbehaves=True)
    world.settle()
    assert (world.phase, world.cond("MasterReady")) == ("Running", ("Unknown", "HeadMisbehaves"))
    assert world.message("MasterReady").startswith(
        "http://10.0.0.1:8266 answers with too much; the head is asked again"
    )
    assert world.reasons().count("HeadMisbehaves") == 1
    assert world.master("Running").settle().cond("MasterReady") == ("True", "MasterReady")


def test_a_place_that_is_missing_while_worker_pods_start_is_no_want_of_room():
    """After the loss of a head: PrimeMaster sees no machines, and they are on their way."""
    world = World().settle().head_ready().settle().workers_ready(ready=0)
    said = {"reason": "NoRoom", "message": "no node has 500m CPU", "placement": {"units": 2, "ready": 0, "pending": 2}}
    world.master("Scheduling", ready=0, **said).settle()
    assert (world.phase, world.status["reason"]) == ("Scheduling", "WorkersPending")
    assert world.cond("PlacementReady") == ("False", "UnitsPending")
    assert not {event.reason for event in world.events if event.type == "Warning"}
    world.workers_ready().settle()
    assert (world.status["reason"], world.cond("PlacementReady")) == ("NoRoom", ("False", "NoRoom"))


def test_the_dashboard_is_reached_by_the_service_of_the_head():
    world = World().running()
    service = f"{world.name}-head-svc"
    assert world.status["rayCluster"]["dashboardURL"] == f"http://{service}.team.svc:8265"
    assert world.message("ClusterReady").endswith(f"Ray's dashboard: kubectl port-forward svc/{service} 8265 -n team")


@pytest.mark.parametrize(
    ("world", "true"),
    [
        (World().settle(), "Reconciling"),
        (World().running(), "Ready"),
        (World().running().master("Recovering").settle(), "Reconciling"),
        (World().running().master("Succeeded").settle(), "Ready"),
        (World().running().master("Failed", reason="UserErrorRepeats").settle(), "Stalled"),
        (World(dljob(suspend=True)).settle(), "Ready"),
        (World(dljob(roles=[])).settle(), "Stalled"),
    ],
)
def test_one_condition_of_kstatus_is_true_and_has_the_reason_of_the_phase(world: World, true: str):
    kinds = {kind: world.cond(kind) for kind in ("Ready", "Reconciling", "Stalled")}
    assert kinds == {kind: ("True" if kind == true else "False", world.status["reason"]) for kind in kinds}
    assert not [event for event in world.events if event.action in kinds], "the others tell it already"
