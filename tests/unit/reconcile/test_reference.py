"""A job on a RayCluster that is there already: run there, leave it as it was, wait for what its owner decides."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from reconcile_kit import NOW, SETTINGS, UID, World, dljob, snapshot

from dljob.reconcile.reconcile import reconcile
from dljob.reconcile.state import names
from dljob.reconcile.state.context import ReconcileContext, stamp
from dljob.reconcile.state.model import Observed, Submit, Trouble

OTHERS = "99999999-8888-7777-6666-555555555555"


def there(**spec: Any) -> dict[str, Any]:
    """A RayCluster that somebody else made."""
    meta = {"name": "shared", "namespace": "team", "uid": "uid-shared", "generation": 3, "labels": {}}
    return {"metadata": meta, "spec": {"rayVersion": "2.60.1", **spec}}


def world(cluster: dict[str, Any] | None = None, **spec: Any) -> World:
    made = World(dljob(rayClusterRef={"name": "shared"}, **spec))
    made.clusters["shared"] = cluster or there()
    made.pods["shared"] = []
    return made


def touched(it: World) -> list[str]:
    """What was done beside writing the status and asking the head."""
    quiet = ("status", "Submit", "Command", "SaveLogs", "Annotate DLJob", "Finalize")
    return [line for line in it.log if not line.startswith(quiet)]


def test_a_job_runs_on_a_cluster_that_is_there_and_leaves_it_as_it_was() -> None:
    it = world()
    before = json.dumps(it.clusters)
    it.settle()
    assert it.cond("ClusterReady") == ("False", "HeadPending")
    it.head_ready().settle()
    assert [id_ for id_, _ in it.submissions] == [f"hello-{names.job_uid(UID)[:8]}-1"]
    it.workers_ready().master("Running").settle()
    assert (it.phase, it.status["rayCluster"]["name"], it.status["effective"]) == (
        "Running",
        "shared",
        {"rayVersion": "2.60.1"},
    )
    it.master("Succeeded").settle()
    assert it.phase == "Succeeded"
    assert it.cond("ClusterReady") == ("True", "ClusterKept")
    assert touched(it) == []
    assert it.secrets == {}
    del it.clusters["shared"]["status"]
    assert json.dumps(it.clusters) == before
    assert set(it.maps) == {"hello-logs"}


def test_the_launcher_is_given_the_spec_and_a_home() -> None:
    it = world(config={"lr": 1}).settle().head_ready()
    for _ in range(2):  # held, ordered
        it.step()
    outcome = it.look()
    action = next(action for action in outcome.actions if isinstance(action, Submit))
    ((name, text),) = action.packages.items()
    assert json.loads(text)["spec"]["config"] == {"lr": 1}
    argv = list(action.argv)
    assert argv[argv.index("--spec") + 1] == f"gcs://{name}"
    assert argv[argv.index("--home") + 1].startswith("/tmp/")
    assert argv[argv.index("--ray") + 1] == "2.60.1"


def test_annotations_of_another_job_on_the_raycluster_are_ignored() -> None:
    cluster = there()
    cluster["metadata"]["annotations"] = {
        names.SPEC_HASH: "0" * 16,
        names.PLAN_HASH: "1" * 16,
        names.MADE_HASH: "2" * 16,
    }
    it = world(cluster).settle().head_ready().settle().master("Running").settle()
    assert it.status["attemptSpecHash"] != "0" * 16
    assert it.cond("Accepted") == ("True", "SpecAccepted")
    assert it.status["attempt"] == 1


def test_a_hold_that_was_taken_off_by_hand_is_put_on_again() -> None:
    it = running()
    assert it.job is not None
    it.job["metadata"]["finalizers"] = []
    it.settle()
    assert it.job["metadata"]["finalizers"] == [names.FINALIZER]


def test_two_jobs_on_one_cluster_have_nothing_in_common() -> None:
    one = world().settle().head_ready()
    other = dljob(rayClusterRef={"name": "shared"})
    other["metadata"] |= {"uid": OTHERS, "name": "second"}
    one.step()
    mine = ReconcileContext(one.observed(), SETTINGS, NOW)
    theirs = ReconcileContext(Observed(other, one.clusters["shared"]), SETTINGS, NOW)
    assert mine.submission != theirs.submission
    assert mine.cluster == theirs.cluster == one.clusters["shared"]


def test_a_job_waits_for_a_missing_raycluster() -> None:
    it = World(dljob(rayClusterRef={"name": "shared"})).settle()
    assert it.cond("ClusterReady") == ("False", "RayClusterNotFound")
    assert "no RayCluster shared in namespace team" in it.message("ClusterReady")
    assert (it.clusters, it.secrets, it.maps) == ({}, {}, {})
    assert it.look().requeue == 5.0
    assert it.phase == "Pending"


def test_a_cluster_that_is_suspended_is_waited_for_and_costs_nothing() -> None:
    it = world(there(suspend=True)).settle()
    assert it.cond("ClusterReady") == ("False", "ClusterSuspended")
    assert "when its owner resumes it" in it.message("ClusterReady")
    it.clusters["shared"]["spec"]["suspend"] = False
    it.settle()
    assert it.cond("ClusterReady") == ("False", "ClusterSuspended")
    assert it.message("ClusterReady") == "RayCluster shared was suspended; its head is not ready yet"
    it.head_ready().settle()
    assert (it.status["attempt"], len(it.submissions)) == (1, 1)


@pytest.mark.parametrize("labels", [{}, {"kueue.x-k8s.io/queue-name": "q"}])
def test_a_raycluster_suspended_under_the_job_costs_an_uncounted_attempt(labels: dict[str, str]) -> None:
    it = world().settle().head_ready().settle().master("Running").settle()
    it.clusters["shared"]["metadata"]["labels"] = labels
    it.clusters["shared"]["spec"]["suspend"] = True
    it.pods["shared"] = []
    it.condition("HeadPodReady", "False").new_session().later(60).settle()
    assert (it.status["attempt"], it.cond("ClusterReady")[0]) == (1, "False")
    it.clusters["shared"]["spec"]["suspend"] = False
    it.settle().head_ready("pod-2").settle()
    assert (it.status["attempt"], it.status["restarts"].get("cluster", 0)) == (2, 0)
    it.later(60).settle()
    assert [session for _, session in it.submissions] == ["session-1", "session-2"]


def test_a_raycluster_deleted_under_the_job_costs_a_counted_attempt() -> None:
    it = world(faultTolerance={"maxClusterRestarts": 1}).settle().head_ready().settle().master("Running").settle()
    it.delete_cluster("shared").settle()
    assert (it.status["attempt"], it.status["restarts"]["cluster"]) == (2, 1)
    it.later(60).settle()
    assert it.cond("ClusterReady") == ("False", "RayClusterNotFound")
    again = there()
    again["metadata"]["uid"] = "uid-again"
    it.clusters["shared"], it.pods["shared"] = again, []
    it.settle().head_ready("pod-2").settle()
    assert len(it.submissions) == 1  # the last head may live for its grace, and its ranks for a lease more
    it.later(6).settle().master("Running").settle()
    assert (it.status["attempt"], it.phase, it.status["rayCluster"]["uid"]) == (2, "Running", "uid-again")
    it.delete_cluster("shared").settle()
    assert (it.phase, it.status["reason"]) == ("Failed", "ClusterRestartsExhausted")


def test_the_next_attempt_waits_until_the_last_ones_ranks_are_gone() -> None:
    it = world().settle().head_ready().settle().master("Running").settle()
    it.later(5).silent(61).launcher("FAILED", exit_code=137).settle()
    assert it.status["attempt"] == 2
    assert len(it.submissions) == 1
    assert 0.0 < (it.look().requeue or 0.0) <= 5.0
    it.later(36).settle()
    assert [id_.rpartition("-")[2] for id_, _ in it.submissions] == ["1", "2"]


def test_a_token_that_cannot_be_had_is_told_and_nothing_is_submitted() -> None:
    it = world().settle().head_ready()
    seen = it.observed()
    seen = Observed(seen.job, seen.cluster, seen.pods, locked="the token is in Secret shared: let me read it")
    outcome = reconcile(seen, SETTINGS, NOW)
    assert outcome.actions == ()
    assert outcome.status is not None
    ready = next(one for one in outcome.status["conditions"] if one["type"] == "ClusterReady")
    assert (ready["status"], ready["reason"], ready["message"]) == ("False", "TokenUnknown", seen.locked)


GATEWAY = "no answer from http://10.0.0.1:8266"


@pytest.mark.parametrize(
    ("error", "launcher", "ray_error", "obstacle"),
    [
        (f"{GATEWAY}: nothing within 5 s", "RUNNING", "", "a NetworkPolicy must let the operator reach port 8266 of"),
        (f"{GATEWAY}: [Connect call failed ('10.0.0.1', 8266)]", "RUNNING", "", "nothing listens at port 8266 of"),
        (f"{GATEWAY}: nothing within 5 s", "PENDING", "", ""),
        (f"{GATEWAY}: nothing within 5 s", "RUNNING", "no answer from http://10.0.0.1:8265", ""),
        ("PrimeMaster of attempt 2 has not begun: attempt 1 answers", "RUNNING", "", ""),
    ],
)
def test_a_gateway_that_cannot_be_reached_says_what_its_errors_speak_for(
    error: str, launcher: str, ray_error: str, obstacle: str
) -> None:
    it = world().settle().head_ready().settle().launcher(launcher, error=ray_error).silent(61.0, error).settle()
    assert it.cond("MasterReady") == ("Unknown", "MasterUnreachable")
    message = it.message("MasterReady")
    assert f"{obstacle} pod shared-head" in message if obstacle else message == error
    assert ("NetworkPolicy" in message) == obstacle.startswith("a NetworkPolicy")


def test_pods_without_dljob_are_said_with_the_clusters_name() -> None:
    it = world().settle().head_ready().settle()
    it.launcher(
        "FAILED", exit_code=1, tail="/usr/bin/python: Error while finding module: No module named dljob"
    ).settle()
    assert it.cond("Failed") == ("True", "ImageWithoutDLJob")
    assert "RayCluster shared has pods without dljob" in it.message("Failed")


def test_a_spec_that_is_broken_before_it_was_submitted_waits() -> None:
    it = world().settle().head_ready()
    it.step()
    assert it.job is not None
    it.job["spec"]["roles"] = []
    it.settle()
    assert it.submissions == []


def test_no_pod_and_no_cluster_is_annotated() -> None:
    it = world().settle().head_ready().settle().master("Running").settle()
    place = {"pod": "shared-head", "node": "n", "units": ["worker/0"], "ranks": "worker/0"}
    it.view = type(it.view)(snapshot("Running"), (place,))
    it.settle()
    assert it.job is not None
    assert names.PLAN in it.job["metadata"]["annotations"]
    assert "annotations" not in it.clusters["shared"]["metadata"]
    assert it.pods["shared"][0].annotations == {}


def running(**spec: Any) -> World:
    return world(**spec).settle().head_ready().settle().master("Running").settle()


def deleted(it: World, ago: float = 0.0) -> World:
    assert it.job is not None
    it.job["metadata"]["deletionTimestamp"] = stamp(it.now - ago)
    return it.settle()


def test_the_dljob_is_held_from_before_the_submission_to_the_end() -> None:
    it = world().settle()
    assert it.job is not None
    assert "finalizers" not in it.job["metadata"]
    it.head_ready().settle()
    assert it.job["metadata"]["finalizers"] == [names.FINALIZER]
    assert it.log.index("Finalize") < it.log.index("Submit")
    it.master("Succeeded").settle()
    assert it.job["metadata"]["finalizers"] == []


def test_a_job_with_a_cluster_of_its_own_is_not_held() -> None:
    assert "Finalize" not in World().running().log


def test_a_job_stopped_before_its_master_spoke_is_waited_for_until_it_should_have_spoken() -> None:
    """Its RayCluster stays: what begins to run there later would go on."""
    it = world().settle().head_ready().settle()
    assert it.job is not None
    it.job["metadata"]["annotations"] = {names.STOP: "2027-01-15T08:02:00Z"}
    assert it.settle().silent(20).settle().phase == "Stopping"
    assert it.later(59).settle().phase == "Stopping"
    assert it.later(1).settle().phase == "Stopped"


def test_a_deleted_job_is_stopped_first() -> None:
    it = deleted(running())
    assert [(command.kind, command.target) for command in it.commands] == [("stop", "job")]
    assert it.job is not None
    assert (it.look().requeue, it.look().watch is None) == (5.0, False)
    it.master("Failed").settle()
    assert it.job is None
    assert touched(it) == []


def test_a_deleted_job_that_does_not_stop_goes_after_a_minute() -> None:
    it = deleted(running().silent(20.0))
    assert it.commands == []
    assert it.job is not None
    it.later(59).settle()
    assert it.job is not None
    it.later(1).settle()
    assert it.job is None


def test_a_job_that_was_deleted_while_the_operator_was_away_is_stopped_too() -> None:
    it = deleted(running().restarted(), ago=3600)
    assert it.job is not None
    assert (it.look().requeue, it.look().watch is None) == (5.0, False)
    it.master("Running").settle()
    assert [(command.kind, command.target) for command in it.commands] == [("stop", "job")]
    assert it.job is None


def test_a_deleted_job_whose_head_is_silent_goes_after_a_minute() -> None:
    it = deleted(running().restarted(), ago=3600).silent(0.0).settle()
    assert it.later(59).settle().job is not None
    assert it.later(1).settle().job is None


@pytest.mark.parametrize("why", ["refused", "no address"])
def test_a_deleted_job_that_cannot_be_asked_goes_at_once(why: str) -> None:
    it = running().restarted()
    if why == "refused":
        it.troubles = (Trouble("Command delete/1", 500, "the gateway is broken", 1),)
    else:
        it.clusters["shared"]["status"]["head"] = {}
    assert deleted(it, ago=3600).job is None


@pytest.mark.parametrize("what", ["waits", "gone", "suspended", "forgotten"])
def test_a_deleted_job_of_which_nothing_runs_goes_at_once(what: str) -> None:
    it = world().settle() if what == "waits" else world().settle().head_ready().settle()
    if what == "gone":
        it.delete_cluster("shared")
    if what == "suspended":
        it.clusters["shared"]["spec"]["suspend"] = True
        it.pods["shared"] = []
    if what == "forgotten":
        it.new_session()
    if what == "waits":
        assert it.job is not None
        it.job["metadata"]["deletionTimestamp"] = stamp(it.now)
        assert it.look().actions == ()
        return
    deleted(it)
    assert it.job is None


@pytest.mark.parametrize("how", ["suspended", "gone"])
def test_a_job_whose_head_lives_on_for_its_grace_is_not_let_go(how: str) -> None:
    it = running()
    head = replace(it.pods["shared"][0], leaving=True, ready=False, ends=it.now + 30)
    if how == "gone":
        it.delete_cluster("shared")
    else:
        it.clusters["shared"]["spec"]["suspend"] = True
        it.silent(0.0)
    it.pods["shared"] = [head]
    deleted(it)
    assert (it.job is not None, it.look().requeue) == (True, 5.0)
    it.pods["shared"] = []
    assert it.settle().job is None


def test_a_stop_outlasts_a_raycluster_suspended_for_a_moment() -> None:
    """Its owner resumes it before KubeRay has deleted the head, in which PrimeMaster runs on."""
    it = running()
    assert it.job is not None
    it.clusters["shared"]["spec"]["suspend"] = True
    it.job["metadata"]["annotations"] = {names.STOP: "2027-01-15T08:02:00Z"}
    assert it.settle().phase == "Stopping"
    assert [command.kind for command in it.commands] == ["stop"]
    it.clusters["shared"]["spec"]["suspend"] = False
    assert it.settle().look().actions == ()
    assert it.job["metadata"]["finalizers"] == [names.FINALIZER]
    assert it.master("Stopped", reason="StoppedByUser").settle().phase == "Stopped"


def test_a_stop_ends_with_the_head_of_a_suspended_raycluster() -> None:
    it = running()
    assert it.job is not None
    it.clusters["shared"]["spec"]["suspend"] = True
    it.job["metadata"]["annotations"] = {names.STOP: "2027-01-15T08:02:00Z"}
    assert it.settle().phase == "Stopping"
    it.pods["shared"] = []
    assert it.silent(0.0).settle().phase == "Stopped"


def test_a_job_that_ended_with_its_raycluster_outlives_the_grace_of_its_head() -> None:
    it = running(ttlSecondsAfterFinished=0, faultTolerance={"maxClusterRestarts": 0})
    head = replace(it.pods["shared"][0], leaving=True, ready=False, ends=it.now + 30)
    it.delete_cluster("shared").pods["shared"] = [head]
    it.settle()
    assert (it.phase, it.status["reason"]) == ("Failed", "ClusterRestartsExhausted")
    assert it.look().reason == "the job is over, and its head may run until its grace is over"
    it.pods["shared"] = [replace(head, phase="Succeeded")]
    assert it.settle().job is None


def test_a_head_that_outlives_its_raycluster_for_good_holds_no_dljob_for_ever() -> None:
    """`kubectl delete --cascade=orphan` leaves the pods."""
    it = running(ttlSecondsAfterFinished=0, faultTolerance={"maxClusterRestarts": 0})
    head = it.pods["shared"][0]
    it.delete_cluster("shared").pods["shared"] = [head]
    assert it.settle().later(59).settle().job is not None
    assert it.later(1).settle().job is None


def test_a_head_whose_raycluster_went_before_is_waited_for_when_the_job_is_deleted_then() -> None:
    it = running()
    head = replace(it.pods["shared"][0], leaving=True, ready=False, ends=it.now + 30)
    it.delete_cluster("shared").pods["shared"] = [head]
    assert it.settle().status["attempt"] == 2
    assert deleted(it).job is not None
    it.pods["shared"] = []
    assert it.settle().job is None


def without_room(workers: tuple[int, int], reason: str = "NeverFits") -> World:
    """A job whose PrimeMaster finds no room, on a RayCluster with (wanted, ready) workers."""
    it = world().settle().head_ready().workers_ready(workers[1], workers[0]).settle()
    it.master("Pending", reason=reason, message="one process of role w needs a machine; there is none")
    return it.settle()


def test_a_job_without_room_waits_while_workers_are_missing() -> None:
    """The first worker pod may be Pending for long: the job goes on when it comes, whatever PrimeMaster sees now."""
    it = without_room((1, 0)).later(600).settle()
    assert (it.phase, it.status["reason"]) == ("Scheduling", "WorkersPending")
    assert it.cond("ClusterReady") == ("False", "WorkersPending")
    assert it.look().requeue == 5.0
    it.workers_ready(1, 1).settle()
    assert it.cond("ClusterReady") == ("True", "PodsReady")
    it.later(9).settle()
    assert it.phase == "Scheduling"
    it.master("Running").settle()
    assert it.phase == "Running"


def test_a_job_without_room_fails_once_all_workers_are_there() -> None:
    it = without_room((2, 1)).workers_ready(2, 2).settle().later(10).settle()
    assert (it.phase, it.status["reason"]) == ("Stopping", "NeverFits")
    assert "RayCluster shared wants no more than its 2 workers" in it.message("Failed")
    it.master("Stopped").settle()
    assert (it.phase, it.cond("Failed")) == ("Failed", ("True", "NeverFits"))


def test_a_job_that_may_still_find_room_is_not_ended() -> None:
    assert without_room((1, 1), "NoRoom").later(600).settle().phase == "Scheduling"


def test_a_job_without_room_on_machines_of_its_own_is_primemasters_to_end() -> None:
    it = World().running().master("Pending", reason="NeverFits", message="no machine").settle().later(600).settle()
    assert it.phase == "Scheduling"


def test_waiting_for_workers_ends_with_the_deadline() -> None:
    it = world(preRunningDeadlineSeconds=900).settle().head_ready().workers_ready(0, 1).settle()
    it.master("Pending", reason="NeverFits", message="there is none").settle().later(899).settle()
    assert it.phase == "Scheduling"
    it.later(1).settle()
    assert (it.phase, it.status["reason"]) == ("Stopping", "PreRunningDeadlineExceeded")


def test_a_job_that_runs_does_not_ask_for_the_machines_of_others() -> None:
    it = world().settle().head_ready().workers_ready(1, 5).settle().master("Running").settle()
    assert it.cond("ClusterReady") == ("True", "PodsReady")
