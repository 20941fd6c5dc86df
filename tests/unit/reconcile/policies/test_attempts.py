"""When an attempt is lost, and what happens before the next one."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from reconcile_kit import UID, World, dljob

from dljob.reconcile.policies import attempts
from dljob.reconcile.state import names
from dljob.reconcile.state.context import ReconcileContext, stamp
from dljob.reconcile.state.model import Delete, RayJobView, Trouble


def lost(world: World, reason: str, *, restarts: int = 1) -> World:
    """The next pass writes the new attempt, and does nothing else."""
    outcome = world.step()
    assert outcome.actions == ()
    assert (world.status["attempt"], world.status["reason"]) == (2, reason)
    assert world.status["restarts"]["cluster"] == restarts
    assert "submissionId" not in world.status
    assert world.status["rayCluster"]["name"] == names.cluster_name("hello", UID, 1)
    for kind in ("ClusterReady", "MasterReady", "PlacementReady", "RolesReady"):
        assert world.cond(kind) == ("False", reason)
    assert world.cond("Recovering") == ("True", reason)
    assert world.status["lastFault"]["level"] == "Cluster"
    return world


@pytest.mark.parametrize("stage", ["provisioning", "in the queue"])
def test_an_operator_of_another_minor_version_makes_what_nothing_ran_on_anew(stage: str):
    """The pods of the old one have its dljob, which refuses this operator's launcher: the job would fail."""
    world = World().settle()
    if stage == "in the queue":
        world.cluster["spec"]["suspend"] = True
        world.settle()
    world.restarted().settings = replace(world.settings, version="0.2.0")
    before = len(world.events)
    world.step()
    assert (world.status["attempt"], world.status["reason"]) == (2, "OperatorUpgraded")
    assert [event.reason for event in world.events[before:]] == ["OperatorUpgraded"]
    assert world.settle().status["restartsTotal"] == 0
    assert world.cluster["metadata"]["annotations"]["dljob.io/made-by"] == "0.2.0"
    assert (world.calm().phase, world.status["attempt"]) == ("Succeeded", 2)


def test_an_operator_whose_last_number_is_another_takes_what_is_there():
    world = World().settle()
    world.restarted().settings = replace(world.settings, version="0.1.9")
    assert (world.calm().phase, world.status["attempt"]) == ("Succeeded", 1)


def test_a_job_that_runs_outlives_an_upgrade():
    world = World().running()
    world.restarted().settings = replace(world.settings, version="0.2.0")
    world.settle()
    assert (world.phase, world.status["attempt"], world.cond("Accepted")) == ("Running", 1, ("True", "PlanSkew"))
    said = next(one["message"] for one in world.status["conditions"] if one["type"] == "Accepted")
    assert said == (
        "attempt 1 goes on with dljob 0.1.0 of its pods; the operator has 0.2.0; the next attempt gets that, too"
        f" (dljob suspend {world.job['metadata']['name']}, then resume); rebuild an image that contains its own"
        " dljob before"
    )
    assert (world.calm().phase, world.status["attempt"]) == ("Succeeded", 1)


def test_an_upgrade_under_a_spec_that_is_wrong_waits_for_a_better_one():
    world = World().settle()
    world.settings = replace(world.settings, version="0.2.0")
    whole = world.job["spec"]["roles"]
    world.edit(roles=[])
    assert world.settle().status["attempt"] == 1
    world.edit(roles=whole).settle()
    assert (world.status["attempt"], world.phase) == (2, "Provisioning")


def test_another_head_pod_is_a_lost_attempt():
    world = World().running()
    world.head_ready("pod-2")
    assert lost(world, "HeadLost").phase == "Recovering"


def test_a_head_pod_that_is_leaving_is_not_replaced_yet():
    world = World().running()
    head = world.pods[world.name][0]
    world.pods[world.name] = [replace(head, uid="pod-2", leaving=True)]
    assert world.settle().status["attempt"] == 1


def test_another_ray_session_is_a_lost_attempt():
    world = World().running().new_session()
    lost(world, "HeadLost")
    assert world.status["message"] == "the head restarted: Ray's session is session-2 now"


def test_the_reason_of_the_heads_restart_is_in_the_message():
    world = World().running()
    head = world.pods[world.name][0]
    world.pods[world.name] = [replace(head, trouble="OOMKilled: exit code 137")]
    assert lost(world.new_session(), "HeadLost").status["message"].endswith("now; OOMKilled: exit code 137")


def test_a_silent_head_is_not_a_lost_one():
    world = World().running().silent(4000).condition("HeadPodReady", "False").settle()
    assert world.status["attempt"] == 1
    assert world.phase == "Running"
    assert world.cond("MasterReady") == ("Unknown", "MasterUnreachable")


def test_a_deleted_raycluster_is_a_lost_attempt():
    lost(World().running().delete_cluster(), "ClusterGone")


