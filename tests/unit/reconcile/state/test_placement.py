"""The placement plan as an annotation."""

from __future__ import annotations

import json

from dljob.plan.plan import plan
from dljob.reconcile.state.placement import MAX_BYTES, placement_plan
from dljob.spec.loading.load import parse


def planned(*roles: dict[str, object], **spec: object) -> tuple[dict[str, object], str]:
    whole = {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": "job"},
        "spec": {"roles": list(roles), **spec},
    }
    text, digest = placement_plan(plan(parse(whole)))
    assert len(text.encode()) <= MAX_BYTES
    return json.loads(text), digest


def role(name: str, replicas: int = 1, group: int = 1, **more: object) -> dict[str, object]:
    return {"name": name, "replicas": replicas, "replicasPerGroup": group, "entrypoint": {"class": "a.B"}, **more}


def test_units_of_one_shape_are_one_entry_and_equal_bundles_one_line():
    made, digest = planned(role("actor", 32, 8, accelerator={"type": "NPU", "count": 1}, resources={"memory": "2Gi"}))
    assert made == {
        "units": [
            {
                "units": "actor/0-3",
                "strategy": "STRICT_PACK",
                "roles": ["actor"],
                "bundles": [
                    {"count": 8, "resources": {"CPU": "1", "NPU": "1", "memory": "2Gi"}, "roles": ["actor"]},
                ],
            },
        ],
    }
    assert len(digest) == 16


def test_sharers_of_a_device_are_in_one_line():
    share = {"type": "GPU", "count": "0.5"}
    made, _ = planned(
        role("a", 4, 2, accelerator=share),
        role("b", 2, 2, accelerator=share),
        collocations=[{"name": "both", "roles": ["a", "b"], "level": "Device"}],
    )
    first, second = made["units"]
    assert (first["units"], first["roles"]) == ("both/0", ["a", "b"])
    assert first["bundles"] == [{"count": 2, "resources": {"CPU": "2", "GPU": "1"}, "roles": ["a", "b"]}]
    assert (second["units"], second["roles"]) == ("both/1", ["a"])


def test_labels_and_separation_are_told():
    made, _ = planned(
        role("a", nodeGroup="rack"),
        role("b"),
        nodeGroups=[{"name": "rack", "cpu": "4"}, {"name": "rest", "cpu": "4"}],
        collocations=[{"name": "far", "roles": ["a", "b"], "level": "Separate"}],
    )
    assert [entry["apart"] for entry in made["units"]] == ["far", "far"]
    assert made["units"][0]["labels"] == {"dljob.io/node-group": "rack"}


def test_units_that_do_not_fit_into_the_annotation_are_counted(monkeypatch):
    monkeypatch.setattr("dljob.reconcile.state.placement.MAX_BYTES", 400)
    made, digest = planned(*(role(f"r{n}") for n in range(9)))
    assert len(made["units"]) == 2
    assert made["cut"] == 7
    monkeypatch.setattr("dljob.reconcile.state.placement.MAX_BYTES", 40)
    made, same = planned(*(role(f"r{n}") for n in range(9)))
    assert made == {"units": [], "cut": 9}
    assert digest == same
