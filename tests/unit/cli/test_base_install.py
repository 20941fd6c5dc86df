"""dljob without its extras: each command that needs one names it, in one sentence, with exit code 2."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import sources

from dljob.errors import not_installed

ROOT = Path(__file__).parents[3]
WHEELS = (".", "operator", "workers/tools")
"""Folders of the projects of the three wheels."""
JOB = """
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: a}
spec: {roles: [{name: w, entrypoint: {class: a.B}}]}
"""
BLOCKED = ("ray", "torch", "kubernetes", "yaml", "kopf", "aiohttp", "prometheus_client", "yr")
START = f"import sys; sys.modules.update(dict.fromkeys({BLOCKED!r})); sys.argv = sys.argv[1:]; "


def run(start: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"DLJOB_HOME": str(folder / "home"), "HOME": str(folder), "NO_COLOR": "1"}
    command = [sys.executable, "-c", START + start, "x", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, check=False)


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["run", "a.yaml"], "runtime"),
        (["submit", "a.yaml", "--address", "127.0.0.1:1"], "runtime"),
        (["torchrun", "--nproc-per-node=1", "a.py"], "runtime"),
        (["submit", "a.yaml", "--kubernetes"], "kubernetes"),
        (["status", "--kubernetes"], "kubernetes"),
        (["sim", "--operator", "--seeds", "1"], "operator"),
    ],
    ids=" ".join,
)
def test_a_command_names_the_extra_that_it_needs(words, extra, tmp_path):
    (tmp_path / "a.yaml").write_text(JOB)
    (tmp_path / "a.py").touch()
    done = run("from dljob.cli.main import main; main()", tmp_path, *words)
    assert done.returncode == 2, done.stderr
    assert f"pip install 'dljob[{extra}]'" in done.stderr
    assert "fault of dljob" not in done.stderr
    assert "Traceback" not in done.stderr


def test_the_operator_names_its_extra(tmp_path):
    done = run("from dljob_operator.command import main; main()", tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 2
    assert "pip install 'dljob[operator]'" in done.stderr


@pytest.mark.parametrize("words", [["validate", "a.yaml"], ["plan", "a.yaml"], ["version"], ["status"]], ids=" ".join)
def test_commands_that_need_no_extra_work_without_extras(words, tmp_path):
    (tmp_path / "a.yaml").write_text(JOB)
    done = run("from dljob.cli.main import main; main()", tmp_path, *words)
    assert done.returncode == 0, done.stderr


def test_a_missing_module_of_the_user_is_no_extra():
    assert not_installed(ModuleNotFoundError("No module named 'mine'", name="mine")) is None


def test_each_imported_package_is_a_declared_dependency():
    projects = [tomllib.loads((ROOT / place / "pyproject.toml").read_text())["project"] for place in WHEELS]
    wanted = [each for project in projects for each in project["dependencies"]]
    wanted += [
        each for project in projects for some in project.get("optional-dependencies", {}).values() for each in some
    ]
    declared = {re.split(r"[^A-Za-z0-9_.-]", each)[0].lower().replace("-", "_") for each in wanted}
    declared |= {
        "dljob",
        "dljob_operator",
        "yaml",
        "ruamel",
        "yr",
        "pydantic_core",
        "_typeshed",
    }  # pyyaml, ruamel.yaml, openyuanrong; type checkers have the last
    found = {
        name.partition(".")[0]
        for file in [*ROOT.glob("workers/dljob/**/*.py"), *ROOT.glob("operator/**/*.py")]
        for node in sources.nodes(file.read_text())
        for name in names(node)
    }
    assert found - declared - {*sys.stdlib_module_names} - OF_USERS == {"kafka"}  # of kafka-python


OF_USERS = {
    "numpy",
    "torch_npu",
    "habana_frameworks",
    "tensordict",
    "datasystem",
    "verl",
    "openrlhf",
    "omegaconf",
}
"""Imported where a user's own program has it; numpy comes with torch and with what Ray's users pass."""


def names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or "dljob"] if isinstance(node, ast.ImportFrom) and not node.level else []
