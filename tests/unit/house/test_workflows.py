"""The workflows of `.github`: what they may do, to whom, and that both linters have nothing to say."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from workflow_tools import actionlint

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
PINNED = {
    "actions/attest": "1e69f48acb82d1966a394da916b4c1698aa569d6 # v4.2.2",
    "actions/checkout": "3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1",
    "actions/deploy-pages": "cd2ce8fcbc39b97be8ca5fce6e763baed58fa128 # v5.0.0",
    "actions/download-artifact": "3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c # v8.0.1",
    "actions/setup-go": "b7ad1dad31e06c5925ef5d2fc7ad053ef454303e # v7.0.0",
    "actions/setup-python": "5fda3b95a4ea91299a34e894583c3862153e4b97 # v7.0.0",
    "actions/upload-artifact": "bbbca2ddaa5d8feaa63e36b76fdaad77386f024f # v7.0.0",
    "actions/upload-pages-artifact": "fc324d3547104276b827a68afc52ff2a11cc49c9 # v5.0.0",
}
"""Action -> the commit of its tag, as read in a copy of its repository."""
EVENTS = {"pull_request", "push"}
"""No `pull_request_target`, no `workflow_run`: they run with rights and secrets on code of strangers."""
WRITES = {"attestations", "contents", "id-token", "pages"}
HOST = re.compile(r"(?<![\w/.-])(?:[a-z0-9-]+\.)+(?:io|com|org|net|dev|cloud)\b")


def data(file: Path) -> dict[str, Any]:
    found = YAML(typ="safe").load(file.read_text(encoding="utf-8"))
    return found | {"on": found.get("on") or found.get(True)}


def jobs() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each job, with its workflow before it."""
    for file in FILES:
        whole = data(file)
        for name, job in whole["jobs"].items():
            yield f"{file.name}: {name}", whole, job


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_workflow_runs_with_rights_on_the_code_of_strangers(file: Path) -> None:
    whole = data(file)
    assert set(whole["on"]) <= EVENTS
    if "pull_request" in whole["on"]:
        assert "secrets." not in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_workflow_names_a_host(file: Path) -> None:
    assert HOST.findall(file.read_text(encoding="utf-8")) == []
    assert HOST.findall("docker push registry.example.com/x") == ["registry.example.com"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_actions_are_pinned_by_the_commit_of_their_tag(file: Path) -> None:
    used = re.findall(r"uses: ([^@\s]+)@(.+)", file.read_text(encoding="utf-8"))
    assert used
    assert [pin for pin in used if PINNED.get(pin[0]) != pin[1]] == []
    assert file.read_text(encoding="utf-8").count("uses:") == len(used)


def test_each_job_names_its_rights_and_writes_only_where_it_is_not_of_a_stranger() -> None:
    for name, whole, job in jobs():
        rights = job["permissions"]
        writes = {right for right, level in rights.items() if level == "write"}
        assert writes <= WRITES, name
        if writes and "pull_request" in whole["on"]:
            assert "github.event_name == 'push'" in job["if"], name
        assert "timeout-minutes" in job, name


def test_a_job_with_secrets_waits_for_an_environment_of_the_repository() -> None:
    keeping = [(name, job) for name, _, job in jobs() if "secrets." in str(job)]
    assert keeping
    assert [name for name, job in keeping if job.get("environment") != "release"] == []


def test_each_make_target_of_a_workflow_is_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {*re.findall(r"^([a-z-]+):", makefile, re.MULTILINE), ".uv/bin/uv"}
    asked = {word for file in FILES for word in re.findall(r"\bmake ([\w./-]+)", file.read_text(encoding="utf-8"))}
    assert {"check", "dist", "docs", "test", "verify"} <= asked
    assert asked <= targets


def test_every_tier_of_the_tests_has_a_machine() -> None:
    (named,) = re.findall(r"^TIERS = \((.+)\)$", (ROOT / "tests/tiers.py").read_text(encoding="utf-8"), re.MULTILINE)
    tiers = data(ROOT / ".github/workflows/tests.yml")["jobs"]["tier"]["strategy"]["matrix"]["tier"]
    assert {*tiers, "house"} == set(re.findall(r"\w+", named))  # `make check` and `make verify` are the house


@pytest.mark.timeout(900)  # it is built once, on a machine that may be busy
def test_actionlint_has_nothing_to_say_of_the_workflows(tmp_path: Path) -> None:
    done = subprocess.run([actionlint(), *FILES], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(FILES[0].read_text(encoding="utf-8").replace("runs-on:", "run-on:"))
    assert subprocess.run([actionlint(), wrong], capture_output=True, check=False).returncode == 1


def test_zizmor_has_nothing_to_say_of_the_workflows(tmp_path: Path) -> None:
    lint = [Path(sys.executable).with_name("zizmor"), "--offline", "--no-progress", "--quiet", "--persona=auditor"]
    done = subprocess.run([*lint, ROOT / ".github"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(FILES[0].read_text(encoding="utf-8").replace("permissions: {}", "permissions: write-all"))
    assert subprocess.run([*lint, wrong], capture_output=True, check=False).returncode > 10
