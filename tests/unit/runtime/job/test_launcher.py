"""The launcher before it needs a Ray: refusals, as the operator reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dljob.runtime.job import driver
from dljob.runtime.job.versions import installed_versions

HERE = installed_versions()
ROLE = {"name": "w", "entrypoint": {"class": "a.B"}}


def spec(**more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": "j"},
        "spec": {"roles": [ROLE], **more},
    }


def launch(folder: Path, text: str, **flags: str) -> tuple[int, dict[str, str]]:
    """Exit code, and the last line as the operator reads it."""
    (folder / "spec.json").write_text(text)
    words = {
        "spec": str(folder / "spec.json"),
        "uid": "c0ffee" * 5 + "00",
        "attempt": "0",
        "ray": HERE.ray or "",
        "version": HERE.dljob or "",
        **flags,
    }
    argv = [word for name, value in words.items() for word in (f"--{name}", value)]
    done = subprocess.run(
        [sys.executable, "-m", "dljob.runtime.launcher", *argv],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "DLJOB_"))},
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_another_ray_is_refused_in_the_last_line(tmp_path):
    code, said = launch(tmp_path, json.dumps(spec()), ray="2.1.0")
    assert code == 2
    assert (said["dljob"], said["reason"]) == ("refused", "RayVersionMismatch")
    assert "2.1.0" in said["message"]
    assert said["hint"]


def test_a_malformed_spec_is_refused_before_ray_is_asked(tmp_path):
    code, said = launch(tmp_path, "{")
    assert (code, said["reason"]) == (2, "InvalidSpec")
    assert said["message"]
    for text in ("[]", "{}", '{"metadata": {"name": "j"}, "spec": 1}'):
        refused = driver.explain(text.encode(), "spec.json")
        assert refused is not None
        assert refused.reason == "InvalidSpec"


@pytest.mark.parametrize(
    ("more", "reason", "words"),
    [
        ({"rolez": []}, "InvalidSpec", "rolez"),
        ({"nodeGroups": [{"name": "small", "replicas": 1, "cpu": "1"}]}, "DoesNotFit", "64"),
    ],
)
def test_why_a_spec_cannot_be_run_is_said_in_the_loaders_words(more, reason, words):
    whole = spec(**more)
    whole["spec"]["roles"][0] = {**ROLE, "replicas": 64, "resources": {"cpu": "64"}}
    refused = driver.explain(json.dumps(whole).encode(), "spec.json")
    assert refused is not None
    assert refused.reason == reason
    assert words in refused.message
    assert driver.explain(json.dumps(spec()).encode(), "spec.json") is None


def test_modules_in_the_users_folder_are_not_the_launchers(tmp_path):
    for name in ("ray", "pydantic", "aiohttp"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    assert launch(tmp_path, "{")[0] == 2


def test_a_folder_of_an_earlier_attempt_is_known_by_its_file(tmp_path):
    assert not driver._older(tmp_path, 1)
    (tmp_path / driver.ATTEMPT).write_text("0\n")
    assert driver._older(tmp_path, 1)
    assert not driver._older(tmp_path, 0)


def test_the_home_of_jobs_must_be_said(monkeypatch):
    monkeypatch.delenv("DLJOB_HOME", raising=False)
    with pytest.raises(driver.UsageError, match="DLJOB_HOME"):
        driver.home()
    monkeypatch.setenv("DLJOB_HOME", "/dljob/home")
    assert driver.home() == Path("/dljob/home")
