"""One domain for all units of a role, a host for each: what is chosen, what is refused, and what pods are told."""

from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_kit import job, machines, ray_cluster, role, together

from dljob.cli.placement import render_plan
from dljob.errors import PlacementError
from dljob.master.start.assign import would_be_nodes
from dljob.plan import domains
from dljob.plan.capacity import demand_of, room_of
from dljob.plan.domains import domains_of, pack_in_domains, why_not
from dljob.plan.model import GRAIN, Bundle, Unit
from dljob.plan.nodes import DERIVED_DOMAIN
from dljob.plan.packing import Batch, Packing, Stuck, pack, runs_of
from dljob.plan.plan import plan
from dljob.raycluster.domain_pods import PREFERRED, REQUIRED
from dljob.raycluster.render import RenderOptions, effective, render_raycluster
from dljob.reconcile.state.placement import placement_plan

PREFIX = "scheduling.dljob.io/"
TOPOLOGY, STRATEGY = f"{PREFIX}topology-key", f"{PREFIX}strategy"
RATHER = f"{PREFIX}preferred-topology-key"


def in_one(name, replicas=1, key="rack", spread=False, **more):
    marks = {TOPOLOGY: key} if key else {}
    return role(name, replicas, annotations={**marks, **({STRATEGY: "STRICT_SPREAD"} if spread else {})}, **more)


def batch(name, count, *, gpu=0, cpu=1, key="rack", spread=False, selector=()):
    takes = tuple((kind, n * GRAIN) for kind, n in (("CPU", cpu), ("GPU", gpu)) if n)
    unit = Unit(f"{name}/0", (Bundle(takes, ((name, 0),)),), ((name, 0),), selector, None, key, spread)
    return Batch(name, demand_of(unit), count, unit)


def racks(batches, *shapes):
    """Machines of (rack or None, CPUs, GPUs)."""
    rooms = []
    for i, (rack, cpu, gpu) in enumerate(shapes):
        have = tuple((kind, n * GRAIN) for kind, n in (("CPU", cpu), ("GPU", gpu)) if n)
        rooms.append((room_of(have, (("rack", rack),) if rack else ()), (i,)))
    return runs_of(rooms, batches)


def chosen(batches, *shapes, fixed=None):
    runs = racks(batches, *shapes)
    packing, found = pack_in_domains(batches, runs, fixed or {})
    assert isinstance(packing, Packing), why_not(batches, runs, fixed or {}, proven=True).reason
    return {one.series: one.value for one in found}


def refused(batches, *shapes, fixed=None, left=""):
    runs = racks(batches, *shapes)
    packing, found = pack_in_domains(batches, runs, fixed or {})
    assert isinstance(packing, Stuck)
    assert not found
    return why_not(batches, runs, fixed or {}, proven=packing.proven, suffix=left)


# -- which domain


def test_units_go_to_the_domain_with_the_least_room_that_holds_them_all():
    wanted = [batch("a", 3, gpu=1)]
    assert chosen(wanted, ("r1", 9, 8), ("r2", 9, 2), ("r3", 9, 4), ("r3", 9, 1)) == {"a": "r3"}
    runs = racks(wanted, ("r1", 9, 8), ("r2", 9, 2), ("r3", 9, 4), ("r3", 9, 1))
    _, (own,) = pack_in_domains(wanted, runs, {})
    assert own.reason == (
        "rack=r3 (2 machines, 18 CPU, 5 GPU) holds 3 units of a (1 CPU, 1 GPU each), "
        "the one of 2 with least room beyond that"
    )
    _, (own,) = pack_in_domains(wanted, racks(wanted, ("r1", 9, 8), ("r2", 9, 2)), {})
    assert own.reason.endswith(", the only one that does")


def test_equal_domains_go_by_name_as_people_count():
    assert chosen([batch("a", 1)], ("r10", 1, 0), ("r9", 1, 0)) == {"a": "r9"}


def test_units_go_to_the_domain_of_the_units_already_placed_or_nowhere():
    assert chosen([batch("a", 1)], ("r1", 1, 0), ("r2", 9, 0), fixed={"a": frozenset({"r2"})}) == {}
    conflict = refused([batch("a", 2)], ("r1", 9, 0), ("r2", 1, 0), fixed={"a": frozenset({"r2"})}, left=" free")
    assert conflict.reason == (
        "2 units of a (1 CPU each) need one rack (rack=r2, where its other units are): r2 (1 machine, 1 CPU free) "
        "has room for 1; add machines to a domain, ask for less, or leave topology-key out"
    )