def test_a_cluster_deleted_before_the_job_ran_is_made_again_as_provisioning():
    world = lost(World().settle().delete_cluster(), "ClusterGone")
    assert world.phase == "Provisioning"
    world.settle()
    assert world.name == names.cluster_name("hello", UID, 2)
    assert world.phase == "Provisioning"


def test_another_raycluster_of_the_same_name_is_a_lost_attempt():
    world = World().running()
    world.cluster["metadata"]["uid"] = "another"
    lost(world, "ClusterGone")
    world.settle()
    assert world.log.count("Delete RayCluster") == 1


def test_a_foreign_raycluster_of_the_name_stops_the_next_attempt():
    world = World().running()
    world.cluster["metadata"] |= {"uid": "another", "ownerReferences": []}
    lost(world, "ClusterGone")
    world.pods.clear()
    world.pods[names.cluster_name("hello", UID, 1)] = []
    world.settle()
    assert "Delete RayCluster" not in world.log
    assert len(world.clusters) == 2


def test_the_queue_takes_the_machines_back():
    world = World(dljob(scheduling={"queueName": "research"})).running()
    world.cluster["spec"]["suspend"] = True
    lost(world, "Preempted", restarts=0)


def test_a_raycluster_suspended_by_hand_is_waited_for():
    world = World().running()
    world.cluster["spec"]["suspend"] = True
    assert world.settle().status["attempt"] == 1


@pytest.mark.parametrize(
    ("view", "words"),
    [
        ({"status": "FAILED", "message": "runtime_env setup failed"}, "runtime_env setup failed"),
        ({"status": "FAILED", "exit_code": 137, "tail": "Killed"}, "Killed"),
        ({"status": "STOPPED"}, "no reason given"),
    ],
)
def test_a_launcher_that_ends_before_it_started_primemaster_is_a_failed_submission(view: dict, words: str):
    world = World().settle().head_ready().settle().launcher(**view)
    lost(world, "SubmissionFailed")
    assert words in world.status["message"]


def test_a_submission_that_is_refused_too_often():
    world = World().settle().head_ready()
    world.step()
    world.troubles = (Trouble("Submit", 500, "No available agent", 19),)
    assert world.look().actions
    world.troubles = (Trouble("Submit", 500, "No available agent", 20),)
    lost(world, "SubmissionFailed")


def test_a_submission_that_news_repeats_without_a_pause_has_not_failed_yet():
    """Two operators that overlap write different things into the status, and each write brings the other's key."""
    world = World().settle().head_ready()
    world.step()
    world.troubles = (Trouble("Submit", 0, "cannot connect", 20, since=world.now - 2),)
    assert world.look().actions
    world.later(attempts.TOO_LONG_SECONDS)
    lost(world, "SubmissionFailed")


def test_a_submission_that_ray_has_taken_was_not_refused_though_its_answer_was_lost():
    world = World().settle().head_ready().settle()
    world.troubles = (Trouble("Submit", 500, "Request timed out", 20),)
    world.settle()
    assert (world.status["attempt"], world.cond("MasterReady")) == (1, ("False", "Submitted"))


def test_an_old_submission_trouble_changes_nothing_when_primemaster_speaks():
    world = World().running()
    world.troubles = (Trouble("Submit", 500, "No available agent", 99),)
    assert world.settle().status["attempt"] == 1


@pytest.mark.parametrize("age", [59.0, 61.0])
def test_a_dead_launcher_matters_when_primemaster_is_silent_for_long(age: float):
    world = World().running().launcher("FAILED", exit_code=137).silent(age)
    if age < 60:
        assert world.settle().status["attempt"] == 1
    else:
        lost(world, "MasterLost")


@pytest.mark.parametrize("age", [59.0, 60.0])
def test_a_submission_that_ray_forgot_matters_when_primemaster_is_silent_for_long(age: float):
    """The head restarted before its first session was written down."""
    world = World().running().silent(age)
    world.said = RayJobView(world.status["submissionId"], "MISSING", session="session-1")
    if age < 60:
        assert world.settle().status["attempt"] == 1
    else:
        assert "Ray does not know the submission" in lost(world, "MasterLost").status["message"]


def test_a_dead_launcher_of_a_living_master_changes_nothing():
    world = World().running().launcher("STOPPED").settle()
    assert world.status["attempt"] == 1
    assert world.phase == "Running"


def test_lost_attempts_beyond_the_budget_fail_the_job():
    world = World(dljob(faultTolerance={"maxClusterRestarts": 1})).running().new_session()
    world.settle()
    assert world.status["attempt"] == 2
    world.head_ready("pod-2").settle().workers_ready().master().settle().new_session().settle()
    assert (world.phase, world.status["reason"]) == ("Failed", "ClusterRestartsExhausted")
    assert "maxClusterRestarts of 1 is used up" in world.status["message"]
    assert "session" in world.status["message"]
    assert world.clusters == {}


