"""What holds of every pass."""

from __future__ import annotations

import sys
import time

import pytest
from control_kit import World

from dljob.control import names
from dljob.control.reconcile import reconcile


def test_a_job_that_is_being_deleted_needs_nothing():
    world = World().running()
    world.job["metadata"]["deletionTimestamp"] = "2027-01-15T08:01:00Z"
    outcome = world.look()
    assert (outcome.actions, outcome.events, outcome.status, outcome.watch) == ((), (), None, None)


def test_a_paused_job_is_left_alone():
    world = World()
    world.job["metadata"]["annotations"][names.PAUSE] = "true"
    outcome = world.look()
    assert (outcome.actions, outcome.events, outcome.status, outcome.watch) == ((), (), None, None)
    world.job["metadata"]["annotations"][names.PAUSE] = "false"
    assert world.look().actions


def test_every_pass_says_why():
    world = World()
    for happening in (lambda: world, world.head_ready, world.master, lambda: world.master("Succeeded")):
        happening()
        for _ in range(8):
            assert world.step().reason
    assert world.phase == "Succeeded"


def test_the_same_observation_gives_the_same_outcome():
    world = World().settle().head_ready()
    seen = world.observed()
    assert reconcile(seen, world.settings, world.now) == reconcile(seen, world.settings, world.now)


def test_an_observation_is_not_changed():
    world = World().running().master("Recovering")
    seen, again = world.observed(), world.observed()
    reconcile(seen, world.settings, world.now)
    assert seen == again


@pytest.mark.skipif(sys.gettrace() is not None, reason="coverage costs more than the pass")
def test_a_pass_over_a_job_at_rest_is_cheap():
    world = World().running()
    seen = world.observed()
    best = min(_cost(seen, world) for _ in range(5))
    assert best < 0.3e-3, f"{best * 1e3:.3f} ms"


def _cost(seen, world, times: int = 200) -> float:
    """CPU seconds of one pass."""
    began = time.process_time()
    for _ in range(times):
        reconcile(seen, world.settings, world.now)
    return (time.process_time() - began) / times
