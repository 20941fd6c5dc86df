"""What a rank that is a Ray driver finds, and how what it made is spoken of."""

from __future__ import annotations

import json
from types import SimpleNamespace

from dljob.master.state.views import AskedGroup
from dljob.plan.model import GRAIN
from dljob.runtime.backend import ray_drivers
from dljob.runtime.backend.ray_drivers import OWNER, LeftObjects
from dljob.runtime.process.messages import JobInfo

JOB = JobInfo("ab" * 16, "j", "/tmp", "dljob", "m", 30.0, 0.2, "", (("d", 11),), attempt=2)


def test_a_life_has_its_owner_and_the_rank_what_all_of_its_lives_begin_with():
    mine = ray_drivers.owner(JOB, "d", 1, 3)
    assert mine == f"{JOB.uid}/d/1/2.3"
    assert mine.startswith(ray_drivers.owner(JOB, "d", 1))
    assert not ray_drivers.owner(JOB, "d", 10, 3).startswith(ray_drivers.owner(JOB, "d", 1))


def test_the_environment_is_what_ray_reads():
    found = ray_drivers.environment(JOB, "10.0.0.1:6379", "me")
    assert found["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert found["RAY_NAMESPACE"] == "j-abababab"
    assert json.loads(found["RAY_JOB_CONFIG_JSON_ENV_VAR"]) == {"metadata": {OWNER: "me"}}
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in found


def test_a_driver_of_a_ray_of_loopback_alone_does_not_look_for_it_in_the_network():
    found = ray_drivers.environment(JOB, "127.0.0.1:6379", "me")
    assert found["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


def test_variables_that_hide_every_device_are_not_passed_on():
    environ = {"CUDA_VISIBLE_DEVICES": "", "ASCEND_RT_VISIBLE_DEVICES": "0,1", "OTHER": ""}
    assert ray_drivers.hidden(environ) == ("CUDA_VISIBLE_DEVICES",)


def test_leftover_actors_groups_and_drivers_are_named():
    assert not LeftObjects()
    left = LeftObjects((("a1", "worker"), ("a2", "")), (("p1", "pool"),), ("04000000",))
    assert left.words() == "actor worker, actor a2, placement group pool, the driver of Ray job 04000000"


def actor(name: str, **wants: float) -> SimpleNamespace:
    return SimpleNamespace(name=name, class_name="Engine", required_resources=wants)


def test_actors_that_raylets_have_no_room_for_are_told_together_where_they_take_the_same():
    two, one = (("NPU", 2 * GRAIN),), (("CPU", GRAIN),)
    rows = [actor("b", NPU=2.0), actor("a", NPU=2.0), actor("", CPU=1.0), actor("started", NPU=1.0)]
    waiting = ray_drivers.alike([("d/0", row) for row in rows], frozenset((two, one)))
    assert waiting == (
        AskedGroup(f"d/0 {one}", "Engine", "d/0", "PACK", (one,), "actor"),
        AskedGroup(f"d/0 {two}", "a and 1 more", "d/0", "PACK", (two, two), "actor"),
    )
    plain = ray_drivers.alike([("d/0", actor("plain"))], frozenset((one,)))
    assert [group.bundles for group in plain] == [(one,)]
    assert ray_drivers.alike([("d/0", actor("x", **{"NPU": 2.0, "node:1.2.3.4": 0.001}))], frozenset((two,)))


def dead(name: str, at: int, **context: object) -> SimpleNamespace:
    (kind,) = context or [None]
    cause = SimpleNamespace(WhichOneof=lambda _: kind, **context)
    return SimpleNamespace(name=name, class_name="Engine", pid=7, end_time=at, death_cause=cause)


def ended(name: str, at: int, reason: int, words: str) -> SimpleNamespace:
    return dead(name, at, actor_died_error_context=SimpleNamespace(reason=reason, error_message=words))


GONE = "worker died. Worker exit type: SYSTEM_ERROR Worker exit detail: End of file. Some common causes include: (1)"


def test_the_first_loss_is_told_and_not_what_was_ended_by_order():
    rows = [
        ended("later", 30, 1, GONE),
        ended("", 20, 1, GONE),
        ended("killed", 5, 4, "ray.kill"),
        ended("left", 6, 1, "Worker exit type: INTENDED_USER_EXIT Worker exit detail: it asked for it"),
        dead("runs", 7),
    ]
    assert ray_drivers.lost_first(rows) == "its actor Engine (pid 7) was lost first: End of file."
    rows.append(dead("fat", 10, oom_context=SimpleNamespace(error_message="out of memory")))
    assert ray_drivers.lost_first(rows) == "its actor fat (pid 7) was lost first: out of memory"
    rows.append(dead("broken", 9, creation_task_failure_context=SimpleNamespace()))
    assert ray_drivers.lost_first(rows) == ""
    assert ray_drivers.lost_first(rows[2:5]) == ""


def test_demands_without_room_are_tasks_unless_a_request_of_a_driver_has_them(monkeypatch):
    demands = [
        ({"CPU": 4.0}, 1),
        ({"CPU": 1.0, "memory": 2.0}, 2),
        ({"CPU": 1.0, "memory": 2.0}, 1),
        ({"GPU": 3.0}, 5),
        ({"CPU_group_0_ab": 1.0}, 1),
        ({"node:__internal_head__": 0.0001}, 1),
    ]
    monkeypatch.setattr(ray_drivers.ray_private, "pending_demands", lambda: demands)
    known = AskedGroup("a", "e0", "driver/0", "PACK", ((("GPU", 3 * GRAIN),),), "actor")
    found = ray_drivers.pending_tasks((known,))
    assert [(each.name, each.bundles, each.owner, each.kind) for each in found] == [
        ("each of 3 Ray tasks or actors", ((("CPU", GRAIN), ("memory", 2 * GRAIN)),), "job", "task"),
        ("a Ray task or actor", ((("CPU", 4 * GRAIN),),), "job", "task"),
    ]
    demands[0] = ({"CPU": 4.0}, 2)
    assert found[1].id not in {each.id for each in ray_drivers.pending_tasks((known,))}, (
        "another number is another wait"
    )
