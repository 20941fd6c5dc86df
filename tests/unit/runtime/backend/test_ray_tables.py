"""Ray's nodes in our words."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dljob import ray_private
from dljob.master.start.assign import Assignment, assign
from dljob.plan.amounts import GRAIN
from dljob.plan.plan import plan
from dljob.raycluster.render import preview_raycluster
from dljob.runtime.backend.ray_tables import INSTANCE, RayTables, _view
from dljob.spec.model import DLJobManifest

HALF = GRAIN // 2


def test_the_pods_of_new_nodes_are_asked_for_once_and_a_gcs_that_does_not_tell_them_hinders_nobody(monkeypatch):
    monkeypatch.setattr(ray_private, "free_by_node", dict)
    monkeypatch.setattr(ray_private, "draining_nodes", dict)
    monkeypatch.setattr(ray_private, "group_rows", dict)
    answers, asked = [OSError("it is away"), {"a": SimpleNamespace(instance_id="train-a")}], []

    def infos(_within_s):
        asked.append(answers[0])
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ray_private, "node_infos", infos)
    rows = [{"NodeID": node, "NodeManagerAddress": node, "Resources": {"CPU": 1.0}} for node in "ab"]
    tables = RayTables()
    monkeypatch.delenv(INSTANCE, raising=False)
    assert [view.target for view in tables.views(rows)] == ["node/a", "node/b"]
    assert not asked, "no pod"
    monkeypatch.setenv(INSTANCE, "train-head")
    assert [view.target for view in tables.views(rows)] == ["node/a", "node/b"]
    for _ in range(2):
        assert [view.target for view in tables.views(rows)] == ["pod/train-a", "node/b"]
    assert len(asked) == 2
    assert (tables.name_of("a"), tables.name_of("b" * 56)) == ("train-a", "b" * 8)


def seen(cpus, free, labels, held=0):
    row = {"NodeID": "n", "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": cpus, "memory": 5.0}, "Labels": labels}
    view = _view(row, {"CPU": free, "memory": 5.0}, {"CPU": held} if held else {}, None)
    return dict(view.total).get("CPU", 0), dict(view.free).get("CPU", 0)


@pytest.mark.parametrize(
    ("cpus", "free", "held", "label", "counted"),
    [
        (1.0, 1.0, 0, "500m", (HALF, HALF)),
        (1.0, 0.5, HALF, "500m", (HALF, 0)),
        (1.0, 1.0, HALF, "500m", (HALF, 0)),  # the raylet has not reported yet
        (2.0, 1.5, HALF, "1500m", (3 * HALF, 2 * HALF)),
        (4.0, 4.0, 0, "", (4 * GRAIN, 4 * GRAIN)),
        (4.0, 4.0, 0, "no amount", (4 * GRAIN, 4 * GRAIN)),
        (1.0, 1.0, 0, "8", (GRAIN, GRAIN)),
    ],
)
def test_a_fraction_of_a_cpu_is_what_the_plan_counted(cpus, free, held, label, counted):
    assert seen(cpus, free, {"dljob.io/cpu": label} if label else {}, held) == counted


def test_two_ranks_of_half_a_cpu_are_on_two_machines_of_half_a_cpu():
    role = {"name": "a", "replicas": 2, "entrypoint": {"class": "a.B"}, "resources": {"cpu": "500m"}}
    spec = {"nodeGroups": [{"name": "w", "replicas": 2, "cpu": "500m"}], "roles": [role]}
    manifest = DLJobManifest.model_validate({"metadata": {"name": "half"}, "spec": spec})
    made = plan(manifest)
    labels = preview_raycluster(made, manifest)["spec"]["workerGroupSpecs"][0]["labels"]
    rows = [{"NodeID": n, "NodeManagerAddress": n, "Resources": {"CPU": 1.0}, "Labels": labels} for n in "xy"]
    nodes = [_view(row, {"CPU": 1.0}, {}, None) for row in rows]
    placed = assign(made.units.values(), nodes)
    assert isinstance(placed, Assignment)
    assert sorted(placed.nodes.values()) == ["x", "y"]
