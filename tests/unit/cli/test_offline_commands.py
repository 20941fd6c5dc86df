"""validate, plan and crd: what needs no Ray."""

from __future__ import annotations

import json
import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from dljob.cli import main

GOOD = """
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: good}
spec:
  roles:
  - {name: worker, replicas: 2, entrypoint: {class: m.W}}
"""
BAD = GOOD.replace("replicas", "replica").replace("name: good", "name: Good")
TOO_LARGE = (
    GOOD
    + """
  nodeGroups: [{name: small, replicas: 1, cpu: "1"}]
"""
)

REFUSED = sorted((Path(__file__).parents[2] / "golden/refused").glob("*.yaml"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {"good.yaml": GOOD, "bad.yaml": BAD, "large.yaml": TOO_LARGE}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def loaded(text: str) -> Any:
    return YAML(typ="safe").load(text)


def test_validate_accepts_a_valid_file(here, capsys):
    assert main.run(["validate", "good.yaml"]) == 0
    assert capsys.readouterr().out == "1 job: valid\n"


def test_validate_warns_of_weights_with_which_nobody_stays_ready(here, capsys):
    load = "{channels: [policy], maxLag: 0, load: {method: load}}"
    (here / "lag.yaml").write_text(GOOD.replace("{class: m.W}", f"{{class: m.W}}, weights: {load}"))
    assert main.run(["validate", "-o", "json", "lag.yaml"]) == 0
    said = capsys.readouterr()
    (line,) = loaded(said.out)["warnings"]
    assert line.startswith("lag.yaml: spec.roles[0].weights.maxLag: with maxLag 0 no rank of worker is ready")
    assert f"warning: {line}" in said.err


def test_validate_warns_of_a_launcher_as_a_program(here, capsys):
    (here / "nested.yaml").write_text(GOOD.replace("{class: m.W}", "{command: [accelerate, launch, train.py]}"))
    assert main.run(["validate", "nested.yaml"]) == 0
    assert "warning: nested.yaml: spec.roles[0].entrypoint: accelerate launch starts" in capsys.readouterr().err


def test_validate_warns_of_cuts_that_the_loss_of_the_head_ends(here, capsys):
    for name, fields in (("bare", "{everySteps: 5}"), ("kept", "{everySteps: 5, path: /ckpt}")):
        (here / f"{name}.yaml").write_text(GOOD.replace("spec:", f"spec:\n  checkpoint: {fields}", 1))
    assert main.run(["validate", "-o", "json", "bare.yaml", "kept.yaml"]) == 0
    (line,) = loaded(capsys.readouterr().out)["warnings"]
    assert line.startswith(
        "bare.yaml: spec.checkpoint.everySteps: without a path cuts outlive processes and PrimeMaster"
    )


def test_validate_lists_the_problems_of_all_files_at_once(here, capsys):
    assert main.run(["validate", "bad.yaml", "good.yaml", "large.yaml", "none.yaml"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("bad.yaml:4:") and "name" in line for line in lines)
    assert any(line.startswith("bad.yaml:7:") and "did you mean replicas?" in line for line in lines)
    assert any(line.startswith("large.yaml:9:15: spec.nodeGroups: the job does not fit") for line in lines)
    assert "none.yaml: cannot be read: No such file or directory" in lines


def test_the_pods_of_a_job_that_does_not_fit_are_judged_too(here, capsys):
    template = ", template: {spec: {hostNetwork: true}}}]"
    (here / "both.yaml").write_text(TOO_LARGE.replace("}]", template))
    assert main.run(["validate", "both.yaml"]) == 2
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("both.yaml:9:15: spec.nodeGroups: the job does not fit")
    assert second.startswith("both.yaml:9:84: spec.nodeGroups[0].template.spec.hostNetwork: hostNetwork is true")


def test_a_file_of_64_mebibytes_is_not_read(here, capsys):
    with (here / "huge.yaml").open("wb") as stream:
        stream.truncate(64 * 1024**2)
    assert main.run(["validate", "huge.yaml"]) == 2
    said = "huge.yaml:1:1: is longer than 2097152 bytes (put large data into a file of its own)"
    assert capsys.readouterr().out.splitlines()[0] == said


@pytest.mark.parametrize("manifest", REFUSED, ids=lambda path: path.stem)
def test_validate_refuses_manifests_that_the_operator_refuses(manifest, capsys):
    assert main.run(["validate", str(manifest)]) == 2


def test_the_policy_for_pods_is_a_flag(here, capsys):
    (here / "a.py").touch()
    root = here / "root-on-node.yaml"
    root.write_text(next(path for path in REFUSED if path.stem.endswith("root-on-node")).read_text())
    assert main.run(["validate", "-o", "json", str(root)]) == 2
    where = [(p["line"], p["path"].rpartition(".")[2]) for p in loaded(capsys.readouterr().out)["problems"]]
    assert where == [(14, "hostPID"), (15, "hostNetwork"), (19, "hostPath"), (22, "add"), (22, "add")]
    assert main.run(["validate", "--pod-security", "privileged", str(root)]) == 0


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_validate_prints_problems_as_json_and_yaml(form, here, capsys):
    assert main.run(["validate", "bad.yaml", "-o", form]) == 2
    answer = loaded(capsys.readouterr().out)
    assert (answer["valid"], answer["jobs"]) == (False, 0)
    assert {p["line"] for p in answer["problems"]} == {4, 7}
    assert main.run(["validate", "large.yaml", "none.yaml", "-o", form]) == 2
    answer = loaded(capsys.readouterr().out)
    assert [(p["file"], p["line"]) for p in answer["problems"]] == [("large.yaml", 9), ("none.yaml", 0)]
    assert main.run(["validate", "good.yaml", "-o", form]) == 0
    assert loaded(capsys.readouterr().out) == {"valid": True, "jobs": 1, "problems": []}


def test_plan_and_validate_say_where_the_sizes_of_a_role_find_no_room_on_this_machine(here, capsys, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    bounds = "replicas: 2, minReplicas: 1, maxReplicas: 9, type: Elastic, resources: {cpu: 1}"
    (here / "fleet.yaml").write_text(GOOD.replace("replicas: 2", bounds))
    for command, place in (("plan", ""), ("validate", "fleet.yaml: ")):
        assert main.run([command, "fleet.yaml"]) == 0
        line = f"{place}on this machine worker may grow to 4 ranks, not to its maxReplicas 9\n"
        assert line in capsys.readouterr().err
    # A plan for a cluster: it cannot run here in any size.
    (here / "wide.yaml").write_text(GOOD.replace("replicas: 2", bounds) + "  nodeGroups: [{name: a, replicas: 99}]\n")
    assert main.run(["validate", "wide.yaml"]) == 0
    assert "this machine" not in capsys.readouterr().err


def test_plan_prints_each_output_form(here, capsys):
    assert main.run(["plan", "good.yaml"]) == 0
    assert capsys.readouterr().out.startswith("good: 1 role, 2 ranks")
    for form in ("json", "yaml"):
        assert main.run(["plan", "good.yaml", "-o", form]) == 0
        assert [r["name"] for r in loaded(capsys.readouterr().out)["roles"]] == ["worker"]
    assert main.run(["plan", "good.yaml", "-o", "manifest"]) == 0
    assert loaded(capsys.readouterr().out)["kind"] == "RayCluster"


def test_a_plan_that_does_not_fit_says_by_how_much(here, capsys):
    assert main.run(["plan", "large.yaml"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.search(r"\.yaml:\d+:\d+: spec.nodeGroups: the job does not fit", printed.err)


def test_a_spec_that_is_wrong_is_refused_with_its_line(here, capsys):
    for words in (["plan", "bad.yaml"], ["run", "bad.yaml"], ["submit", "bad.yaml", "--address", "h:1"]):
        assert main.run(words) == 2
        assert "bad.yaml:7:" in capsys.readouterr().err


def test_crd_prints_the_crd_of_the_repository(capsys):
    assert main.run(["crd"]) == 0
    shown = loaded(capsys.readouterr().out)
    assert shown == loaded((Path(__file__).parents[3] / "crds" / "dljob.io_dljobs.yaml").read_text())
    assert main.run(["crd", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == shown


def test_version_prints_dljob_python_ray_and_torch(capsys):
    assert main.run(["version"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["dljob", "python", "ray", "torch"]
    assert main.run(["version", "-o", "yaml"]) == 0
    assert loaded(capsys.readouterr().out)["python"].startswith("3.")


def test_run_refuses_what_cannot_be_before_anything_starts(here, capsys, monkeypatch):
    monkeypatch.setattr("dljob.runtime.backend.machine.devices_here", dict)
    wide = GOOD + '  nodeGroups: [{name: many, replicas: 9, cpu: "4"}]\n'
    npus = GOOD + '  nodeGroups: [{name: o, replicas: 2, cpu: "4", accelerator: {type: NPU, count: 8}}]\n'
    (here / "wide.yaml").write_text(wide)
    (here / "npus.yaml").write_text(npus)
    (here / "elsewhere.yaml").write_text(GOOD + "  code: {workingDir: src}\n")
    (here / "faults.yaml").write_text("- {when: {step: 1}, target: ghost/0, fault: kill}\n")
    for words, message in (
        (["wide.yaml"], "the plan has 9 nodes; an embedded Ray starts at most 8 raylets"),
        (["npus.yaml"], "the plan's nodes have 16 NPU in all, this machine has 0: 16 are missing"),
        (["npus.yaml"], "--pretend NPU=8"),
        (["npus.yaml", "--pretend", "NPU=4"], "has 8 NPU, --pretend declares 4 per raylet"),
        (["elsewhere.yaml"], f"the working directory {here}/src does not exist"),
        (["good.yaml", "--pretend", "NPU"], "not a device and a number"),
        (["good.yaml", "--faults", "faults.yaml"], "faults.yaml:1:"),
        (["good.yaml", "--faults", "none.yaml"], "cannot read none.yaml"),
    ):
        assert main.run(["run", *words]) == 2
        printed = capsys.readouterr()
        assert message in printed.err
        assert printed.out == ""


def test_validate_and_run_refuse_a_missing_script_with_its_place(here, capsys):
    text = GOOD.replace("{class: m.W}", "{module: src/train.py}")
    (here / "script.yaml").write_text(text)
    said = f"script.yaml:7:54: spec.roles[0].entrypoint.module: there is no file src/train.py in {here}"
    for command in ("validate", "run"):
        assert main.run([command, "script.yaml"]) == 2
        printed = capsys.readouterr()
        assert said in printed.out + printed.err
    (here / "script.yaml").write_text(text + "  image: example/train:1\n")
    assert main.run(["validate", "script.yaml"]) == 0
    (here / "src").mkdir()
    (here / "src" / "train.py").touch()
    (here / "script.yaml").write_text(text)
    assert main.run(["validate", "script.yaml"]) == 0


def test_plan_shows_how_weights_are_loaded(here, capsys):
    http = "load: {httpPost: {path: /load, port: 80}, timeoutSeconds: 9}, verify: {httpGet: {path: /sum, port: 80}}"
    roles = (
        "  - {name: a, driver: false, entrypoint: {module: m}, weights: {channels: [p, v], maxLag: 2, " + http + "}}\n"
        "  - {name: b, driver: false, entrypoint: {class: m.B}, weights: {channels: [p], load: {method: take}}}\n"
        "  - {name: c, driver: false, entrypoint: {module: m}, "
        "weights: {channels: [p], load: {exec: {command: [ld, it]}}}}\n"
    )
    (here / "weights.yaml").write_text(GOOD + roles)
    assert main.run(["plan", "weights.yaml"]) == 0
    table = capsys.readouterr().out.partition("WEIGHTS")[2].splitlines()
    assert table[0].split() == ["CHANNELS", "MAX", "LAG", "STAY", "READY", "LOAD", "VERIFY"]
    assert [row.split() for row in table[1:4]] == [
        ["a", "p,", "v", "2", "1", "POST", "/load,", "within", "9", "s", "GET", "/sum"],
        ["b", "p", "1", "1", "take(),", "within", "300", "s", "-"],
        ["c", "p", "1", "1", "ld", "it,", "within", "300", "s", "-"],
    ]


def test_validate_refuses_weights_on_a_backend_that_cannot_load_them(here, capsys):
    weights = "weights: {channels: [policy], load: {exec: {command: [load]}}}"
    text = GOOD.replace("{class: m.W}", "{command: [serve]}, " + weights)
    (here / "yr.yaml").write_text(text + "  backend: {name: yr}\n")
    assert main.run(["validate", "yr.yaml"]) == 2
    said = "spec.roles[0].weights: the backend yr lacks weights: versions of weights that dljob loads into ranks"
    assert said in capsys.readouterr().out
    (here / "yr.yaml").write_text(text + "  backend: {name: ray}\n")
    assert main.run(["validate", "yr.yaml"]) == 0


def test_validate_and_run_refuse_a_mesh_that_the_sizes_of_a_fleet_do_not_fit(here, capsys):
    role = "{class: src.m.W}, driver: false, minReplicas: 2, maxReplicas: 8"
    text = GOOD + "  - {name: driver, entrypoint: {class: m.D}}\n"
    (here / "mesh.yaml").write_text(text.replace("{class: m.W}", role))
    (here / "src").mkdir()
    code = here / "src" / "m.py"
    code.write_text(
        "class Other:\n    mesh = {'tp': 9}\nclass W:\n    name = 1\n    mesh: dict = {'dp': -1, 'tp': 2}\n"
    )
    said = "entrypoint.class: mesh of role worker: dp -1, tp 2 needs ranks in multiples of 2"
    for command in ("validate", "run"):
        assert main.run([command, "mesh.yaml"]) == 2
        printed = capsys.readouterr()
        assert said in printed.out + printed.err
        assert "set replicasPerGroup: 2" in printed.out + printed.err
    (here / "mesh.yaml").write_text(text.replace("{class: m.W}", f"{role}, replicasPerGroup: 2"))
    assert main.run(["validate", "mesh.yaml"]) == 0
    code.write_text("class W:\n    def setup(self):\n        self.mesh = {'dp': 2}\n")
    assert main.run(["validate", "mesh.yaml"]) == 2
    assert "make one axis -1" in capsys.readouterr().out
    # Told when the rank starts: no plain dict, no class of this name, a file that is no Python, no file.
    for text in ("class W:\n    mesh = sizes()\n", "class W:\n    mesh = 7\n", "class V:\n    pass\n", "class W(:\n"):
        code.write_text(text)
        assert main.run(["validate", "mesh.yaml"]) == 0
    code.unlink()
    assert main.run(["validate", "mesh.yaml"]) == 0


def test_run_refuses_a_python_that_this_machine_lacks_with_its_place(here, capsys):
    other = here / "python"
    other.write_text('#!/bin/sh\necho \'[[3, 11, 2], "1.0", ""]\'\n')
    other.chmod(0o755)
    text = GOOD.replace("{class: m.W}", "{class: m.W}, python: " + f"{here}/pyton")
    (here / "python.yaml").write_text(text)
    assert main.run(["validate", "python.yaml"]) == 0  # its machines may have it
    assert main.run(["run", "python.yaml"]) == 2
    said = f"cannot run with {here}/pyton on this machine: there is no such file; did you mean {other}?"
    assert said in capsys.readouterr().err
    (here / "python.yaml").write_text(text.replace("pyton", "python"))
    assert main.run(["run", "python.yaml"]) == 2
    assert "it is Python 3.11.2 with Ray 1.0, and the cluster has Python 3." in capsys.readouterr().err
    other.write_text('#!/bin/sh\necho \'[[3, 11, 2], "", "0.0.9"]\'\n')
    assert main.run(["run", "python.yaml"]) == 2
    assert f"it has dljob 0.0.9, and the job runs with dljob {version('dljob')}" in capsys.readouterr().err
