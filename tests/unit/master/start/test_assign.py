"""Units to nodes: never too much, never where it must not be, and in words when it cannot be."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dljob.master.start.assign import (
    AssignedUnit,
    Assignment,
    Refusal,
    assign,
    nodes_with_room,
    spare_nodes,
    would_be_nodes,
)
from dljob.master.state.views import NodeView
from dljob.plan.labels import matches
from dljob.plan.model import GRAIN, NODE_GROUP_LABEL, Bundle, Unit, add_up
from dljob.plan.plan import plan
from dljob.spec.model import DLJobManifest


def amounts(**found):
    return tuple(sorted((name, round(amount * GRAIN)) for name, amount in found.items() if amount))


def unit(name, selector=(), apart=None, **takes):
    return Unit(name, (Bundle(amounts(**takes), ((name.split("/")[0], 0),)),), ((name, 0),), tuple(selector), apart)


def node(name, labels=(), free=None, *, head=False, **total):
    have = amounts(**total)
    return NodeView(name, have, have if free is None else amounts(**free), tuple(labels), head=head)


def group(name):
    return ((NODE_GROUP_LABEL, name),)


SELECTORS = [(), (("rack", "a"),), (("rack", "!a"),), (("rack", "in(a,b)"),)]
units_drawn = st.lists(
    st.tuples(
        st.sampled_from("xyz"),
        st.integers(1, 3),
        st.sampled_from([0, 0.25, 0.5, 1]),
        st.sampled_from(SELECTORS),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
).map(
    lambda drawn: [
        unit(f"{role}/{i}", selector, ("s", role) if apart else None, CPU=cpu, GPU=gpu)
        for i, (role, cpu, gpu, selector, apart) in enumerate(drawn)
    ]
)
nodes_drawn = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 2), st.sampled_from(["a", "b", None]), st.booleans()),
    min_size=1,
    max_size=3,
).map(
    lambda drawn: [
        node(f"n{i}", [("rack", rack)] if rack else [], head=i == 0 and head, CPU=cpu, GPU=gpu)
        for i, (cpu, gpu, rack, head) in enumerate(drawn)
    ]
)


def allowed(units, nodes, where):
    """Whether these places break no rule; devices of different shares never meet."""
    by_id = {n.id: n for n in nodes}
    for n in nodes:
        here = [u for u in units if where[u.name] == n.id]
        if not here:
            continue
        if n.head or any(not matches(u.selector, dict(n.labels)) for u in here):
            return False
        if len({u.apart for u in here if u.apart}) > 1:
            return False
        asked = add_up(*(u.demand for u in here))
        free = dict(n.free)
        if any(amount > free.get(name, 0) for name, amount in asked):
            return False
        shares = [dict(u.demand).get("GPU", 0) for u in here]
        devices = sum(s // GRAIN for s in shares)
        devices += sum(-(-shares.count(s) // (GRAIN // s)) for s in {s for s in shares if 0 < s < GRAIN})
        if devices > free.get("GPU", 0) // GRAIN:
            return False
    return set(where.values()) <= set(by_id)


@settings(max_examples=150, deadline=None)
@given(units_drawn, nodes_drawn)
def test_units_are_placed_exactly_when_a_placement_exists(units, nodes):
    found = assign(units, nodes)
    if isinstance(found, Assignment):
        assert set(found.nodes) == {u.name for u in units}
        assert allowed(units, nodes, found.nodes)
        return
    assert found.proven
    assert found.never
    names = [n.id for n in nodes]
    for choice in product(names, repeat=len(units)):
        assert not allowed(units, nodes, dict(zip([u.name for u in units], choice, strict=True)))


@settings(max_examples=60, deadline=None)
@given(units_drawn, nodes_drawn, st.randoms())
def test_the_order_of_units_and_nodes_does_not_matter(units, nodes, random):
    again = assign(random.sample(units, len(units)), random.sample(nodes, len(nodes)))
    assert again == assign(units, nodes)


@settings(max_examples=100, deadline=None)
@given(units_drawn, nodes_drawn)
def test_the_units_named_by_a_refusal_are_a_minimal_conflict(units, nodes):
    found = assign(units, nodes)
    if isinstance(found, Assignment):
        return
    named = [name for name, _ in found.conflict]
    conflicting = [u for u in units if u.name.split("/")[0] in named]
    assert isinstance(assign(conflicting, nodes), Refusal)
    if len(set(named)) == len(named) and all(
        count == sum(u.name.startswith(f"{name}/") for u in units) for name, count in found.conflict
    ):
        for left_out in named:
            assert isinstance(assign([u for u in conflicting if u.name.split("/")[0] != left_out], nodes), Assignment)


def test_units_in_order_go_to_nodes_in_order():
    units = [unit(f"a/{i}", CPU=1) for i in range(12)]
    nodes = [node(f"n-{i}", CPU=1) for i in range(12)]
    found = assign(reversed(units), reversed(nodes))
    assert isinstance(found, Assignment)
    assert found.nodes == {f"a/{i}": f"n-{i}" for i in range(12)}


def test_neighbours_stay_neighbours_though_the_tighter_node_is_filled_first():
    found = assign([unit(f"a/{i}", CPU=1) for i in range(6)], [node("n-0", CPU=4), node("n-1", CPU=2)])
    assert isinstance(found, Assignment)
    assert [found.nodes[f"a/{i}"] for i in range(6)] == ["n-0"] * 4 + ["n-1"] * 2


def test_no_units_need_no_node():
    assert assign([], []) == Assignment({})


def test_a_cpu_unit_leaves_device_nodes_to_those_who_need_them():
    found = assign([unit("c/0", CPU=1), unit("g/0", CPU=8, GPU=1)], [node("a", CPU=8, GPU=1), node("b", CPU=8)])
    assert found == Assignment({"c/0": "b", "g/0": "a"})


def test_the_head_and_excluded_nodes_get_nothing():
    nodes = [node("head", head=True, CPU=9), node("bad", CPU=9), node("good", CPU=1)]
    assert assign([unit("a/0", CPU=1)], nodes, excluded=frozenset({"bad"})) == Assignment({"a/0": "good"})
    found = assign([unit("a/0", CPU=2)], nodes, excluded=frozenset({"bad"}))
    assert isinstance(found, Refusal)
    assert not found.never, "an excluded node may come back"


def test_units_that_do_not_all_fit_are_placed_nowhere():
    found = assign([unit(f"a/{i}", CPU=1) for i in range(3)], [node("n", CPU=2)])
    assert found == Refusal(
        reason="a: 3 units of 1 CPU each; the 1 machine that they may use has room for 2, so at least 1 CPU is missing",
        conflict=(("a", 3),),
        missing_amounts=(("CPU", GRAIN),),
        never=True,
    )


def test_room_that_others_hold_is_waited_for():
    found = assign([unit("a/0", CPU=2)], [node("n", CPU=4, free={"CPU": 1})])
    assert found == Refusal(
        reason="one process of role a needs 2 CPU on one machine; no machine has more than 1 CPU free",
        conflict=(("a", 1),),
        missing_amounts=(("CPU", GRAIN),),
        never=False,
    )


def test_without_nodes_the_refusal_says_that_there_is_no_machine():
    found = assign([unit("a/0", CPU=1)], [node("head", head=True, CPU=8)])
    assert isinstance(found, Refusal)
    assert found.reason == "one process of role a needs a machine; there is none (ranks never live on the head)"
    assert found.never


def test_without_a_node_of_the_label_the_refusal_names_the_label():
    found = assign([unit("a/0", [("rack", "in(a,b)"), ("zone", "!c")], CPU=1)], [node("n", CPU=8), node("m", CPU=8)])
    assert isinstance(found, Refusal)
    assert found.reason == (
        "one process of role a needs a machine labelled rack=in(a,b), zone=!c; none of the 2 machines is"
    )


def test_separate_roles_keep_away_from_those_already_placed():
    a, b = unit("a/0", apart=("s", "a"), CPU=1), unit("b/0", apart=("s", "b"), CPU=1)
    nodes = [node("m", CPU=9), node("n", CPU=9)]
    held = AssignedUnit(a, "m")
    assert assign([b], nodes, placed_units=[held]) == Assignment({"b/0": "n"})
    assert assign([unit("a/1", apart=("s", "a"), CPU=1)], nodes, placed_units=[held]) == Assignment({"a/1": "m"})
    found = assign([b], nodes[:1], placed_units=[held])
    assert isinstance(found, Refusal)
    assert found.reason == (
        "one process of role b shares no machine with other roles of collocation s; none of 1 machine is without them"
    )
    assert found.never


def test_held_resources_that_are_not_counted_yet_are_not_given_away_again():
    units = [unit("a/0", CPU=3), unit("b/0", CPU=3)]
    nodes = [node("n", CPU=4)]
    assert assign(units[1:], nodes, placed_units=[AssignedUnit(units[0], "gone")]) == Assignment({"b/0": "n"})
    counted = [node("n", CPU=8, free={"CPU": 5})]
    assert assign(units[1:], counted, placed_units=[AssignedUnit(units[0], "n")]) == Assignment({"b/0": "n"})
    found = assign(units[1:], nodes, placed_units=[AssignedUnit(units[0], "n", counted=False)])
    assert isinstance(found, Refusal)
    assert found.never, "no other job is in the way"
    over = [node("n", CPU=2), node("m", CPU=1)]
    assert isinstance(
        assign([unit("b/0", CPU=2)], over, placed_units=[AssignedUnit(units[0], "n", counted=False)]), Refusal
    )
    twice = [AssignedUnit(own, "n", counted=False) for own in units]
    assert isinstance(assign([unit("c/0", CPU=2)], over, placed_units=twice), Refusal), (
        "nor beside a second that it cannot hold"
    )


def test_spares_stay_entirely_free():
    nodes = [node(f"n{i}", group("g"), CPU=4) for i in range(3)]
    units = [unit(f"a/{i}", CPU=4) for i in range(2)]
    assert assign(units, nodes, reserve_nodes={"g": 1}) == Assignment({"a/0": "n0", "a/1": "n1"})
    found = assign([*units, unit("a/2", CPU=4)], nodes, reserve_nodes={"g": 1})
    assert isinstance(found, Refusal)
    assert found.reason.endswith("have room for 2, so at least 4 CPU is missing (kept free as spares: 1 of g)")


def test_a_node_in_use_is_no_spare():
    busy = node("n0", group("g"), CPU=4, free={"CPU": 3})
    idle = node("n1", group("g"), CPU=4)
    a = unit("a/0", CPU=1)
    assert assign([a], [idle, busy], reserve_nodes={"g": 1}) == Assignment({"a/0": "n0"})
    for more in ({"excluded": frozenset({"n1"})}, {"placed_units": [AssignedUnit(unit("b/0", CPU=1), "n1")]}):
        found = assign([a], [idle, busy], reserve_nodes={"g": 1}, **more)
        assert isinstance(found, Refusal)
        assert found.reason.startswith("node group g: 1 to stay free as spares, 0 of 2 are free")
        assert not found.never


def test_more_spares_than_a_group_has_will_never_be():
    found = assign([unit("a/0", CPU=1)], [node("n", group("g"), CPU=4)], reserve_nodes={"g": 1, "h": 1})
    assert isinstance(found, Refusal)
    assert found.reason == "node group h: 1 to stay free as spares, 0 of 0 are free"
    assert found.never


def test_a_placement_that_was_not_found_is_not_called_impossible(monkeypatch):
    from dljob.plan import packing
    from dljob.plan.packing import Stuck

    monkeypatch.setattr(packing, "_search", lambda *_: Stuck(proven=False))
    units = [unit(f"{name}/0", CPU=cpu) for name, cpu in zip("abcdef", (6, 6, 5, 5, 4, 4), strict=True)]
    found = assign(units, [node("m", CPU=15), node("n", CPU=15)])
    assert isinstance(found, Refusal)
    assert not found.proven
    assert not found.never


def test_a_plan_names_the_nodes_it_would_have():
    spec = {
        "roles": [{"name": "a", "entrypoint": {"class": "x.Y"}, "replicas": 3, "accelerator": {"count": "8"}}],
        "faultTolerance": {"spares": {"nodes": 1}},
    }
    made = plan(DLJobManifest.model_validate({"metadata": {"name": "job"}, "spec": spec}))
    nodes = would_be_nodes(made)
    assert [n.id for n in nodes] == ["gpu8-0", "gpu8-1", "gpu8-2", "gpu8-3"]
    assert nodes[0].total == nodes[0].free == amounts(CPU=1, GPU=8)
    assert dict(nodes[0].labels) == {NODE_GROUP_LABEL: "gpu8"}
    assert isinstance(assign(made.units.values(), nodes, reserve_nodes=spare_nodes(made)), Assignment)


@pytest.mark.parametrize("count", [1, 2])
def test_two_halves_share_one_device(count):
    units = [unit(f"a/{i}", GPU=0.5) for i in range(2 * count)]
    found = assign(units, [node("n", GPU=count)])
    assert isinstance(found, Assignment)
    assert isinstance(assign([*units, unit("b/0", GPU=0.1)], [node("n", GPU=count)]), Refusal)


def test_only_nodes_with_enough_of_everything_for_the_smallest_unit_are_roomy():
    there = [
        node("full", CPU=8, GPU=8, free={"CPU": 8}),
        node("some", CPU=8, GPU=8, free={"CPU": 1, "GPU": 1}),
        node("busy", CPU=8, GPU=8, free={"GPU": 8}),
        node("bare", CPU=8),
    ]
    big, small, plain = unit("big/0", CPU=2, GPU=4), unit("small/0", CPU=1, GPU=1), unit("plain/0", CPU=1)

    def names(*units):
        return [found.id for found in nodes_with_room(there, units)]

    assert names(big) == ["bare"]  # it has no devices at all: that is for `assign` to say
    assert names(big, small) == ["some", "bare"]
    assert names(big, small, plain) == ["full", "some", "bare"]


@settings(max_examples=150, deadline=None)
@given(units_drawn, nodes_drawn, st.integers(0, 4))
def test_nodes_without_room_make_no_difference(units, nodes, taken):
    there = [replace(n, free=amounts(CPU=max(0, dict(n.free).get("CPU", 0) / GRAIN - taken))) for n in nodes]
    whole = assign(units, there)
    near = assign(units, nodes_with_room(there, units))
    assert near == whole if isinstance(whole, Assignment) else isinstance(near, Refusal)
