"""`ray start` by hand, with the hook that lets its raylet fork workers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from gateway_kit import eventually, free_port
from patience import patience

pytestmark = pytest.mark.ray
RAY = str(Path(sys.executable).parent / "ray")
DRIVER = """
import os, sys
import ray

ray.init(address=sys.argv[1], log_to_driver=False)

@ray.remote(num_cpus=0)
class Own:
    def above(self):
        return open(f"/proc/{os.getppid()}/cmdline").read().replace("\\0", " ")

# More than Ray starts with the raylet, which are its own.
made = [Own.remote() for _ in range(3)]
found = ray.get([one.above.remote() for one in made])
print(any("forked_workers/server.py" in each for each in found))
"""


def test_ray_start_with_the_hook_forks_its_workers(tmp_path: Path) -> None:
    # Ray's sockets need a short path.
    before = set(Path("/tmp").glob("dljob-forks-*"))
    port, log, folder = free_port(), tmp_path / "log", tempfile.mkdtemp(prefix="rsh-", dir="/tmp")
    hook = "dljob.runtime.forked_workers.start_hook.install"
    env = {**os.environ, "RAY_START_HOOK": hook}
    env.pop("RAY_ADDRESS", None)
    made = ["--head", f"--port={port}", "--num-cpus=1", "--include-dashboard=false", "--object-store-memory=80000000"]
    with log.open("wb") as out:
        ray = subprocess.Popen(
            [RAY, "start", *made, "--block", "--disable-usage-stats", f"--temp-dir={folder}"],
            env=env,
            stdout=out,
            stderr=out,
        )
    try:
        eventually(lambda: "Ray runtime started" in log.read_text(), 60, log.read_text)
        told = subprocess.run(
            [sys.executable, "-c", DRIVER, f"127.0.0.1:{port}"],
            env=env,
            capture_output=True,
            text=True,
            timeout=patience(120),
            check=False,
        )
        assert (told.stdout.splitlines()[-1:], told.returncode) == (["True"], 0), told.stderr
    finally:
        ray.terminate()
        ray.wait(patience(60))
        shutil.rmtree(folder)
    eventually(lambda: set(Path("/tmp").glob("dljob-forks-*")) <= before, 60, lambda: "its folder stays")
