"""The thinnest slice: one role of one class, from the spec to the end of the job, with a SIGKILL on the way."""

from __future__ import annotations

import os
import signal

import pytest
from prime_help import Job

from dljob.errors import DeadlineError

pytestmark = pytest.mark.ray


def test_a_killed_worker_comes_back_alone_and_the_job_ends_well(job: Job) -> None:
    job.start(job.role("worker", "prime_user.until_told", replicas=2))
    before = job.running("worker/0", "worker/1")
    os.kill(before["worker/1"], signal.SIGKILL)
    after = job.running("worker/0", "worker/1", incarnation={"worker/1": 2})
    assert after["worker/0"] == before["worker/0"]
    assert after["worker/1"] != before["worker/1"]
    with pytest.raises(DeadlineError, match=r"job t was not over after 0\.[12] s"):  # twice as long beside another run
        job.connection.wait(0.1)
    job.go()
    status = job.connection.wait(60)
    assert (status["phase"], status["restarts"]["process"]) == ("Succeeded", 1)
    job.nothing_left()


def test_a_killed_master_comes_back_and_restarts_nobody(job: Job) -> None:
    job.start(job.role("worker", "prime_user.until_told", replicas=2))
    before = job.running("worker/0", "worker/1")
    os.kill(before["master"], signal.SIGKILL)
    after = job.connection.pids()
    assert after.pop("master") != before.pop("master")
    assert after == before
    os.kill(before["worker/0"], signal.SIGKILL)
    again = job.running("worker/0", "worker/1", incarnation={"worker/0": 2})
    assert again["worker/1"] == before["worker/1"]
    job.go()
    status = job.connection.wait(60)
    assert status["phase"] == "Succeeded"
    assert (status["restarts"]["master"], status["restarts"]["process"]) == (1, 1)
    job.nothing_left()