def test_the_next_domain_is_tried_when_others_need_the_first():
    """b may go to r1 alone, so a leaves it, though it is the tighter one."""
    bound = batch("b", 1, gpu=2, key="", selector=(("rack", "r1"),))
    assert chosen([batch("a", 2, gpu=1), bound], ("r1", 9, 2), ("r2", 9, 4)) == {"a": "r2"}


def test_two_batches_of_units_choose_their_domains_together():
    assert chosen([batch("a", 2, gpu=1), batch("b", 2, gpu=1)], ("r1", 9, 2), ("r2", 9, 2)) == {"a": "r1", "b": "r2"}


# -- why there is none


def test_a_refusal_names_the_domains_that_were_seen():
    conflict = refused([batch("a", 4, gpu=1)], ("r1", 9, 2), ("r1", 9, 1), ("r2", 9, 2), (None, 9, 8))
    assert conflict.reason == (
        "4 units of a (1 CPU, 1 GPU each) need one rack: r1 (2 machines, 18 CPU, 3 GPU) has room for 3; "
        "r2 (1 machine, 9 CPU, 2 GPU) has room for 2; 1 machine without that label; "
        "add machines to a domain, ask for less, or leave topology-key out"
    )
    assert conflict.proven


def test_many_domains_are_not_all_named():
    words = refused([batch("a", 2, gpu=1)], *((f"r{i}", 1, 1) for i in range(9)), (None, 9, 9), (None, 9, 9)).reason
    assert "r5 (1 machine, 1 CPU, 1 GPU) has room for 1; 3 more have room for no more than 1; 2 machines" in words
    assert "r6" not in words


def test_without_a_machine_of_the_label_the_refusal_says_so():
    assert (
        "need one rack: no machine that it may use has the label rack; add"
        in refused([batch("a", 2)], (None, 9, 0)).reason
    )


def test_batches_that_fit_alone_but_not_beside_each_other_are_refused():
    words = refused([batch("a", 2, gpu=1), batch("b", 2, gpu=1)], ("r1", 9, 3), ("r2", 9, 1)).reason
    assert words.startswith("a (one rack) and b (one rack) fit in a domain each alone, but not beside each other")


def test_units_that_fit_nowhere_are_refused_as_without_domains():
    words = refused([batch("a", 1, gpu=9)], ("r1", 9, 8)).reason
    assert words == "one process of role a needs 9 GPU on one machine; no machine has more than 8 GPU"


def test_more_combinations_than_are_tried_prove_nothing(monkeypatch):
    monkeypatch.setattr(domains, "TRIES", 1)
    wanted = [batch("a", 2, gpu=1), batch("b", 2, gpu=1)]
    packing, _ = pack_in_domains(wanted, racks(wanted, ("r1", 9, 2), ("r2", 9, 2)), {})
    assert packing == Stuck(proven=False)


def test_machines_without_what_is_asked_for_are_counted_alone():
    (one,) = domains_of([batch("a", 1, cpu=0, gpu=0)], racks([batch("a", 1)], ("r1", 0, 0)), {})
    assert (one.machines, one.free) == (1, ())
    assert "r1 (1 machine) holds" in domains._explain_choice(one, "rack", [batch("a", 1)], 1)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=2),
    st.lists(st.tuples(st.sampled_from(["r1", "r2", None]), st.integers(0, 3), st.integers(0, 2)), max_size=4),
)
def test_a_domain_is_found_exactly_when_one_exists(wanted, shapes):
    """Against trying every pair of domains, pinned by label selectors."""
    batches = [batch(f"{name}{i}", count, gpu=gpu) for i, (name, count, gpu) in enumerate(wanted)]
    runs = racks(batches, *shapes)
    found, said = pack_in_domains(batches, runs, {})
    pairs = product(["r1", "r2"], repeat=len(batches))
    possible = any(
        isinstance(
            pack(
                [
                    batch(b.name, b.count, gpu=gpu, key="", selector=(("rack", value),))
                    for b, (_, _, gpu), value in zip(batches, wanted, values, strict=True)
                ],
                runs,
            ),
            Packing,
        )
        for values in pairs
    )
    assert isinstance(found, Packing) == possible
    assert len(said) == (len(batches) if possible else 0)


# -- a host for each


