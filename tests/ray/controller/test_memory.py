"""Ranks that were ended for want of memory come back in a placement group with more of it, on a real Ray."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from prime_help import Job, eventually

from dljob.master.state.views import Clue

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]
MI = 2**20
POLICY = {"level": "Process", "outOfMemory": {"memoryFactor": "1.5", "maxMemory": "200Mi"}}
LINE = Clue("kernel", "Memory cgroup out of memory: Killed process 7 (python) total-vm:1kB")


def held(job: Job, unit: str) -> list[float]:
    """The memory that Ray's placement group of a unit holds, in MiB, by bundle."""
    from ray.util import placement_group_table

    mine = f"{job.uid[:8]}/{unit}/"
    rows = [r for r in placement_group_table().values() if r["name"].startswith(mine) and r["state"] == "CREATED"]
    return [bundle["memory"] / MI for row in rows for bundle in row["bundles"].values()]


def given(job: Job) -> list[Any]:
    return [unit.get("memory") for unit in job.connection.status()["units"]]


def test_the_placement_group_of_a_rank_out_of_memory_grows_up_to_max_memory(job: Job) -> None:
    role = job.role("w", "prime_user.until_told", replicas=2, restartPolicy=POLICY)
    role["resources"] = {"cpu": "0.25", "memory": "100Mi"}
    job.start(role, faultTolerance={"backoff": {"initialSeconds": 0}})
    pids = job.running("w/0", "w/1", within=120)
    assert (held(job, "w/0"), held(job, "w/1")) == ([100], [100])

    job.connection.learned("w/0", 1, LINE)
    os.kill(pids["w/0"], signal.SIGKILL)
    assert job.running("w/0", "w/1", incarnation={"w/0": 2}, within=120)["w/1"] == pids["w/1"]
    assert (held(job, "w/0"), held(job, "w/1")) == ([150], [100])
    assert given(job) == [{"w": "150Mi"}, None]
    assert job.connection.status()["restarts"]["process"] == 1

    job.kill_master(job.master_pid())
    eventually(lambda: job.connection.status()["epoch"] == 2, 60, job.seen)
    assert given(job) == [{"w": "150Mi"}, None]

    # What the kernel says may be known only when the rank is back already.
    pids = job.running("w/0", "w/1", incarnation={"w/0": 2}, within=120)
    os.kill(pids["w/0"], signal.SIGKILL)
    job.running("w/0", incarnation={"w/0": 3}, within=120)
    job.connection.learned("w/0", 2, LINE)
    job.running("w/0", "w/1", incarnation={"w/0": 4}, within=120)
    assert (held(job, "w/0"), given(job)) == ([200], [{"w": "200Mi"}, None])
    said = [note["message"] for note in job.connection.notes() if note["reason"] == "MemoryRaised"]
    assert said == [
        "memory 100Mi -> 150Mi of at most 200Mi after OOMKilled of w/0",
        "memory 150Mi -> 200Mi of at most 200Mi after OOMKilled of w/0",
    ]
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"
    job.nothing_left()
