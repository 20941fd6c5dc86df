"""What Flux, kpt and Argo CD make of a DLJob: kstatus and our health check, run by the libraries that these use."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cluster import build
from ruamel.yaml import YAML

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
GOLDEN = ROOT / "tests" / "unit" / "reconcile" / "golden"
PAGE = ROOT / "docs" / "howto" / "kubernetes.md"
META = {"name": "hello", "namespace": "team", "generation": 1}
EXPECTED = {
    "Succeeded": ("Current", "Healthy"),
    "Running": ("Current", "Healthy"),
    "Stopped": ("Current", "Healthy"),
    "Suspended": ("Current", "Suspended"),
    "Failed": ("Failed", "Degraded"),
    "Invalid": ("Failed", "Degraded"),
}
"""Phase -> the status in kstatus, and in Argo CD; every other phase is on its way."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("go") is None:
        pytest.skip("Go is not on the PATH, and kstatus is a Go library")
    made = tmp_path_factory.mktemp("health") / "health"
    try:
        build.go(HERE, "mod", "download")
    except RuntimeError as error:
        pytest.skip(f"the Go modules of kstatus cannot be fetched: {error}")
    # With the flags of the cluster's programs, whose compiled packages are there.
    build.go(HERE, "build", *build.flags(build.Program("health", ".")), "-o", str(made), ".")
    return made


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The health check that the page gives to administrators of Argo CD."""
    (code,) = re.findall(r"```lua\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    file = tmp_path_factory.mktemp("lua") / "health.lua"
    file.write_text(code, encoding="utf-8")
    return file


def seen_by_tools(program: Path, script: Path, jobs: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return (status of kstatus, health in Argo CD) of each job."""
    whole = [{"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": META, **job} for job in jobs]
    command = [str(program), str(script)]
    done = subprocess.run(command, input=json.dumps(whole), capture_output=True, text=True, check=True, timeout=60)
    return [(kstatus, health) for kstatus, health in json.loads(done.stdout)]


def test_tools_know_from_each_status_whether_a_job_is_as_it_should_be(program: Path, script: Path) -> None:
    yaml = YAML(typ="safe")
    statuses = {
        file.stem: yaml.load(file.read_text(encoding="utf-8"))["status"] for file in sorted(GOLDEN.glob("*.yaml"))
    }
    found = dict(
        zip(statuses, seen_by_tools(program, script, [{"status": each} for each in statuses.values()]), strict=True)
    )
    wanted = {name: EXPECTED.get(each["phase"], ("InProgress", "Progressing")) for name, each in statuses.items()}
    assert found == wanted
    assert {"Current", "InProgress", "Failed"} == {kstatus for kstatus, _ in found.values()}


def test_a_job_that_the_operator_has_not_seen_since_its_edit_is_on_its_way(program: Path, script: Path) -> None:
    running = YAML(typ="safe").load((GOLDEN / "running.yaml").read_text(encoding="utf-8"))["status"]
    suspended = {**running, "phase": "Suspended"}
    edited, at_rest, new, leaving = seen_by_tools(
        program,
        script,
        [
            {"metadata": {**META, "generation": 2}, "status": running},
            {"status": suspended},
            {"status": {"observedGeneration": 0}},
            {"metadata": {**META, "deletionTimestamp": "2027-01-15T08:00:00Z"}, "status": running},
        ],
    )
    assert (edited, at_rest) == (("InProgress", "Progressing"), ("Current", "Suspended"))
    assert new == ("InProgress", "Progressing"), "as the API server completes a DLJob without a status"
    assert leaving[0] == "Terminating"
