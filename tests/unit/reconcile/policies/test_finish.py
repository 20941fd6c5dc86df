"""How a job ends, and what is done after."""

from __future__ import annotations

import pytest
from reconcile_kit import NOW, UID, World, dljob

from dljob.reconcile.state import names
from dljob.reconcile.state.context import stamp
from dljob.reconcile.state.model import Delete, MasterView, SaveLogs, Trouble

CLUSTER = names.cluster_name("hello", UID, 1)
REFUSAL = {"reason": "RayVersionMismatch", "message": "Ray is 2.59.0, not 2.60.0", "hint": "set rayVersion"}


def ended(phase: str = "Succeeded", spec: dict | None = None, **more: object) -> World:
    """The pass that writes the verdict."""
    world = World(dljob(**(spec or {}))).running().later(60).master(phase, **more)
    outcome = world.step()
    assert outcome.actions == ()
    return world


def submitted() -> World:
    return World().settle().head_ready().settle()


# -- the verdict


def test_a_job_that_succeeded_ends_as_succeeded_with_its_time():
    world = ended(completionTime="2027-01-15T08:00:42.500Z", message="all drivers ended well")
    assert (world.phase, world.status["reason"], world.status["message"]) == (
        *("Succeeded", "Completed", "all drivers ended well"),
    )
    assert world.cond("Complete") == ("True", "Completed")
    assert world.status["completionTime"] == "2027-01-15T08:00:42Z"
    assert world.look().watch is None


def test_a_job_that_failed_ends_as_failed_with_its_message():
    world = ended("Failed", message="worker/1: ImportError: no torch")
    assert (world.phase, world.status["reason"]) == ("Failed", "UserErrorRepeats")
    assert world.cond("Failed") == ("True", "UserErrorRepeats")
    assert world.message("Failed") == "worker/1: ImportError: no torch"
    assert world.status["completionTime"] == "2027-01-15T08:01:00Z"


@pytest.mark.parametrize(("phase", "reason"), [("Succeeded", "Completed"), ("Failed", "JobFailed")])
def test_an_end_without_a_reason_gets_the_usual_one(phase: str, reason: str):
    assert ended(phase, reason=None).status["reason"] == reason


def test_an_ended_job_has_no_ready_condition():
    world = World().running().master("Recovering").settle().master("Succeeded")
    world.step()
    for kind in ("MasterReady", "PlacementReady", "RolesReady", "Recovering"):
        assert world.cond(kind) == ("False", "JobEnded")
    assert {one["type"] for one in ended().status["conditions"]}.isdisjoint({"Recovering", "Failed"})


def test_a_launchers_refusal_fails_the_job_with_its_words():
    world = submitted().launcher("FAILED", exit_code=2, refusal=REFUSAL)
    world.step()
    assert (world.phase, world.status["reason"]) == ("Failed", "RayVersionMismatch")
    assert (
        world.status["message"] == "Ray is 2.59.0, not 2.60.0; set rayVersion; then delete this job and apply it again"
    )
    assert "SaveLogs" not in world.settle().log


def test_a_refusal_without_a_reason_is_a_failed_job():
    world = submitted().launcher("FAILED", refusal={"message": "no"}).settle()
    assert (world.status["reason"], world.status["message"]) == ("JobFailed", "no")


@pytest.mark.parametrize(
    "said",
    [
        "Error while finding module specification for 'dljob.runtime.launcher' (No module named 'dljob')",
        "No module named dljob.runtime.launcher",
        "Error while finding module specification for 'dljob.runtime.launcher' (No module named 'dljob.runtime')",
    ],
)
def test_an_image_without_dljob_fails_the_job_with_what_to_do(said: str):
    world = submitted().launcher("FAILED", exit_code=1, tail=f"/usr/bin/python: {said}").settle()
    assert (world.phase, world.status["reason"]) == ("Failed", "ImageWithoutDLJob")
    assert "image example.org/ray:2.60.0 has no dljob" in world.status["message"]
    assert world.status["message"].endswith("; then delete this job and apply it again")


@pytest.mark.parametrize(
    ("status", "code", "phase", "reason"),
    [("SUCCEEDED", 0, "Succeeded", "Completed"), ("FAILED", 1, "Failed", "JobFailed")],
)
def test_the_launchers_end_counts_when_primemaster_is_silent_for_a_minute(
    status: str, code: int, phase: str, reason: str
):
    world = submitted().launcher(status, exit_code=code, tail="Traceback").silent(59)
    world.settle()
    assert (world.phase, world.status["attempt"]) == ("Scheduling", 1)
    world.silent(61).settle()
    assert (world.phase, world.status["reason"]) == (phase, reason)
    assert ("Traceback" in world.status["message"]) is (code == 1)


def test_the_launchers_end_waits_for_primemasters_word():
    world = submitted().launcher("FAILED", exit_code=1).settle()
    assert world.status["attempt"] == 1
    assert world.master("Failed", reason="BudgetExhausted").settle().status["reason"] == "BudgetExhausted"


