"""Sources on a real Ray: whatever is killed, each committed checkpoint has each event up to its position once."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from prime_help import QUICK, USERS, Job, eventually

pytestmark = pytest.mark.ray
EVENTS, ROTATED = 600, 200


@pytest.fixture
def job(ray_here, tmp_path):
    del ray_here
    made = Job(tmp_path)
    yield made
    made.close()


def append(path: Path, first: int, end: int) -> None:
    with path.open("a") as file:
        file.writelines(f"event {n}\n" for n in range(first, end))


def states(job: Job) -> list[tuple[int, dict[str, int]]]:
    """The states of all checkpoints that were committed, and those that were restored."""
    return [json.loads(path.read_text()) for path in job.folder.glob("*-[0-9]*.json")]


def steps(job: Job) -> int:
    return max((step for step, _ in states(job)), default=0)


def whole(state: dict[str, int]) -> bool:
    """Whether it has of each file the events up to a position, each once."""
    numbers = sorted(int(key.removeprefix("event ")) for key in state)
    old, new = [n for n in numbers if n < ROTATED], [n for n in numbers if n >= ROTATED]
    prefixes = old == list(range(len(old))) and new == list(range(ROTATED, ROTATED + len(new)))
    return prefixes and set(state.values()) <= {1}


def test_each_checkpoint_of_a_run_with_kills_has_each_event_once(job, tmp_path):
    log = tmp_path / "clicks.log"
    append(log, 0, ROTATED)
    config = {"uri": f"file:{log}", "events": EVENTS, "batch": 20}
    job.start(job.role("trainer", "online_user.count", config=config), code=USERS / "served", faultTolerance=QUICK)
    pid = job.running("trainer/0")["trainer/0"]
    eventually(lambda: steps(job) >= 3, 60, job.seen)
    os.kill(pid, signal.SIGKILL)
    job.running("trainer/0", incarnation={"trainer/0": 2})
    # Rotation: the old file is read to its end under its new name.
    log.rename(tmp_path / "clicks.log.1")
    append(log, ROTATED, 400)
    eventually(lambda: steps(job) >= 12, 60, job.seen)
    job.kill_master(job.master_pid())
    append(log, 400, EVENTS - 50)
    eventually(lambda: steps(job) >= 22, 60, job.seen)
    os.kill(job.pid("trainer/0", 2), signal.SIGKILL)
    job.running("trainer/0", incarnation={"trainer/0": 3})
    append(log, EVENTS - 50, EVENTS)
    job.connection.wait(60)
    found = states(job)
    assert len(found) >= 30
    assert all(whole(state) for _, state in found), [state for _, state in found if not whole(state)][:1]
    assert max(len(state) for _, state in found) == EVENTS
    assert json.loads((job.folder / "restored-3.json").read_text())[0] >= 22
    told = [note["message"] for note in job.connection.notes() if note["reason"] == "SourceChanged"]
    assert sum(word.startswith("new partitions: ") for word in told) == 2, told
