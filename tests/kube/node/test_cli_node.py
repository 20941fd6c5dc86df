"""The command against real pods: the folder goes up, lines come back, orders arrive, logs outlive the head."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster.handle import Cluster
from operator_kit import Operator, until

HELLO = Path(__file__).resolve().parents[3] / "examples" / "hello-cpu" / "dljob.yaml"
JOB = """\
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: count}
spec:
  head: {cpu: 250m, memory: 2Gi}
  master: {cpu: 100m, memory: 512Mi}
  roles:
  - {name: worker, replicas: 2, entrypoint: {class: count.main}, resources: {cpu: 250m}}
"""
CODE = """
import time
from dljob import current_worker, progress

def main():
    for n in range(1000):
        print(f"line {n} of rank {current_worker().rank}", flush=True)
        progress(n + 1)
        time.sleep(0.2)
"""


@pytest.fixture
def team(node: Cluster) -> Iterator[str]:
    name = f"team-{os.urandom(3).hex()}"
    node.kubectl("create", "namespace", name)
    yield name
    node.kubectl("delete", "namespace", name, "--wait=false")


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(node: Cluster, tmp_path: Path) -> Start:
    """`dljob` as a process, in a folder with a job and its code."""
    (tmp_path / "count.py").write_text(CODE)
    (tmp_path / "job.yaml").write_text(JOB)
    env = {**os.environ, "KUBECONFIG": str(node.kubeconfig), "DLJOB_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}

    def dljob(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dljob.cli", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=env, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)

    return dljob


def done(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=150)
    return process.returncode, out, err


def test_run_brings_the_folder_and_shows_the_ranks_lines(operator: Operator, team: str, start: Start) -> None:
    code, out, err = done(start("run", str(HELLO), "-n", team))
    assert code == 0, err
    last = json.loads(out.splitlines()[-1])
    assert (last["phase"], last["step"]) == ("Succeeded", 1)
    assert "in place of ConfigMap hello, which is not there" in err
    for rank in (0, 1):
        assert err.count(f"[worker/{rank}] hello from rank {rank} of 2") == 1
    assert "cannot be read" not in err
    code, out, _ = done(start("logs", "hello", "-n", team, "--rank", "1", "--tail", "2"))
    assert code == 0
    assert "[worker/1] hello from rank 1 of 2\n" in out  # the process's own last line may stand behind it


def test_logs_and_orders_of_a_living_job_and_what_is_left(operator: Operator, team: str, start: Start) -> None:
    run = start("run", "job.yaml", "-n", team)

    def told() -> dict[str, object]:
        return json.loads(done(start("status", "count", "-n", team, "-o", "json"))[1] or "{}")

    until(lambda: told().get("phase") == "Running", "the job runs", 120)
    code, out, err = done(start("logs", "count", "-n", team, "--tail", "1"))
    assert (code, sorted(line.split()[0] for line in out.splitlines())) == (0, ["[worker/0]", "[worker/1]"]), err
    code, _, err = done(start("restart", "count", "worker/1", "-n", team))
    assert code == 0, err
    until(lambda: told()["restartsTotal"] == 1, "the restart is counted", 30)
    timeline = done(start("events", "count", "-n", team))[1]
    assert "CommandAccepted    worker/1" in timeline, "PrimeMaster's own notes are there"
    assert "CommandSent" in timeline, "and the operator's Events"
    code, out, err = done(start("logs", "count", "-n", team, "--master", "--tail", "100"))
    assert (code, " Commanded -> " in out) == (0, True), (out, err)
    run.send_signal(signal.SIGINT)
    line = next(line for line in iter(run.stderr.readline, "") if "job count goes on" in line)  # type: ignore[union-attr]
    assert "once more within 3 s stops it" in line
    run.send_signal(signal.SIGINT)
    code, _, err = done(run)
    assert (code, "job count is being stopped" in err) == (130, True), err
    until(lambda: told()["phase"] == "Stopped", "the job is stopped", 60)
    assert told()["reason"] == "StoppedByUser"

    def kept() -> str:
        code, out, _ = done(start("logs", "count", "-n", team, "--role", "worker", "--rank", "0"))
        return out if code == 0 else ""

    assert "[worker/0] line 0 of rank 0" in until(kept, "its logs are kept", 60)
    code, out, err = done(start("logs", "count", "-n", team, "--master"))
    assert (code, " Commanded -> " in out) == (0, True), (out, err)
