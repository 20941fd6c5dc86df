"""A cluster of TensorFlow: which deaths take whom, and a chief that was given addresses of before."""

from __future__ import annotations

from master_kit import World, job

from dljob.master.failure.tf_cluster import cluster_addresses
from dljob.master.state import events as ev
from dljob.master.state.state import CLUSTER_NOT_GIVEN_YET
from dljob.plan.tensorflow import checksum
from dljob.telemetry import reasons

TASKS = {"chief": 1, "ps": 2, "worker": 2, "evaluator": 1}


def task(name, **more):
    known = {"entrypoint": {"module": "a.py"}, "driver": name == "chief", "tf": {"task": name}}
    return {"name": name, "replicas": TASKS[name], **known, **more}


def booted():
    return World(job(*map(task, TASKS), {"name": "other"})).boot()


def listens(world, role, rank, port, *, cluster=CLUSTER_NOT_GIVEN_YET):
    """A rank's host tells its address, as it does before its process starts, or once it was given the cluster."""
    incarnation = world.state.ranks[role, rank].incarnation
    addresses_of_rank = (("tf", f"h:{port}"),)
    world.send(ev.RankServes(role, rank, incarnation, addresses_of_rank, ready=False, cluster=cluster))


def meet(world):
    """All tasks tell their addresses, and the chief is given them."""
    tasks = [(role, rank) for role in ("chief", "ps", "worker") for rank in range(TASKS[role])]
    for number, (role, rank) in enumerate(tasks):
        listens(world, role, rank, number)
    listens(world, "chief", 0, 0, cluster=checksum(cluster_addresses(world.state)))
    return world


def incarnations(world):
    return {role: [world.state.ranks[role, rank].incarnation for rank in range(count)] for role, count in TASKS.items()}


ONCE = {role: [1] * count for role, count in TASKS.items()}


def test_addresses_are_known_once_each_present_process_has_told_its_own():
    world = booted()
    assert cluster_addresses(world.state) == {}
    for role, rank in (("chief", 0), ("ps", 0), ("ps", 1), ("worker", 0)):
        listens(world, role, rank, rank)
        assert cluster_addresses(world.state) == {}
    listens(world, "worker", 1, 7)
    assert cluster_addresses(world.state) == {"chief": ["h:0"], "ps": ["h:0", "h:1"], "worker": ["h:0", "h:7"]}
    world.kill("worker", 0)
    world.settle()
    assert cluster_addresses(world.state) == {}, "the address of its new process is not known yet"


def test_a_worker_that_comes_back_at_its_address_restarts_alone():
    world = meet(booted())
    world.kill("worker", 1)
    world.settle()
    listens(world, "worker", 1, 4)
    world.send(ev.RankServes("worker", 1, 2, (("tf", "h:4"),), ready=True))
    assert incarnations(world) == {**ONCE, "worker": [1, 2]}
    assert world.state.ranks["worker", 1].cluster == CLUSTER_NOT_GIVEN_YET, (
        "a report of its readiness says nothing of the cluster"
    )


def test_a_worker_at_another_address_takes_the_chief_along_with_the_reason():
    world = meet(booted())
    world.kill("worker", 1)
    world.settle()
    listens(world, "worker", 1, 99)
    world.settle()
    assert incarnations(world) == {**ONCE, "worker": [1, 2], "chief": [2]}
    (message,) = [note.message for note in world.notes(reasons.RESTARTING) if note.target == "chief/0"]
    assert "chief/0 was given other addresses" in message
    assert "worker/1 listens at h:99, not at h:4" in message
    assert world.state.ranks["chief", 0].restart_reason == reasons.RESTARTED_WITH
    assert world.state.ranks["chief", 0].cluster == "", "its next process is given the addresses of now"


def test_a_task_that_came_back_at_its_address_is_not_blamed_for_the_restart_of_the_chief():
    world = meet(booted())
    world.kill("worker", 0)
    world.settle()
    world.kill("worker", 1)
    listens(world, "worker", 0, 99)
    world.settle()
    listens(world, "worker", 1, 4)
    world.settle()
    (message,) = [note.message for note in world.notes(reasons.RESTARTING) if note.target == "chief/0"]
    assert "chief/0 was given other addresses" in message
    assert "worker/1" not in message


def test_a_chief_that_still_waits_for_addresses_is_left_to_wait():
    world = booted()
    meet(world)
    world.kill("chief", 0)
    world.kill("worker", 1)
    world.settle()
    listens(world, "chief", 0, 0)
    listens(world, "worker", 1, 99)
    assert incarnations(world) == {**ONCE, "worker": [1, 2], "chief": [2]}


def test_a_parameter_server_takes_the_chief_along_and_the_others_go_on():
    world = meet(booted())
    world.kill("ps", 1)
    world.settle()
    assert incarnations(world) == {**ONCE, "ps": [1, 2], "chief": [2]}


def test_chief_and_evaluator_restart_alone():
    world = meet(booted())
    world.kill("chief", 0)
    world.settle()
    world.kill("evaluator", 0)
    world.settle()
    assert incarnations(world) == {**ONCE, "chief": [2], "evaluator": [2]}


def test_nobody_restarts_in_a_job_that_ends_or_has_no_chief():
    world = meet(booted())
    world.end("chief", 0)
    world.end_role("other")
    listens(world, "worker", 1, 99)
    assert incarnations(world) == ONCE
    sole_world = World(job({"name": "w", "ports": [{"name": "tf"}]})).boot()
    listens(sole_world, "w", 0, 1)
    assert sole_world.state.ranks["w", 0].incarnation == 1
