"""Code that ends in the same way again ends its job; a rank that others kill does not. All jobs run side by side."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernels import TELLS_ENDS
from prime_help import QUICK, Job, eventually

from dljob.spec.loading.load import load_file

pytestmark = [pytest.mark.ray, pytest.mark.torch]

GRPO = Path(__file__).resolve().parents[3] / "examples" / "grpo-tiny"
FIRST_LINES = {
    "exit": "import sys; sys.exit(3)",
    "segv": "import ctypes; ctypes.string_at(0)",
    "memory": "bytearray(1 << 62)",
    "cuda": "raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB.')",
    "kill": "import os; os.kill(os.getpid(), 9)",
}
"""Scripts, by the name of their job."""
KILLS = 6


@pytest.fixture(scope="module")
def jobs(ray_here: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Job]]:
    """All jobs of this file, started at once."""
    pytest.importorskip("torch")
    made = {name: Job(tmp_path_factory.mktemp(name)) for name in ("grpo", *FIRST_LINES)}
    try:
        made["grpo"].start(*learners(), name="grpo", code=GRPO, **learning())
        for name, line in FIRST_LINES.items():
            code = made[name].folder.parent / "app.py"
            code.write_text(f"{line}\n")
            role = {"name": "w", "entrypoint": {"module": "app.py"}, "resources": {"cpu": "0.1"}}
            made[name].start(role, name=name, code=code.parent)
        yield made
    finally:
        for job in made.values():
            job.close()


def learners() -> list[dict[str, Any]]:
    return load_file(GRPO / "dljob.yaml").model_dump(mode="json", by_alias=True, exclude_none=True)["spec"]["roles"]


def learning() -> dict[str, Any]:
    config = {"seed": 0, "iterations": 5000, "promptsPerRollout": 2}
    return {"config": config, "env": [{"name": "OMP_NUM_THREADS", "value": "1"}], "faultTolerance": QUICK}


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("exit", "the same exit code 3 twice"),
        ("segv", "the same signal 11 twice"),
        ("memory", "the same error at the same place twice"),
        ("cuda", "the same error at the same place twice"),
    ],
)
def test_a_rank_that_fails_at_its_first_line_ends_the_job_in_its_second_life(
    jobs: dict[str, Job], name: str, what: str
) -> None:
    status = jobs[name].connection.wait(60)
    assert (status["phase"], status["reason"]) == ("Failed", "UserErrorRepeats"), jobs[name].seen()
    assert f"{what}, with no progress between" in status["message"]
    assert lives(jobs[name]) == 2


def test_a_rank_that_kills_itself_at_its_first_line_ends_the_job(jobs: dict[str, Job]) -> None:
    status = jobs["kill"].connection.wait(60)
    assert status["phase"] == "Failed", jobs["kill"].seen()
    assert status["reason"] in ("UserErrorRepeats", "CrashLoop")
    assert status["lastFault"]["reason"] == "Killed"
    assert lives(jobs["kill"]) <= 3


def lives(job: Job) -> int:
    """How many processes of the rank began."""
    return (job.folder / "logs" / "w-0.log").read_text().count(" starts, incarnation ")


@pytest.mark.slow
def test_a_rollout_that_is_killed_six_times_goes_on_and_is_told_as_killed(jobs: dict[str, Job]) -> None:
    job, step, last = jobs["grpo"], 0, 0
    fault: dict[str, Any] = {}
    pid = eventually(lambda: job.connection.pids().get("rollout/1"), 120, job.seen)
    for _ in range(KILLS):
        step = eventually(lambda beyond=step: further(job, beyond), 60, job.seen)
        os.kill(pid, signal.SIGKILL)
        fault = eventually(lambda after=last: fault_after(job, after), 30, job.seen)
        last = fault["incarnation"]
        pid = eventually(lambda old=pid: another(job, old), 60, job.seen)
    if TELLS_ENDS:  # else only who forked the process can tell, and Ray may have started it itself
        assert fault["firstCause"] == "rollout/1: Killed: ended by SIGKILL, exit code 137"
        assert (fault["reason"], fault["evidence"][0]) == ("Killed", "exit code 137")
    eventually(lambda: further(job, step), 60, job.seen)
    assert job.connection.status()["phase"] == "Running"


def further(job: Job, step: int) -> int:
    """The job's step once it is beyond this one, while all of it runs."""
    status = job.connection.status()
    found = (status.get("progress") or {}).get("step") or 0
    return found if found > step and status["phase"] == "Running" else 0


def another(job: Job, pid: int) -> int:
    found = job.connection.pids().get("rollout/1", 0)
    return found if found != pid else 0


def fault_after(job: Job, incarnation: int) -> dict[str, Any]:
    """The fault of a later incarnation of rollout/1, once it is told."""
    fault = job.connection.status().get("lastFault") or {}
    return fault if fault.get("rank") == "rollout/1" and fault["incarnation"] > incarnation else {}
