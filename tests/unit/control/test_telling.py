"""Events: once for each turn."""

from __future__ import annotations

from control_kit import World

from dljob.control.model import Pod

FAULT = {
    "level": "RoleGroup",
    "reason": "NodeLost",
    "target": "worker/1",
    "firstCause": "node n1 is gone",
    "detectedAt": "2027-01-15T08:00:30.000Z",
}


def test_a_good_life():
    world = World().running().master("Succeeded", message="all drivers ended well").settle()
    assert world.reasons() == [
        *("SpecAccepted", "ClusterCreated", "HeadPending", "WorkersPending", "Submitted", "PodsReady", "MasterReady"),
        *("UnitsHeld", "RolesReady", "Completed", "LogsSaved", "ClusterDeleted"),
    ]
    assert {event.type for event in world.events} == {"Normal"}
    assert all(event.message for event in world.events)


def test_at_rest_nothing_is_told():
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


def test_a_fault_that_ends_the_job_is_said_to():
    world = World().running()
    before = len(world.events)
    fatal = {**FAULT, "level": "Fail"}
    world.master("Recovering", ready=1, lastFault=fatal, recentFaults=[fatal]).settle()
    assert world.events[before].message == "worker/1: node n1 is gone; the job ends"


def test_a_restart_by_order_is_no_warning():
    world = World().running()
    before = len(world.events)
    ordered = {**FAULT, "reason": "Requested", "firstCause": "restart of worker/1 ordered by annotation"}
    world.master("Recovering", ready=1, lastFault=ordered, recentFaults=[ordered]).settle()
    assert [event.type for event in world.events[before:]] == ["Normal", "Normal"]
    assert world.events[before].reason == "Requested"


def test_what_others_say_of_a_cluster_that_is_not_ready_is_a_warning():
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
    (event,) = [event for event in stopped.events if event.action == "Failed"]
    assert (event.type, event.reason) == ("Normal", "StoppedByUser")


def test_troubles_are_warnings():
    world = World(kuberay="missing").settle()
    assert ("Warning", "KubeRayMissing") in [(event.type, event.reason) for event in world.events]
