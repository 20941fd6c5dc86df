"""One word for where a job stands."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reconcile_kit import World, dljob


@pytest.mark.parametrize(
    ("said", "phase"),
    [
        ("Pending", "Scheduling"),
        ("Scheduling", "Scheduling"),
        ("Running", "Running"),
        ("Recovering", "Recovering"),
        ("Stopping", "Stopping"),
        ("SomethingNew", "Scheduling"),
    ],
)
def test_the_phase_follows_primemasters(said: str, phase: str):
    world = World().settle().head_ready().settle().master(said, reason="Why", message="because").settle()
    assert (world.phase, world.status["reason"], world.status["message"]) == (phase, "Why", "because")


def test_why_there_is_no_machine_is_told_by_its_pod():
    world = World().settle().head_ready().settle().workers_ready(0, 1)
    head, worker = world.pods[world.name]
    trouble = "ErrImagePull: container ray-worker: no such image"
    world.pods[world.name] = [head, replace(worker, trouble=trouble, trouble_reason="ErrImagePull")]
    world.master("Scheduling", reason="NoRoom", message="role worker needs a machine").settle()
    assert (world.phase, world.status["reason"]) == ("Scheduling", "ErrImagePull")
    assert world.status["message"].startswith(f"pod {worker.name}: {trouble}; ")
    world.workers_ready().master("Recovering", reason="NodeLost", message="gone").settle()
    assert (world.phase, world.status["reason"]) == ("Recovering", "NodeLost")


def test_a_snapshot_without_a_reason_has_its_phase_as_reason():
    world = World().running().master("Running", reason=None, message=None).settle()
    assert (world.status["reason"], world.status["message"]) == ("Running", "")


def test_without_news_the_phase_stays():
    world = World().running().master("Recovering", message="worker/1").settle()
    before = dict(world.status)
    assert world.restarted().settle().status == before


def test_a_job_goes_from_queue_to_provisioning():
    world = World(dljob(scheduling={"queueName": "research"}))
    world.step()
    assert world.phase == "Pending"
    world.cluster["spec"]["suspend"] = True
    assert world.settle().phase == "Queued"
    assert world.cond("QuotaReserved") == ("False", "WaitsInQueue")
    world.cluster["spec"]["suspend"] = False
    assert world.settle().phase == "Provisioning"
    assert world.cond("QuotaReserved") == ("True", "QuotaReserved")
    assert world.calm().phase == "Succeeded"


def test_a_second_attempt_is_recovering_until_it_runs():
    world = World().running().new_session().settle()
    assert (world.phase, world.status["reason"]) == ("Recovering", "HeadLost")
    world.head_ready("pod-2")
    world.step()
    assert (world.phase, world.status["reason"]) == ("Recovering", "Starting")
    world.settle().workers_ready().settle()
    assert world.phase == "Recovering"
    assert world.cond("Recovering") == ("True", "HeadLost")
    world.master("Running").settle()
    assert world.phase == "Running"
    assert world.cond("Recovering") == ("False", "Steady")
    assert world.status["lastFault"]["recoveredAt"]


def test_a_second_attempt_in_the_queue_is_queued():
    world = World(dljob(scheduling={"queueName": "research"})).running()
    world.cluster["spec"]["suspend"] = True
    world.settle()
    assert (world.phase, world.status["reason"]) == ("Recovering", "Preempted")
    world.cluster["spec"]["suspend"] = True
    assert world.settle().phase == "Queued"


def test_a_quota_goes_with_the_raycluster():
    world = World(dljob(scheduling={"queueName": "research"})).running()
    assert world.cond("QuotaReserved") == ("True", "QuotaReserved")
    world.cluster["spec"]["suspend"] = True
    world.step()
    assert world.cond("QuotaReserved") == ("False", "Preempted")
    assert world.settle().cond("QuotaReserved")[0] == "True"  # nobody suspends the next one here


def test_pods_ready_before_the_submission_do_not_hide_a_leaving_raycluster():
    world = World().settle().head_ready().workers_ready()
    world.cluster["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    world.settle()
    assert (world.phase, world.status["reason"]) == ("Provisioning", "ClusterLeaving")