def test_spread_units_go_to_machines_of_their_own():
    spread = [batch("a", 3, key="", spread=True)]
    found = pack(spread, racks(spread, *(("r", 9, 0),) * 3))
    assert isinstance(found, Packing)
    assert sum(len(ids) * each for ids, each in found.spots[0]) == 3
    assert all(each == 1 for _, each in found.spots[0])
    words = refused(spread, ("r", 9, 0), ("r", 9, 0)).reason
    assert words == "a: 3 units, each on a machine of its own (STRICT_SPREAD); there are 2 machines that they may use"
    words = refused([batch("a", 2, key="", gpu=1, spread=True)], ("r", 9, 0), ("r", 9, 8)).reason
    assert words.endswith("there are 2 machines that they may use, 1 with room for one")
    words = refused([batch("a", 2, key="", spread=True)], ("r", 9, 0)).reason
    assert words.endswith("there is 1 machine that they may use")


def test_the_greedy_orders_leave_spread_ones_their_hosts():
    wanted = [batch("a", 1, cpu=4, key=""), batch("b", 2, cpu=4, key="", spread=True)]
    assert isinstance(pack(wanted, racks(wanted, (None, 8, 0), (None, 4, 0))), Packing)


def test_a_machine_with_a_spread_unit_takes_no_other_of_the_role():
    shapes = plan(
        job(
            in_one("a", 4, key="", spread=True),
            role("b", 2),
            collocations=[together("c", "Host", "a", "b")],
            nodeGroups=[machines("g", 4)],
        )
    )
    assert shapes.units["c/3"].spread
    with pytest.raises(PlacementError, match=r"on a machine of its own|each unit of c on a machine of its own"):
        plan(
            job(
                in_one("a", 4, key="", spread=True),
                role("b", 2),
                collocations=[together("c", "Host", "a", "b")],
                nodeGroups=[machines("g", 3)],
            )
        )


def test_derived_machines_are_as_many_as_spread_units_need():
    made = plan(job(in_one("a", 3, key="", spread=True, gpu=1)))
    assert [(g.name, g.replicas, g.spread) for g in made.node_groups.values()] == [("gpu1", 3, True)]
    assert made.node_groups["gpu1"].domains == ()


# -- preferences


def rather(name, count, *, cpu=1):
    """Units that would rather be in one rack."""
    unit = Unit(f"{name}/0", (Bundle((("CPU", cpu * GRAIN),), ((name, 0),)),), ((name, 0),), (), preferred_key="rack")
    return Batch(name, demand_of(unit), count, unit)


def choices(batches, *shapes, fixed=None):
    packing, found = pack_in_domains(batches, racks(batches, *shapes), fixed or {})
    assert isinstance(packing, Packing)
    return {one.series: (one.value, one.reason) for one in found}


def test_a_preferred_domain_is_had_where_one_holds_all_units():
    value, why = choices([rather("a", 2)], ("r1", 1, 0), ("r2", 2, 0))["a"]
    assert value == "r2"
    assert why == "rack=r2 (1 machine, 2 CPU) holds 2 units of a (1 CPU each), the only one that does"


def test_without_a_large_enough_domain_units_are_placed_and_the_reason_is_told():
    assert choices([rather("a", 3)], ("r1", 1, 0), ("r2", 1, 0), (None, 1, 0))["a"][1] == (
        "3 units of a (1 CPU each), preferred in one rack: r1 (1 machine, 1 CPU) has room for 1; r2 (1 machine, 1 CPU) "
        "has room for 1; 1 machine without that label; placed without: machines without that label (1), r1 (1), r2 (1)"
    )


def test_of_two_preferences_that_exclude_each_other_one_is_had():
    found = choices([rather("a", 2), rather("b", 2)], ("r1", 2, 0), ("r2", 1, 0), ("r3", 1, 0))
    assert found["a"][0] == "r1"
    assert found["b"][0] == ""
    assert found["b"][1].startswith(
        "2 units of b (1 CPU each), preferred in one rack: r1 would hold them, but not beside all other units; placed "
    )
    # What is needed comes before what is preferred, and room for all before both.
    assert choices([rather("a", 2), batch("b", 2)], ("r1", 2, 0), ("r2", 1, 0), ("r3", 1, 0)) == {
        "a": ("", choices([rather("a", 2), batch("b", 2)], ("r1", 2, 0), ("r2", 1, 0), ("r3", 1, 0))["a"][1]),
        "b": ("r1", "rack=r1 (1 machine, 2 CPU) holds 2 units of b (1 CPU each), the only one that does"),
    }


