"""Jobs that save, on a real Ray: killed, they go on where they were; and nothing of it outlives them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from prime_help import Job, eventually

pytestmark = [pytest.mark.ray, pytest.mark.torch]


@pytest.fixture
def job(ray_here: Any, tmp_path: Path) -> Any:
    made = Job(tmp_path)
    yield made
    made.close()


def savers(job: Job) -> list[int]:
    """The processes of the job's savers: they have its uid in their address."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if f"@dljob-saver-{job.uid[:8]}".encode() in line:
                found.append(int(entry.name))
    return found


def nothing_left(job: Job) -> None:
    job.nothing_left()
    eventually(lambda: not savers(job), 10, lambda: f"savers left: {savers(job)}")
    left = [p for p in Path("/dev/shm").iterdir() if "checkpoint" in p.name]
    assert left == []


def waiter(job: Job, **config: Any) -> dict[str, Any]:
    return job.role("w", "checkpoint_user.saves_and_waits", config={"numbers": 1 << 20, "persist": False, **config})


def came_from(job: Job, incarnation: int) -> list[Any]:
    return json.loads((job.folder / f"from-{incarnation}").read_text())


def test_a_killed_rank_goes_on_from_what_it_had_in_memory(job: Job) -> None:
    job.start(waiter(job))
    pid = job.running("w/0")["w/0"]
    os.kill(pid, signal.SIGKILL)
    job.running("w/0", incarnation={"w/0": 2})
    assert came_from(job, 1) == [0, None]
    assert came_from(job, 2) == [3, 1]
    assert "restored step 3 from memory" in (job.folder / "logs" / "w-0.log").read_text()
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"
    nothing_left(job)
