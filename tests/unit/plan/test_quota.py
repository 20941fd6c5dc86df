"""Roles that reserve Quota: what must be free for them, and that nothing of it is held."""

from __future__ import annotations

import json

import pytest
from plan_kit import job, machines, role

from dljob.cli.placement import render_plan
from dljob.errors import PlacementError
from dljob.master.start.assign import Assignment, Refusal, assign, would_be_nodes
from dljob.plan.model import GRAIN, LEAST
from dljob.plan.plan import plan
from dljob.plan.quota import piece, quota_units

SCRIPT = {"module": "main.py"}


def framework(gpu=None, replicas=1, **more):
    return role("d", replicas, gpu=gpu, **{"reserve": "Quota", "entrypoint": SCRIPT, **more})


def sizes(made):
    return [(g.replicas, {name: amount // GRAIN for name, amount in g.resources}) for g in made.node_groups.values()]


def test_ranks_of_a_quota_role_hold_nothing_and_the_quota_is_counted():
    made = plan(job(framework(16, resources={"memory": "64Gi"})))
    own = made.roles["d"]
    assert (own.per_rank, own.accelerator) == ((), None)
    assert made.units["d/0"].demand == LEAST
    assert dict(own.quota or ()) == {"CPU": 16 * GRAIN, "GPU": 16 * GRAIN, "memory": 2**36 * GRAIN}
    assert sizes(made) == [(2, {"CPU": 8, "GPU": 8, "memory": 2**35})]


def test_a_quota_is_cut_by_devices_else_by_cpus_else_not():
    assert piece((("CPU", 32 * GRAIN), ("GPU", 16 * GRAIN))) == (16, (("CPU", 2 * GRAIN), ("GPU", GRAIN)))
    assert piece((("CPU", 5 * GRAIN // 2), ("memory", 2 * GRAIN))) == (2, (("CPU", 12_500), ("memory", GRAIN // 2)))
    assert piece((("CPU", 5_000),)) == (1, (("CPU", 5_000),))
    assert piece((("CPU", GRAIN), ("GPU", 4_000))) == (1, (("CPU", GRAIN), ("GPU", 4_000)))


def test_a_quotas_cpus_are_as_written_or_one_per_device():
    assert dict(plan(job(framework(4))).roles["d"].quota or ())["CPU"] == 4 * GRAIN
    assert dict(plan(job(framework("0.5"))).roles["d"].quota or ())["CPU"] == GRAIN
    assert dict(plan(job(framework(4, resources={"cpu": "6"}))).roles["d"].quota or ())["CPU"] == 6 * GRAIN
    assert dict(plan(job(framework())).roles["d"].quota or ()) == {"CPU": GRAIN}


def test_a_quota_that_the_machines_do_not_have_is_refused_with_its_numbers():
    with pytest.raises(PlacementError) as caught:
        plan(job(framework(16), nodeGroups=[machines("g", 1, gpus=8)]))
    assert "the quota of d: 16 units of 1 CPU, 1 GPU each; the 1 machine" in caught.value.message
    assert "8 GPU is missing" in caught.value.message
    with pytest.raises(PlacementError) as caught:
        plan(job(framework(2, resources={"cpu": "80"}), nodeGroups=[machines("g", 2, gpus=8)]))
    assert "a piece of the quota of d needs 40 CPU on one machine" in caught.value.message


def test_each_rank_of_a_quota_role_has_a_quota_on_its_node_group():
    made = plan(job(framework(2, 2, nodeGroup="g"), nodeGroups=[machines("f", 1, gpus=8), machines("g", 1, gpus=4)]))
    units = quota_units(made.roles)
    assert [unit.name for unit in units] == [f"the quota of d/{k}" for k in range(4)]
    found = assign(units, would_be_nodes(made))
    assert isinstance(found, Assignment)
    assert set(found.nodes.values()) == {"g-0"}


def test_roles_that_hold_and_quotas_share_the_machines():
    other = role("other", 5, gpu=1)
    made = plan(job(framework(3), other, nodeGroups=[machines("g", 1, gpus=8)]))
    units = (*made.units.values(), *quota_units(made.roles))
    nodes = would_be_nodes(made)
    assert isinstance(assign(units, nodes), Assignment)
    less = [type(node)(node.id, node.total, (("CPU", 32 * GRAIN), ("GPU", 7 * GRAIN)), node.labels) for node in nodes]
    refused = assign(units, less)
    assert isinstance(refused, Refusal)
    assert not refused.never
    assert "the quota of d" in refused.reason


def test_bounded_roles_leave_room_for_a_quota_at_their_maximum():
    elastic = role("e", 2, gpu=1, type="Elastic", minReplicas=1, maxReplicas=4)
    plan(job(framework(4), elastic, nodeGroups=[machines("g", 1, gpus=8)]))
    with pytest.raises(PlacementError, match="maxReplicas"):
        plan(job(framework(5), elastic, nodeGroups=[machines("g", 1, gpus=8)]))


def test_a_quota_changes_the_digest():
    assert plan(job(role("a"))).roles["a"].quota is None
    assert plan(job(framework())).digest != plan(job(role("d", entrypoint=SCRIPT))).digest


def test_the_plan_shows_a_quota_beside_what_ranks_take():
    made = plan(job(framework(2)))
    assert "quota: 2 CPU, 2 GPU" in render_plan(made, would_be_nodes(made), "table")
    (shown,) = json.loads(render_plan(made, would_be_nodes(made), "json"))["roles"]
    assert (shown["eachRank"], shown["quota"]) == ({}, {"CPU": "2", "GPU": "2"})
