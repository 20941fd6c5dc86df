"""Consistent cuts on a real Ray: whatever is killed, each prompt is in the trainer's state exactly once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from prime_help import QUICK, Job, eventually
from usercode.cuts import PROMPTS

pytestmark = pytest.mark.ray


@pytest.fixture
def job(ray_here: Any, tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()


def committed(job: Job) -> list[str]:
    return [note["message"] for note in job.connection.notes() if note["reason"] == "CutCommitted"]


def kill_keeper(job: Job, name: str) -> None:
    keeper = ray.get_actor(f"{job.uid[:8]}/queue/{name}", "dljob")
    os.kill(ray.get(keeper.pid.remote(), timeout=60), signal.SIGKILL)


@pytest.mark.timeout(400)
def test_each_prompt_is_trained_once_whatever_is_killed(job: Job) -> None:
    job.start(
        job.role("trainer", "usercode.cuts.trainer", config={"every": 5, "pause_s": 0.05}),
        job.role("rollout", "usercode.cuts.rollout", replicas=2, driver=False),
        faultTolerance=QUICK,
    )
    pids = job.running("trainer/0", "rollout/0", "rollout/1")
    eventually(lambda: len(committed(job)) >= 2, 60, job.seen)
    os.kill(pids["rollout/0"], signal.SIGKILL)
    os.kill(pids["trainer/0"], signal.SIGKILL)
    job.running("trainer/0", incarnation={"trainer/0": 2})
    eventually((job.folder / "from-2").exists, 60, job.seen)
    back = json.loads((job.folder / "from-2").read_text())
    assert back["step"] > 0
    assert back["trained"] == 2 * back["step"]
    kill_keeper(job, "samples")
    before = len(committed(job))
    eventually(lambda: len(committed(job)) > before, 60, job.seen)
    job.kill_master(job.master_pid())
    os.kill(job.connection.pids()["trainer/0"], signal.SIGKILL)
    assert job.connection.wait(100)["phase"] == "Succeeded", job.seen()
    state = json.loads((job.folder / "trained").read_text())
    assert sorted(state["trained"]) == list(range(PROMPTS))
    assert len(state["draws"]) == len(set(state["draws"])) == PROMPTS // 2
    restored = [note["message"] for note in job.connection.notes() if note["reason"] == "CutRestored"]
    assert len(restored) == 2, restored
    job.nothing_left()


def test_a_cut_that_cannot_be_completed_harms_nobody(job: Job, tmp_path: Path) -> None:
    where = {"path": str(tmp_path / "volume"), "everySteps": 10, "cutDeadlineSeconds": 1}
    job.start(job.role("late", "usercode.cuts.late"), checkpoint=where)
    job.running("late/0")

    def given_up() -> list[str]:
        return [note["message"] for note in job.connection.notes() if note["reason"] == "CutGivenUp"]

    eventually(given_up, 60, job.seen)
    assert "late/0 did not save within 1 s; there is no earlier one" in given_up()[0]
    (job.folder / "save").touch()
    eventually(lambda: committed(job), 60, job.seen)
    assert "1 item (0.0 MiB) of 1 queue" in committed(job)[0]
    assert list((tmp_path / "volume").rglob("cut-*/*.queue"))
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded", job.seen()
    first, second = json.loads((job.folder / "asked").read_text())
    assert first == second
    job.nothing_left()
