"""A head that is lost and has its memory again: no attempt is lost, and a launcher is ordered once a head."""

from __future__ import annotations

from dataclasses import replace

import pytest
from reconcile_kit import SETTINGS, World, dljob

from dljob.reconcile.state import names
from dljob.reconcile.state.accept import Terms, source, terms
from dljob.reconcile.state.model import Submit

KEPT = {"gcsFaultTolerance": {"backend": "RocksDB", "claimName": "gcs"}}


@pytest.fixture
def world() -> World:
    return World(dljob(**KEPT)).running()


def sent(world: World) -> list[str]:
    return [id_ for id_, _ in world.submissions]


@pytest.mark.parametrize(
    ("pod", "words"), [("", "the head restarted in pod"), ("pod-2", "was replaced by hello-ed4f5-pod-2")]
)
def test_a_head_that_kept_its_memory_loses_only_its_launcher(world: World, pod: str, words: str) -> None:
    (first,) = sent(world)
    before = dict(world.status)
    world.kept_head(pod)
    phases = set()
    for _ in range(5):
        world.step()
        phases.add(world.phase)
    assert phases == {"Running"}
    world.settle().master("Running").settle()
    assert sent(world) == [first, f"{first}-r1"]
    assert world.posted[f"{first}-r1"].session == "session-1"
    assert world.posted[first].session == ""
    assert world.posted[f"{first}-r1"].argv == world.posted[first].argv
    same = ("attempt", "phase", "restartsTotal", "attemptSpecHash", "master")
    assert [world.status[key] for key in same] == [before[key] for key in same]
    (told,) = [event for event in world.events if event.reason == "HeadReplaced"]
    assert (told.type, words in told.message, f"{first}-r1" in told.message) == ("Warning", True, True)
    world.kept_head().settle()
    assert sent(world)[2:] == [f"{first}-r2"]
    assert world.status["submissionId"] == f"{first}-r2"


def test_the_launcher_is_not_ordered_before_the_new_head_is_ready(world: World) -> None:
    world.kept_head("pod-2").condition("HeadPodReady", "False").settle()
    assert len(sent(world)) == 1
    assert world.phase == "Running"
    world.condition("HeadPodReady").settle()
    assert len(sent(world)) == 2


def test_a_head_that_lost_its_memory_all_the_same_is_a_lost_attempt(world: World) -> None:
    world.new_session().settle()
    assert (world.status["attempt"], world.status["lastFault"]["reason"]) == (2, "HeadLost")
    assert "Ray's session is session-2 now" in world.status["lastFault"]["firstCause"]


def test_nothing_is_posted_to_a_head_whose_new_session_is_not_known(world: World) -> None:
    world.kept_head("pod-2")
    world.session = "session-2"
    for _ in range(5):
        world.step()
    assert len(sent(world)) == 1


def test_a_head_that_changes_before_its_session_is_known_costs_the_attempt() -> None:
    world = World(dljob(**KEPT)).settle().head_ready()
    while "submissionId" not in world.status:
        world.step()
    world.said = world.watch = None
    world.job["status"]["rayCluster"].pop("sessionName", None)
    world.kept_head("pod-2")
    assert world.look().reason == "attempt 1 is lost: HeadLost"


def test_silence_while_there_is_no_head_is_no_lost_master(world: World) -> None:
    world.launcher("FAILED", exit_code=137, message="killed").silent(300.0)
    world.kept_head("pod-2").silent(300.0).condition("HeadPodReady", "False").settle()
    assert world.status["attempt"] == 1
    world.condition("HeadPodReady")
    world.step()
    assert world.status["submissionId"].endswith("-r1"), (
        "it is another head: what is known of the launcher is of before"
    )
    world.settle()
    world.launcher("FAILED", exit_code=137, message="killed").silent(300.0).settle()
    assert (world.status["attempt"], world.status["lastFault"]["reason"]) == (2, "MasterLost")


def test_the_next_attempt_counts_its_launchers_anew(world: World) -> None:
    world.kept_head().settle().new_session().settle().later(600).settle().head_ready("pod-9").settle()
    assert world.status["submissionId"].endswith("-2")


def test_pods_of_a_kept_head_run_the_old_spec_after_an_edit(world: World) -> None:
    (first,) = sent(world)
    world.edit(runtimeEnv={"env_vars": {"A": "2"}}).settle()
    world.kept_head().settle()
    assert sent(world) == [first, f"{first}-r1"]
    digest = world.status["attemptSpecHash"]
    assert (
        world.posted[f"{first}-r1"].metadata[names.SPEC_HASH] == digest == world.posted[first].metadata[names.SPEC_HASH]
    )


def test_with_a_spec_that_cannot_be_read_the_job_goes_on_without_a_launcher(world: World) -> None:
    whole = world.job["spec"]["roles"]
    world.edit(roles=[]).settle()
    world.kept_head().settle()
    assert len(sent(world)) == 1
    world.edit(roles=whole).settle()
    assert len(sent(world)) == 2


def test_an_upgraded_operator_orders_no_launcher_that_older_pods_would_refuse(world: World) -> None:
    older = world.settings
    world.settings = replace(older, version="9.9.9")
    world.kept_head().settle()
    assert (len(sent(world)), world.status["attempt"]) == (1, 1)
    world.settings = older
    world.step()
    assert world.status["submissionId"].endswith("-r1")
    world.settings = replace(older, version="9.9.9")
    world.settle()
    assert len(sent(world)) == 1


def test_an_operator_that_comes_back_posts_again_what_ray_refuses_as_known(world: World) -> None:
    world.kept_head().settle()
    world.restarted()
    outcome = world.look()
    assert [type(action) for action in outcome.actions] == [Submit]
    world.settle()
    assert len(sent(world)) == 2


def test_a_head_pod_that_is_gone_is_waited_for(world: World) -> None:
    world.launcher("FAILED", exit_code=137, message="killed").silent(300.0)
    world.pods[world.name] = [pod for pod in world.pods[world.name] if not pod.head]
    world.settle()
    assert (world.status["attempt"], len(sent(world))) == (1, 1)


@pytest.mark.parametrize(("spec", "seconds"), [({}, 30), (KEPT, 120)])
def test_the_next_attempt_waits_for_the_lease_that_holds(spec: dict[str, object], seconds: int) -> None:
    found = terms(source(dljob(**spec)), SETTINGS)
    assert isinstance(found, Terms)
    assert found.lease_seconds == seconds
