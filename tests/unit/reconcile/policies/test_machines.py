"""Bad Kubernetes nodes: remembered beyond pods and attempts, kept away from, left, and told apart from bad pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from reconcile_kit import NOW, World, dljob

from dljob.reconcile.children import patches
from dljob.reconcile.policies import machines
from dljob.reconcile.state import exclusions, names
from dljob.reconcile.state.context import stamp
from dljob.reconcile.state.model import Command, Delete, PatchCluster, Pod, Trouble, label

GROUPS = [{"name": "cpu", "cpu": "2", "replicas": 3}]


def exclusion(node: str = "ray-0", reason: str = "NodeFrozen", until: float = 3600.0) -> dict[str, Any]:
    return {"name": node, "reason": reason, "since": stamp(NOW), "until": stamp(NOW + until)}


def placed(made: World) -> World:
    """Each worker is a Ray node of its own, on a Kubernetes node of its own."""
    head, *workers = made.pods[made.name]
    made.pods[made.name] = [
        head,
        *(replace(pod, node=f"n{at}", annotations={names.RAY_NODE: f"ray-{at}"}) for at, pod in enumerate(workers)),
    ]
    return made


def world(*excluded: dict[str, Any], job: Any = None) -> World:
    """A running job of three workers, some of whose nodes PrimeMaster has left."""
    made = placed(World(job or dljob(nodeGroups=GROUPS)).running().workers_ready(3, 3)).settle()
    return said(made, *excluded) if excluded else made


def said(made: World, *excluded: dict[str, Any]) -> World:
    return made.master(nodes={"desired": 3, "ready": 2, "replaced": 1, "excluded": list(excluded)})


def worker(world: World, at: int, /, **change: Any) -> None:
    pods = world.pods[world.name]
    pods[at + 1] = replace(pods[at + 1], **change)


def kept(made: World) -> list[dict[str, Any]]:
    return made.status["nodes"].get("excluded", [])


def deleted(made: World) -> list[str]:
    """Pods that were deleted, in order."""
    return [line.removeprefix("Delete Pod ") for line in made.log if line.startswith("Delete Pod ")]


def test_a_bad_node_is_kept_away_from_and_its_pod_goes():
    made = world(exclusion()).settle()
    (one,) = kept(made)
    assert one == {**exclusion(), "kubernetesNode": "n0", "pod": f"{made.name}-w0", "avoided": True, "attempt": 1}
    assert patches.excluded(made.cluster) == ("n0",)
    assert deleted(made) == [f"{made.name}-w0 5"]
    assert made.reasons().count("NodeExcluded") == 1
    (event,) = (event for event in made.events if event.reason == "NodeExcluded")
    assert event.message == (
        f"pod {made.name}-w0 on Kubernetes node n0 is replaced: NodeFrozen; "
        f"new pods keep away from n0 until {one['until']}"
    )
    assert made.cond("ClusterReady") == ("True", "PodsReady"), "our own edit is none"


def test_all_nodes_of_a_rack_that_is_replaced_are_kept_away_from():
    lost = exclusion("ray-0", "NodeFrozen")
    made = world(lost, exclusion("ray-1", "DomainReplaced")).settle()
    assert patches.excluded(made.cluster) == ("n0", "n1")
    assert sorted(deleted(made)) == [f"{made.name}-w0 5", f"{made.name}-w1 5"]


def test_an_exclusion_is_written_before_the_raycluster_is_patched_and_pods_are_deleted():
    made = world(exclusion())
    first = made.step()
    assert (first.actions, first.status["nodes"]["excluded"][0]["kubernetesNode"]) == ((), "n0")
    worker(made, 0, annotations={})  # its units are elsewhere, and it says so no more
    (patch,) = made.step().actions
    assert patch == PatchCluster(made.name, made.cluster["metadata"]["uid"], ("n0",))
    (delete,) = made.step().actions
    assert delete == Delete("Pod", f"{made.name}-w0", "worker-0", grace=5)


@pytest.mark.parametrize("stop", range(4))
def test_an_operator_that_dies_in_between_comes_to_the_same_end(stop: int):
    made = world(exclusion())
    for _ in range(stop):
        made.step()
    made.restarted()
    made.settle()  # nobody has spoken to it yet
    said(made, exclusion()).settle()
    assert patches.excluded(made.cluster) == ("n0",)
    assert deleted(made) == [f"{made.name}-w0 5"]


def test_an_exclusion_whose_time_is_over_is_taken_back():
    made = said(world(exclusion()).settle()).settle()
    assert kept(made) == []
    assert patches.excluded(made.cluster) == ()
    assert made.cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"].get("affinity") is None
    (event,) = (event for event in made.events if event.reason == "NodeReadmitted")
    assert event.message == "new pods may go to Kubernetes node n0: it is excluded no longer"


def test_the_node_of_a_bad_pod_is_found_from_the_placement():
    made = world()
    worker(made, 0, annotations={})
    said(made, exclusion())
    made.view = replace(made.view, placement=({"pod": f"{made.name}-w0", "node": "ray-0", "units": [], "ranks": ""},))
    made.settle()
    assert kept(made)[0]["kubernetesNode"] == "n0"


@pytest.mark.parametrize(
    ("change", "one"),
    [
        ({"annotations": {}}, exclusion()),
        ({"node": ""}, exclusion()),
        ({}, exclusion(reason="Preempted")),
        ({}, exclusion("ray-9")),
    ],
    ids=["unknown pod", "no node", "only announced to go", "another node"],
)
def test_an_exclusion_without_a_known_node_is_only_shown(change: dict[str, Any], one: dict[str, Any]):
    made = world()
    worker(made, 0, **change)
    said(made, one).settle()
    assert kept(made) == [one]
    assert patches.excluded(made.cluster) == ()
    assert deleted(made) == []


def test_a_frozen_pod_beside_one_that_answers_marks_no_bad_node():
    made = world()
    worker(made, 1, node="n0")
    said(made, exclusion()).settle()
    assert kept(made)[0]["avoided"] is False
    assert patches.excluded(made.cluster) == ()
    assert deleted(made) == [f"{made.name}-w0 5"]
    assert "other pods of the job answer there, so n0 is used on" in made.events[-1].message


@pytest.mark.parametrize("change", [{"leaving": True}, {"ready": False}, {"annotations": {names.RAY_NODE: "ray-0"}}])
def test_a_silent_node_does_not_prove_that_its_neighbour_is_bad(change: dict[str, Any]):
    made = world()
    worker(made, 1, **{"node": "n0", **change})
    assert kept(said(made, exclusion()).settle())[0]["avoided"] is True


def test_a_broken_device_is_of_the_node_whoever_answers_there():
    made = world()
    worker(made, 1, node="n0")
    assert kept(said(made, exclusion(reason="DeviceError")).settle())[0]["avoided"] is True


# -- beyond the attempt


def lost(made: World) -> World:
    """The RayCluster goes; the next attempt has one of its own."""
    made.delete_cluster(made.name).settle()
    return made.later(60).settle()


def test_the_next_attempts_pods_keep_away_from_the_start_until_its_time_is_over():
    made = lost(world(exclusion()).settle())
    assert made.status["attempt"] == 2
    assert patches.excluded(made.cluster) == ("n0",)
    group = made.cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    assert list(patches.excluded_nodes(group)) == ["n0"]
    made.head_ready("pod-2").settle().workers_ready().master("Running").settle()
    assert [one["attempt"] for one in kept(made)] == [1], "PrimeMaster of this attempt knows nothing of it"
    assert made.cond("ClusterReady") == ("True", "PodsReady")
    assert 0 < made.outcome.requeue <= 3600
    made.later(3600).settle()
    assert kept(made) == []
    assert patches.excluded(made.cluster) == ()


def test_an_exclusion_without_a_bad_node_is_forgotten_with_the_attempt():
    made = world()
    worker(made, 1, node="n0")
    assert kept(lost(said(made, exclusion()).settle())) == []
    assert patches.excluded(made.cluster) == ()


# -- what users name


def test_nodes_that_a_user_names_are_left_and_kept_away_from():
    made = world()
    made.job["metadata"]["annotations"][names.EXCLUDE_NODES] = "n1, n7,not a node,"
    made.settle()
    assert [(one["name"], one["reason"], one["avoided"]) for one in kept(made)] == [
        ("n1", "Requested", True),
        ("n7", "Requested", True),
    ]
    assert patches.excluded(made.cluster) == ("n1", "n7")
    assert deleted(made) == [f"{made.name}-w1"], "with the grace that the pod has"
    assert "annotation dljob.io/exclude-nodes names Kubernetes node n1: the job's pods leave it" in {
        event.message for event in made.events
    }
    del made.job["metadata"]["annotations"][names.EXCLUDE_NODES]
    assert patches.excluded(made.settle().cluster) == ()


def test_prime_master_knows_why_before_the_pod_is_deleted():
    """Once it is deleted it may be gone before an operator that was killed looks again."""
    made = world()
    made.job["metadata"]["annotations"][names.EXCLUDE_NODES] = "n1"
    made.step()
    made.step()
    told, delete = made.look().actions
    assert isinstance(told, Command)
    assert (told.kind, told.target) == ("cause", "node/ray-1")
    pod = f"pod {made.name}-w1 on Kubernetes node n1"
    assert told.by == f"Excluded: annotation {names.EXCLUDE_NODES} names Kubernetes node n1 ({pod})"
    assert delete == Delete("Pod", f"{made.name}-w1", "worker-1")
    made.execute(told)
    assert made.look().actions == (delete,), "it is told once"
    made.restarted()
    assert made.look().actions == (), "an operator that comes back asks PrimeMaster first"
    assert made.settle().master().settle().log[-2:] == ["Command cause", f"Delete Pod {made.name}-w1"]


def test_a_prime_master_of_an_older_version_need_not_know_why():
    made = world()
    made.job["metadata"]["annotations"][names.EXCLUDE_NODES] = "n1"
    made.step()
    made.step()
    told, delete = made.look().actions
    made.troubles = (Trouble(label(told), 400, "there is no command 'cause'", 1),)
    assert made.look().actions == (delete,)


def test_nobody_waits_for_a_prime_master_that_does_not_answer():
    made = world()
    made.job["metadata"]["annotations"][names.EXCLUDE_NODES] = "n1"
    made.step()
    made.step()
    made.silent(1)
    assert made.look().actions == (Delete("Pod", f"{made.name}-w1", "worker-1"),)


def test_the_head_stays_where_it_is_and_a_new_one_keeps_away():
    made = world()
    made.job["metadata"]["annotations"][names.EXCLUDE_NODES] = "node-a"
    made.settle()
    assert deleted(made) == []
    assert list(patches.excluded_nodes(made.cluster["spec"]["headGroupSpec"]["template"]["spec"])) == ["node-a"]


def test_a_first_attempt_keeps_away_from_the_start():
    job = dljob(annotations={names.EXCLUDE_NODES: "n1"}, nodeGroups=GROUPS)
    made = World(job).settle()
    assert patches.excluded(made.cluster) == ("n1",)
    assert made.cluster["metadata"]["generation"] == 1
    assert made.look().actions == ()


def test_more_nodes_than_the_status_has_room_for_are_left_all_the_same():
    made = said(world(), exclusion()).settle()
    many = [f"x{at:02}" for at in range(60)]
    made.job["metadata"]["annotations"][names.EXCLUDE_NODES] = ",".join(["n1", *many])
    made.settle()
    assert patches.excluded(made.cluster) == ("n0", "n1", *many)
    assert [one["name"] for one in kept(made)] == ["ray-0", "n1", *many[:48]]
    assert f"{made.name}-w1" in deleted(made)
    told = [event.message for event in made.events if event.reason in ("NodeExcluded", "NodeReadmitted")]
    assert told[-1].endswith("has room for: the job's pods leave x48, x49, x50, x51, x52 and 7 others, too")
    said(made, exclusion(), exclusion("ray-2")).settle()
    assert [one["name"] for one in kept(made)][1:3] == ["ray-2", "n1"]
    assert "NodeReadmitted" not in {event.reason for event in made.events}
    made.job["metadata"]["annotations"][names.EXCLUDE_NODES] = "n1"
    assert patches.excluded(made.settle().cluster) == ("n0", "n1", "n2")
    assert "NodeReadmitted" in {event.reason for event in made.events}


def test_a_first_attempt_keeps_away_from_more_than_the_status_has_room_for():
    many = [f"x{at:02}" for at in range(52)]
    made = World(dljob(annotations={names.EXCLUDE_NODES: ",".join(many)}, nodeGroups=GROUPS)).settle()
    assert patches.excluded(made.cluster) == tuple(many)
    (message,) = (event.message for event in made.events if "has room for" in event.message)
    assert message.endswith("has room for: the job's pods leave x50, x51, too")
    assert made.look().actions == ()


def test_on_an_existing_raycluster_no_node_is_excluded():
    job = dljob(annotations={names.EXCLUDE_NODES: "n1"}, rayClusterRef={"name": "shared"})
    made = World(job)
    case = machines.ReconcileContext(
        replace(made.observed(), pods=(Pod("a", "u", False, "g", "Running", True, ends=0.0),)), made.settings, NOW
    )
    assert machines.exclude(case) is None
    assert machines.force(case) is None
    assert exclusions.entries(case) == []


# -- no node takes what keeps away


def pending(made: World, **change: Any) -> World:
    """The replacement finds no node."""
    worker(made, 0, name="w-new", uid="w-new", node="", phase="Pending", ready=False, trouble_reason="Unschedulable",
           trouble="Unschedulable: 0/1 nodes are available", leaving=False,
           ends=None, end="", created=made.now, away=("n0",), **change)  # fmt: skip
    return made


def test_a_bad_node_is_better_than_none_in_the_end():
    made = pending(world(exclusion()).settle())
    outcome = made.settle().outcome
    assert outcome.requeue == 150, "half of what PrimeMaster waits"
    made.later(149).settle()
    assert patches.excluded(made.cluster) == ("n0",)
    made.later(1).settle()
    assert kept(made)[0]["avoided"] is False
    assert patches.excluded(made.cluster) == ()
    assert deleted(made)[-1] == "w-new", "it was made when they still kept away"
    assert made.events[-1].message == "new pods may go to Kubernetes node n0: no other node takes them"
    worker(made, 0, away=())
    before = len(made.log)
    made.later(60).settle()
    assert patches.excluded(made.cluster) == ()
    assert not any(line.startswith("Delete") for line in made.log[before:])


@pytest.mark.parametrize("reason", ["CheckFailed", "Requested"])
def test_a_node_that_failed_its_check_or_that_a_user_excluded_stays_excluded(reason: str):
    made = world(exclusion(reason="CheckFailed")) if reason == "CheckFailed" else world()
    if reason == "Requested":
        made.job["metadata"]["annotations"][names.EXCLUDE_NODES] = "n0"
    pending(made.settle()).later(1000).settle()
    assert kept(made)[0]["avoided"] is True
    assert patches.excluded(made.cluster) == ("n0",)


def test_a_pod_that_waits_for_something_else_changes_nothing():
    made = pending(world(exclusion()).settle(), group="x")
    worker(made, 0, away=("n5",))
    made.later(1000).settle()
    assert kept(made)[0]["avoided"] is True
    worker(made, 0, away=("n0",), leaving=True)
    assert kept(made.later(1000).settle())[0]["avoided"] is True


def test_a_spec_that_became_wrong_has_the_usual_patience():
    made = pending(world(exclusion()).settle())
    made.job["spec"]["roles"] = []
    assert kept(made.later(150).settle())[0]["avoided"] is False


def test_a_cluster_whose_spec_is_not_kept_makes_no_pod_stale():
    made = pending(world())
    made.cluster["spec"] = {}
    made.settle()
    assert deleted(made) == []


# -- by force


def leaving(made: World, at: int = 0, ago: float = 11.0, **change: Any) -> World:
    worker(made, at, leaving=True, ready=False, ends=made.now - ago, end="Deleted: somebody deleted it", **change)
    return made


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"machine": "NotReady"}, "is not ready"),
        ({"machine": "Gone"}, "is gone"),
        ({"machine": "Unknown", "end": "DeletionByTaintManager: Taint manager: deleting"}, "does not answer"),
    ],
)
def test_a_pod_that_is_over_on_a_node_that_is_lost_is_deleted_by_force(change: dict[str, Any], words: str):
    made = world()
    leaving(made)
    worker(made, 0, **change)
    outcome = made.step()
    assert outcome.actions == (Delete("Pod", f"{made.name}-w0", "worker-0", grace=0),)
    (event,) = (event for event in outcome.events if event.reason == "PodForced")
    since = stamp(made.now - 11)
    what = f"pod {made.name}-w0 should be gone since {since}, and Kubernetes node n0 {words}: it is deleted by force"
    assert event.message == what


def test_a_head_pod_on_a_lost_node_is_deleted_by_force():
    made = world()
    pods = made.pods[made.name]
    pods[0] = replace(pods[0], leaving=True, ready=False, ends=made.now - 11, machine="NotReady")
    assert [action.name for action in made.look().actions] == [pods[0].name]


def test_two_silent_witnesses_are_enough_to_delete_a_pod_by_force():
    made = world(exclusion()).settle()
    leaving(made, machine="Ready")
    assert [action.grace for action in made.look().actions] == [0]


@pytest.mark.parametrize(
    ("ago", "change"),
    [(9.0, {"machine": "NotReady"}), (11.0, {"machine": "Ready"}), (11.0, {}), (11.0, {"machine": "Unknown"})],
    ids=["in time", "its kubelet lives", "not looked yet", "nobody may look"],
)
def test_a_leaving_pod_without_proof_of_a_lost_node_is_waited_for(ago: float, change: dict[str, Any]):
    made = leaving(world(), ago=ago, **change)
    made.settle()
    assert deleted(made) == []
    assert made.outcome.requeue == (1.0 if ago < 10 else machines.LOOK_SECONDS)


def test_a_pod_stuck_on_an_unknown_node_is_told_with_what_to_do():
    made = leaving(placed(world().workers_ready(2, 3)), ago=59.0, machine="Unknown")
    assert made.settle().cond("ClusterReady") == ("False", "WorkersPending")
    made.later(1).settle()
    assert made.cond("ClusterReady") == ("False", "PodStuck")
    assert made.message("ClusterReady") == (
        f"pod {made.name}-w0 should be gone since {stamp(made.now - 60)}; if Kubernetes node n0 is lost: "
        f"kubectl delete pod {made.name}-w0 -n team --grace-period=0 --force"
    )
    assert made.reasons()[-1] == "PodStuck"


def test_many_pods_are_deleted_in_portions(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machines, "PODS_A_PASS", 2)
    made = world()
    for at in range(3):
        leaving(made, at, machine="NotReady")
    outcome = made.look()
    assert (len(outcome.actions), outcome.postponed) == (2, 1)
    made = world()
    made.job["metadata"]["annotations"][names.EXCLUDE_NODES] = "n0,n1,n2"
    made.step()
    made.step()
    outcome = made.look()
    assert ([type(action) for action in outcome.actions], outcome.postponed) == ([Command, Delete] * 2, 1)


def silent_kubelet(it: World, machine: str = "NotReady", **more: Any) -> World:
    """The head's node does not answer the API server, which then calls its pods not ready."""
    head, *others = it.pods[it.name]
    it.pods[it.name] = [replace(head, ready=False, node="n0", machine=machine, **more), *others]
    return it.condition("HeadPodReady", "False")


