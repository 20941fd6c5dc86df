"""A job of two roles under the Pythons beyond that of the locked environment; its own processes run under the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cli_kit import Place, using
from patience import patience
from pythons import VERSIONS, environment, installed

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

CODE = """
import sys
from dljob import RoleGroup, Worker, progress, rpc

class Adder(Worker):
    @rpc
    def add(self, one, two):
        return one + two, "%d.%d" % sys.version_info[:2]

def ask():
    total, version = RoleGroup("adder").call_rank0("add", 40, 2).result(60)
    print("the sum is", total, "under", version, flush=True)
    progress(1)
"""
JOB = """
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: sums}
spec:
  roles:
  - {name: adder, driver: false, entrypoint: {class: sums.Adder}, resources: {cpu: 100m}}
  - {name: reader, entrypoint: {class: sums.ask}, resources: {cpu: 100m}}
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_runs_under_this_python(tmp_path: Path, version: str) -> None:
    python = environment(version) / "bin" / "python"
    place = Place(tmp_path)
    (tmp_path / "sums.py").write_text(CODE)
    (tmp_path / "job.yaml").write_text(JOB)
    done = subprocess.run(
        [python, "-m", "dljob.cli", "run", tmp_path / "job.yaml"],
        env={**place.env, "PYTHONPATH": installed(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=patience(100),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"the sum is 42 under {version}" in done.stdout + done.stderr
    assert using(place.scratch("sums")) == []
