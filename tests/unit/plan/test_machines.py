"""Machines: declared, derived, spare."""

from __future__ import annotations

import pytest
from plan_kit import job, machines, ray_cluster, role, together

from dljob.errors import PlacementError
from dljob.master.start.assign import Assignment, assign, spare_nodes, would_be_nodes
from dljob.plan.model import GRAIN
from dljob.plan.plan import plan


def shapes(made):
    return {
        group.name: (group.replicas, {name: amount / GRAIN for name, amount in group.resources})
        for group in made.node_groups.values()
    }


def test_declared_machines_are_as_declared():
    made = plan(
        job(
            role("a", nodeGroup="g", gpu=2),
            nodeGroups=[
                machines("g", 2, "16", 4, memory="64Gi", sharedMemory="8Gi", labels={"rack": "r1"}),
                machines("c"),
            ],
        )
    )
    group = made.node_groups["g"]
    assert group.resources == (("CPU", 16 * GRAIN), ("GPU", 4 * GRAIN), ("memory", 64 * 2**30 * GRAIN))
    assert group.labels == (("dljob.io/node-group", "g"), ("rack", "r1"))
    assert group.device == ("GPU", "nvidia.com/gpu")
    assert group.shared_memory == 8 * 2**30 * GRAIN
    assert not group.derived
    assert made.node_groups["c"].resources == (("CPU", 32 * GRAIN),)
    assert made.units["a/0"].selector == (("dljob.io/node-group", "g"),)


def test_a_declared_resource_name_is_kept():
    npu = {"name": "n", "cpu": "8", "accelerator": {"type": "NPU", "count": 8, "resourceName": "huawei.com/Ascend310"}}
    assert plan(job(role("a"), nodeGroups=[npu])).node_groups["n"].device == ("NPU", "huawei.com/Ascend310")


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ([role("a", 2)], {"cpu2": (1, {"CPU": 2})}),
        ([role("a", 40)], {"cpu32": (1, {"CPU": 32}), "cpu8": (1, {"CPU": 8})}),
        ([role("a", resources={"cpu": "0"})], {"cpu1": (1, {"CPU": 1})}),
        ([role("a", 3, resources={"cpu": "500m"})], {"cpu2": (1, {"CPU": 2})}),
        ([role("a", resources={"cpu": "48"})], {"cpu48": (1, {"CPU": 48})}),
        ([role("a", 17, gpu=1)], {"gpu8": (2, {"CPU": 8, "GPU": 8}), "gpu1": (1, {"CPU": 1, "GPU": 1})}),
        ([role("a", 16, 16, gpu=1)], {"gpu16": (1, {"CPU": 16, "GPU": 16})}),
        ([role("a", 20, 20, gpu="0.6", resources={"cpu": "0"})], {"gpu20": (1, {"CPU": 1, "GPU": 20})}),
        ([role("a", 5, gpu="0.25")], {"gpu2": (1, {"CPU": 5, "GPU": 2})}),
        ([role("a", 8, 8, gpu=1), role("b", 2)], {"gpu8": (1, {"CPU": 8, "GPU": 8}), "cpu2": (1, {"CPU": 2})}),
        (
            [role("a", 2, gpu=8, resources={"cpu": "4"}), role("b", 1, gpu=8)],
            {"gpu8": (1, {"CPU": 1, "GPU": 8}), "gpu8-b": (2, {"CPU": 4, "GPU": 8})},
        ),
        (
            [role("a", accelerator={"type": "Neuron", "count": "2"})],
            {"neuron-cores2": (1, {"CPU": 1, "neuron_cores": 2})},
        ),
        ([role("a", 2, resources={"custom": {"slots": "3"}})], {"cpu2": (1, {"CPU": 2, "slots": 6})}),
    ],
)
def test_machines_are_derived_from_the_roles(roles, expected):
    made = plan(job(*roles))
    assert shapes(made) == expected
    assert all(group.derived for group in made.node_groups.values())
    assert all(unit.selector == () for unit in made.units.values())


def test_derived_memory_is_whole_mebibytes():
    made = plan(job(role("a", resources={"memory": "1500k"})))
    assert dict(made.node_groups["cpu1"].resources)["memory"] == 2 * 2**20 * GRAIN


def test_separate_roles_get_machines_of_their_own():
    made = plan(job(role("a", 2), role("b"), role("c"), collocations=[together("s", "Separate", "a", "b")]))
    assert shapes(made) == {"cpu3": (1, {"CPU": 3}), "cpu1": (1, {"CPU": 1})}


def test_where_a_tight_fit_is_not_found_again_the_machines_are_of_one_size(monkeypatch):
    from dljob.plan import derive
    from dljob.plan.packing import Stuck

    monkeypatch.setattr(derive, "pack", lambda *_: Stuck(proven=False))
    made = plan(job(role("a", 40)))
    assert shapes(made) == {"cpu32": (2, {"CPU": 32})}
    assert isinstance(assign(made.units.values(), would_be_nodes(made)), Assignment)


def test_spares_are_machines_on_top_that_stay_free():
    written = job(role("a", 2, gpu=8), faultTolerance={"spares": {"nodes": 1}})
    made = plan(written)
    group = made.node_groups["gpu8"]
    assert (group.replicas, group.spares) == (3, 1)
    assert spare_nodes(made) == {"gpu8": 1}
    found = assign(made.units.values(), would_be_nodes(made), reserve_nodes=spare_nodes(made))
    assert isinstance(found, Assignment)
    assert sorted(found.nodes.values()) == ["gpu8-0", "gpu8-1"]
    assert ray_cluster(written)["spec"]["workerGroupSpecs"][0]["replicas"] == 3


