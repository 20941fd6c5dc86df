"""The status: quiet when nothing changed, slow with progress, at once with states, bounded always."""

from __future__ import annotations

import json

import pytest
from reconcile_kit import World, dljob, snapshot

from dljob.reconcile.reconcile import reconcile
from dljob.reconcile.state.model import MasterView

FAULT = {
    "level": "Process",
    "reason": "UserError",
    "target": "worker/1",
    "firstCause": "x" * 2000,
    "detectedAt": "2027-01-15T08:00:30.000Z",
}


def test_an_unchanged_job_is_not_written():
    world = World().running().later(3600)
    assert world.look().status is None
    assert world.look().requeue is None
    assert world.restarted().look().status is None


def test_progress_is_written_every_fifteen_seconds():
    world = World().running()
    world.later(5).master(progress={"step": 1, "metrics": {"loss": 0.5}})
    outcome = world.look()
    assert (outcome.status, outcome.requeue) == (None, 10)
    world.later(10).settle()
    assert world.status["progress"] == {
        "time": "2027-01-15T08:00:15Z",
        "step": 1,
        "metrics": [{"name": "loss", "value": "0.5"}],
    }
    world.later(1).master(progress={"step": 2, "metrics": {}})
    assert world.look().requeue == 14


def test_a_state_takes_the_progress_along():
    world = World().running()
    world.later(1).master("Recovering", progress={"step": 7, "metrics": {}}).settle()
    assert world.phase == "Recovering"
    assert world.status["progress"]["step"] == 7


@pytest.mark.slow
def test_counts_of_pods_that_come_one_by_one_are_written_as_progress():
    world = World(dljob(nodeGroups=[{"name": "c", "cpu": "1", "replicas": 900}])).settle().head_ready().settle()
    before = len(world.log)
    for ready in range(1, 900):
        world.workers_ready(ready, 900).later(0.01)
        world.step()
    assert len(world.log) == before
    world.workers_ready(900, 900).settle()
    assert world.cond("ClusterReady")[0] == "True"


def test_progress_without_a_time_is_written_at_once():
    world = World().running()
    del world.status["progress"]
    world.later(1).master(progress={"step": 1, "metrics": {}}).settle()
    assert world.status["progress"]["step"] == 1


def test_a_server_that_drops_fields_is_not_written_for_ever():
    world = World().running()
    del world.status["progress"]
    assert world.look().status is None


def test_before_primemaster_speaks_the_roles_are_the_plans():
    world = World().settle()
    assert world.status["roles"] == [
        {"name": "worker", "desired": 2, "ready": 0, "running": 0, "succeeded": 0, "failed": 0, "restarts": 0},
    ]
    assert world.status["rolesReady"] == "0/2"
    assert world.status["restartsTotal"] == 0


def test_the_status_counts_the_devices_of_the_node_groups():
    group = {"name": "g", "replicas": 2, "cpu": "8", "accelerator": {"type": "NPU", "count": 8}}
    assert World(dljob(nodeGroups=[group])).settle().status["accelerators"] == "16 NPU"
    assert "accelerators" not in World().settle().status


def test_faults_of_primemaster_and_operator_are_merged_in_order():
    world = World().running().later(60).new_session().settle().head_ready("pod-2").settle().workers_ready()
    later = {**FAULT, "detectedAt": "2027-01-15T08:02:00.000Z"}
    world.later(30).master("Recovering", lastFault=later, recentFaults=[later]).settle()
    assert [fault["level"] for fault in world.status["recentFaults"]] == ["Cluster", "Process"]
    assert world.status["lastFault"]["level"] == "Process"
    assert "recoveredAt" not in world.status["recentFaults"][0]
    world.master("Running", recentFaults=[later]).settle()
    assert world.status["recentFaults"][0]["recoveredAt"] == "2027-01-15T08:01:30Z"
    world.later(60).master("Running", recentFaults=[later], epoch=2).settle()
    assert world.status["recentFaults"][0]["recoveredAt"] == "2027-01-15T08:01:30Z"


def test_restarts_of_all_levels_are_summed():
    world = World().running().new_session().settle().head_ready("pod-2").settle().workers_ready()
    world.master(restarts={"process": 2, "roleGroup": 1, "role": 0, "job": 0, "master": 3}).settle()
    assert world.status["restarts"]["cluster"] == 1
    assert world.status["restartsTotal"] == 7
    assert world.status["master"] == {"state": "Ready", "epoch": 1, "restarts": 3}


def test_node_counts_of_primemaster_stand_beside_those_of_the_raycluster():
    out = [{"name": "n1", "reason": "NodeFrozen", "since": "2027-01-15T08:00:30Z", "until": "2027-01-16T08:00:30Z"}]
    world = World().running()
    planned = world.status["nodes"]
    world.later(60).master(nodes={"desired": 9, "ready": 9, "replaced": 1, "excluded": out}).settle()
    assert world.status["nodes"] == {**planned, "replaced": 1, "excluded": out}
    world.view = MasterView({}, error="connection refused")
    assert world.later(60).settle().status["nodes"] == {**planned, "replaced": 1, "excluded": out}
    world.later(60).master(nodes={"desired": 9, "ready": 9, "replaced": 1, "excluded": []}).settle()
    assert world.status["nodes"] == {**planned, "replaced": 1, "excluded": []}


def test_the_status_is_bounded_whatever_primemaster_says():
    world = World().running()
    world.view = MasterView(
        snapshot(
            "Recovering",
            message="m" * 9000,
            roles=[{**snapshot()["roles"][0], "name": f"role-{n}"} for n in range(99)],
            recentFaults=[FAULT] * 99,
            lastFault=FAULT,
            placement={"units": 9, "ready": 0, "notReady": [{"name": "n" * 999, "why": "w" * 9999}] * 99},
            progress={"step": 1, "metrics": {f"m{n}": 0.1 for n in range(999)}},
        )
    )
    world.settle()
    assert len(world.status["message"]) == 1024
    assert len(json.dumps(world.status)) < 64 * 1024


def test_the_status_is_plain_json():
    world = World().running()
    outcome = reconcile(world.observed(), world.settings, world.now)
    assert outcome.status is None
    assert json.loads(json.dumps(world.status)) == world.status


def test_conditions_of_others_are_not_kept():
    world = World().running()
    world.status["conditions"].append({"type": "Theirs", "status": "True", "reason": "X", "message": ""})
    world.settle()
    assert "Theirs" not in [one["type"] for one in world.status["conditions"]]


def test_cuts_change_with_the_progress_and_stay_at_the_end():
    world = World().running().later(30).master(cuts={"committed": 1, "last": 1}).settle()
    assert world.status["cuts"] == {"committed": 1, "last": 1}
    world.later(1).master(cuts={"committed": 2, "last": 2})
    assert world.step().status is None
    assert world.master("Succeeded", cuts={"committed": 2, "last": 2}).settle().status["cuts"]["committed"] == 2


def test_endpoints_change_with_the_progress_and_go_with_the_job():
    """Each write of a status reaches every watch of the DLJob: servers that come and go cause none by themselves."""
    one = {"role": "worker", "ready": 1, "desired": 2, "addresses": [{"http": "10.0.0.1:24107"}]}
    world = World().running().later(30).master(endpoints=[one]).settle()
    assert world.status["endpoints"] == [one]
    world.later(1).master(endpoints=[{**one, "ready": 2}])
    assert world.step().status is None
    assert world.later(30).settle().status["endpoints"][0]["ready"] == 2
    assert "endpoints" not in world.master("Succeeded").settle().status
