"""The five faults files, done to a job in real pods: each comes to the decisions of the simulator."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from chaos_kit import USER, compare, manifest
from cluster.handle import Cluster
from operator_kit import until

LONG_S = 300
"""Seconds for one file: a pod that is lost is made again, and its node joins Ray."""


@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("operator")
def test_faults_in_pods_come_to_the_decisions_of_the_simulator(node: Cluster, namespace: str, tmp_path: Path) -> None:
    job = manifest()
    job["spec"].update(head={"cpu": "250m", "memory": "2Gi"}, master={"cpu": "100m", "memory": "512Mi"})
    (tmp_path / "hurt.yaml").write_text(yaml.safe_dump(job))
    shutil.copy(USER, tmp_path)
    env = {**os.environ, "KUBECONFIG": str(node.kubeconfig), "DLJOB_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}

    def dljob(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dljob.cli", *words, "-n", namespace]
        return subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=LONG_S, check=False
        )

    def phase() -> str:
        return json.loads(dljob("status", "hurt", "-o", "json").stdout or "{}").get("phase", "")

    def inject(file: Path) -> str:
        done = dljob("chaos", "hurt", str(file), "--yes", "-o", "json")
        assert done.stdout, done.stderr
        return done.stdout

    begun = dljob("run", "hurt.yaml", "--detach")
    assert begun.returncode == 0, begun.stderr
    until(lambda: phase() == "Running", "the job runs", LONG_S)
    compare(inject)
    stopped = dljob("stop", "hurt")
    assert stopped.returncode == 0, stopped.stderr
