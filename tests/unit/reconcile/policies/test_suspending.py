"""A job that is suspended and resumed: nothing of it is left meanwhile, and nothing is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from reconcile_kit import UID, CrashError, World, dljob

from dljob.reconcile.state import names
from dljob.reconcile.state.context import stamp
from dljob.reconcile.state.model import Command, Pod, Trouble

ANEW = {"runtimeEnv": {"env_vars": {"A": "1"}}}
PROGRESS = {"step": 120, "lastCheckpointStep": 118}


def suspended(world: World) -> World:
    """Somebody suspends the job, and its PrimeMaster stops."""
    world.edit(suspend=True).settle()
    return world.master("Suspended", reason="JobSuspended", progress=PROGRESS).settle()


def halted(world: World) -> World:
    """Nothing of it is left."""
    assert (world.phase, world.cond("Suspended")) == ("Suspended", ("True", "JobSuspended"))
    assert world.clusters == {}
    assert not {"startTime", "attemptSpecHash", "rayCluster", "submissionId", "effective"} & world.status.keys()
    rest = world.look()
    assert (rest.actions, rest.events, rest.status, rest.watch, rest.requeue) == ((), (), None, None, None)
    return world


def uncounted(world: World) -> World:
    assert "cluster" not in {kind for kind, count in world.status.get("restarts", {}).items() if count}
    assert "lastFault" not in world.status
    return world


def test_a_running_job_is_told_to_suspend_saves_and_releases_its_pods():
    world = World(dljob(checkpoint={"path": "/ckpt"})).running()
    outcome = world.edit(suspend=True).step()
    assert outcome.actions == ()
    assert (world.phase, world.cond("Suspended")) == ("Suspending", ("False", "Suspending"))
    (command,) = world.step().actions
    assert isinstance(command, Command)
    assert (command.id, command.kind, command.target, command.by) == ("suspend/1", "suspend", "job", "spec.suspend")
    world.settle()
    assert len(world.commands) == 1
    assert world.look().requeue == 300
    world.master("Stopping").settle()
    assert world.phase == "Suspending"
    world.master("Suspended", reason="JobSuspended", progress=PROGRESS).settle()
    halted(uncounted(world))
    assert "SaveLogs" in world.log
    assert world.log.index("SaveLogs") < world.log.index("Delete RayCluster")
    told = "attempt 1 was stopped; its last checkpoint is of step 118"
    assert world.message("Suspended") == f"{told}; to go on: `dljob resume hello`, or spec.suspend: false"
    assert world.status["progress"]["step"] == 120
    assert world.cond("ClusterReady") == ("False", "JobSuspended")
    assert world.status["rolesReady"] == "0/2"
    assert (world.reasons().count("Suspending"), world.reasons().count("JobSuspended")) == (2, 1)
    assert "LogsSaved" in world.reasons()


def test_a_resumed_job_is_the_next_attempt_with_the_restarts_handed_on():
    world = World().running().wear()
    halted(suspended(world.settle()))
    world.later(1000).edit(suspend=False).settle()
    assert (world.phase, world.cond("Suspended")) == ("Provisioning", ("False", "JobResumed"))
    assert world.status["startTime"] == "2027-01-15T08:16:40Z"
    assert world.calm().phase == "Succeeded"
    assert [id_ for id_, _ in world.submissions] == [names.submission_id("hello", UID, attempt) for attempt in (1, 2)]
    assert world.handed == [(0, 0), (1, 1)]
    assert world.status["restarts"]["process"] == 1
    uncounted(world)
    assert not any(one["type"] == "Suspended" for one in world.status["conditions"])


def test_a_job_that_begins_suspended_makes_nothing():
    world = World(dljob(suspend=True)).settle()
    halted(world)
    assert (world.maps, world.secrets, world.status["attempt"]) == ({}, {}, 1)
    world.edit(**ANEW).settle()
    halted(world)
    world.edit(suspend=False).settle()
    assert world.status["attempt"] == 1
    assert world.calm().phase == "Succeeded"
    assert world.posted[world.submissions[0][0]].runtime_env == ANEW["runtimeEnv"]


@pytest.mark.parametrize("stage", ["provisioning", "queued", "ordered"])
def test_a_job_that_does_not_run_yet_is_suspended_without_an_order(stage: str):
    world = World(dljob(labels={"kueue.x-k8s.io/queue-name": "q"} if stage == "queued" else {})).settle()
    if stage == "queued":
        world.cluster["spec"]["suspend"] = True
        world.condition("RayClusterSuspended").settle()
    if stage == "ordered":
        world.head_ready().step()
        assert world.ray == {}
        world.said = None
    world.edit(suspend=True).settle()
    halted(uncounted(world))
    assert world.commands == []
    assert "SaveLogs" not in world.log
    assert world.status["attempt"] == 2
    assert ("QuotaReserved" in {one["type"] for one in world.status["conditions"]}) == (stage == "queued")


def test_a_job_whose_machines_a_queue_took_has_nothing_to_save():
    world = World(dljob(labels={"kueue.x-k8s.io/queue-name": "q"})).running()
    world.cluster["spec"]["suspend"] = True
    world.edit(suspend=True).settle()
    halted(uncounted(world))
    assert world.commands == []


def test_an_attempt_that_is_lost_while_it_stops_is_stopped():
    world = World().running().edit(suspend=True).settle().new_session().settle()
    halted(uncounted(world))
    assert world.message("Suspended").startswith("attempt 1 was stopped; it has saved no checkpoint")


def test_a_cluster_that_is_deleted_while_it_stops_is_gone():
    halted(uncounted(World().running().edit(suspend=True).settle().delete_cluster().settle()))


def test_a_job_whose_raycluster_is_being_deleted_is_suspended_without_an_order():
    world = World().running()
    world.cluster["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    world.edit(suspend=True).settle()
    assert (world.phase, world.commands) == ("Suspending", [])
    halted(uncounted(world.delete_cluster().settle()))


@pytest.mark.parametrize("spec", [{}, {"checkpoint": {"path": "/ckpt", "gracePeriodSeconds": 40}}, {"roles": []}])
def test_a_silent_master_is_waited_for_as_long_as_saving_may_take(spec: dict[str, Any]):
    world = World(dljob(**({} if "roles" in spec else spec))).running().silent(5).edit(suspend=True, **spec).settle()
    grace = 40 if "checkpoint" in spec else 120
    assert world.commands == []
    world.later(2 * grace + 59).settle()
    assert world.phase == "Suspending"
    world.later(1).settle()
    assert ("SaveLogs" in world.log, world.phase) == (True, "Invalid" if "roles" in spec else "Suspended")


def test_a_master_that_has_not_spoken_has_nothing_to_save():
    world = World().settle().head_ready().settle()
    assert world.ray
    world.edit(suspend=True).settle()
    assert world.phase == "Suspending"
    assert world.look().requeue == 10
    world.silent(10).later(10).settle()
    halted(uncounted(world))


def test_a_job_whose_launcher_ended_before_its_master_spoke_is_suspended():
    world = World().settle().head_ready().settle().edit(suspend=True).settle()
    halted(uncounted(world.launcher("STOPPED").settle()))


def test_a_master_of_an_older_version_is_not_asked_again():
    world = World().running().edit(suspend=True)
    world.step()
    said = "there is no command 'suspend'; there are restart, stop and cause"
    world.troubles = (Trouble("Command suspend/1", 400, said, 1),)
    world.settle()
    halted(uncounted(world))
    world = World().running()
    world.troubles = (Trouble("Command suspend/1", 503, said, 1),)
    assert world.edit(suspend=True).settle().phase == "Suspending"


def test_a_restart_that_was_refused_keeps_nothing_from_being_saved():
    world = World().running()
    said = "the job has no 'suspend'; targets are job, a role (worker), or a rank as worker/0"
    world.troubles = tuple(Trouble(f"Command {id_}", 400, said, 1) for id_ in ("restart/suspend/1", "suspend/11"))
    world.edit(suspend=True).settle()
    assert [command.kind for command in world.commands] == ["suspend"]
    assert (world.phase, len(world.clusters)) == ("Suspending", 1)


def test_an_operator_that_comes_back_asks_again_under_the_same_id():
    world = World().running().edit(suspend=True).settle().restarted()
    world.settle().master("Running").settle()
    assert [command.id for command in world.commands] == ["suspend/1", "suspend/1"]


def test_a_job_that_ends_by_itself_has_ended():
    for end in ("Succeeded", "Failed"):
        world = World().running().edit(suspend=True).settle().master(end, reason="Completed").settle()
        assert world.phase == end
        assert not any(one["type"] == "Suspended" for one in world.status["conditions"])
        assert world.clusters == {}


def test_a_job_resumed_while_it_suspends_stops_and_then_goes_on():
    world = World().running().later(10).edit(suspend=True).settle().later(5).edit(suspend=False).settle()
    assert world.phase == "Suspending"
    world.master("Suspended").settle()
    assert (world.phase, world.status["attempt"]) == ("Provisioning", 2)
    assert "JobSuspended" not in world.reasons()
    assert world.status["startTime"] == "2027-01-15T08:00:15Z"
    assert uncounted(world.calm()).phase == "Succeeded"


@pytest.mark.parametrize("stage", ["Suspending", "Suspended"])
def test_an_edit_is_what_the_next_attempt_runs(stage: str):
    world = World().running().edit(suspend=True).settle()
    if stage == "Suspending":
        world.edit(**ANEW).settle()
        assert world.phase == "Suspending"
        assert world.cond("Accepted") == ("True", "ChangeWaits")
        assert world.message("Accepted").endswith("for the next attempt, which begins when the job is resumed")
    world.master("Suspended").settle()
    halted(world.edit(**ANEW).settle())
    assert world.cond("Accepted") == ("True", "SpecAccepted")
    world.edit(suspend=False).calm()
    first, second = (world.posted[id_] for id_, _ in world.submissions)
    assert (first.runtime_env, second.runtime_env) == ({}, ANEW["runtimeEnv"])
    assert world.status["attempt"] == 2
    assert uncounted(world).phase == "Succeeded"


def test_a_spec_that_is_broken_while_suspended_waits_for_a_better_one():
    world = halted(suspended(World().running()))
    good = world.job["spec"]["roles"]
    world.edit(roles=[], suspend=False).settle()
    assert world.cond("Accepted") == ("False", "InvalidSpec")
    assert world.clusters == {}
    assert world.edit(roles=good).calm().phase == "Succeeded"


def test_deadlines_stand_still_while_a_job_is_suspended():
    world = World(dljob(activeDeadlineSeconds=100, preRunningDeadlineSeconds=90)).running().later(99)
    world.edit(suspend=True).settle().later(50)
    assert world.settle().phase == "Suspending"
    halted(world.master("Suspended").settle().later(1000).settle())
    world.edit(suspend=False).settle()
    assert world.look().requeue == 90
    world.head_ready().settle().workers_ready().master("Running").settle()
    assert world.look().requeue == 100
    assert world.later(100).settle().status["reason"] == "DeadlineExceeded"


def test_the_second_suspension_has_its_own_time():
    world = halted(suspended(World().running())).edit(suspend=False).settle()
    world.head_ready("pod-2").settle().workers_ready().master("Running").settle()
    world.later(1000).edit(suspend=True).settle()
    assert (world.phase, world.look().requeue) == ("Suspending", 300)
    since = next(one for one in world.status["conditions"] if one["type"] == "Suspended")["lastTransitionTime"]
    assert since == "2027-01-15T08:16:40Z"


def stop(world: World) -> World:
    world.job["metadata"]["annotations"] |= {names.STOP: "2027-01-15T08:02:00Z"}
    return world.settle()


def test_a_suspended_job_is_stopped_at_once():
    world = stop(halted(suspended(World().running())))
    assert (world.phase, world.status["reason"], world.clusters) == ("Stopped", "StoppedByUser", {})


def test_a_job_that_is_stopped_while_it_is_suspended_is_stopped():
    world = stop(World().running().edit(suspend=True).settle())
    assert world.phase == "Stopping"
    assert [command.kind for command in world.commands] == ["suspend", "stop"]
    world.master("Suspended", reason="JobSuspended").settle()
    assert (world.phase, world.status["reason"], world.clusters) == ("Stopped", "StoppedByUser", {})


def test_a_job_that_is_being_stopped_is_not_suspended():
    world = stop(World().running()).edit(suspend=True).settle()
    assert world.phase == "Stopping"
    assert world.master("Stopped", reason="StoppedByUser").settle().phase == "Stopped"


def test_pods_are_waited_for_as_long_as_the_job_is_to_be_suspended():
    for suspend in (True, False):
        world = World().running().edit(suspend=True).settle().master("Suspended")
        keep = Pod("left", "pod-9", head=False, group="cpu1", phase="Running", ready=True, leaving=True)
        name = world.name
        while world.clusters:
            world.step()
        world.pods[name] = [keep]
        assert world.later(500).settle().phase == "Suspending"
        assert world.look().reason == "the last attempt's pods are being deleted"
        told = "attempt 1 was stopped; it has saved no checkpoint; still there: left"
        assert (world.message("Suspended"), world.status["message"]) == (told, told)
        if suspend:
            world.pods[name] = []
            halted(world.settle())
        else:
            assert world.edit(suspend=False).settle().phase == "Provisioning"


def outlived(world: World, node: str = "Ready") -> World:
    """A pod of the first attempt is still there, on a node that does not answer, and the job is in its second."""
    suspended(world.running())
    name = names.cluster_name("hello", UID, 1)
    lost = Pod("lost", "pod-9", head=False, group="cpu1", phase="Running", ready=False, leaving=True)
    world.pods[name] = [replace(lost, ends=world.now + 30.0, node="n", machine=node)]
    world.edit(suspend=False).settle()
    assert world.status["attempt"] == 2
    return world


def test_pods_of_every_earlier_attempt_are_waited_for():
    world = outlived(World())
    suspended(world.head_ready("pod-2").settle().workers_ready().master("Running").settle())
    assert world.later(20).settle().look().reason == "pods of earlier attempts are being deleted"
    assert (world.phase, world.message("Suspended").rpartition("; ")[2]) == ("Suspending", "still there: lost")
    assert 0 < (world.look().requeue or 0) <= 40
    world.pods.clear()
    halted(world.settle())


def test_an_earlier_pod_holds_a_suspension_before_anything_was_made():
    world = outlived(World())
    world.delete_cluster()
    for field in ("attemptSpecHash", "rayCluster", "startTime"):
        del world.status[field]
    world.edit(suspend=True).settle()
    assert world.phase == "Suspending"
    assert world.message("Suspended") == "pods of earlier attempts are being deleted; still there: lost"
    assert world.status["attempt"] == 2
    world.pods.clear()
    halted(world.settle())
    assert world.message("Suspended").startswith("nothing of it ran yet; ")


def test_an_earlier_pod_on_a_dead_node_is_taken_away_while_the_job_runs():
    world = outlived(World(), "NotReady")
    assert world.look().actions == ()
    (action,) = world.later(60).look().actions
    assert (action.kind, action.name, action.grace) == ("Pod", "lost", 0)


def test_a_cluster_that_may_not_be_deleted_is_told_of():
    world = World().running().edit(suspend=True).settle().master("Suspended")
    world.troubles = (Trouble(f"DeleteRayCluster {world.name}", 403, "rayclusters is forbidden", 1),)
    while world.status["attempt"] == 1:
        world.step()
    outcome = world.look()
    ready = next(one for one in outcome.status["conditions"] if one["type"] == "ClusterReady")
    assert (ready["reason"], ready["message"]) == ("DeletionRefused", "rayclusters is forbidden")


def test_a_pod_whose_node_is_lost_is_taken_away_by_force():
    world = World().running().edit(suspend=True).settle().master("Suspended")
    name = world.name
    while world.clusters:
        world.step()
    lost = [Pod(f"w{at}", f"pod-{at}", head=False, group="cpu1", phase="Running", ready=False) for at in range(5)]
    ends = {"leaving": True, "ends": world.now + 30.0, "node": "n", "machine": "NotReady"}
    world.pods[name] = [replace(pod, **ends) for pod in lost]
    world.later(20).settle()
    assert world.message("Suspended").endswith("still there: w0, w1, w2 and 2 others")
    assert 0 < (world.look().requeue or 0) <= 20
    actions = world.later(100).look().actions
    assert [(action.kind, action.name, action.grace) for action in actions] == [("Pod", f"w{at}", 0) for at in range(5)]


def test_pods_of_somebody_elses_cluster_are_theirs():
    world = World().settle()
    name = world.name
    world.clusters[name]["metadata"]["ownerReferences"] = []
    world.pods[name] = [Pod("theirs", "pod-9", head=True, group="headgroup", phase="Running", ready=True)]
    world.edit(suspend=True).settle().later(100).settle()
    assert world.phase == "Suspended"
    assert list(world.clusters) == [name]


def test_pods_of_an_attempt_that_the_status_never_named_are_deleted_first():
    """A user mended the spec before the status named the RayCluster, and suspended the job while its pods ended."""
    world = World().settle().head_ready()
    name, pods = world.name, world.pods[world.name]
    del world.status["rayCluster"]["uid"]
    world.edit(runtimeEnv={"env_vars": {"A": "1"}}).step()
    world.step()
    assert (world.status["reason"], world.clusters) == ("SpecChanged", {})
    world.pods[name] = [replace(pod, leaving=True, ends=world.now + 30) for pod in pods]
    world.edit(suspend=True).settle()
    assert (world.phase, world.message("Suspended").rpartition("; ")[2]) == ("Suspending", f"still there: {name}-head")
    world.pods.clear()
    assert world.settle().phase == "Suspended"


def test_a_raycluster_that_waits_for_a_pod_on_a_dead_node_does_not_hold_a_suspension_for_ever():
    """It was deleted in the foreground: it goes when its pods have, and no kubelet tells of the last one's end."""
    world = World().running()
    name, head = world.name, world.pods[world.name][0]
    world.cluster["metadata"]["deletionTimestamp"] = stamp(world.now)
    stuck = replace(head, leaving=True, ready=False, ends=world.now + 30, machine="NotReady")
    world.pods[name] = [stuck]
    world.edit(suspend=True).later(60).settle()
    assert world.log.count(f"Delete Pod {name}-head 0") == 1