def test_units_follow_those_that_are_placed_and_a_second_loss_is_not_told_again():
    two = [rather("a", 1)]
    assert choices(two, ("r1", 1, 0), ("r2", 1, 0), fixed={"a": frozenset(["r2"])}) == {}
    assert choices(two, ("r1", 1, 0), fixed={"a": frozenset(["r2"])})["a"][1] == (
        "1 unit of a (1 CPU each), preferred in one rack (rack=r2, where its other units are): no machine that it may "
        "use is there; placed without: r1 (1)"
    )
    assert choices(two, ("r1", 1, 0), fixed={"a": frozenset(["r2", "r3"])}) == {}


@given(
    st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from(["r1", "r2", None]), st.integers(1, 3)), min_size=1, max_size=5),
)
def test_preferences_place_all_that_fits_without_them_and_miss_none_that_could_be_had(wanted, shapes):
    batches = [
        rather(f"a{i}", count) if prefers else batch(f"a{i}", count, key="")
        for i, (count, prefers) in enumerate(wanted)
    ]
    runs = racks(batches, *((rack, cpu, 0) for rack, cpu in shapes))
    found, said = pack_in_domains(batches, runs, {})
    assert isinstance(found, Packing) == isinstance(pack(batches, runs), Packing)
    assert len(said) == (sum(prefers for _, prefers in wanted) if isinstance(found, Packing) else 0)
    had = {one.series for one in said if one.value}
    needs = [batch(b.name, b.count, key="rack" if b.name in had else "") for b in batches]
    for one in said:
        if not one.value:
            tried = [batch(b.name, b.count) if b.name == one.series else b for b in needs]
            assert isinstance(pack_in_domains(tried, runs, {})[0], Stuck)


def test_a_preference_never_refuses_units_that_fit_nowhere_for_another_reason():
    assert refused([rather("a", 2)], ("r1", 1, 0)).reason == refused([batch("a", 2, key="")], ("r1", 1, 0)).reason


# -- the plan


def test_declared_groups_are_domains_by_their_labels():
    groups = [machines("g", 2, gpus=2, labels={"rack": "r1"}), machines("h", 1, gpus=3, labels={"rack": "r2"})]
    made = plan(job(in_one("a", 3, gpu=1), nodeGroups=groups))
    assert made.units["a/0"].topology_key == "rack"
    assert all(group.domains == () for group in made.node_groups.values())
    with pytest.raises(PlacementError, match=r"need one rack: r1 \(2 machines, 64 CPU, 4 GPU\) has room for 4; r2"):
        plan(job(in_one("a", 5, gpu=1), nodeGroups=groups))


def test_groups_without_the_label_are_a_domain_each_and_derived_ones_one_together():
    groups = [machines("g", 2, gpus=2), machines("h", 1, gpus=3), machines("i", 1)]
    made = plan(job(in_one("a", 3, gpu=1, nodeGroup="g"), role("b", nodeGroup="i"), nodeGroups=groups))
    assert dict(made.node_groups["g"].labels)["rack"] == "g"
    assert made.node_groups["g"].domains == ("rack",)
    assert not made.node_groups["h"].domains
    derived = plan(job(in_one("a", 9, gpu=1), in_one("b", 2)))
    assert len(derived.node_groups) == 3
    assert {dict(group.labels)["rack"] for group in derived.node_groups.values()} == {DERIVED_DOMAIN}


def test_collocated_roles_share_their_topology_key():
    pair = [together("c", "Host", "a", "b")]
    made = plan(job(in_one("a"), role("b"), collocations=pair))
    assert made.units["c/0"].topology_key == "rack"
    with pytest.raises(PlacementError, match="a wants one rack and b one zone; what shares machines is in one domain"):
        plan(job(in_one("a"), in_one("b", key="zone"), collocations=pair))
    assert plan(job(in_one("a"), in_one("b"), collocations=pair)).units["c/0"].topology_key == "rack"


def preferring(name, replicas=1, key="rack", **more):
    return role(name, replicas, annotations={RATHER: key}, **more)


def test_collocated_roles_share_their_preference_unless_one_needs_its_domain():
    pair = [together("c", "Host", "a", "b")]
    both = plan(job(preferring("a"), role("b"), collocations=pair)).units["c/0"]
    assert (both.topology_key, both.preferred_key) == ("", "rack")
    needed = plan(job(preferring("a"), in_one("b"), collocations=pair)).units["c/0"]
    assert (needed.topology_key, needed.preferred_key) == ("rack", "")
    with pytest.raises(PlacementError, match="a wants one zone and b one rack; what shares machines is in one domain"):
        plan(job(preferring("a", key="zone"), in_one("b"), collocations=pair))