def refusal(*roles, **spec):
    with pytest.raises(PlacementError) as caught:
        plan(job(*roles, **spec))
    return caught.value.message


def test_a_process_with_more_devices_than_a_machine_has_is_refused():
    message = refusal(role("a", gpu=16), nodeGroups=[machines("g", 4, "32", 8)])
    assert message == (
        "the job does not fit on its nodeGroups: one process of role a needs 16 GPU on one machine; "
        "no machine has more than 8 GPU"
    )
    bound = refusal(
        role("a", gpu=16, nodeGroup="g"), nodeGroups=[machines("g", 4, "32", 8), machines("h", 1, "32", 16)]
    )
    assert bound.endswith("no machine of node group g has more than 8 GPU")


def test_a_group_with_more_devices_than_a_machine_has_is_refused():
    message = refusal(role("a", 16, 16, gpu=1), nodeGroups=[machines("g", 2, "32", 8)])
    assert message.endswith("unit a/0 (16 of a) needs 16 GPU on one machine; no machine has more than 8 GPU")


def test_a_collocation_larger_than_a_machine_is_refused():
    message = refusal(
        role("a", 8, 8, gpu=1),
        role("b", 2, 2, gpu=1),
        collocations=[together("t", "Host", "a", "b")],
        nodeGroups=[machines("g", 2, "32", 8)],
    )
    assert message.endswith("unit t/0 (8 of a, 2 of b) needs 10 GPU on one machine; no machine has more than 8 GPU")


def test_units_beyond_the_sum_of_a_node_group_are_refused():
    message = refusal(role("a", 3, nodeGroup="g", gpu=8), nodeGroups=[machines("g", 2, "32", 8), machines("h", 9)])
    assert message.endswith(
        "a: 3 units of 1 CPU, 8 GPU each; the 2 machines of node group g have room for 2, so at least 8 GPU is missing"
    )


def test_roles_that_do_not_fit_together_are_refused():
    message = refusal(
        role("a", 6, gpu=1),
        role("b", 6, gpu=1),
        role("c", 20),
        nodeGroups=[machines("g", 1, "64", 8), machines("h", 2)],
    )
    assert message.endswith(
        "6 units of a (1 CPU, 1 GPU each) and 6 units of b (1 CPU, 1 GPU each) do not fit on 3 machines together: "
        "together 12 GPU, there is 8 GPU"
    )


def test_separate_roles_that_need_more_machines_than_there_are_are_refused():
    message = refusal(
        role("a"), role("b"), role("c"), role("d"),
        collocations=[together("s", "Separate", "a", "b", "c")],
        nodeGroups=[machines("g", 2)],
    )  # fmt: skip
    assert message.endswith(
        "1 unit of a (1 CPU) and 1 unit of b (1 CPU) and 1 unit of c (1 CPU) do not fit on 2 machines "
        "together (collocation s keeps its roles on different machines): "
        "together 3 CPU, there is 64 CPU, but divided so that they do not fit"
    )


def test_a_unit_that_no_machine_can_hold_in_all_resources_is_refused():
    message = refusal(
        role("a", gpu=8, resources={"cpu": "64"}), nodeGroups=[machines("g", 1, "32", 8), machines("h", 1, "96", 4)]
    )
    assert message.endswith("needs 64 CPU, 8 GPU on one machine; no machine has all of it, the nearest lacks 32 CPU")


def test_shares_that_would_need_pieces_of_two_devices_are_refused():
    message = refusal(role("a", 3, 3, "0.6"), nodeGroups=[machines("g", 1, "32", 2)])
    assert message.endswith(
        "unit a/0 (3 of a) needs 3 CPU, 1.8 GPU on one machine; what is free of devices is in pieces that are too small"
    )


def test_a_kind_of_device_that_no_machine_has_is_refused():
    message = refusal(role("a", accelerator={"type": "NPU"}), nodeGroups=[machines("g", 1, "32", 8)])
    assert message.endswith("one process of role a needs 1 NPU on one machine; no machine has any")


def test_a_refusal_that_is_not_proven_says_so(monkeypatch):
    from dljob.plan import domains, packing
    from dljob.plan.packing import Stuck

    sizes = [("a", "6"), ("b", "6"), ("c", "5"), ("d", "5"), ("e", "4"), ("f", "4")]
    roles = [role(name, resources={"cpu": cpu}) for name, cpu in sizes]
    monkeypatch.setattr(packing, "_search", lambda *_: Stuck(proven=False))
    message = refusal(*roles, nodeGroups=[machines("g", 2, "15")])
    assert message.endswith("(no way was found; whether there is one is not proven)")
    assert domains.pack is packing.pack


@pytest.mark.parametrize(
    ("roles", "groups", "cpus"),
    [
        ([role("a", 4, resources={"cpu": "3"})], [("g", 2)], {"g": 6}),
        ([role("a", resources={"cpu": "500m"})], [("g", 1)], {"g": 1}),
        (
            [role("a", 2, nodeGroup="g"), role("b", 1, nodeGroup="h", resources={"cpu": "8"})],
            [("g", 1), ("h", 1)],
            {"g": 2, "h": 8},
        ),
    ],
)
def test_a_group_without_cpus_has_those_that_its_roles_need(roles, groups, cpus):
    made = plan(job(*roles, nodeGroups=[{"name": name, "replicas": count} for name, count in groups]))
    assert {name: dict(group.resources)["CPU"] / GRAIN for name, group in made.node_groups.items()} == cpus


def test_a_group_without_cpus_that_lacks_something_else_is_refused_for_that():
    with pytest.raises(PlacementError, match="GPU"):
        plan(job(role("a", 3, gpu=1), nodeGroups=[{"name": "g", "accelerator": {"type": "GPU", "count": 2}}]))