def test_children_made_meanwhile_by_another_operator_are_deleted_too():
    world = World(dljob(suspend=True)).settle()
    late = World().settle()
    world.clusters, world.pods = late.clusters, late.pods
    world.settle()
    halted(uncounted(world))
    assert world.status["attempt"] == 2


def test_a_suspended_master_without_a_suspended_status_begins_the_next_attempt():
    """The status was set back: the attempt is over all the same, and the next one begins."""
    world = World().running().master("Suspended").settle()
    assert (world.phase, world.status["attempt"]) == ("Provisioning", 2)
    assert uncounted(world.calm()).phase == "Succeeded"


def test_a_restart_that_is_ordered_while_suspended_has_nobody_to_restart():
    world = halted(suspended(World().running()))
    world.job["metadata"]["annotations"] |= {names.RESTART: "2027-01-15T08:02:00Z"}
    halted(world.settle())
    assert world.status["lastCommands"][-1]["state"] == "Ignored"


def test_a_job_that_recovers_is_not_recovering_while_suspended():
    world = World().running().master("Recovering").settle()
    halted(suspended(world))
    assert world.cond("Recovering") == ("False", "Suspending")
    world = World().running().new_session().head_ready("pod-2")
    world.step()
    world.edit(suspend=True).settle()
    assert world.phase == "Suspended"
    assert world.status["restarts"]["cluster"] == 1


