"""`dljob plan` of the samples of the API. Regenerate with `UPDATE_GOLDEN=1 python -m pytest tests/unit/plan`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from plan_kit import job, machines, role, together
from ruamel.yaml import YAML

from dljob.cli.commands import plan as plan_command
from dljob.cli.placement import render_plan
from dljob.errors import PlacementError
from dljob.master.start.assign import would_be_nodes
from dljob.master.state.views import NodeView
from dljob.plan.model import GRAIN
from dljob.plan.plan import plan
from dljob.spec.loading.load import load_file

GOLDEN = Path(__file__).parents[2] / "golden"
SAMPLES = sorted((GOLDEN / "samples").glob("*.yaml"))
SUFFIX = {"table": "txt", "json": "json", "yaml": "yaml"}


def test_the_samples_are_those_with_golden_files():
    assert [sample.stem for sample in SAMPLES] == ["grpo-ascend", "hello", "ppo-llama8b", "sft-elastic"]


@pytest.mark.parametrize("output", list(SUFFIX))
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.stem)
def test_a_sample_is_planned_as_recorded(sample, output):
    made = plan(load_file(sample))
    as_before(render_plan(made, would_be_nodes(made), output), f"{sample.stem}.{SUFFIX[output]}")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.stem)
def test_a_raycluster_is_rendered_as_recorded(sample, capsys):
    plan_command.plan(sample, form="manifest")
    as_before(capsys.readouterr().out, f"{sample.stem}.manifest.yaml")


def as_before(text: str, name: str) -> None:
    golden = GOLDEN / "plan" / name
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_a_plan_names_the_standby_of_a_job_that_has_one():
    made = plan(job(role("a", 1), master={"standby": "Always"}))
    assert render_plan(made, would_be_nodes(made), "table").splitlines()[1] == "standby of PrimeMaster: Always"


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.stem)
def test_json_and_yaml_say_the_same(sample):
    made = plan(load_file(sample))
    data = json.loads(render_plan(made, would_be_nodes(made), "json"))
    assert YAML(typ="safe").load(render_plan(made, would_be_nodes(made), "yaml")) == data


def test_every_rank_has_a_node_in_the_json():
    made = plan(job(role("a", 4, 2, "0.5"), role("b", 4, 2, "0.5"), collocations=[together("t", "Device", "a", "b")]))
    data = json.loads(render_plan(made, would_be_nodes(made), "json"))
    nodes = {node["id"]: node for node in data["nodes"]}
    ranks = [(unit["node"], rank) for unit in data["units"] for bundle in unit["bundles"] for rank in bundle["ranks"]]
    assert sorted(rank for _, rank in ranks) == [f"{r}/{i}" for r in "ab" for i in range(4)]
    assert nodes["gpu4-0"]["ranks"] == {"a": "0-3", "b": "0-3"}
    assert nodes["gpu4-0"]["left"] == {}


def test_a_hundred_machines_are_one_row():
    made = plan(job(role("a", 800, 8, gpu=1), role("b", 3), faultTolerance={"spares": {"nodes": 1}}))
    text = render_plan(made, would_be_nodes(made), "table")
    rows = text.split("MACHINES")[1].splitlines()[1:]
    assert [row.split("  ")[0] for row in rows] == ["cpu3-0", "cpu3-1", "gpu8-0 .. gpu8-99 (100)", "gpu8-100"]
    assert "a 0-799 (8 each)" in rows[2]
    assert "nothing" in rows[3]


def test_a_role_that_takes_nothing_leaves_everything():
    made = plan(job(role("a", resources={"cpu": "0"}), nodeGroups=[machines("g", memory="4Gi")]))
    assert render_plan(made, would_be_nodes(made), "table").endswith("32 CPU, 4Gi memory\n")


def test_on_live_nodes_the_head_carries_nothing_and_ids_are_cut():
    made = plan(job(role("a")))
    total = (("CPU", 4 * GRAIN), ("memory", 2**30 * GRAIN))
    head = NodeView("h" * 56, total, total, (), head=True)
    node = NodeView("a1" * 28, total, total, ())
    text = render_plan(made, (head, node), "table")
    assert "hhhh" not in text
    row = text.splitlines()[-1].split()
    assert row[:3] == ["a1" * 10, "-", "a"]
    assert text.rstrip().endswith("3 CPU, 1Gi memory")


@pytest.mark.parametrize(
    ("free", "total", "hint"),
    [(1, 4, "if these machines were empty: wait"), (1, 1, "would not fit if these machines were empty either")],
)
def test_a_plan_that_does_not_fit_on_live_nodes_is_refused_with_what_to_do(free, total, hint):
    made = plan(job(role("a", resources={"cpu": "2"}), nodeGroups=[machines("g")]))
    node = NodeView("n", (("CPU", total * GRAIN),), (("CPU", free * GRAIN),), (("dljob.io/node-group", "g"),))
    with pytest.raises(PlacementError, match="job job does not fit: one process of role a needs 2 CPU") as caught:
        render_plan(made, (node,), "table")
    assert hint in caught.value.hint


def test_servers_have_a_table_with_their_ports_and_service():
    probe = {"tcpSocket": {"port": "http"}}
    made = plan(
        job(
            {
                "name": "engine",
                "driver": False,
                "entrypoint": {"module": "serve.py"},
                "ports": [{"name": "http"}, {"name": "rpc", "port": 9000}],
                "service": True,
                "readinessProbe": probe,
                "drain": {"timeoutSeconds": 60},
            },
            {"name": "plain", "entrypoint": {"module": "x.py"}, "ports": [{"name": "http"}]},
            role("trainer"),
        )
    )
    text = render_plan(made, would_be_nodes(made), "table")
    rows = [line.split("  ") for line in text.splitlines() if line.startswith(("engine ", "plain "))][2:]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows] == [
        ["engine", "http free, rpc 9000", "readiness", "60 s", f"{made.name}-engine:80,9000"],
        ["plain", "http free", "-", "-", "-"],
    ]
    engine, plain, _ = json.loads(render_plan(made, would_be_nodes(made), "json"))["roles"]
    assert engine["ports"] == [{"name": "http", "port": 0}, {"name": "rpc", "port": 9000}]
    assert (engine["service"], "service" in plain) == ({"http": 80, "rpc": 9000}, False)
