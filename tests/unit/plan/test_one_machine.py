"""Sizes of elastic roles on a machine that no other can join."""

from __future__ import annotations

from plan_kit import job, machines, role

from dljob.plan.amounts import GRAIN
from dljob.plan.one_machine import largest_sizes, with_room_to_grow
from dljob.plan.plan import plan


def fleet(name: str = "engine", replicas: int = 1, most: int = 3, cpu: str = "400m", **more):
    bounds = {"minReplicas": 1, "maxReplicas": most, "resources": {"cpu": cpu}}
    return role(name, replicas, driver=False, **bounds, **more)


def client():
    return role("client", resources={"cpu": "400m"})


def spare(**amounts: float):
    return tuple(sorted((name, int(amount * GRAIN)) for name, amount in amounts.items()))


def test_a_derived_machine_is_larger_for_a_role_that_may_grow():
    made = plan(job(fleet(), client()))
    (group,) = with_room_to_grow(made, spare(CPU=2))
    assert dict(group.resources)["CPU"] == int(1.8 * GRAIN), "a CPU for both roles, and two further engines"
    assert largest_sizes(made, [group]) == {}
    assert largest_sizes(made, list(made.node_groups.values())) == {"engine": 1}


def test_it_grows_as_far_as_the_real_machine_goes_and_roles_are_served_in_order():
    made = plan(job(fleet(cpu="1", most=9), fleet("other", cpu="1", most=9), client()))
    groups = with_room_to_grow(made, spare(CPU=2))
    assert largest_sizes(made, groups) == {"engine": 3, "other": 3}, "each could have the room of two"


def test_roles_that_fit_alone_may_not_fit_together():
    made = plan(job(fleet(cpu="1"), fleet("other", cpu="1"), client()))
    assert largest_sizes(made, with_room_to_grow(made, spare(CPU=2))) == {"engine": 3, "other": 3}
    assert largest_sizes(made, with_room_to_grow(made, spare(CPU=4))) == {}


def test_devices_are_counted_and_never_rounded_up():
    made = plan(job(fleet(gpu=4, replicas=4, most=7), client()))
    (big,) = [group for group in made.node_groups.values() if group.device]
    assert big.replicas == 2, "eight GPUs a machine"
    for gpus, most in ((3, 4), (4, 4), (8, 6), (40, 6)):
        groups = with_room_to_grow(made, spare(CPU=9, GPU=gpus))
        assert largest_sizes(made, groups)["engine"] == most


def test_machines_that_the_user_declared_stay_as_declared():
    made = plan(job(fleet(cpu="1"), nodeGroups=[machines("m", 1, cpu="1", minReplicas=1, maxReplicas=3)]))
    groups = with_room_to_grow(made, spare(CPU=64))
    assert groups == list(made.node_groups.values())
    assert largest_sizes(made, groups) == {"engine": 1}


def test_spares_give_no_room_to_grow():
    made = plan(job(fleet(cpu="1"), faultTolerance={"spares": {"nodes": 1}}))
    assert largest_sizes(made, list(made.node_groups.values())) == {"engine": 1}


def test_a_job_of_fixed_sizes_gets_what_it_plans():
    made = plan(job(client()))
    assert with_room_to_grow(made, spare(CPU=64)) == list(made.node_groups.values())
    assert largest_sizes(made, list(made.node_groups.values())) == {}
