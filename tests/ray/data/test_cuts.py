"""Consistent cuts on a real Ray: whatever is killed, each prompt is in the trainer's state exactly once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cut_user import PROMPTS
from prime_help import QUICK, Job, eventually

pytestmark = pytest.mark.ray


@pytest.fixture
def job(ray_here: Any, tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()


def committed(job: Job) -> list[str]:
    return [note["message"] for note in job.connection.notes() if note["reason"] == "CutCommitted"]


def test_each_prompt_is_trained_once_whatever_is_killed(job: Job) -> None:
    job.start(
        job.role("trainer", "cut_user.trainer", config={"every": 5, "pause_s": 0.05}),
        job.role("rollout", "cut_user.rollout", replicas=2, driver=False),
        faultTolerance=QUICK,
    )
    pids = job.running("trainer/0", "rollout/0", "rollout/1")
    eventually(lambda: len(committed(job)) >= 2, 60, job.seen)
    os.kill(pids["trainer/0"], signal.SIGKILL)
    job.running("trainer/0", incarnation={"trainer/0": 2})
    before = len(committed(job))
    eventually(lambda: len(committed(job)) > before, 60, job.seen)
    assert job.connection.wait(100)["phase"] == "Succeeded", job.seen()
    state = json.loads((job.folder / "trained").read_text())
    assert sorted(state["trained"]) == list(range(PROMPTS))
    job.nothing_left()
