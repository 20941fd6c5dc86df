"""When the launcher is posted, and what is posted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reconcile_kit import UID, World, dljob
from test_reference import world as on_shared

from dljob.reconcile.state.model import RayJobView, Submit, Trouble, Watch


def ordered(**spec: object) -> World:
    world = World(dljob(**spec)).settle().head_ready()
    world.step()
    assert world.status["submissionId"] == f"hello-{UID[:8]}-1"
    return world


def test_nothing_is_submitted_before_the_head_is_ready():
    world = World().settle()
    assert "submissionId" not in world.status
    world.condition("HeadPodReady", "False").settle()
    assert "submissionId" not in world.status


def test_the_launcher_is_submitted_before_the_workers_are_ready():
    world = ordered()
    assert world.cond("MasterReady") == ("False", "Submitted")
    assert (world.phase, world.status["reason"]) == ("Scheduling", "Starting")
    (submit,) = world.look().actions
    assert isinstance(submit, Submit)
    assert submit.address == "10.0.0.1"
    assert submit.runtime_env == {}
    assert submit.metadata == {
        "dljob.io/name": "hello",
        "dljob.io/namespace": "team",
        "dljob.io/uid": UID,
        "dljob.io/spec-hash": world.status["attemptSpecHash"],
    }
    assert submit.head == (f"{world.name}-head", "containerd://pod-1-session-1")


def test_the_runtime_environment_and_version_are_the_specs():
    world = ordered(rayVersion="2.60.1", runtimeEnv={"pip": ["einops"], "working_dir": "s3://b/c.zip"})
    (submit,) = world.look().actions
    assert submit.runtime_env == {"pip": ["einops"], "working_dir": "s3://b/c.zip"}
    assert "2.60.1" in submit.argv


@pytest.mark.parametrize("status", ["", "MISSING"])
def test_a_submission_is_posted_again_until_ray_knows_it(status: str):
    world = ordered()
    world.said = RayJobView(world.status["submissionId"], status)
    assert [type(action) for action in world.look().actions] == [Submit]


@pytest.mark.parametrize("status", ["PENDING", "RUNNING"])
def test_a_submission_that_ray_knows_is_not_posted_again(status: str):
    world = ordered()
    world.said = RayJobView(world.status["submissionId"], status)
    assert world.look().actions == ()


def test_a_submission_ray_forgot_is_not_posted_again_once_primemaster_has_spoken():
    world = World().running()
    world.said = RayJobView(world.status["submissionId"], "MISSING", session="session-1")
    assert world.look().actions == ()
    world.restarted()
    assert world.look().actions == ()


def test_a_refused_submission_is_said_and_tried_again():
    world = ordered()
    world.troubles = (Trouble("Submit", 500, "No available agent to submit job", 2),)
    world.step()
    assert world.cond("MasterReady") == ("False", "SubmissionRefused")
    assert world.message("MasterReady") == "No available agent to submit job"
    assert [type(action) for action in world.outcome.actions] == [Submit]


def test_a_token_that_is_refused_is_said_with_what_to_do():
    world = ordered()
    words = "submission hello-1: the head does not take the token (HTTP 403): Forbidden: Invalid authentication token"
    world.troubles = (Trouble("Submit", 403, words, 1),)
    world.step()
    assert world.cond("MasterReady") == ("False", "SubmissionRefused")
    assert world.message("MasterReady").startswith(f"{words}; the Secret of its token was made with another key")


@pytest.mark.parametrize(("count", "reason"), [(3, "Submitted"), (4, "SubmissionRefused")])
def test_a_head_that_does_not_answer_yet_is_no_refusal(count: int, reason: str):
    world = ordered()
    world.troubles = (Trouble("Submit", 0, "connection refused", count),)
    world.step()
    assert world.cond("MasterReady") == ("False", reason)


def test_the_watch_is_of_the_head_of_the_attempt():
    world = ordered()
    watch = world.look().watch
    assert watch == Watch(world.name, "10.0.0.1", UID.replace("-", ""), f"hello-{UID[:8]}-1", 1)


def test_the_word_of_another_submission_is_not_heard():
    world = ordered()
    world.master("Succeeded")
    world.said = RayJobView("hello-of-old", "SUCCEEDED")
    outcome = world.step()
    assert [type(action) for action in outcome.actions] == [Submit]
    assert world.phase == "Scheduling"


def test_the_head_that_the_submission_was_made_to_is_remembered():
    world = ordered().settle()
    assert world.status["rayCluster"]["headPodUID"] == "pod-1"
    assert world.status["rayCluster"]["sessionName"] == "session-1"
    assert world.status["rayCluster"]["dashboardURL"] == f"http://{world.name}-head-svc.team.svc:8265"


def test_another_head_before_the_submission_is_no_lost_attempt():
    world = World().settle()
    world.head_ready("pod-1").condition("HeadPodReady", "False").settle()
    assert world.status["rayCluster"]["headPodUID"] == "pod-1"
    world.head_ready("pod-2").settle()
    assert world.status["rayCluster"]["headPodUID"] == "pod-2"
    assert world.status["attempt"] == 1


def test_nothing_is_submitted_before_the_heads_pod_is_seen():
    """Whom the submission is meant for is written with the order."""
    world = World().settle().head_ready()
    pods = world.pods[world.name]
    for seen in ([], [replace(pods[0], ready=False, container="")]):
        world.pods[world.name] = seen
        assert world.look().reason == "KubeRay reports a ready head, and the pod is not known as ready yet"
        world.settle()
        assert "submissionId" not in world.status
    world.pods[world.name] = pods
    world.settle()
    assert world.status["rayCluster"]["headContainer"] == "containerd://pod-1-session-1"


def test_a_kubelet_that_names_no_container_is_no_other_head():
    world = World().settle().head_ready()
    (head,) = world.pods[world.name]
    world.pods[world.name] = [replace(head, container="")]
    world.settle()
    assert "headContainer" not in world.status["rayCluster"]
    assert len(world.submissions) == 1
    world.pods[world.name] = [head]
    world.settle()
    assert world.status["attempt"] == 1
    world.workers_ready().master("Running").settle()
    world.pods[world.name] = [replace(head, container="")]
    assert world.settle().status["attempt"] == 1


def test_a_restart_of_the_head_is_seen_before_ray_answers_again():
    world = World().running()
    (head, *workers) = world.pods[world.name]
    world.pods[world.name] = [replace(head, container="containerd://b", trouble="OOMKilled"), *workers]
    world.step()
    why = "the head restarted: the container of pod hello-ed4f5-head is another one now; OOMKilled"
    assert (world.status["attempt"], world.status["reason"], world.status["message"]) == (2, "HeadLost", why)


def test_a_spec_that_was_broken_after_the_order_posts_nothing():
    world = ordered()
    whole = world.job["spec"]["roles"]
    world.edit(roles=[])
    assert world.look().reason == "waits for a better spec: InvalidSpec"
    assert world.settle().submissions == []
    world.edit(roles=whole).settle()
    assert len(world.submissions) == 1


def test_a_spec_that_was_changed_after_the_order_waits_for_rays_word():
    world = ordered()
    world.watch = world.said = None
    world.edit(runtimeEnv={"env_vars": {"A": "1"}})
    outcome = world.look()
    assert outcome.actions == ()
    assert "waits until Ray tells whether it has that one" in outcome.reason
    world.settle()
    assert (world.status["attempt"], world.submissions) == (2, [])
    assert "SpecChanged" in world.reasons()


def test_an_operator_that_was_upgraded_after_the_order_waits_for_rays_word():
    world = ordered()
    world.restarted().settings = replace(world.settings, version="0.2.0")
    outcome = world.step()
    assert outcome.actions == ()
    assert "the operator was upgraded since" in outcome.reason
    world.settle()
    assert (world.status["attempt"], world.submissions) == (2, [])
    assert "OperatorUpgraded" in world.reasons()


def test_on_a_raycluster_that_is_there_ray_says_which_spec_runs():
    world = on_shared()
    world.settle().head_ready().settle()
    runs = world.status["attemptSpecHash"]
    world.edit(runtimeEnv={"env_vars": {"A": "1"}}).restarted()
    world.step()
    assert world.status["attemptSpecHash"] != runs, "nobody has said that it was posted, so it is posted now"
    assert len(world.submissions) == 1, "Ray has that id, and keeps what it has"
    world.settle()
    assert world.status["attemptSpecHash"] == runs
    assert world.cond("Accepted") == ("True", "ChangeWaits")
    world.restarted().workers_ready().master("Running").step()
    assert world.status["attemptSpecHash"] == runs
