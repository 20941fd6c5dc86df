"""PrimeMaster is killed at moments at which it is busy; nobody notices but by its epoch."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from prime_help import Job, eventually

from dljob.telemetry import reasons

pytestmark = pytest.mark.ray


def workers(job: Job, n: int = 2) -> dict[str, Any]:
    return job.role("worker", "prime_user.until_told", replicas=n)


def started(job: Job, *roles: Any, **spec: Any) -> threading.Thread:
    """Start a job without waiting for its master's first answer."""
    thread = threading.Thread(target=job.start, args=roles, kwargs=spec, daemon=True)
    thread.start()
    return thread


def ends_well(job: Job, masters: int, processes: int = 0) -> None:
    job.go()
    status = job.connection.wait(60)
    restarts = status["restarts"]
    assert (status["phase"], restarts["master"], restarts["process"]) == ("Succeeded", masters, processes)
    job.nothing_left()


def epochs(job: Job) -> int:
    return len(job.segments())


def killed_at(job: Job, moment: Callable[[], Any]) -> None:
    """SIGKILL the master as soon as something can be seen."""
    eventually(moment, 30, lambda: "the moment never came")
    job.kill_master(eventually(job.master_pid, 30, lambda: "no master"))


def test_a_master_that_dies_before_its_first_write_is_started_again(job: Job) -> None:
    starting = started(job, workers(job))
    killed_at(job, job.master_pid)
    starting.join(60)
    job.running("worker/0", "worker/1")
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"
    job.nothing_left()


def test_a_master_that_dies_waiting_for_admission_is_replaced_and_admits(job: Job) -> None:
    """Another job holds the lock; the master dies waiting, and its successor asks for the same unit again."""
    from ray.experimental import internal_kv as kv

    turn = "dljob/lock/admission/000000999999"
    kv._internal_kv_put(turn, b"somebody 0", namespace="dljob")
    starting = started(job, workers(job))
    killed_at(job, lambda: epochs(job) == 1 and '"NodesSeen"' in job.segments()[0].read_text())
    eventually(lambda: epochs(job) == 2, 30, job.seen)
    kv._internal_kv_put(turn, b"free", namespace="dljob")
    starting.join(60)
    job.running("worker/0", "worker/1")
    ends_well(job, masters=1)


def test_a_worker_that_dies_with_the_master_is_restarted_by_the_next(job: Job) -> None:
    job.start(workers(job))
    before = job.running("worker/0", "worker/1")
    job.kill_master(before["master"])
    os.kill(before["worker/1"], signal.SIGKILL)
    after = job.running("worker/0", "worker/1", incarnation={"worker/1": 2})
    assert after["worker/0"] == before["worker/0"]
    ends_well(job, masters=1, processes=1)


def test_a_master_that_dies_too_often_fails_the_job_and_leaves_nothing(job: Job) -> None:
    """Its own restarts have a budget; beyond it the job fails, and still nothing is left."""
    job.start(workers(job), master={"maxRestarts": 1})
    before = job.running("worker/0", "worker/1")
    job.kill_master(before["master"])
    second = job.connection.pids()["master"]
    job.kill_master(second)
    status = job.connection.wait(60)
    assert (status["phase"], status["reason"]) == ("Failed", reasons.MASTER_BUDGET)
    job.nothing_left()
