"""Elastic roles in a plan: other numbers of ranks in the same units, and the machines that they want."""

from __future__ import annotations

import pytest
from plan_kit import job, machines, ray_cluster, role

from dljob.errors import PlacementError
from dljob.plan import elastic
from dljob.plan.plan import plan


def elastic_role(replicas=4, group=1, **more):
    return role("e", replicas, group, type="Elastic", **more)


def test_group_k_is_in_unit_k_however_many_there_are():
    made = plan(job(elastic_role(4, 2, minReplicas=2, maxReplicas=8), role("a", 2)))
    for size in (2, 4, 6, 8):
        other = made.sized({"e": size})
        assert other.roles["e"].replicas == size
        assert [name for name in other.units if name.startswith("e/")] == [f"e/{k}" for k in range(size // 2)]
        for rank in range(min(size, 4)):
            assert other.place("e", rank) == made.place("e", rank)
        assert other.digest == made.digest
        assert other.sized({"e": 4}) == made
    assert made.sized({"e": 4}) is made
    assert made.widest.roles["e"].replicas == 8


def test_only_roles_with_bounds_may_have_other_numbers():
    made = plan(job(elastic_role(), role("a", 2)))
    assert made.widest is made
    assert not made.roles["e"].resizes
    assert plan(job(elastic_role(minReplicas=4, maxReplicas=4))).digest == plan(job(elastic_role())).digest


def test_machines_that_nobody_declared_have_bounds_too():
    (group,) = plan(job(elastic_role(gpu=4, minReplicas=1, maxReplicas=6))).node_groups.values()
    assert (group.replicas, group.bounds) == (2, (1, 3))
    (group,) = plan(job(elastic_role(gpu=4))).node_groups.values()
    assert group.bounds is None


def test_machines_follow_the_ranks_within_their_bounds_spares_included():
    bounded = machines("g", 4, gpus=8, minReplicas=2, maxReplicas=6)
    spares = {"spares": {"nodes": 1}}
    written = job(elastic_role(8, gpu=4, minReplicas=1, maxReplicas=12), nodeGroups=[bounded], faultTolerance=spares)
    made = plan(written)
    group = made.node_groups["g"]
    assert (group.replicas, group.bounds) == (5, (3, 7))
    wanted = {n: elastic.machines(made, {"e": 8}, {"e": n})["g"] for n in (1, 4, 6, 7, 8, 9, 10, 12)}
    assert wanted == {1: 3, 4: 3, 6: 4, 7: 5, 8: 5, 9: 6, 10: 6, 12: 7}
    (workers,) = ray_cluster(written)["spec"]["workerGroupSpecs"]
    assert (workers["replicas"], workers["minReplicas"], workers["maxReplicas"]) == (5, 3, 7)


def test_the_group_with_bounds_is_the_one_that_changes():
    fixed = machines("a", 2)
    made = plan(job(elastic_role(2, maxReplicas=40), nodeGroups=[fixed, machines("b", 1, maxReplicas=2)]))
    assert elastic.machines(made, {"e": 2}, {"e": 40}) == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    ("group", "field"),
    [({"maxReplicas": 5}, "maxReplicas"), ({"minReplicas": 1, "maxReplicas": 8}, "minReplicas")],
)
def test_bounds_that_do_not_fit_each_other_are_refused(group, field):
    roles = elastic_role(4, gpu=8, minReplicas=2, maxReplicas=8)
    with pytest.raises(PlacementError, match=f"does not fit on its nodeGroups with the {field} of both"):
        plan(job(roles, nodeGroups=[machines("g", 4, gpus=8, **group)]))
