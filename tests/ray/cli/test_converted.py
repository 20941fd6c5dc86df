"""One job of each kind that `dljob convert` knows, converted and run to its end, on one Ray of this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(500)]

USERS = Path(__file__).parents[1] / "users" / "others"
KINDS = ("of-kuberay", "of-a-cluster", "of-pytorch", "of-trainer", "of-jobset", "of-dlrover")
# As `dljob run` starts each of them, but with one Ray for all. On the same Ray the RayJob's entrypoint as it was: a
# driver that finds Ray by RAY_ADDRESS, as one of `ray job submit` does.
PROGRAM = """
import json, os, subprocess, sys
from pathlib import Path
import dljob
from dljob.api.place import submit_here
from dljob.spec.loading.load import load_file_all

said = {}
with dljob.local():
    for manifest in load_file_all("dljob.yaml"):
        job = submit_here(manifest, address=None, code_dir=Path.cwd(), blocking=False, detach=False, replace=False)
        phase = job.wait()["phase"]
        said[job.name] = [phase, {file.name: file.read_text() for file in sorted(job.dir.glob("result-*"))}]
    entry = json.loads(Path(job.dir, "job.json").read_text())
    ray = {**entry["environment"], "RAY_ADDRESS": entry["address"], "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    subprocess.run([sys.executable, "converted_user.py", "ray"], check=True, stdout=2, env={**os.environ, **ray})
said["as it was"] = Path("result-driver").read_text()
print(json.dumps(said))
"""


@pytest.mark.slow
def test_a_job_of_each_kind_runs_converted_to_its_end(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for name in ("converted.yaml", "converted_user.py"):
        shutil.copy(USERS / name, tmp_path)
    # The manifests run `python` of their image, which is this one here.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "DLJOB_HOME": str(tmp_path / "home"), "PATH": path}
    env.pop("RAY_AUTH_TOKEN", None)  # of the tests' own Ray: a driver would take it before that of its Ray

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=patience(400),
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    flags = ("-o", "dljob.yaml", "--command", "python converted_user.py ray", "--workdir", str(tmp_path))
    run("-m", "dljob.cli", "convert", "converted.yaml", *flags)
    said = json.loads(run("-c", PROGRAM))
    as_it_was = said.pop("as it was")
    assert tuple(said) == KINDS
    for name in KINDS[:2]:
        assert said[name] == ["Succeeded", {"result-driver": as_it_was}]
    assert said["of-pytorch"] == ["Succeeded", {"result-0": "3", "result-1": "3"}]
    for name in KINDS[3:]:
        assert said[name] == ["Succeeded", {"result-0": "1"}]