def test_a_launcher_that_ends_while_primemaster_answers_ends_no_job():
    world = World().running().launcher("SUCCEEDED", exit_code=0).settle()
    assert world.phase == "Running"


# -- logs


def test_logs_are_saved_before_the_cluster_goes():
    world = ended()
    *_, save = world.step().actions
    assert isinstance(save, SaveLogs)
    assert (save.name, save.cluster, save.address) == ("hello-logs", CLUSTER, "10.0.0.1")
    *_, delete = world.step().actions
    assert isinstance(delete, Delete)
    assert "LogsSaved" in world.reasons()
    assert "LogsLost" not in world.reasons()
    world.settle()
    assert (
        world.message("ClusterReady") == "the job is over; ConfigMap hello-logs has the last lines of each rank's log"
    )


@pytest.mark.parametrize(("count", "gives_up"), [(4, False), (5, True)])
def test_logs_that_cannot_be_had_hold_the_cluster_for_some_tries(count: int, gives_up: bool):
    world = ended()
    world.troubles = (Trouble("SaveLogs", 503, "PrimeMaster is away", count),)
    *_, action = world.look().actions
    assert isinstance(action, Delete if gives_up else SaveLogs)
    told = [event for event in world.look().events if event.reason.startswith("Logs")]
    assert [(event.reason, event.type) for event in told] == ([("LogsLost", "Warning")] if gives_up else [])
    assert not told or "PrimeMaster is away" in told[0].message


def test_a_head_that_is_not_ready_is_waited_for_a_minute():
    world = ended().condition("HeadPodReady", "False")
    outcome = world.look()
    assert outcome.actions == ()
    assert outcome.requeue == 60
    *_, action = world.later(60).look().actions
    assert isinstance(action, Delete)
    assert world.look().events[0].message.endswith("before the RayCluster is deleted")


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Stopped"])
def test_logs_are_saved_of_a_job_that_ended_long_ago_while_the_operator_was_away(phase: str):
    world = World().running()
    end = stamp(world.now)
    world.restarted().later(3600).step()
    world.master(phase, completionTime=end).settle()
    assert world.status["completionTime"] == end
    assert "hello-logs" in world.maps
    assert "LogsLost" not in world.reasons()


def test_no_logs_are_saved_of_a_job_that_never_began():
    world = submitted().launcher("FAILED", refusal=REFUSAL)
    world.step()
    *_, action = world.look().actions
    assert isinstance(action, Delete)
    assert world.look().events == ()


# -- the cluster


def test_a_cluster_that_is_leaving_is_not_deleted_again():
    world = ended().settle()
    assert world.log.count("Delete RayCluster") == 1
    world = ended()
    world.step()
    world.cluster["metadata"]["deletionTimestamp"] = "2027-01-15T08:02:00Z"
    assert world.look().actions == ()
    assert world.look().reason == "the ended job's RayCluster is being deleted"


def test_retain_keeps_the_cluster_and_saves_the_logs():
    world = ended(spec={"cleanupPolicy": "Retain"}).settle()
    assert list(world.clusters) == [CLUSTER]
    assert "hello-logs" in world.maps
    assert world.look().watch is None
    assert "hello-logs" in world.later(15).settle().message("ClusterReady")


def test_a_wrong_spec_does_not_keep_a_cluster():
    world = ended()
    world.job["spec"]["roles"] = []
    assert world.settle().clusters == {}


def test_a_job_that_ends_between_two_attempts_leaves_no_cluster():
    world = World().running().new_session()
    world.step()
    world.job["metadata"]["annotations"][names.STOP] = "now"
    world.settle()
    assert world.phase == "Stopped"
    assert world.clusters == {}


# -- time to live


def test_an_ended_job_is_deleted_after_its_ttl():
    world = ended(spec={"ttlSecondsAfterFinished": 100}).settle()
    assert world.look().requeue == 100
    assert world.later(99).look().actions == ()
    *_, delete = world.later(1).look().actions
    assert (delete.kind, delete.name, delete.uid) == ("DLJob", "hello", UID)
    assert world.settle().job is None


def test_a_job_with_a_ttl_of_zero_is_deleted_once_its_logs_are_saved():
    world = ended(spec={"ttlSecondsAfterFinished": 0}).settle()
    assert world.job is None
    assert [call for call in world.log if call.startswith(("Save", "Delete"))] == [
        *("SaveLogs", "Delete ConfigMap", "Delete RayCluster", "Delete DLJob"),
    ]


def test_an_ended_job_without_a_ttl_stays():
    world = ended().settle().later(10**8)
    assert world.look().actions == ()
    assert world.look().requeue is None


def test_an_ended_job_at_rest_needs_no_further_pass():
    world = ended().settle()
    world.job["metadata"]["annotations"] |= {names.STOP: "x", names.RESTART: "y"}
    world.view = MasterView({"phase": "Running"})
    rest = world.look()
    assert (rest.actions, rest.events, rest.status, rest.watch, rest.requeue) == ((), (), None, None, None)
    assert world.now == NOW + 60
