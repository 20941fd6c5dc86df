"""What the launcher refuses for its versions, and that an old Python can read so far."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path

import pytest

from dljob.raycluster import pods
from dljob.raycluster.render import DEFAULT_RAY_VERSION
from dljob.runtime.job import launcher, versions
from dljob.runtime.job.versions import Versions, installed_versions, refusal
from dljob.spec import versions as spec_versions

ROOT = Path(__file__).parents[4]
GOOD = Versions((3, 11, 7), "2.60.0", "0.1.0")


@pytest.mark.parametrize(
    ("here", "reason", "said", "hint"),
    [
        (GOOD._replace(python=(3, 10, 12)), "PythonVersionMismatch", "Python 3.10.12; dljob runs on 3.11 and 3.12", ""),
        (GOOD._replace(ray=None), "RayVersionMismatch", "the image has no Ray", "ray[default]==2.60.0"),
        (GOOD._replace(ray="2.48.1"), "RayVersionMismatch", "the image has Ray 2.48.1; the job says 2.60.0", "2.48.1"),
        (GOOD._replace(dljob="0.2.0"), "DLJobVersionMismatch", "the image has dljob 0.2.0", "initImage"),
        (GOOD._replace(dljob=None), "DLJobVersionMismatch", "dljob without its metadata", "initImage"),
    ],
)
def test_a_version_that_does_not_match_is_refused_with_the_fix(here, reason, said, hint):
    refused = refusal(here, "2.60.0", "0.1.0")
    assert refused is not None
    assert refused.reason == reason
    assert said in refused.message
    assert hint in refused.hint


def test_the_spec_knows_the_launchers_version_of_ray():
    assert spec_versions.RAY == versions.RAY
    assert DEFAULT_RAY_VERSION.startswith(f"{versions.RAY}.")
    schema = json.loads((ROOT / "charts/dljob/values.schema.json").read_text(encoding="utf-8"))
    pattern = schema["properties"]["jobs"]["properties"]["rayVersion"]["pattern"]
    assert [bool(re.search(pattern, f"{minor}.0")) for minor in (versions.RAY, "2.59", "1.0")] == [True, False, False]


def test_another_ray_than_dljob_knows_is_refused_even_if_the_job_says_so():
    refused = refusal(GOOD._replace(ray="2.61.0"), "2.61.0", "0.1.0")
    assert refused is not None
    assert refused.message == "the image has Ray 2.61.0; this dljob runs on Ray 2.60"


def test_a_version_may_differ_in_its_last_number():
    assert refusal(GOOD._replace(ray="2.60.3", dljob="0.1.9"), "2.60.0", "0.1.0") is None
    assert refusal(installed_versions(), installed_versions().ray or "", installed_versions().dljob or "") is None


def test_the_supported_versions_are_those_the_project_declares():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest, behind = re.findall(r"3\.(\d+)", project["requires-python"])
    assert [(3, minor) for minor in range(int(lowest), int(behind))] == list(versions.PYTHONS)
    assert f"ray[default]=={versions.RAY}.*" in project["optional-dependencies"]["runtime"]


@pytest.mark.parametrize("module", [versions, launcher, pods], ids=lambda module: module.__name__)
def test_an_old_python_can_read_what_looks_at_the_versions(module):
    text = Path(module.__file__).read_text()  # type: ignore[attr-defined,arg-type]
    assert ast.parse(text, feature_version=(3, 8)).body


def test_the_launcher_imports_nothing_else_before_it_checks_versions():
    tree = ast.parse(Path(launcher.__file__).read_text())
    ours = [node.module for node in tree.body if isinstance(node, ast.ImportFrom) and "dljob" in (node.module or "")]
    assert ours == ["dljob.raycluster.pods", "dljob.runtime.job"]
