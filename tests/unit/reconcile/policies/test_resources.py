"""Resources that a spec leaves open: chosen before an attempt is made, measured, and kept for the next job."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from reconcile_kit import UID, World, dljob
from reconcile_samples import spec

from dljob.raycluster.pods import SPEC_KEY
from dljob.reconcile.policies.resources import MOST_BYTES, reads_history, without_oldest
from dljob.reconcile.state import names
from dljob.reconcile.state.model import Trouble
from dljob.reconcile.state.snapshot import digest
from dljob.spec.chosen_resources import EARLIER_JOBS
from dljob.spec.rules.auto import chosen

AUTO = {"cpu": {"min": "500m", "max": "4"}, "memory": {"min": "512Mi", "max": "4Gi"}}
USE = {
    "name": "worker",
    "productiveSeconds": 1200,
    "peakMiB": 1000,
    "growthPermille": 10,
    "cpuMillis": 680,
    "measurements": 20,
    "outOfMemory": 0,
}


def open_job(auto: dict[str, Any] = AUTO, **more: Any) -> dict[str, Any]:
    (role,) = spec()["roles"]
    return dljob(**{"roles": [{**role, "resources": {"auto": auto}}], **more})


def ran(job: dict[str, Any] | None = None, **use: Any) -> World:
    """Return a world in which a job of the name has run, and told what its ranks used."""
    return World(job or open_job()).running().master("Running", resourceUse=[{**USE, **use}]).later(20).settle()


def ended(**use: Any) -> World:
    return ran(**use).master("Succeeded", resourceUse=[{**USE, **use}]).settle()


def values(world: World) -> dict[str, str]:
    (row,) = world.status["chosenResources"]["roles"]
    return {key: row[key] for key in ("cpu", "memory") if key in row}


def as_made(world: World, name: str = "") -> dict[str, Any]:
    """Return the manifest of the attempt."""
    text = world.maps[names.spec_map(name or world.name)]["data"][SPEC_KEY]
    return json.loads(text)


def another(world: World, job: dict[str, Any] | None = None) -> World:
    """Apply a job of the same name after that of a world was deleted."""
    made = job or open_job()
    made["metadata"]["uid"] = UID[:-1] + "f"
    return World(made, kept=world.kept)


def test_first_job_begins_with_the_least_and_is_made_of_it() -> None:
    world = World(open_job()).settle()
    assert values(world) == {"cpu": "500m", "memory": "512Mi"}
    made = as_made(world)
    (role,) = made["spec"]["roles"]
    assert role["resources"] == {"cpu": "500m", "memory": "512Mi"}
    why = "the value to begin with, since no earlier job of the name has ended here"
    assert chosen(made["metadata"]["annotations"])[0] == ("worker", f"resources.cpu is 500m: {why}")
    told = [event for event in world.events if event.reason == "ResourcesChosen"]
    assert [event.message.partition(":")[0] for event in told] == [
        "roles.worker.resources.cpu is 500m",
        "roles.worker.resources.memory is 512Mi",
    ]


def test_choice_is_written_before_anything_is_made() -> None:
    world = World(open_job())
    world.step()
    assert world.status["chosenResources"]["attempt"] == 1
    assert not world.clusters
    assert not world.maps
    before = world.status["attemptSpecHash"]
    world.settle()
    # A choice is no edit of the spec.
    assert world.status["attemptSpecHash"] == before
    assert world.status["attempt"] == 1


def test_next_job_of_the_name_gets_what_the_first_one_used() -> None:
    world = ended()
    (kept,) = json.loads(world.kept["hello"])
    assert (kept["uid"], kept["job"], kept["ended"]) == (UID, f"hello ({UID[:8]})", world.status["completionTime"])
    assert kept["roles"] == [USE]
    after = another(world).settle()
    assert values(after) == {"cpu": "0.9", "memory": "1280Mi"}
    (row,) = after.status["chosenResources"]["roles"]
    assert row["memoryWhy"] == f"a fifth above 1 000 MiB, the highest peak of 1 earlier job, that of hello ({UID[:8]})"
    pods = after.cluster["spec"]["workerGroupSpecs"] or [after.cluster["spec"]["headGroupSpec"]]
    small = World(open_job()).settle().cluster["spec"]
    assert pods != (small["workerGroupSpecs"] or [small["headGroupSpec"]])


def test_job_that_leaves_nothing_open_keeps_nothing() -> None:
    world = World().running().master("Running", resourceUse=[USE]).settle().master("Succeeded").settle()
    assert world.kept == {}
    assert not {"chosenResources", "resourceUse"} & world.status.keys()
    assert not reads_history(dljob())


def test_next_attempt_chooses_from_the_one_before() -> None:
    world = ran().delete_cluster().settle()
    assert world.status["attempt"] == 2
    assert world.status["chosenResources"]["attempt"] == 2
    assert values(world) == {"cpu": "0.9", "memory": "1280Mi"}
    # PrimeMaster of the second attempt begins at nothing; the figures of the first stay.
    world.running().master("Running", resourceUse=[{**USE, "peakMiB": 700, "measurements": 1, "productiveSeconds": 4}])
    world.later(20).settle()
    assert world.status["resourceUse"]["roles"] == [USE]


def test_edit_before_anything_ran_chooses_anew() -> None:
    world = World(open_job()).settle()
    (role,) = world.job["spec"]["roles"]
    more = {**AUTO, "memory": {"min": "2Gi", "max": "4Gi"}}
    world.edit(roles=[{**role, "resources": {"auto": more}}]).settle()
    assert world.status["attempt"] == 2
    assert values(world)["memory"] == "2Gi"


def test_edit_of_a_running_job_changes_nothing_of_it() -> None:
    world = ran()
    (role,) = world.job["spec"]["roles"]
    world.edit(roles=[{**role, "resources": {"cpu": "2"}}]).settle()
    assert (world.status["attempt"], values(world)) == (1, {"cpu": "500m", "memory": "512Mi"})
    assert as_made(world)["spec"]["roles"][0]["resources"]["cpu"] == "500m"


def test_use_of_another_shape_does_not_count() -> None:
    world = ended()
    (role,) = open_job()["spec"]["roles"]
    other = another(world, open_job(roles=[{**role, "replicas": 3}])).settle()
    (row,) = other.status["chosenResources"]["roles"]
    assert row["cpu"] == "500m"
    assert f"; hello ({UID[:8]}): another shape of job" in row["cpuWhy"]
    # An attempt of an edited job: what the old shape used is not added to what the new one does.
    same = ran()
    same.edit(roles=[{**role, "replicas": 3}]).delete_cluster().settle()
    same.running().master("Running", resourceUse=[{**USE, "peakMiB": 7}]).later(20).settle()
    assert same.status["resourceUse"]["roles"][0]["peakMiB"] == 7


def test_suspended_job_chooses_once_it_is_resumed() -> None:
    world = World(open_job(suspend=True)).settle()
    assert "chosenResources" not in world.status
    world.edit(suspend=False).settle()
    assert values(world) == {"cpu": "500m", "memory": "512Mi"}


def test_job_on_an_existing_cluster_chooses_too() -> None:
    world = World(open_job(rayClusterRef={"name": "shared"}))
    world.clusters["shared"] = {"metadata": {"name": "shared", "uid": "u"}, "spec": {}, "status": {}}
    world.pods["shared"] = []
    world.settle()
    assert values(world) == {"cpu": "500m", "memory": "512Mi"}


def test_refused_spec_has_no_choice() -> None:
    world = World(open_job({"cpu": {"min": "4", "max": "1"}})).settle()
    assert world.phase == "Invalid"
    assert "chosenResources" not in world.status


def test_history_is_bounded_and_its_own_job_is_written_once() -> None:
    world = ended()
    row = {**json.loads(world.kept["hello"])[0], "uid": "other"}
    world.kept["hello"] = json.dumps([row] * EARLIER_JOBS)
    world.settle()
    rows = json.loads(world.kept["hello"])
    assert len(rows) == EARLIER_JOBS
    assert [one["uid"] for one in rows[-2:]] == ["other", UID]
    assert world.log.count("KeepResourceUse") == 2
    world.settle()
    assert world.log.count("KeepResourceUse") == 2


@pytest.mark.parametrize("text", ["{", "[1, null]", '{"a": 1}', '[{"roles": [{"name": 3, "peakMiB": "x"}]}]'])
def test_damaged_history_counts_for_nothing(text: str) -> None:
    world = World(open_job(), kept={"hello": text}).settle()
    assert values(world) == {"cpu": "500m", "memory": "512Mi"}


def test_end_of_a_job_does_not_wait_for_its_history_for_ever() -> None:
    world = ran().master("Succeeded", resourceUse=[USE])
    world.step()
    world.troubles = (Trouble("KeepResourceUse", 403, "configmaps is forbidden", 5),)
    world.settle()
    assert world.kept == {}
    assert world.clusters == {}


def test_operator_that_reads_no_history_keeps_none() -> None:
    world = ended()
    seen = replace(world.observed(), resource_history=None)
    world.kept.clear()
    assert world.look().actions != ()
    world.observed = lambda: seen  # type: ignore[method-assign]
    assert world.look().actions == ()


def test_what_a_head_tells_is_bounded() -> None:
    rows = [{**USE, "name": f"r{n}", "peakMiB": 1e9, "cpuMillis": "x"} for n in range(100)]
    world = World(open_job()).running().master("Running", resourceUse=[*rows, {"peakMiB": 3}]).later(20).settle()
    told = world.status["resourceUse"]["roles"]
    assert len(told) == 32
    assert told[0] == {**USE, "name": "r0", "peakMiB": 0, "cpuMillis": 0}


def test_names_whose_jobs_ended_first_make_room() -> None:
    def entry(ended: str) -> str:
        return json.dumps([{"ended": ended, "pad": "x" * (MOST_BYTES // 3)}])

    data = {"new": entry("2026-02-01"), "old": entry("2026-01-01"), "mid": entry("2026-01-15"), "bad": "{"}
    assert without_oldest(data, "new") == ("bad", "old")
    assert without_oldest({"old": entry("2026-01-01")}, "new") == ()
    assert without_oldest({**data, "only": "x" * MOST_BYTES}, "only") == ("bad", "old", "mid", "new")


def test_what_the_operator_keeps_of_a_report_has_the_use_in_its_bounds() -> None:
    told = digest({"phase": "Running", "resourceUse": [{**USE, "more": "x" * 9999}] * 100})
    assert told["resourceUse"] == [USE] * 32
    assert "resourceUse" not in digest({"phase": "Running"})
