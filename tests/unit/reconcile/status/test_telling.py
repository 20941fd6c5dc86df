"""Events: once for each turn."""

from __future__ import annotations

import pytest
from reconcile_kit import World

from dljob.reconcile.state.model import Pod

FAULT = {
    "level": "RoleGroup",
    "reason": "NodeLost",
    "target": "worker/1",
    "firstCause": "node n1 is gone",
    "detectedAt": "2027-01-15T08:00:30.000Z",
}


def test_a_good_life_tells_each_event_in_order():
    world = World().running().master("Succeeded", message="all drivers ended well").settle()
    assert world.reasons() == [
        *("SpecAccepted", "ClusterCreated", "HeadPending", "WorkersPending", "Submitted", "PodsReady", "MasterReady"),
        *("UnitsHeld", "RolesReady", "Completed", "LogsSaved", "ClusterDeleted"),
    ]
    assert {event.type for event in world.events} == {"Normal"}
    assert all(event.message for event in world.events)


def test_a_job_at_rest_gets_no_events():
    world = World().running()
    before = len(world.events)
    world.later(1000).settle()
    world.restarted().settle()
    assert len(world.events) == before


def test_a_fault_is_told_once_by_its_cause():
    world = World().running()
    before = len(world.events)
    world.master("Recovering", ready=1, lastFault=FAULT, recentFaults=[FAULT]).settle()
    fault, ranks = world.events[before:]
    assert (fault.type, fault.reason, fault.action) == ("Warning", "NodeLost", "Recovering")
    assert fault.message == "worker/1: node n1 is gone; restarted at level RoleGroup"
    assert (ranks.type, ranks.reason) == ("Normal", "RanksPending")
    world.master("Running", lastFault=FAULT, recentFaults=[{**FAULT, "recoveredAt": "t"}]).settle()
    assert world.reasons()[-2:] == ["RolesReady", "Steady"]


def test_a_cause_that_is_known_later_is_told_once_more():
    world = World().running()
    before = len(world.events)
    vague = {**FAULT, "reason": "Unknown", "firstCause": "worker/1: killed"}
    world.master("Recovering", ready=1, lastFault=vague, recentFaults=[vague]).settle()
    known = {**vague, "reason": "OOMKilled", "firstCause": "worker/1: OOMKilled: oom_kill +1"}
    world.master("Running", lastFault=known, recentFaults=[known]).settle()
    world.master("Running", lastFault=known, recentFaults=[{**known, "recoveredAt": "t"}]).settle()
    said = [(event.reason, event.message) for event in world.events[before:] if event.action == "Recovering"]
    assert said[:2] == [
        ("Unknown", "worker/1: killed; restarted at level RoleGroup"),
        ("OOMKilled", "worker/1: OOMKilled: oom_kill +1; reported as Unknown before"),
    ]
    assert [reason for reason, _ in said].count("OOMKilled") == 1


def test_more_that_is_known_later_of_the_same_cause_is_told():
    world = World().running()
    before = len(world.events)
    first = {**FAULT, "reason": "Preempted", "firstCause": "worker/1: Preempted: pod p is told to end"}
    more = {**first, "firstCause": f"{first['firstCause']}; EvictionByEvictionAPI: evicting"}
    for fault in (first, more, {**more, "recoveredAt": "t"}):
        world.master("Recovering", ready=1, lastFault=fault, recentFaults=[fault]).settle()
    said = [event.message for event in world.events[before:] if event.action == "Recovering"]
    assert said == [
        "worker/1: Preempted: pod p is told to end; restarted at level RoleGroup",
        "worker/1: Preempted: pod p is told to end; EvictionByEvictionAPI: evicting; with more detail now",
    ]


