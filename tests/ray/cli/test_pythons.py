"""A job of three roles under the Pythons beyond that of the locked environment: two of them under that job's own, one
in another environment of it, and the third under the locked environment's.
"""

from __future__ import annotations

import subprocess
import sys
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
        return one + two, "%d.%d" % sys.version_info[:2], sys.executable

def ask():
    total, version, python = RoleGroup("adder").call_rank0("add", 40, 2).result(60)
    print("the sum is", total, "under", version, "in", python, flush=True)
    progress(1)

"""
SCRIPT = """
import sys
import sums

print("asked under %d.%d," % sys.version_info[:2], "ray" in sys.modules, flush=True)
sums.ask()
"""
JOB = """
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: sums}
spec:
  roles:
  - {name: adder, driver: false, python: ADDER, entrypoint: {class: sums.Adder}, resources: {cpu: 100m}}
  - {name: reader, entrypoint: {class: sums.ask}, resources: {cpu: 100m}}
  - {name: script, python: SCRIPT, entrypoint: {module: scripts/ask.py}, resources: {cpu: 100m}}
"""


def twin(python: Path, folder: Path) -> Path:
    """Make an environment with the packages of another one."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(python.resolve())
    (folder / "pyvenv.cfg").write_text((python.parents[1] / "pyvenv.cfg").read_text())
    (folder / "lib").symlink_to(python.parents[1] / "lib")
    return folder / "bin" / "python"


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_runs_under_this_python(tmp_path: Path, version: str) -> None:
    python = environment(version) / "bin" / "python"
    place = Place(tmp_path)
    (tmp_path / "sums.py").write_text(CODE)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "ask.py").write_text(SCRIPT)
    other = twin(python, tmp_path / "twin")
    (tmp_path / "job.yaml").write_text(JOB.replace("ADDER", str(other)).replace("SCRIPT", sys.executable))
    done = subprocess.run(
        [python, "-m", "dljob.cli", "run", tmp_path / "job.yaml"],
        env={**place.env, "PYTHONPATH": installed(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=patience(100),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (done.stdout + done.stderr).splitlines()
    for role in ("reader", "script"):
        assert f"[{role}/0] the sum is 42 under {version} in {other}" in lines
    assert f"[script/0] asked under {sys.version_info[0]}.{sys.version_info[1]}, False" in lines
    assert using(place.scratch("sums")) == []
