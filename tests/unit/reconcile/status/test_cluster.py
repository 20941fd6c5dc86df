"""ClusterReady, in the words of whoever knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from reconcile_kit import World, dljob

from dljob.reconcile.state.model import Pod, Trouble

NOTES = Path(__file__).parents[4] / "charts/dljob/templates/NOTES.txt"
QUOTA = 'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: 0, limited: 4'


def waiting(world: World, name: str, reason: str, words: str, *, head: bool = False, **more: object) -> Pod:
    pod = Pod(name, f"uid-{name}", head, "headgroup" if head else "cpu1", "Pending", ready=False)
    return replace(pod, trouble=words, trouble_reason=reason, **more)


@pytest.mark.parametrize(
    ("kuberay", "reason", "fix"),
    [("missing", "KubeRayMissing", "install the KubeRay operator"), ("old", "KubeRayTooOld", "upgrade KubeRay")],
)
def test_a_kuberay_that_cannot_serve_is_told_with_the_reason(kuberay: str, reason: str, fix: str):
    world = World(kuberay=kuberay).settle()
    assert world.cond("ClusterReady") == ("False", reason)
    assert fix in world.message("ClusterReady")
    assert (world.phase, world.status["reason"]) == ("Pending", reason)


def test_the_notes_of_the_chart_name_the_condition_that_tells_of_a_missing_kuberay():
    world = World(kuberay="missing").settle()
    assert world.cond("ClusterReady") == ("False", "KubeRayMissing")
    assert "(condition ClusterReady)" in NOTES.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (Trouble("CreateRayCluster", 403, "exceeded quota", 1), "CreationRefused"),
        (Trouble("CreateConfigMap", 422, "too long", 9), "CreationRefused"),
        (Trouble("CreateToken", 403, "no right to create secrets", 1), "CreationRefused"),
        (Trouble("CreateConfigMap", 409, "ConfigMap x belongs to somebody else", 1), "NameTaken"),
    ],
)
def test_a_child_refused_by_the_server_is_told_with_the_reason(trouble: Trouble, reason: str):
    world = World(troubles=(Trouble("SaveLogs", 500, "other", 1), trouble))
    world.step()
    assert world.cond("ClusterReady") == ("False", reason)
    assert world.message("ClusterReady").startswith(f"{trouble.action}: {trouble.message}; ")
    assert world.status["reason"] == reason


@pytest.mark.parametrize("first", ["", "FailedCreateHeadPod\n"])
def test_pods_refused_by_the_server_are_told_with_a_hint(first: str):
    world = World().settle().condition("ReplicaFailure", reason="FailedCreateHeadPod", message=first + QUOTA).settle()
    assert world.cond("ClusterReady") == ("False", "FailedCreateHeadPod")
    what_to_do = "raise the quota or give something back; it is tried again by itself"
    assert world.message("ClusterReady") == f"{QUOTA}; {what_to_do}"
    assert world.events[-1].type == "Warning"
    assert (world.phase, world.status["reason"]) == ("Provisioning", "FailedCreateHeadPod")


def test_a_replica_failure_without_words_is_creation_refused():
    world = World().settle().condition("ReplicaFailure").settle()
    assert world.cond("ClusterReady") == ("False", "CreationRefused")
    assert world.message("ClusterReady") == "0 of 1 worker pods are ready"


def ignored(**more: object) -> World:
    """A RayCluster that KubeRay has written nothing to."""
    world = World(**more).settle()
    world.cluster["status"] = {}
    return world


def test_a_raycluster_refused_by_kuberay_is_told_with_its_words():
    words = "The RayCluster spec is invalid team/hello: authOptions.mode is 'token' but minimum Ray version is 2.52.0"
    world = ignored(objection=("InvalidRayClusterSpec", words)).settle()
    assert world.cond("ClusterReady") == ("False", "InvalidRayClusterSpec")
    assert world.message("ClusterReady") == f"{words}; correct the spec; the job then begins anew by itself"
    assert world.events[-1].type == "Warning"
    assert (world.phase, world.status["reason"]) == ("Provisioning", "InvalidRayClusterSpec")


def test_a_raycluster_that_kuberay_ignores_is_told_after_thirty_seconds():
    world = ignored()
    assert world.look().requeue == 30
    world.later(29).settle()
    assert world.cond("ClusterReady") == ("False", "HeadPending")
    world.later(1).settle()
    assert world.cond("ClusterReady") == ("False", "KubeRaySilent")
    assert world.message("ClusterReady") == (
        f"KubeRay has done nothing about RayCluster {world.name}: see that its operator runs"
        " (kubectl get pods -A -l app.kubernetes.io/name=kuberay-operator); the job goes on by itself"
    )
    assert world.events[-1].type == "Warning"
    assert world.look().requeue is None
    world.head_ready().workers_ready().settle()
    assert world.cond("ClusterReady") == ("True", "PodsReady")


def test_a_head_that_cannot_get_its_image_is_told():
    world = World().settle()
    world.pods[world.name] = [waiting(world, "h", "ImagePullBackOff", "ImagePullBackOff: no such image", head=True)]
    world.settle()
    assert world.cond("ClusterReady") == ("False", "ImagePullBackOff")
    assert world.message("ClusterReady") == (
        "pod h: ImagePullBackOff: no such image; correct the image, or its imagePullSecrets"
    )
    assert world.status["reason"] == "ImagePullBackOff"


def test_unschedulable_workers_are_told_after_the_submission_too():
    world = World().settle().head_ready()
    head = world.pods[world.name][0]
    stuck = [waiting(world, f"w{n}", "Unschedulable", "Unschedulable: 0/3 nodes", leaving=n == 0) for n in range(3)]
    world.pods[world.name] = [head, *stuck]
    world.settle()
    assert world.cond("ClusterReady") == ("False", "Unschedulable")
    assert world.message("ClusterReady") == (
        "pod w1 (and 1 other): Unschedulable: 0/3 nodes; make room, or ask for less; the pod then goes on by itself"
    )
    assert (world.phase, world.status["reason"]) == ("Scheduling", "Unschedulable")
    assert world.submissions


@pytest.mark.parametrize("trouble", ["Error", "CrashLoopBackOff"])
@pytest.mark.parametrize("lasting", ["Unschedulable", "CreateContainerConfigError", "ImagePullBackOff"])
def test_a_head_that_starts_again_hides_nothing_that_lasts(trouble: str, lasting: str):
    world = World().settle()
    head = waiting(world, "h", trouble, f"{trouble}: container ray-head ended with exit code 1", head=True)
    world.pods[world.name] = [head, waiting(world, "w", lasting, f"{lasting}: so it is")]
    world.settle()
    assert world.cond("ClusterReady") == ("False", lasting)
    assert world.message("ClusterReady").startswith(f"pod w (and 1 other): {lasting}: so it is")


@pytest.mark.parametrize(("head", "reason"), [(True, "HeadPending"), (False, "WorkersPending")])
def test_a_pods_trouble_without_a_reason_is_head_or_workers_pending(head: bool, reason: str):
    world = World().settle()
    world.pods[world.name] = [waiting(world, "x", "", "something", head=head)]
    assert world.settle().cond("ClusterReady") == ("False", reason)


def test_pods_that_come_one_by_one_are_counted_in_the_message():
    world = World(dljob(nodeGroups=[{"name": "cpu", "cpu": "2", "replicas": 3}])).settle()
    assert world.cond("ClusterReady") == ("False", "HeadPending")
    world.head_ready().workers_ready(1, 3).settle()
    assert world.cond("ClusterReady") == ("False", "WorkersPending")
    assert world.message("ClusterReady") == "1 of 3 worker pods are ready"
    assert world.status["nodes"] == {"desired": 3, "ready": 1}
    assert (world.phase, world.status["reason"]) == ("Scheduling", "Starting")
    world.workers_ready(3, 3).settle()
    assert world.cond("ClusterReady") == ("True", "PodsReady")


def test_a_head_without_an_address_is_not_ready():
    world = World().settle().head_ready()
    world.cluster["status"]["head"] = {}
    world.settle()
    assert world.cond("ClusterReady") == ("False", "HeadPending")
    assert "submissionId" not in world.status


def test_a_cluster_that_is_leaving_is_waited_for():
    world = World().running()
    world.cluster["metadata"]["deletionTimestamp"] = "2027-01-15T08:01:00Z"
    outcome = world.step()
    assert world.cond("ClusterReady") == ("False", "ClusterLeaving")
    assert outcome.watch is None
    world.settle()
    assert world.status["attempt"] == 1
    world.delete_cluster()
    world.step()
    assert world.status["attempt"] == 2


def test_a_raycluster_suspended_by_hand_is_told():
    world = World().settle()
    world.cluster["spec"]["suspend"] = True
    world.settle()
    assert world.cond("ClusterReady") == ("False", "ClusterSuspended")
    assert (world.phase, world.status["reason"]) == ("Queued", "ClusterSuspended")


FORBIDDEN = 'rayclusters.ray.io "x" is forbidden: User cannot delete resource'


def undeletable(world: World, steps: int) -> World:
    """Its RayCluster is to go, and the server refuses that."""
    for _ in range(steps):
        world.step()
    world.troubles = (Trouble(f"DeleteRayCluster {world.name}", 403, FORBIDDEN, 2),)
    return seen(world)


def seen(world: World) -> World:
    """A pass whose actions come to nothing."""
    world.job["status"] = dict(world.look().status or world.status)
    return world


@pytest.mark.parametrize("why", ["over", "lost"])
def test_a_deletion_refused_by_the_server_is_told(why: str):
    over, lost = World().running().master("Succeeded"), World().running().new_session()
    world = undeletable(over, 2) if why == "over" else undeletable(lost, 1)
    assert world.cond("ClusterReady") == ("False", "DeletionRefused")
    assert world.message("ClusterReady") == FORBIDDEN
    world.troubles = ()
    assert seen(world).message("ClusterReady") == FORBIDDEN, "an operator that comes back has not tried yet"


@pytest.mark.parametrize("why", ["over", "lost"])
def test_a_deletion_whose_answer_was_lost_is_told_until_it_is_done(why: str):
    over, lost = World().running().master("Succeeded"), World().running().new_session()
    world = undeletable(over, 2) if why == "over" else undeletable(lost, 1)
    name = world.name
    world.cluster["metadata"]["deletionTimestamp"] = "2027-01-15T08:01:00Z"
    assert seen(world).cond("ClusterReady") == ("False", "ClusterLeaving")
    assert world.message("ClusterReady") == f"RayCluster {name} is being deleted"
    world.delete_cluster()
    world.settle()
    assert world.cond("ClusterReady")[1] == ("ClusterDeleted" if why == "over" else "HeadPending")


def test_a_finished_deletion_whose_answer_was_lost_is_not_told():
    world = undeletable(World().running().master("Succeeded"), 2).delete_cluster().settle()
    assert world.cond("ClusterReady") == ("False", "ClusterDeleted")
    world = undeletable(World().running().new_session(), 1)
    pods, name = world.pods[world.name], world.name
    world.delete_cluster().pods[name] = pods
    assert seen(world).cond("ClusterReady") == ("False", "ClusterLeaving")
    assert World(troubles=world.troubles).settle().cond("ClusterReady") == ("False", "HeadPending")


def test_a_deletion_that_was_refused_says_nothing_of_another_cluster():
    kept = World(dljob(cleanupPolicy="Retain"))
    kept.troubles = (Trouble("DeleteRayCluster hello-00000", 504, "timed out", 1),)
    assert kept.running().master("Succeeded").settle().cond("ClusterReady") == ("True", "ClusterKept")


def test_a_kept_cluster_stays_ready():
    world = World(dljob(cleanupPolicy="Retain")).running().master("Succeeded").settle()
    assert world.cond("ClusterReady") == ("True", "ClusterKept")
    assert world.clusters


def test_a_slow_head_is_told_by_its_phase():
    world = World().settle()
    assert world.message("ClusterReady") == "there is no head pod yet"
    world.pods[world.name] = [Pod("h", "u", head=True, group="headgroup", phase="Pending", ready=False)]
    world.later(15).settle()
    assert world.message("ClusterReady") == "head pod h is Pending, not ready"


def test_counts_that_are_not_known_yet_are_not_enough():
    world = World().settle().head_ready().workers_ready(0, 0).settle()
    assert world.cond("ClusterReady") == ("False", "WorkersPending")