def test_suspend_is_refused_on_an_existing_raycluster():
    world = World(dljob(suspend=True, rayClusterRef={"name": "shared"})).settle()
    assert world.cond("Accepted") == ("False", "InvalidSpec")
    assert "rayClusterRef excludes suspend" in world.message("Accepted")
    assert not any(one["type"] == "Suspended" for one in world.status["conditions"])


def test_a_condition_with_an_unknown_reason_is_no_suspension():
    world = World().running()
    world.status["conditions"].append({"type": "Suspended", "status": "False", "reason": "Else"})
    assert world.settle().phase == "Running"


def test_a_deleted_job_takes_everything_along():
    world = halted(suspended(World().running()))
    world.job["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    assert world.look().actions == ()


def live(world: World, fuse: int | None) -> World:
    """A whole life with a suspension; the operator dies once, after so many calls."""
    happenings = (
        lambda: world,
        world.head_ready,
        lambda: world.workers_ready().wear(),
        lambda: world.edit(suspend=True),
        lambda: world.master("Suspended"),
        lambda: world.edit(**ANEW),
        lambda: world.later(1000).edit(suspend=False),
        lambda: world.head_ready("pod-2"),
        lambda: world.workers_ready().master("Running"),
        lambda: world.master("Succeeded"),
    )
    world.fuse = fuse
    for at, happen in enumerate(happenings):
        happen()
        try:
            world.settle()
        except CrashError:
            world.restarted()
            world.step()
            if at in (3, 4) and world.clusters:
                world.master("Running" if at == 3 else "Suspended")
            elif at > 7 or at == 2:
                world.master("Succeeded" if at == 9 else "Running")
            world.settle()
    return world


def test_a_crash_after_any_call_comes_to_the_same_end():
    straight = live(World(), None)
    assert straight.phase == "Succeeded"
    for fuse in range(len(straight.log) + 1):
        broken = live(World(), fuse)
        for key in ("phase", "reason", "attempt", "submissionId", "restarts", "startTime", "attemptSpecHash"):
            assert broken.status.get(key) == straight.status.get(key), (fuse, key)
        assert broken.submissions == straight.submissions, fuse
        assert broken.handed == straight.handed, fuse
        assert broken.clusters == {}


def test_servers_have_the_time_of_their_drain_before_the_pods_are_deleted() -> None:
    def longest(**role: Any) -> float:
        job = dljob()
        job["spec"]["roles"][0] |= {"entrypoint": {"module": "serve.py"}, **role}
        world = World(job)
        world.settle()
        world.head_ready().settle()
        world.master("Running").settle().edit(suspend=True).step()
        outcome = world.step()
        assert outcome.requeue is not None
        return outcome.requeue

    assert longest(drain={"timeoutSeconds": 90}) == longest() + 90


def test_a_suspended_job_with_an_invalid_spec_says_so():
    """Also one that was admitted while no operator ran, which the webhook let through."""
    it = World(dljob(suspend=True, roles=[])).settle()
    assert (it.phase, it.cond("Accepted")[0], it.cond("Suspended")[0]) == ("Invalid", "False", "True")
    assert it.status["message"].endswith("; the job is suspended")
    it.job["spec"]["roles"] = dljob()["spec"]["roles"]
    assert it.settle().phase == "Suspended"


def test_a_suspended_job_whose_spec_becomes_invalid_says_so_and_is_resumed_once_it_is_mended():
    it = World().running()
    roles, it.job["spec"]["suspend"] = it.job["spec"]["roles"], True
    it.settle().master("Suspended", reason="JobSuspended").settle().later(120).settle()
    it.job["spec"]["roles"] = []
    assert it.settle().phase == "Invalid"
    it.job["spec"]["suspend"] = False
    assert it.settle().phase == "Invalid"
    it.job["spec"]["roles"] = roles
    assert it.settle().phase in ("Provisioning", "Pending")