def test_two_faults_of_one_moment_are_told_once_each():
    world = World().running()
    both = [FAULT, {**FAULT, "reason": "Preempted"}]
    world.master("Recovering", ready=1, lastFault=both[1], recentFaults=both).settle()
    before = len(world.events)
    world.master("Recovering", ready=1, lastFault=both[1], recentFaults=both, progress={"step": 5}).later(60).settle()
    assert [event for event in world.events[before:] if event.action == "Recovering"] == []


@pytest.mark.parametrize(("level", "done"), [("Fail", "the job ends"), ("Wait", "it is waited for")])
def test_a_fault_that_restarts_nothing_is_said_to(level: str, done: str):
    world = World().running()
    before = len(world.events)
    fault = {**FAULT, "level": level}
    world.master("Recovering", ready=1, lastFault=fault, recentFaults=[fault]).settle()
    assert world.events[before].message == f"worker/1: node n1 is gone; {done}"


def test_another_number_of_ranks_is_told_once():
    def roles(count: int) -> list[dict]:
        return [{"name": "worker", "desired": count, "ready": count, "running": count, "succeeded": 0, "failed": 0}]

    world = World().running()
    before = len(world.events)
    world.master(lastFault=FAULT, recentFaults=[FAULT], roles=roles(1)).settle()
    lost, fewer = world.events[before : before + 2]
    assert (lost.type, lost.reason) == ("Warning", "NodeLost")
    assert (fewer.type, fewer.reason) == ("Normal", "Resized")
    assert fewer.message == "worker has 1 rank instead of 2"
    before = len(world.events)
    grown = {
        **FAULT,
        "reason": "Resized",
        "firstCause": "2 ranks instead of 1: there is room for more",
        "detectedAt": "t",
    }
    world.master(lastFault=grown, recentFaults=[FAULT, grown], roles=roles(2)).settle()
    told = [(event.type, event.message) for event in world.events[before:] if event.reason == "Resized"]
    assert told == [("Normal", "worker/1: 2 ranks instead of 1: there is room for more; restarted at level RoleGroup")]


def test_a_restart_by_order_is_no_warning():
    world = World().running()
    before = len(world.events)
    ordered = {**FAULT, "reason": "Requested", "firstCause": "restart of worker/1 ordered by annotation"}
    world.master("Recovering", ready=1, lastFault=ordered, recentFaults=[ordered]).settle()
    assert [event.type for event in world.events[before:]] == ["Normal", "Normal"]
    assert world.events[before].reason == "Requested"


def test_messages_of_others_about_an_unready_raycluster_are_warnings():
    world = World().running()
    pod = Pod("w9", "u", False, "cpu1", "Pending", False, trouble="0/3 nodes", trouble_reason="Unschedulable")
    world.pods[world.name].append(pod)
    world.master("Scheduling", placement={"units": 4, "ready": 0}).settle()
    told = {(event.action, event.reason): event.type for event in world.events}
    assert told["PlacementReady", "Unschedulable"] == "Warning"
    assert told["ClusterReady", "HeadPending"] == "Normal"
    assert told["PlacementReady", "UnitsHeld"] == "Normal"


def test_a_lost_attempt_is_told_once():
    world = World().running()
    before = len(world.events)
    world.new_session()
    world.step()
    (event,) = world.events[before:]
    assert (event.type, event.reason) == ("Warning", "HeadLost")


def test_a_failure_is_a_warning_and_a_stop_is_none():
    failed = World().running().master("Failed", message="boom").settle()
    (event,) = [event for event in failed.events if event.action == "Failed"]
    assert (event.type, event.reason, event.message) == ("Warning", "UserErrorRepeats", "boom")
    stopped = World()
    stopped.job["metadata"]["annotations"]["dljob.io/stop"] = "now"
    stopped.settle()
    (event,) = [event for event in stopped.events if event.action == "Stopped"]
    assert (event.type, event.reason) == ("Normal", "StoppedByUser")


def test_troubles_are_warnings():
    world = World(kuberay="missing").settle()
    assert ("Warning", "KubeRayMissing") in [(event.type, event.reason) for event in world.events]
