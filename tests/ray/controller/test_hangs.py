"""Ranks that stand still on a real Ray: named with their stacks, ended, and the job goes on."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from prime_help import Job, eventually

from dljob.telemetry import reasons

pytestmark = pytest.mark.ray


def found(job: Job, reason: str = reasons.HANG_FOUND) -> list[dict[str, Any]]:
    return [note for note in job.connection.notes() if note["reason"] == reason]


def stepped(job: Job, role: str, least: int) -> None:
    """Wait until each rank of a role has told so many steps."""

    def there() -> bool:
        steps = [row["step"] or 0 for row in job.connection.status()["ranks"] if row["role"] == role]
        return min(steps) >= least

    eventually(there, 90, job.seen)


def test_a_stopped_rank_of_a_torch_group_is_named_with_all_stacks_and_the_group_goes_on(job: Job) -> None:
    group = {"type": "Elastic", "replicas": 3, "resources": {"cpu": "0.3"}, "comm": {"backend": "gloo"}}
    job.start({"name": "trainer", "entrypoint": {"module": "hang_user.py"}, **group})
    names = [f"trainer/{rank}" for rank in range(3)]
    pids = job.running(*names)
    stepped(job, "trainer", 12)
    os.kill(pids["trainer/1"], signal.SIGSTOP)
    (note,) = eventually(lambda: found(job), 60, job.seen)
    assert note["target"] == "trainer/1"
    assert f"process {pids['trainer/1']} is stopped by a signal (state T)" in note["message"]
    job.running(*names, incarnation=dict.fromkeys(names, 2), within=90)
    stacks = (job.folder / "stacks" / "trainer-1-1.txt").read_text()
    assert str(job.folder / "stacks" / "trainer-1-1.txt") in note["message"]
    parts = dict(part.split("\n", 1) for part in stacks.split("== ")[1:])
    assert sorted(parts) == names
    for waits in ("trainer/0", "trainer/2"):
        assert "all_reduce" in parts[waits], stacks
    fault = job.connection.status()["lastFault"]
    assert (fault["reason"], fault["seconds"] is not None) == ("Hang", True), job.seen()
    stepped(job, "trainer", 5)
    job.go()
    status = job.connection.wait(60)
    assert status["phase"] == "Succeeded", job.seen()
    assert len(found(job)) == 1
    job.nothing_left()


def test_a_rank_that_spins_and_one_that_is_stopped_are_ended_and_their_peers_are_not(job: Job) -> None:
    entry = {"replicas": 3, "resources": {"cpu": "0.3"}}
    job.start(
        {**job.role("w", "hang_user.alone"), **entry}, faultTolerance={"hang": {"busySeconds": 1, "idleSeconds": 1}}
    )
    names = [f"w/{rank}" for rank in range(3)]
    pids = job.running(*names)
    stepped(job, "w", 60)
    (job.folder / "spin-2").touch()
    os.kill(pids["w/0"], signal.SIGSTOP)
    job.running("w/0", "w/2", incarnation={"w/0": 2, "w/2": 2}, within=120)
    notes = {note["target"]: note["message"] for note in found(job)}
    assert sorted(notes) == ["w/0", "w/2"], job.seen()
    assert "is stopped by a signal (state T)" in notes["w/0"]
    assert "it works in user code at hang_user.py:" in notes["w/2"]
    assert "in spin;" in notes["w/2"], notes
    assert "spin (" in (job.folder / "stacks" / "w-2-1.txt").read_text()
    assert job.connection.pids()["w/1"] == pids["w/1"]
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded", job.seen()
