"""The laws of DESIGN section 6, on drawn specs."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_kit import job, layouts

from dljob.master.start.assign import Assignment, assign, would_be_nodes
from dljob.plan.devices import BY_RAY
from dljob.plan.model import GRAIN, add_up
from dljob.plan.plan import plan


@given(layouts())
def test_each_rank_sits_in_one_bundle_and_place_finds_it(layout):
    roles, collocations = layout
    made = plan(job(*roles, collocations=collocations))
    home = {role: c["name"] for c in collocations if c["level"] != "Separate" for role in c["roles"]}
    seen = {}
    for name, unit in made.units.items():
        assert unit.name == name
        for index, bundle in enumerate(unit.bundles):
            for who in bundle.ranks:
                assert who not in seen
                seen[who] = (name, index)
    assert set(seen) == {(role.name, rank) for role in made.roles.values() for rank in range(role.replicas)}
    for (role, rank), where in seen.items():
        place = made.place(role, rank)
        assert (place.unit, place.bundle) == where
        assert place.unit == f"{home.get(role, role)}/{rank // made.roles[role].group_size}"
        assert place.group * made.roles[role].group_size + place.local == rank


@pytest.mark.slow
@given(layouts())
def test_a_bundle_holds_what_its_ranks_take_and_no_device_is_overshared(layout):
    roles, collocations = layout
    made = plan(job(*roles, collocations=collocations))
    for unit in made.units.values():
        for bundle in unit.bundles:
            taken = add_up(*(made.roles[role].per_rank for role, _ in bundle.ranks))
            assert bundle.resources == (taken or (("memory", GRAIN),))
            for name, amount in bundle.resources:
                if name in BY_RAY and len(bundle.ranks) > 1:
                    assert amount <= GRAIN


@pytest.mark.slow
@given(layouts(), st.randoms())
def test_the_order_of_roles_and_collocations_does_not_matter(layout, random):
    roles, collocations = layout
    one = plan(job(*roles, collocations=collocations))
    shuffled = [{**c, "roles": random.sample(c["roles"], len(c["roles"]))} for c in collocations]
    other = plan(job(*random.sample(roles, len(roles)), collocations=random.sample(shuffled, len(shuffled))))
    assert one == other
    assert one.digest == other.digest


@given(layouts())
def test_derived_machines_hold_the_job_and_are_not_larger_than_needed(layout):
    roles, collocations = layout
    made = plan(job(*roles, collocations=collocations))
    nodes = would_be_nodes(made)
    found = assign(made.units.values(), nodes)
    assert isinstance(found, Assignment)
    most_cpu = max(dict(unit.demand).get("CPU", 0) for unit in made.units.values())
    for group in made.node_groups.values():
        for name, amount in group.resources:
            if name in BY_RAY:
                pieces = max(
                    sum(-(-a // GRAIN) for b in u.bundles for n, a in b.resources if n == name)
                    for u in made.units.values()
                )
                assert amount <= max(8, pieces) * GRAIN
            elif name == "CPU" and group.device is None:
                assert amount <= max(32 * GRAIN, -(-most_cpu // GRAIN) * GRAIN)
    assert len({group.resources for group in made.node_groups.values()}) == len(made.node_groups)


@settings(max_examples=20)
@given(layouts())
def test_a_plan_survives_pickling_and_its_digest_is_that_of_its_content(layout):
    roles, collocations = layout
    made = plan(job(*roles, collocations=collocations))
    assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301
    more = plan(job(*[{**r, "args": ["--x"]} for r in roles], collocations=collocations))
    assert more.digest != made.digest