def test_preemptions_do_not_count():
    world = World(dljob(scheduling={"queueName": "research"}, faultTolerance={"maxClusterRestarts": 0})).running()
    for attempt in (2, 3):
        world.cluster["spec"]["suspend"] = True
        world.settle()
        assert world.status["attempt"] == attempt
        world.head_ready(f"pod-{attempt}").settle().workers_ready().master().settle()
    assert world.phase == "Running"


def test_the_old_cluster_goes_before_the_new_one_is_made():
    world = World().running().new_session()
    world.step()
    (delete,) = world.step().actions
    assert isinstance(delete, Delete)
    assert delete.kind == "RayCluster"
    assert world.clusters == {}
    world.settle()
    assert world.name == names.cluster_name("hello", UID, 2)
    assert world.log.count("Create RayCluster") == 2


def _made_and_died() -> World:
    """The next attempt's RayCluster was made by an operator that died before the status named it, as older ones did."""
    world = World().running().new_session()
    world.step()
    world.step()
    for action in world.look().actions:
        world.execute(action)
    assert list(world.clusters) == [names.cluster_name("hello", UID, 2)]
    assert world.status["rayCluster"]["name"] == names.cluster_name("hello", UID, 1)
    return world.restarted()


def test_a_cluster_whose_maker_died_is_kept_and_not_waited_for():
    world = _made_and_died()
    made = world.cluster["metadata"]["uid"]
    assert world.step().actions == ()
    assert (world.status["rayCluster"]["name"], world.status["rayCluster"]["uid"]) == (world.name, made)
    assert world.calm().phase == "Succeeded"
    assert (world.status["attempt"], world.log.count("Create RayCluster")) == (2, 2)


def test_a_cluster_whose_maker_died_goes_when_the_job_is_suspended():
    world = _made_and_died()
    world.edit(suspend=True).settle()
    assert (world.clusters, world.phase) == ({}, "Suspended")
    world.edit(suspend=False).calm()
    assert (world.phase, world.log.count("Create RayCluster")) == ("Succeeded", 3)


def test_a_cluster_that_is_leaving_is_waited_for():
    world = World().running().new_session()
    world.step()
    world.cluster["metadata"]["deletionTimestamp"] = "2027-01-15T08:01:00Z"
    world.settle()
    assert list(world.clusters) == [names.cluster_name("hello", UID, 1)]
    assert world.look().requeue is not None
    assert world.look().reason == "the last attempt's RayCluster and pods are being deleted"


def test_pods_that_linger_are_waited_for_until_their_lease_is_over():
    world = World(dljob(faultTolerance={"leaseSeconds": 20})).running().new_session()
    world.step()
    old = names.cluster_name("hello", UID, 1)
    pods = world.pods[old]
    world.step()
    world.pods[old] = pods
    outcome = world.settle().look()
    assert world.clusters == {}
    assert outcome.requeue == 20 + attempts.CLOCKS_SECONDS
    assert world.later(24).look().actions == ()
    world.later(2).settle()
    assert world.name == names.cluster_name("hello", UID, 2)
    assert world.status["rayCluster"]["name"] == world.name


def leaving(world: World, grace: float = 30.0) -> World:
    """The garbage collector deletes the pods of the last attempt: each has its grace."""
    old = names.cluster_name("hello", UID, 1)
    world.pods[old] = [replace(pod, leaving=True, ready=False, ends=world.now + grace) for pod in world.pods[old]]
    return world


def held(world: World) -> float | None:
    """Seconds for which the next attempt waits at most."""
    return attempts.clearing(ReconcileContext(world.observed(), world.settings, world.now))


def given_up(world: World) -> World:
    """The pods of the last attempt outlive its RayCluster, and nobody has told them to end yet."""
    old = names.cluster_name("hello", UID, 1)
    pods = world.pods[old]
    while old in world.clusters:
        world.step()
    world.pods[old] = pods
    return world


def test_a_master_that_the_status_never_told_of_leaves_ranks_all_the_same():
    """An operator may die before it writes what it heard, or before it hears at all."""
    world = World().settle().later(600).head_ready().settle().workers_ready()
    assert world.cond("MasterReady") == ("False", "Submitted")
    pods = world.pods[world.name]
    world.delete_cluster()
    world.step()
    world.pods[names.cluster_name("hello", UID, 1)] = pods
    assert leaving(world).settle().clusters == {}
    assert held(world) == attempts.GRACE_SECONDS + 30 + attempts.CLOCKS_SECONDS
    world.pods.clear()
    assert world.settle().clusters


