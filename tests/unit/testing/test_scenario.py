"""A faults file in the simulator: each fault comes to what it is, by the rules of a real job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dljob.cli import main
from dljob.plan.incidents import sets
from dljob.plan.plan import plan
from dljob.plan.targets import load_faults
from dljob.spec.loading.load import load_file, parse
from dljob.testing.simulate.scenario import Scenario

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "grpo-tiny"


def job(*roles: dict[str, Any], nodes: int = 3) -> dict[str, Any]:
    driver = {"name": "driver", "entrypoint": {"class": "m.D"}, "resources": {"cpu": "1"}}
    others = [{"driver": False, "resources": {"cpu": "1"}, **role} for role in roles]
    groups = [{"name": "n", "replicas": nodes, "cpu": "4"}]
    spec = {"roles": [driver, *others], "nodeGroups": groups}
    return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}, "spec": spec}


def play(manifest: dict[str, Any], text: str, folder: Path) -> dict[str, Any]:
    file = folder / "faults.yaml"
    file.write_text(text)
    made = parse(manifest)
    found = Scenario(
        made.model_dump(mode="json", by_alias=True, exclude_none=True), load_faults(file, plan(made))
    ).play()
    assert found["problems"] == []
    assert found["unasked"] == []
    return found


THREADS = {"name": "a", "replicas": 2, "entrypoint": {"class": "m.A"}}
FORKED = {"name": "f", "replicas": 2, "replicasPerGroup": 2, "entrypoint": {"module": "f"}}
WORLD = {"name": "t", "replicas": 2, "replicasPerGroup": 2, "type": "Elastic", "entrypoint": {"module": "t"}}


def test_a_scenario_kills_ranks_of_each_kind_of_host_and_the_master(tmp_path: Path) -> None:
    text = (
        "- {when: {step: 10}, target: a/1, fault: kill}\n"
        "- {when: {step: 30}, target: f/1, fault: kill}\n"
        "- {when: {step: 50}, target: t/1, fault: kill}\n"
        "- {when: {step: 70}, target: a/0, fault: oom}\n"
        "- {when: {step: 90}, target: f/0, fault: oom}\n"
        "- {when: {step: 110}, target: master, fault: kill}\n"
        "- {when: {step: 130}, target: f, fault: kill}\n"
        "- {when: {step: 150}, target: a/0, fault: kill}\n"
        "- {when: {step: 150}, target: t/0, fault: kill}\n"
    )
    found = play(job(THREADS, FORKED, WORLD), text, tmp_path)
    assert sets(found) == [
        {("Killed", "a/1", "Process")},
        {("Killed", "f/1", "Process")},
        {("Killed", "t", "RoleGroup")},
        {("OOMKilled", "a/0", "Process")},
        {("OOMKilled", "f/0", "Process")},
        {("MasterRestarted", "master", "Master")},
        {("Killed", "f/0", "Process"), ("Killed", "f/1", "Process")},
        {("Killed", "a/0", "Process")},
        {("Killed", "t", "RoleGroup")},
    ]


def test_a_lost_and_a_frozen_node_are_told_once_for_all_that_lived_there(tmp_path: Path) -> None:
    text = (
        "- {when: {time: 10}, target: node/0, fault: kill}\n"
        "- {when: {time: 60}, target: node/0, fault: stop, seconds: 60}\n"
    )
    found = play(job(FORKED, nodes=3), text, tmp_path)
    assert sets(found) == [
        {("NodeLost", "driver/0", "Process"), ("NodeLost", "f", "RoleGroup")},
        {("NodeFrozen", "driver/0", "Process"), ("NodeFrozen", "f", "RoleGroup")},
    ]


def test_a_rank_that_runs_out_of_memory_comes_back_with_more_of_it(tmp_path: Path) -> None:
    text = (
        "- {when: {step: 10}, target: a/1, fault: oom}\n"
        "- {when: {event: MemoryRaised}, target: master, fault: kill}\n"
        "- {when: {step: 60}, target: a/1, fault: oom}\n"
        "- {when: {step: 90}, target: a/0, fault: kill}\n"
    )
    policy = {"outOfMemory": {"memoryFactor": "2", "maxMemory": "2Gi"}}
    role = {**THREADS, "resources": {"cpu": "1", "memory": "1Gi"}, "restartPolicy": policy}
    manifest = job(role, nodes=2)
    manifest["spec"]["nodeGroups"][0]["memory"] = "3Gi"
    found = play(manifest, text, tmp_path)
    assert sets(found) == [
        {("OOMKilled", "a/1", "Process")},
        {("MasterRestarted", "master", "Master")},
        {("OOMKilled", "a/1", "Process")},
        {("Killed", "a/0", "Process")},
    ]


def test_faults_in_the_middle_of_a_recovery_are_recovered(tmp_path: Path) -> None:
    text = (
        "- {when: {step: 10}, target: t/1, fault: kill}\n"
        "- {when: {event: Restarting}, target: master, fault: kill}\n"
        "- {when: {event: MasterRestarted}, target: a/0, fault: kill}\n"
    )
    found = play(job(THREADS, WORLD), text, tmp_path)
    assert sets(found) == [
        {("Killed", "t", "RoleGroup")},
        {("MasterRestarted", "master", "Master")},
        {("Killed", "a/0", "Process")},
    ]
    assert found["faults"][1]["at"] < 12


def test_evidence_waits_for_somebody_who_hears_it(tmp_path: Path) -> None:
    text = (
        "- {when: {step: 10}, target: master, fault: kill}\n"
        "- {when: {step: 10}, target: a/0, fault: oom}\n"
        "- {when: {step: 10}, target: a, fault: kill}\n"
    )
    found = play(job(THREADS), text, tmp_path)
    assert sets(found)[1] | sets(found)[2] == {
        ("OOMKilled", "a/0", "Process"),
        ("Unknown", "a/0", "Process"),
        ("Unknown", "a/1", "Process"),
    }


def test_a_stopped_rank_is_found_and_a_slow_one_is_not(tmp_path: Path) -> None:
    text = (
        "- {when: {time: 1}, target: a/0, fault: stop}\n"
        "- {when: {time: 20}, target: a/1, fault: slow, factor: 3, seconds: 5}\n"
        "- {when: {time: 40}, target: a/1, fault: stop, seconds: 2}\n"
        "- {when: {time: 60}, target: f/1, fault: stop, seconds: 60}\n"
    )
    found = play(job(THREADS, FORKED), text, tmp_path)
    assert sets(found) == [{("Hang", "a/0", "Process")}, set(), set(), {("Hang", "f/1", "Process")}]
    quiet = job(THREADS)
    quiet["spec"]["faultTolerance"] = {"hang": {"action": "Ignore"}}
    assert sets(play(quiet, text.splitlines()[0], tmp_path)) == [set()]


def test_a_fault_that_never_comes_is_said(tmp_path: Path) -> None:
    found = play(job(THREADS), "- {when: {event: NodeReadmitted}, target: a/0, fault: kill}\n", tmp_path)
    assert found["faults"][0]["problem"] == "it was never injected"


def test_a_fault_waits_for_a_rank_that_a_fleet_does_not_have_yet(tmp_path: Path) -> None:
    fleet = {"name": "s", "minReplicas": 1, "maxReplicas": 2, "entrypoint": {"class": "m.S"}}
    text = "- {when: {step: 1}, target: s/1, fault: kill}\n- {when: {step: 2}, target: s/0, fault: kill}\n"
    found = play(job(fleet), text, tmp_path)
    assert sets(found) == [set(), {("Killed", "s/0", "Process")}]
    assert [row["at"] is None for row in found["faults"]] == [True, False]


def test_the_command_sim_plays_a_fault_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["sim", str(EXAMPLE / "dljob.yaml"), "--faults", str(EXAMPLE / "faults.yaml")]
    assert main.run(words) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "kill trainer/1" in shown[2]
    assert "Killed trainer [RoleGroup]: well again after" in shown[3]
    assert main.run([*words, "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["met"] for row in told["faults"]] == [True, True, True]
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("- {when: {step: 1}, target: rollout/0, fault: kill, expect: {level: Role}}\n")
    assert main.run([*words[:3], str(wrong)]) == 1
    assert "expected level Role; the job reported Killed of rollout/0 at level Process" in capsys.readouterr().err
    assert main.run(["sim", "--faults", str(wrong)]) == 2


def test_the_trace_of_the_example_plays_on_four_nodes() -> None:
    manifest = load_file(EXAMPLE / "dljob.yaml").model_dump(mode="json", by_alias=True, exclude_none=True)
    manifest["spec"]["nodeGroups"][0]["replicas"] = 4
    found = Scenario(manifest, load_faults(EXAMPLE / "trace.yaml", plan(parse(manifest)))).play()
    assert (found["problems"], found["phase"]) == ([], "Running")
    assert all(row["incidents"] for row in found["faults"])


def test_a_node_that_leaves_gives_its_ranks_to_another_and_a_queue_is_not_simulated(tmp_path: Path) -> None:
    text = (
        "- {when: {step: 10}, target: queue/groups, fault: kill}\n"
        "- {when: {step: 20}, target: node/0, fault: leave, seconds: 30}\n"
    )
    found = play(job(THREADS), text, tmp_path)
    assert [row["problem"] for row in found["faults"]] == ["", ""]
    (nothing, left) = sets(found)
    assert nothing == set()
    assert {cause for cause, _, _ in left} == {"Preempted"}
