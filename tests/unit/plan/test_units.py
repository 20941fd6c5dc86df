"""Units: which groups share a machine, and what may not."""

from __future__ import annotations

import pytest
from plan_kit import job, machines, role, together

from dljob.errors import PlacementError
from dljob.plan.model import GRAIN, Place
from dljob.plan.plan import plan


def test_device_sharers_sit_in_one_bundle_by_local_index():
    made = plan(
        job(
            role("actor", 4, 2, "0.6"),
            role("critic", 2, 2, "0.4"),
            collocations=[together("t", "Device", "actor", "critic")],
        )
    )
    assert list(made.units) == ["t/0", "t/1"]
    first, second = made.units.values()
    assert [bundle.ranks for bundle in first.bundles] == [
        (("actor", 0), ("critic", 0)),
        (("actor", 1), ("critic", 1)),
    ]
    assert [dict(bundle.resources)["GPU"] for bundle in first.bundles] == [GRAIN, GRAIN]
    assert first.members == (("actor", 0), ("critic", 0))
    assert [bundle.ranks for bundle in second.bundles] == [(("actor", 2),), (("actor", 3),)]
    assert made.place("critic", 1) == Place(group=0, local=1, unit="t/0", bundle=1)


def test_groups_of_different_size_share_the_first_devices():
    made = plan(job(role("a", 3, 3, "0.5"), role("b", gpu="0.5"), collocations=[together("t", "Device", "a", "b")]))
    assert [len(bundle.ranks) for bundle in made.units["t/0"].bundles] == [2, 1, 1]


def test_host_sharers_have_bundles_of_their_own():
    made = plan(
        job(role("b", 2, 2, 1), role("a", 4, 2, 1), collocations=[together("t", "Host", "a", "b")]),
    )
    assert [bundle.ranks for bundle in made.units["t/0"].bundles] == [
        (("a", 0),),
        (("a", 1),),
        (("b", 0),),
        (("b", 1),),
    ]
    assert made.units["t/0"].demand == (("CPU", 4 * GRAIN), ("GPU", 4 * GRAIN))
    assert made.place("b", 1) == Place(group=0, local=1, unit="t/0", bundle=3)
    assert made.place("a", 3) == Place(group=1, local=1, unit="t/1", bundle=1)


def test_a_bundle_is_never_empty_since_ray_refuses_that():
    made = plan(job(role("a", resources={"cpu": "0"})))
    assert made.units["a/0"].demand == (("memory", GRAIN),)
    assert made.roles["a"].per_rank == ()


def test_separate_roles_keep_units_of_their_own():
    made = plan(job(role("a"), role("b"), collocations=[together("s", "Separate", "a", "b")]))
    assert {name: unit.apart for name, unit in made.units.items()} == {"a/0": ("s", "a"), "b/0": ("s", "b")}


def test_a_collocation_named_like_a_role_outside_it_stays_apart_from_it():
    made = plan(job(role("a"), role("b"), role("t"), collocations=[together("t", "Host", "a", "b")]))
    assert list(made.units) == ["t/0", "t-units/0"]
    assert made.place("a", 0).unit == "t-units/0"


def test_a_collocation_is_bound_where_one_of_its_roles_is():
    made = plan(
        job(
            role("a", nodeGroup="g"),
            role("b"),
            collocations=[together("t", "Host", "a", "b")],
            nodeGroups=[machines("g")],
        )
    )
    assert made.units["t/0"].selector == (("dljob.io/node-group", "g"),)


def test_unknown_units_and_ranks_are_not_found():
    made = plan(job(role("a", 3)))
    assert len(made.units) == 3
    assert "a/2" in made.units
    for name in ("a/3", "b/0", "a", "a/-1", "a/01", "a/x"):
        assert name not in made.units
    for who in (("a", 3), ("a", -1), ("b", 0)):
        with pytest.raises(KeyError):
            made.place(*who)


def refusal(*roles, **spec):
    with pytest.raises(PlacementError) as caught:
        plan(job(*roles, **spec))
    return caught.value.message


def test_collocated_group_counts_of_which_none_divides_the_other_are_refused():
    message = refusal(role("a", 4), role("b", 6), role("c", 12), collocations=[together("t", "Host", "a", "b", "c")])
    assert message.startswith("collocation t: a has 4 groups and b has 6;")


def test_a_plan_that_cannot_be_made_says_where_the_spec_asks_for_it():
    apart = [together("ok", "Host", "c", "d"), together("t", "Host", "a", "b")]
    custom = role("e", accelerator={"type": "Custom"})
    for roles, more, loc in (
        ([role("a", 4), role("b", 6), role("c"), role("d")], {"collocations": apart}, ("collocations", 1)),
        ([role("a"), custom], {}, ("roles", 1, "accelerator")),
        ([role("a", gpu=2)], {"nodeGroups": [machines("g")]}, ("nodeGroups",)),
    ):
        with pytest.raises(PlacementError) as caught:
            plan(job(*roles, **more))
        assert caught.value.loc == ("spec", *loc)


def test_shares_over_one_device_are_refused_with_the_fewest_roles_that_exceed_it():
    message = refusal(
        role("a", gpu="0.1"), role("b", gpu="0.6"), role("c", gpu="0.5"), role("d"),
        collocations=[together("t", "Device", "a", "b", "c", "d")],
    )  # fmt: skip
    assert message == "collocation t: the shares of one device are more than 1: b 0.6 + c 0.5 = 1.1, 0.1 too much"


def test_three_thirds_share_one_device():
    thirds = [role(name, gpu=share) for name, share in (("a", "0.3334"), ("b", "0.3333"), ("c", "0.3333"))]
    made = plan(job(*thirds, collocations=[together("t", "Device", "a", "b", "c")]))
    assert dict(made.units["t/0"].demand)["GPU"] == GRAIN
    over = [role(name, gpu="0.3334") for name in "abc"]
    assert "0.0002 too much" in refusal(*over, collocations=[together("t", "Device", "a", "b", "c")])


def test_roles_that_share_different_devices_are_refused():
    message = refusal(
        role("a", gpu="0.5"),
        role("b", accelerator={"type": "NPU", "count": "0.5"}),
        collocations=[together("t", "Device", "a", "b")],
    )
    assert message.startswith("collocation t: a takes GPU and b takes NPU;")


def test_collocated_roles_bound_to_different_node_groups_are_refused():
    message = refusal(
        role("a", nodeGroup="g"),
        role("b", nodeGroup="h"),
        collocations=[together("t", "Host", "a", "b")],
        nodeGroups=[machines("g"), machines("h")],
    )
    assert message.startswith("collocation t: a is bound to node group g and b to h;")