def test_ranks_of_an_attempt_that_was_suspended_before_its_master_spoke_are_waited_for():
    """Nothing failed, and the condition MasterReady was never True: only the pods tell how long the head lives."""
    world = World().settle().later(600).head_ready().settle().workers_ready()
    world.edit(suspend=True).step()
    given_up(world.later(130).launcher("FAILED", exit_code=137))
    leaving(world).edit(suspend=False).later(29).settle()
    assert world.clusters == {}
    assert held(world) == pytest.approx(1 + 30 + attempts.CLOCKS_SECONDS)
    assert world.later(37).settle().name == names.cluster_name("hello", UID, 2)


@pytest.mark.parametrize(("away", "grace"), [(600.0, 30.0), (0.0, 150.0)])
def test_a_head_renews_the_lease_until_its_pod_ends(away: float, grace: float):
    """The operator may have been away before it deleted the RayCluster, and a template may grant a longer grace."""
    world = World().running().silent(61).launcher("FAILED", exit_code=137)
    lost(world, "MasterLost").later(away)
    leaving(given_up(world), grace).later(grace - 1).settle()
    assert world.clusters == {}
    assert held(world) == pytest.approx(1 + 30 + attempts.CLOCKS_SECONDS)
    assert world.later(37).settle().name == names.cluster_name("hello", UID, 2)


def test_pods_that_the_garbage_collector_has_not_come_to_are_waited_for():
    world = World().running().silent(61).launcher("FAILED", exit_code=137)
    given_up(lost(world, "MasterLost")).later(600).settle()
    assert (world.clusters, world.look().requeue) == ({}, attempts.COLLECTED_SECONDS)
    assert leaving(world).later(66).settle().name == names.cluster_name("hello", UID, 2)


def test_a_fault_of_an_earlier_attempt_says_nothing_of_the_head_of_the_last_one():
    world = World().running().new_session().settle()
    world.head_ready("pod-2").settle().workers_ready()
    assert (world.status["attempt"], world.status["lastFault"]["reason"]) == (2, "HeadLost")
    second = world.name
    world.edit(suspend=True).step()
    world.later(130).launcher("FAILED", exit_code=137)
    pods = world.pods[second]
    while second in world.clusters:
        world.step()
    world.pods[second] = [replace(pod, leaving=True, ends=world.now + 30) for pod in pods]
    world.edit(suspend=False).later(40).settle()
    assert world.clusters == {}
    assert held(world) == pytest.approx(-10 + 30 + attempts.CLOCKS_SECONDS)


def test_a_silent_master_is_looked_at_again_when_its_silence_means_more():
    world = World().running().silent(4.0)
    assert world.look().requeue == 6.0
    assert world.silent(12.0).look().requeue is not None
    world.settle()
    assert world.look().requeue == 48.0
    assert world.silent(61.0).settle().look().requeue is None


def test_a_new_attempt_after_the_spec_went_wrong_waits_for_pods_too():
    world = World().running().new_session()
    world.step()
    world.job["spec"]["roles"] = []
    old = names.cluster_name("hello", UID, 1)
    pods = world.pods[old]
    world.step()
    world.pods[old] = pods
    assert world.settle().look().requeue == 30 + attempts.CLOCKS_SECONDS


@pytest.mark.parametrize("phase", ["Provisioning", "Suspended", "Succeeded"])
def test_a_raycluster_that_comes_after_its_attempt_is_deleted(phase):
    world = World().running()
    late = copy.deepcopy(world.cluster)
    world.delete_cluster().settle()
    assert world.status["attempt"] == 2
    if phase == "Suspended":
        world.edit(suspend=True).settle()
        world.clusters.clear()
        world.settle()
    elif phase == "Succeeded":
        world.calm()
    assert world.phase in {phase, "Recovering"}
    foreign = {**late, "metadata": {**late["metadata"], "ownerReferences": []}}
    world.clusters[late["metadata"]["name"]] = foreign
    assert world.look().actions == ()
    world.clusters[late["metadata"]["name"]] = late
    (action,) = world.look().actions
    assert (action.kind, action.name, action.uid) == ("RayCluster", late["metadata"]["name"], late["metadata"]["uid"])
    world.settle()
    assert late["metadata"]["name"] not in world.clusters


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_a_lost_attempt_is_recovered_once_a_later_one_runs_or_has_succeeded(phase: str):
    """A short job may succeed between two reports."""
    it = World().running().new_session().head_ready("pod-2").settle().later(60).settle()
    assert "recoveredAt" not in it.status["lastFault"]
    it.head_ready("pod-3").settle().master(phase).settle()
    assert it.status["lastFault"]["recoveredAt"] == stamp(it.now)


def test_a_node_that_was_left_and_the_restart_of_its_rank_are_one_restart():
    it = World().running().master(restarts={"node": 1, "process": 1}).settle()
    assert (it.status["restarts"]["node"], it.status["restartsTotal"]) == (1, 1)
