"""verl's own single controller under a role that reserves Quota: what is published runs, unchanged."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import verl_kit
from prime_help import USERS, Job

from dljob.runtime.backend.ray_drivers import left_objects

pytestmark = [pytest.mark.ray, pytest.mark.timeout(420)]


@pytest.mark.slow
@pytest.mark.torch
def test_verls_own_worker_groups_run_as_they_were_published(job: Job, tmp_path: Path) -> None:
    """What a killed one leaves, and a retry under the same names, is in test_frameworks, which imports no torch."""
    driver = {
        "name": "driver",
        "entrypoint": {"command": [sys.executable, "verl_user.py"]},
        "reserve": "Quota",
        "resources": {"cpu": "3"},
    }
    job.start(driver, code=verl_kit.code(tmp_path / "code", USERS / "verl_user.py"))
    status = job.connection.wait(300)
    assert status["phase"] == "Succeeded", (job.folder / "logs" / "driver-0.log").read_text()
    seen = json.loads((job.folder / "said").read_text())
    assert [(rank["rank"], rank["world_size"], rank["total"]) for rank in seen["ranks"]] == [(0, 2, 3), (1, 2, 3)]
    assert len({rank["pid"] for rank in seen["ranks"]}) == 2
    assert seen["made"] == [0, 2, 1004, 1006]
    assert seen["saved"] == 0
    assert seen["names"] == ["actor_rolloutActorRollout_0:0", "actor_rolloutActorRollout_0:1"]
    job.nothing_left()
    assert not left_objects(f"{job.uid}/")  # its group and actors were detached
