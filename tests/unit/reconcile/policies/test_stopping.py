"""A job that is ended before its end: by annotation or deadline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from reconcile_kit import NOW, World, dljob

from dljob.reconcile.state import names
from dljob.reconcile.state.model import Command, Pod, Trouble

STOP = {names.STOP: "2027-01-15T08:02:00.123456Z"}


def annotated(world: World) -> World:
    world.job["metadata"]["annotations"] |= STOP
    return world


def intended(world: World, reason: str) -> World:
    """The next pass writes the intent, and does nothing else."""
    outcome = world.step()
    assert outcome.actions == ()
    assert (world.phase, world.status["reason"]) == ("Stopping", reason)
    assert terminal(world) == {"Stopped" if reason == "StoppedByUser" else "Failed": ("False", reason)}
    return world


def terminal(world: World) -> dict[str, tuple[str, str]]:
    """The terminal conditions that are there, by type: status and reason."""
    there = {one["type"] for one in world.status["conditions"]} & {"Complete", "Failed", "Stopped"}
    return {kind: world.cond(kind) for kind in there}


def test_a_stop_is_written_then_sent_then_true():
    world = intended(annotated(World().running()), "StoppedByUser")
    (entry,) = world.status["lastCommands"]
    assert (entry["kind"], entry["target"], entry["at"], entry["state"]) == ("stop", "job", STOP[names.STOP], "Sent")
    (command,) = world.step().actions
    assert isinstance(command, Command)
    assert (command.id, command.kind, command.target, command.by) == ("stop/1", "stop", "job", "annotation")
    world.settle()
    assert len(world.commands) == 1
    world.later(5).master("Stopping").settle()
    assert world.phase == "Stopping"
    world.master("Stopped", reason="StoppedByUser", message="by annotation").settle()
    assert (world.phase, terminal(world)) == ("Stopped", {"Stopped": ("True", "StoppedByUser")})
    assert STOP[names.STOP] in world.message("Stopped")
    assert "SaveLogs" in world.log


def test_a_job_that_ends_well_in_the_meantime_has_ended_well():
    world = intended(annotated(World().running()), "StoppedByUser").settle()
    world.master("Succeeded").settle()
    assert world.phase == "Succeeded"
    assert set(terminal(world)) == {"Complete"}


@pytest.mark.parametrize("stage", ["applied", "provisioning"])
def test_a_job_that_does_not_run_is_stopped_at_once(stage: str):
    world = World(dljob(annotations=STOP)) if stage == "applied" else annotated(World().settle())
    world.settle()
    assert (world.phase, world.status["reason"]) == ("Stopped", "StoppedByUser")
    assert world.clusters == {}
    assert world.submissions == []


def test_a_silent_master_is_not_waited_for_for_ever():
    world = intended(annotated(World().running().silent(5)), "StoppedByUser").settle()
    assert world.commands == []
    assert world.look().requeue is not None
    assert world.later(299).settle().phase == "Stopping"
    assert world.later(1).settle().phase == "Stopped"
    assert world.clusters == {}


@pytest.mark.parametrize("end", ["stop", "deadline"])
def test_the_last_save_has_its_grace_twice(end: str):
    """All savers flush, then they bring what they keep for nodes that are gone: the pods stay until then."""
    spec = {"activeDeadlineSeconds": 1000} if end == "deadline" else {}
    world = World(dljob(checkpoint={"path": "/ckpt", "gracePeriodSeconds": 400}, **spec)).running()
    world = annotated(world) if end == "stop" else world.later(1000)
    world.settle().master("Stopping").settle()
    assert world.later(2 * 400 + 59).settle().phase == "Stopping"
    assert len(world.clusters) == 1
    assert world.later(1).settle().phase == ("Stopped" if end == "stop" else "Failed")


@pytest.mark.parametrize("end", ["stop", "deadline"])
@pytest.mark.parametrize("why", ["head", "suspended"])
def test_machines_are_not_held_for_a_save_that_nobody_can_make(end: str, why: str):
    spec = {"activeDeadlineSeconds": 1000} if end == "deadline" else {}
    world = World(dljob(checkpoint={"path": "/ckpt", "gracePeriodSeconds": 1800}, **spec)).running()
    world = annotated(world) if end == "stop" else world.later(1000)
    world.settle().master("Stopping").settle()
    if why == "head":
        world.new_session()
    else:
        world.cluster["spec"]["suspend"] = True
        world.silent(0.0)
    world.settle().later(60).settle()  # its logs are waited for, for a minute at most
    how = ("Stopped", "StoppedByUser") if end == "stop" else ("Failed", "DeadlineExceeded")
    assert (world.phase, world.status["reason"], world.status["attempt"]) == (*how, 1)
    assert world.clusters == {}


def test_a_head_that_comes_back_with_its_memory_is_waited_for():
    kept = {"gcsFaultTolerance": {"backend": "RocksDB", "claimName": "gcs"}}
    world = intended(annotated(World(dljob(**kept)).running()), "StoppedByUser").settle().kept_head("pod-2")
    assert world.settle().phase == "Stopping"
    world.master("Stopped", reason="StoppedByUser").settle()
    assert (world.phase, world.status["reason"]) == ("Stopped", "StoppedByUser")


def test_a_master_that_has_not_spoken_has_nothing_to_save():
    world = annotated(World().settle().head_ready().settle()).settle()
    assert (world.phase, world.look().requeue) == ("Stopping", 10)
    assert world.silent(10).later(10).settle().phase == "Stopped"


def test_a_master_that_comes_back_is_asked():
    world = intended(annotated(World().running().silent(5)), "StoppedByUser").settle()
    world.master("Running").settle()
    assert len(world.commands) == 1


def test_an_operator_that_comes_back_asks_again_under_the_same_id():
    world = intended(annotated(World().running()), "StoppedByUser").settle().restarted()
    world.settle().master("Running").settle()
    assert [command.id for command in world.commands] == ["stop/1", "stop/1"]


def test_a_cluster_that_is_gone_is_stopped():
    world = intended(annotated(World().running()), "StoppedByUser").delete_cluster().settle()
    assert (world.phase, world.status["reason"], world.status["attempt"]) == ("Stopped", "StoppedByUser", 1)


def test_a_job_whose_launcher_ended_without_a_master_is_stopped():
    world = World().settle().head_ready().settle()
    intended(annotated(world), "StoppedByUser").launcher("STOPPED").settle()
    assert (world.phase, world.status["reason"]) == ("Stopped", "StoppedByUser")


def test_the_active_deadline_ends_the_job_when_it_has_passed():
    world = World(dljob(activeDeadlineSeconds=100)).running()
    assert world.look().requeue == 100
    assert world.later(99.5).settle().phase == "Running"
    intended(world.later(0.5), "DeadlineExceeded")
    assert "activeDeadlineSeconds of 100 passed since 2027-01-15T08:00:00Z" in world.status["message"]
    assert "lastCommands" not in world.status
    (command,) = world.step().actions
    assert command.by == "DeadlineExceeded"
    world.master("Stopped", reason="StoppedByUser").settle()
    assert (world.phase, terminal(world)) == ("Failed", {"Failed": ("True", "DeadlineExceeded")})


@pytest.mark.parametrize("away", [False, True])
def test_a_job_that_succeeded_and_saves_yet_misses_no_deadline(away: bool):
    world = World(dljob(activeDeadlineSeconds=100)).running().master("Stopping", reason="Completed").settle()
    if away:
        world.restarted()
    assert world.later(200).settle().phase == "Stopping"
    assert "Failed" not in {one["type"] for one in world.status["conditions"]}
    assert world.commands == []
    assert world.master("Succeeded").settle().phase == "Succeeded"


def test_a_job_that_succeeded_and_is_lost_before_it_saved_has_its_deadline_again():
    world = World(dljob(activeDeadlineSeconds=100)).running().master("Stopping", reason="Completed").settle()
    world.later(200).new_session().settle()
    assert (world.phase, world.status["reason"]) == ("Failed", "DeadlineExceeded")


def test_the_active_deadline_holds_for_a_job_that_does_not_run():
    world = World(dljob(activeDeadlineSeconds=100)).settle().later(100).settle()
    assert (world.phase, world.status["reason"]) == ("Failed", "DeadlineExceeded")


def test_the_deadline_before_running_fails_a_job_that_is_not_running():
    world = World(dljob(preRunningDeadlineSeconds=50, activeDeadlineSeconds=100)).settle()
    assert world.look().requeue == 50
    world.later(50).settle()
    assert (world.phase, world.status["reason"]) == ("Failed", "PreRunningDeadlineExceeded")
    assert "not running after preRunningDeadlineSeconds of 50: there is no head pod yet" in world.status["message"]


@pytest.mark.parametrize("phase", ["Running", "Recovering"])
def test_a_job_that_ran_has_met_the_deadline_before_running(phase: str):
    world = World(dljob(preRunningDeadlineSeconds=50)).running().master(phase).settle().later(60)
    assert world.settle().phase == phase
    assert world.look().requeue is None


def test_a_job_that_just_runs_is_in_time():
    world = World(dljob(preRunningDeadlineSeconds=50)).settle().head_ready().settle().later(50).master("Running")
    assert world.settle().phase == "Running"


def missed() -> World:
    """The deadline passes while the operator is away."""
    world = World(dljob(preRunningDeadlineSeconds=50)).settle().head_ready().settle()
    assert world.phase == "Scheduling"
    return world.restarted().later(60)


@pytest.mark.parametrize("phase", ["Running", "Recovering"])
def test_a_job_that_began_to_run_while_the_operator_was_away_is_in_time(phase: str):
    world = missed()
    world.step()
    assert world.master(phase).settle().phase == phase
    assert world.commands == []


def test_a_job_that_did_not_begin_in_time_fails_though_the_operator_was_away():
    world = missed()
    world.step()
    assert world.master("Scheduling").settle().status["reason"] == "PreRunningDeadlineExceeded"


def test_a_silent_job_has_ten_seconds_to_tell_that_it_began():
    world = missed()
    world.step()
    assert world.silent(0.0).settle().phase == "Scheduling"
    assert world.look().requeue == 10
    assert world.later(10).settle().status["reason"] == "PreRunningDeadlineExceeded"


def test_a_job_whose_head_has_no_address_has_no_extra_time():
    world = missed()
    world.cluster["status"]["head"] = {}
    world.step()
    assert world.status["reason"] == "PreRunningDeadlineExceeded"


def test_waiting_in_a_queue_stops_the_deadlines_clock():
    world = World(dljob(scheduling={"queueName": "research"}, activeDeadlineSeconds=100))
    world.step()
    world.cluster["spec"]["suspend"] = True
    world.settle().later(1000).settle()
    assert "startTime" not in world.status
    world.cluster["spec"]["suspend"] = False
    world.settle()
    assert world.status["startTime"] == "2027-01-15T08:16:40Z"
    assert world.look().requeue == 100
    world.cluster["spec"]["suspend"] = True
    assert "startTime" not in world.settle().status
    assert world.now == NOW + 1000


def test_an_operator_that_was_away_hears_the_end_before_it_takes_the_job_for_stopped():
    """Found by `dljob sim --operator`, seed 8404."""
    world = World(dljob(activeDeadlineSeconds=20)).running().later(30)
    assert world.step().status["phase"] == "Stopping"
    world.restarted().later(100)
    assert world.step().status is None  # nobody has been asked yet
    assert world.look().requeue is not None
    assert world.master("Succeeded").settle().phase == "Succeeded"


def test_an_operator_that_was_away_hears_the_launcher_first():
    """Found by `dljob sim --operator`, seed 3913."""
    world = World(dljob(activeDeadlineSeconds=20)).settle().head_ready().settle().later(100)
    assert world.step().status["phase"] == "Stopping"
    world.launcher("SUCCEEDED", exit_code=0)
    assert world.look().status is None  # PrimeMaster is about to answer
    assert world.master("Succeeded").settle().phase == "Succeeded"


def test_a_launcher_that_ended_well_is_believed_when_nobody_else_answers():
    world = World(dljob(activeDeadlineSeconds=20)).settle().head_ready().settle().later(100)
    world.step()
    world.launcher("SUCCEEDED", exit_code=0).silent(0.0).later(600).silent(600)
    assert world.settle().phase == "Succeeded"


def test_an_operator_that_was_away_orders_the_stop_before_it_takes_the_job_for_stopped():
    world = World(dljob(activeDeadlineSeconds=20)).running().later(30)
    world.step()
    world.restarted().later(300).master("Running")
    world.settle()
    assert [command.kind for command in world.commands] == ["stop"]
    assert (world.phase, world.status["reason"]) == ("Failed", "DeadlineExceeded")


# -- without an order of the operator's, and across versions


@pytest.mark.parametrize("phase", ["Stopped", "Failed"])
def test_a_job_that_somebody_stopped_at_its_gateway_is_stopped(phase: str):
    """PrimeMaster of an earlier version says Failed."""
    world = World().running().master(phase, reason="StoppedByUser", message="stopped by pid 7").settle()
    assert (world.phase, terminal(world)) == ("Stopped", {"Stopped": ("True", "StoppedByUser")})
    assert world.message("Stopped") == "stopped by pid 7"


def test_the_launcher_tells_of_a_stop_when_nobody_else_can():
    world = World().running()
    world.launcher("FAILED", exit_code=6, message="stopped by pid 7").silent(0.0).later(600).silent(600)
    assert (world.settle().phase, terminal(world)) == ("Stopped", {"Stopped": ("True", "StoppedByUser")})


def written_by_an_older_operator(world: World, status: str) -> World:
    """An operator before phase Stopped wrote Failed for an ordered stop, too."""
    (stopped,) = (one for one in world.status["conditions"] if one["type"] == "Stopped")
    stopped |= {"type": "Failed", "status": status}
    if status == "True":
        world.status["phase"] = "Failed"
    return world.restarted()


@pytest.mark.parametrize("end", ["master", "older master", "late"])
def test_a_job_in_the_middle_of_a_stop_is_stopped_by_a_newer_operator(end: str):
    world = written_by_an_older_operator(intended(annotated(World().running()), "StoppedByUser").settle(), "False")
    world.settle().master("Running").settle()
    assert (world.phase, terminal(world)) == ("Stopping", {"Failed": ("False", "StoppedByUser")})
    assert [command.id for command in world.commands] == ["stop/1", "stop/1"]
    if end == "late":
        world.later(300).settle()
    else:
        world.master("Stopped" if end == "master" else "Failed", reason="StoppedByUser").settle()
    assert (world.phase, terminal(world)) == ("Stopped", {"Stopped": ("True", "StoppedByUser")})
    assert world.clusters == {}


def test_a_job_that_an_older_operator_stopped_keeps_its_end():
    world = intended(annotated(World().running()), "StoppedByUser").master("Stopped", reason="StoppedByUser").settle()
    written_by_an_older_operator(world, "True").settle().later(60).settle()
    assert (world.phase, terminal(world)) == ("Failed", {"Failed": ("True", "StoppedByUser")})


def test_a_stopped_job_is_deleted_in_time():
    world = intended(annotated(World(dljob(ttlSecondsAfterFinished=60)).running()), "StoppedByUser")
    world.master("Stopped", reason="StoppedByUser").settle().later(61).settle()
    assert world.job is None


def held_up(reason: str, words: str, **spec: Any) -> World:
    """A job whose head pod cannot start, in somebody else's words."""
    world = World(dljob(**spec)).settle()
    head = Pod(f"{world.name}-head", "head", True, "headgroup", "Pending", False)
    world.pods[world.name] = [replace(head, trouble=f"{reason}: {words}", trouble_reason=reason)]
    return world.settle()


