"""`scheduling.dljob.io/*` on roles means what the typed fields mean."""

from __future__ import annotations

import json

import pytest
from plan_kit import job, machines, role, together

from dljob.errors import PlacementError
from dljob.plan.plan import plan
from dljob.spec.loading.load import load, parse

PREFIX = "scheduling.dljob.io/"


def noted(name, replicas=1, group=1, gpu=None, **annotations):
    marks = {f"{PREFIX}{key.replace('_', '-')}": value for key, value in annotations.items()}
    return role(name, replicas, group, gpu, annotations=marks)


def same(annotated, typed):
    """Plans of one digest, so the same ranks in the same places."""
    return plan(annotated).digest == plan(typed).digest


def test_annotations_name_the_devices_of_a_role():
    assert same(job(noted("a", accelerator="NPU", accelerator_count="2")), job(npu("a", "2")))
    assert same(job(noted("a", accelerator="NPU")), job(npu("a", "1")))
    assert same(job(noted("a", gpu="0.5", accelerator="NPU")), job(npu("a", "0.5")))
    assert same(job(noted("a", accelerator_count="0.5")), job(role("a", gpu="0.5")))


def npu(name, count):
    return {**role(name), "accelerator": {"type": "NPU", "count": count}}


@pytest.mark.parametrize(("share", "level"), [("0.5", "Device"), ("1", "Host"), (None, "Host")])
def test_roles_of_one_placement_group_share_a_unit(share, level):
    typed = job(role("a", 2, gpu=share), role("b", 2, gpu=share), collocations=[together("x", level, "a", "b")])
    marks = {"placement_group": "x", "strategy": "STRICT_PACK"}
    assert same(job(noted("a", 2, gpu=share, **marks), noted("b", 2, gpu=share, placement_group="x")), typed)


def test_collocating_with_a_role_collocates_with_all_of_its_unit():
    typed = job(*(role(name) for name in "abcd"), collocations=[together("a-unit", "Host", "a", "b", "c")])
    beside = job(role("a"), noted("b", collocate_with="a"), noted("c", collocate_with="b"), role("d"))
    assert same(beside, typed)
    named = job(noted("a", placement_group="x"), noted("b", placement_group="x"), noted("c", collocate_with="b"))
    assert list(plan(named).units) == ["x/0"]
    joined = job(
        noted("a", collocate_with="b"), role("b"), noted("c", collocate_with="d"), noted("d", collocate_with="b")
    )
    assert list(plan(joined).units) == ["b-unit/0"]


def test_a_label_selector_binds_the_units():
    groups = [machines("g", labels={"rack": "a"}), machines("h", labels={"rack": "b"})]
    made = plan(job(noted("a", label_selector='{"rack": "in(b,c)"}'), nodeGroups=groups))
    assert made.units["a/0"].selector == (("rack", "in(b,c)"),)
    with pytest.raises(PlacementError, match=r"labelled rack=!in\(a,b\)"):
        plan(job(noted("a", label_selector='{"rack": "!in(a,b)"}'), nodeGroups=groups))
    both = [role("a", nodeGroup="g", annotations={f"{PREFIX}label-selector": json.dumps({"rack": "a"})})]
    assert plan(job(*both, nodeGroups=groups)).units["a/0"].selector == (("dljob.io/node-group", "g"), ("rack", "a"))


def test_annotated_roles_survive_dump_and_load():
    selector = '{"rack": "a", "zone": "!in(b,c)"}'
    groups = [{**machines("g", labels={"rack": "a"}), "accelerator": {"type": "NPU", "count": 2}}]
    annotated = job(noted("a", accelerator="NPU", accelerator_count="2", label_selector=selector), nodeGroups=groups)
    manifest = parse(annotated.model_dump(mode="json", by_alias=True))
    assert manifest.spec.roles[0].accelerator is None, "the spec is kept as it was written"
    assert load(json.dumps(manifest.model_dump(mode="json", by_alias=True))) == manifest