def test_a_preference_is_in_the_annotation_of_the_plan_and_changes_the_digest():
    made = plan(job(preferring("a")))
    (entry,) = json.loads(placement_plan(made)[0])["units"]
    assert entry["preferredTopologyKey"] == "rack"
    assert made.digest != plan(job(role("a"))).digest


def test_the_plan_says_what_was_preferred_and_is_not_had():
    groups = [machines(rack, 1, cpu="3", labels={"rack": rack}) for rack in ("r1", "r2")]
    made = plan(job(preferring("a", 4), role("b"), nodeGroups=groups))
    text = render_plan(made, would_be_nodes(made), "table")
    said = "4 units of a (1 CPU each), preferred in one rack: r1 (1 machine, 3 CPU) has room for 3; "
    assert f"a: {said}" in text
    assert "1 a (in one rack if possible)" in text
    data = json.loads(render_plan(made, would_be_nodes(made), "json"))
    (domain,) = data["domains"]
    assert (domain["series"], domain["key"], domain["value"]) == ("a", "rack", None)
    assert domain["why"].startswith(said)
    assert {unit["name"]: unit.get("preferredTopologyKey") for unit in data["units"]} == {
        **{f"a/{k}": "rack" for k in range(4)},
        "b/0": None,
    }


def test_pods_of_groups_without_the_label_prefer_one_domain():
    groups = [machines("g", 2), machines("h", 1, labels={"rack": "r1"})]
    manifest = effective(
        job(preferring("a", 2, nodeGroup="g"), preferring("b", nodeGroup="h"), nodeGroups=groups), "i", "2.60.0"
    )
    g, h = render_raycluster(plan(manifest), manifest, RenderOptions("job-1"))["spec"]["workerGroupSpecs"]
    term = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"ray.io/cluster": "job-1", "rack": "g"}}}
    assert g["template"]["spec"]["affinity"] == {"podAffinity": {PREFERRED: [{"weight": 100, "podAffinityTerm": term}]}}
    assert "affinity" not in h["template"]["spec"]


def test_the_annotation_of_the_plan_says_both():
    made = plan(job(in_one("a", 2, spread=True), role("b")))
    one, other = json.loads(placement_plan(made)[0])["units"]
    assert (one["topologyKey"], one["spread"]) == ("rack", True)
    assert "topologyKey" not in other
    assert "spread" not in other


# -- pods


def test_pods_have_affinity_for_their_domain_and_antiaffinity_for_spread():
    template = {"spec": {"affinity": {"podAffinity": {"x": 1}, "podAntiAffinity": {REQUIRED: [{"mine": 1}]}}}}
    groups = [machines("g", 2, template=template), machines("h", 1)]
    manifest = effective(job(in_one("a", 2, spread=True, nodeGroup="g"), nodeGroups=groups), "i", "2.60.0")
    made = render_raycluster(plan(manifest), manifest, RenderOptions("job-1"))
    g, h = made["spec"]["workerGroupSpecs"]
    assert g["labels"]["rack"] == g["template"]["metadata"]["labels"]["rack"] == "g"
    together_, apart = (
        {"topologyKey": key, "labelSelector": {"matchLabels": {"ray.io/cluster": "job-1", label: "g"}}}
        for key, label in (("rack", "rack"), ("kubernetes.io/hostname", "ray.io/group"))
    )
    assert g["template"]["spec"]["affinity"] == {
        "podAffinity": {"x": 1, REQUIRED: [together_]},
        "podAntiAffinity": {REQUIRED: [{"mine": 1}, apart]},
    }
    assert "affinity" not in h["template"]["spec"]
    assert "rack" not in h["labels"]


def test_pods_get_affinity_or_antiaffinity_as_they_ask_for():
    made = ray_cluster(job(in_one("a", 2, key="", spread=True)))["spec"]["workerGroupSpecs"][0]
    assert list(made["template"]["spec"]["affinity"]) == ["podAntiAffinity"]
    made = ray_cluster(job(in_one("a", 2)))["spec"]["workerGroupSpecs"][0]
    assert list(made["template"]["spec"]["affinity"]) == ["podAffinity"]
