"""What holds of every pass."""

from __future__ import annotations

import sys

from reconcile_kit import World

from dljob.reconcile.reconcile import reconcile
from dljob.reconcile.state import names

CALLS = 2800
"""Of Python's functions and C's, in one pass: 2,679 when this was written; 314 are for kstatus."""


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


def test_a_pass_over_a_job_at_rest_is_cheap():
    """An operator looks at thousands of jobs at rest again and again."""
    world = World().running()
    seen = world.observed()
    reconcile(seen, world.settings, world.now)  # what is computed once
    assert _calls(lambda: reconcile(seen, world.settings, world.now)) < CALLS


def _calls(work):
    """How many functions are called: unlike seconds, no load on the machine changes it."""
    count = 0

    def called(_frame, event, _arg):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
