"""Ray programs that make their own actors and placement groups, as roles that reserve Quota."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from prime_help import QUICK, Job, eventually

pytestmark = [pytest.mark.ray, pytest.mark.timeout(420)]


def said(job: Job, life: int) -> dict[str, Any]:
    path = job.folder / f"said-{life}"
    return json.loads(eventually(lambda: path.exists() and path.read_text(), 120, lambda: f"{path}: {job.seen()}"))


def made_by(job: Job) -> list[str]:
    """What a framework of the job has in Ray."""
    from dljob.runtime.backend.ray_drivers import left_objects

    left = left_objects(f"{job.uid}/")
    return sorted(name for _, name in (*left.actors, *left.groups))


MADE = ["", "global_poolWorkerDict_0:0", "global_poolWorkerDict_0:1", "global_poolverl_group_2:0"]


@pytest.mark.slow
def test_a_framework_runs_as_it_is_and_a_retry_finds_nothing_of_the_life_before(job: Job) -> None:
    driver = {
        "name": "driver",
        "entrypoint": {"command": [sys.executable, "framework_user.py"]},
        "reserve": "Quota",
        "accelerator": {"type": "NPU", "count": 4},
        "resources": {"cpu": "2"},
    }
    connection = job.start(driver, faultTolerance=QUICK)
    for life in (1, 2):
        seen = said(job, life)
        assert [worker["rank"] for worker in seen["workers"]] == ["0", "1"]
        assert [worker["doubled"] for worker in seen["workers"]] == [0, 2]
        assert {worker["tokenizers"] for worker in seen["workers"]} == {"true"}
        assert [worker["visible"] for worker in seen["workers"]] == [",".join(w["devices"]) for w in seen["workers"]]
        assert len({worker["visible"] for worker in seen["workers"]}) == 2
        assert seen["tasks"] == [0, 2, 4]
        assert seen["namespace"] == f"t-{job.uid[:8]}"
        assert (seen["captured"], seen["visible"]) == (False, None)
    assert [name for name in made_by(job) if name not in ("rollout_pool", "alone")] == MADE
    log = (job.folder / "logs" / "driver-0.log").read_text()
    assert "left in Ray by an earlier process of driver/0, now removed: " in log
    assert "actor global_poolWorkerDict_0:1" in log

    def noted(kind: str) -> Any:
        notes = (note for note in connection.notes() if note["reason"] == "PlacementPending")
        return next((note for note in notes if note["message"].startswith(kind)), None)

    note = eventually(lambda: noted("placement group"), 60, job.seen)
    assert note["target"] == "driver/0"
    needs = (
        "placement group rollout_pool of driver/0 waits for 1 x (1 CPU, 3 NPU) on one node; not now: no node has free"
    )
    assert note["message"].startswith(needs)
    assert note["time"] - float((job.folder / "asked").read_text()) < 10
    assert connection.status()["reason"] == "PlacementPending"
    alone = eventually(lambda: noted("actor"), 60, job.seen)
    assert alone["message"].startswith("actor alone of driver/0 waits for 1 x (3 NPU); not now: no node has free 3 NPU")
    assert alone["time"] - float((job.folder / "asked").read_text()) < 10
    job.go()
    assert connection.wait(60)["phase"] == "Succeeded"
    job.nothing_left()
    assert made_by(job) == []