TROUBLES = [
    ("ImagePullBackOff", "no such tag"),
    ("Unschedulable", "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector"),
    ("CrashLoopBackOff", "container ray-head ended 7 times, the last time with exit code 1"),
    ("StartupProbeFailed", "its startup probe failed, so the kubelet ended it"),
]


@pytest.mark.parametrize(("reason", "words"), TROUBLES)
def test_a_job_without_a_deadline_that_cannot_start_without_help_fails_after_the_operators(reason: str, words: str):
    world = held_up(reason, words).later(3599).settle()
    assert world.phase == "Provisioning"
    assert world.look().requeue == 1.0
    world.later(1).settle()
    assert (world.phase, world.status["reason"]) == ("Failed", "PreRunningDeadlineExceeded")
    assert words in world.message("Failed")


def test_a_refused_raycluster_fails_after_the_operators_deadline():
    world = World(troubles=(Trouble("CreateRayCluster", 403, "exceeded quota: gpus", 1),))
    for seconds, phase in ((0, "Pending"), (3599, "Pending"), (1, "Failed")):
        world.later(seconds).step()
        assert world.phase == phase
        world.clusters.clear()


@pytest.mark.parametrize(
    ("reason", "words", "limit", "spec"),
    [
        ("Unschedulable", "0/4 nodes are available: 4 Insufficient nvidia.com/gpu", 3600, {}),
        (*TROUBLES[0], 0, {}),
        (*TROUBLES[0], 3600, {"preRunningDeadlineSeconds": 100_000}),
    ],
    ids=["machines in use", "no default", "a deadline of its own"],
)
def test_other_jobs_wait(reason: str, words: str, limit: int, spec: dict[str, Any]):
    world = held_up(reason, words, **spec)
    world.settings = replace(world.settings, pre_running_deadline=limit)
    assert world.later(99_000).settle().phase == "Provisioning"


def test_pods_that_are_merely_late_are_waited_for():
    assert World().settle().later(99_000).settle().phase == "Provisioning"
