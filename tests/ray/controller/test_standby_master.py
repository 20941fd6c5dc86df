"""A standby of PrimeMaster on a real Ray: the first one is killed or stopped, and the standby commands."""

from __future__ import annotations

import os
import signal

import pytest
from mortal_scene import state_of
from prime_help import Job, eventually
from standby_kit import FIRST, LONG_S, SECOND, PairScene

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


def test_two_masters_that_are_killed_in_turn_take_over_from_each_other(job: Job) -> None:
    scene = PairScene(job)
    scene.kill(FIRST)
    scene.commands(SECOND, epoch=2)
    scene.untouched()
    scene.restart("worker/0", incarnation=2)
    scene.follows(FIRST)  # the process that Ray started again
    scene.kill(SECOND)
    scene.commands(FIRST, epoch=3)
    scene.untouched()
    scene.ends()


def test_a_stopped_master_is_replaced_and_does_nothing_when_it_runs_again(job: Job) -> None:
    scene = PairScene(job)
    stopped = scene.pid(FIRST)
    os.kill(stopped, signal.SIGSTOP)
    scene.commands(SECOND, epoch=2)
    if state_of(stopped):
        os.kill(stopped, signal.SIGCONT)
    eventually(lambda: not state_of(stopped), LONG_S, lambda: "the stopped one goes on")
    scene.untouched()
    scene.restart("worker/1", incarnation=2)
    scene.follows(FIRST)
    scene.ends()


@pytest.mark.slow
def test_of_two_masters_that_are_killed_together_one_commands(job: Job) -> None:
    scene = PairScene(job)
    scene.kill(FIRST, SECOND)
    number = scene.commander(epoch=2)
    scene.follows(FIRST + SECOND - number)
    scene.untouched()
    scene.ends()


def test_a_standby_that_is_killed_is_started_again_and_costs_nothing(job: Job) -> None:
    scene = PairScene(job)
    killed = scene.pid(SECOND)
    scene.kill(SECOND)
    eventually(lambda: scene.pid(SECOND) not in (0, killed), LONG_S, lambda: "Ray does not start it again")
    scene.follows(SECOND)
    assert job.connection.status()["restarts"]["master"] == 0
    scene.ends()


@pytest.mark.slow
def test_with_a_stopped_standby_the_master_that_ray_starts_again_commands(job: Job) -> None:
    scene = PairScene(job)
    stopped = scene.pid(SECOND)
    os.kill(stopped, signal.SIGSTOP)
    scene.kill(FIRST)
    scene.commands(FIRST, epoch=2)
    os.kill(stopped, signal.SIGCONT)
    scene.follows(SECOND)
    scene.untouched()
    assert job.connection.status()["restarts"]["master"] == 1
    scene.ends()