def test_a_silent_kubelet_under_a_head_that_answers_costs_nothing():
    it = silent_kubelet(World().running()).settle().later(250).settle()
    assert (it.phase, it.status["attempt"], deleted(it)) == ("Running", 1, [])
    assert it.message("ClusterReady") == (
        f"Kubernetes node n0 of head pod {it.name}-head does not answer the API server;"
        " PrimeMaster answers, and the job goes on"
    )


def test_a_head_is_replaced_when_neither_kubelet_nor_primemaster_answers():
    it = silent_kubelet(World().running()).silent(29).settle()
    assert deleted(it) == []
    assert it.look().requeue == 1.0
    it.silent(30).step()
    assert deleted(it) == [f"{it.name}-head 0"]
    assert "n0 is not ready, and PrimeMaster does not answer either" in it.events[-1].message


def test_a_head_on_a_dead_machine_on_which_nothing_ran_is_replaced_at_once():
    it = silent_kubelet(World().settle().head_ready()).settle()
    assert deleted(it) == [f"{it.name}-head 0"]


@pytest.mark.parametrize("machine", ["Ready", "Unknown", ""])
def test_primemasters_silence_alone_replaces_no_head(machine: str):
    it = silent_kubelet(World().running(), machine).silent(600).settle()
    assert deleted(it) == []
    assert it.message("ClusterReady") == f"head pod {it.name}-head is Running, not ready"


def test_where_nobody_looks_after_nodes_the_head_is_kubernetes_business():
    it = silent_kubelet(World(dljob(faultTolerance={"node": {"action": "Ignore"}})).running()).silent(600).settle()
    assert deleted(it) == []


def test_a_head_that_is_being_deleted_is_there():
    it = silent_kubelet(World().running(), leaving=True).settle()
    assert it.message("ClusterReady") == f"head pod {it.name}-head is being deleted; the next one follows"
