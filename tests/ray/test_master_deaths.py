"""PrimeMaster dies before, in and after all that it writes down, and after all that it does, once each, in the life of
one job; what the job's own processes wrote down tells whether anything was lost or done twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mortal_scene import Scene
from prime_help import Job

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

DONE = (
    "reserve", "release", "spawn.host", "spawn.spare", "call.host.start", "call.spare.start", "call.host.stop",
    "kill.host", "kill.spare",
)  # fmt: skip
WRITTEN = (
    "Commanded", "HostLost.badly", "HostReady", "MasterStarted", "NodesSeen", "RankEnded.badly", "RankEnded.well",
    "RankReady", "Released", "SpareLost", "SpareReady", "UnitReserved",
)  # fmt: skip
TORN = ("begin", "event", "header", "notes")
AT = ("append.event.*", *(f"append.{kind}-torn" for kind in TORN), *(f"{done}-after" for done in DONE))
"""Before something is done is after the append that orders it."""


@pytest.fixture
def job(ray_here: Any, tmp_path: Path) -> Any:
    yield (made := Job(tmp_path))
    made.close()


def test_it_dies_wherever_it_writes_or_acts(job: Job) -> None:
    scene = Scene(job, AT)
    scene.start()
    scene.running()
    scene.kill("worker/1")
    scene.running(worker_1=2)
    scene.raise_error("worker/0")
    scene.running(worker_0=2, worker_1=2)
    scene.kill_spare()
    job.connection.command("restart", "script")
    scene.running(worker_0=2, worker_1=2, script_0=2, script_1=2)
    status = scene.end()
    scene.check(status, worker_0=1, worker_1=1, script_0=1, script_1=1)
    restarts = status["restarts"]
    assert (restarts.pop("master") > 20, restarts.pop("process"), restarts.pop("role")) == (True, 2, 1)
    assert not any(restarts.values()), status
    written = {f"append.event.{kind}-{when}" for kind in WRITTEN for when in ("before", "after")}
    assert written | {f"{done}-after" for done in DONE} <= scene.points()
