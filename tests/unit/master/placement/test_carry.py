"""What an attempt hands on: budgets hold over attempts, counts only grow, and what makes no sense is said and left."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from master_kit import UID, World, error, job

from dljob.master.placement import previous_attempt as module
from dljob.master.placement.previous_attempt import carried, carry
from dljob.master.state import events as ev
from dljob.master.state.state import BudgetMark, Phase
from dljob.master.status import brief
from dljob.telemetry import reasons

SPARING = job({"name": "w", "replicas": 2, "restartPolicy": {"maxRestarts": 1}}, faultTolerance={"maxRestarts": 1})


def handed(state, *, uid=UID, attempt=1, step=None):
    """As the operator gives it to the next attempt."""
    told = brief(state, 2000.0, {})["carry"]
    return json.dumps({"job": uid, "attempt": attempt, "step": step, "state": told})


def following(made, text, attempt=2):
    """The next attempt of a job, at the time when the last one was lost."""
    world = World(made)
    world.now = 1010.0
    world.send(ev.MasterStarted(1))
    world.send(carried(text, UID, attempt))
    world.send(ev.NodesSeen(world.seen()))
    world.settle()
    return world


def worn(made=SPARING):
    """A job whose role has used up its budget."""
    world = World(made).boot()
    world.end("w", 1, error(step=1))
    world.settle()
    assert dict(world.state.restarts) == {"Process": 1}
    return world


def test_a_job_without_restarts_hands_on_nothing():
    assert carry(World(SPARING).boot().state) == {}


def test_restarts_and_their_times_are_handed_on():
    told = brief(worn().state, 2000.0, {})["carry"]
    assert told == {
        "v": 1,
        "restarts": {"Process": 1},
        "roles": {"w": 1},
        "marks": {"fail:w": [1000.0], "w": [1000.0]},
    }


def test_a_budget_that_was_used_up_is_used_up_in_the_next_attempt():
    world = following(SPARING, handed(worn().state, step=120))
    (note,) = world.notes(reasons.RESTART_COUNTS_RESTORED)
    assert note.message == "restart counts of attempt 1: Process 1; it had reached step 120"
    world.end("w", 0, error("KeyError", step=1))
    world.settle()
    world.tick()
    world.settle()
    assert dict(world.state.restarts) == {"Process": 1, "Job": 1}, "the role has no restart left; the job has one"
    assert world.state.roles["w"].restarts == 1
    world.end("w", 1, error("OSError", step=2))
    world.settle()
    assert world.state.phase is Phase.FAILED
    assert world.state.verdict.reason == reasons.BUDGET_EXHAUSTED


def test_a_resumed_job_begins_with_new_budgets():
    text = json.dumps({**json.loads(handed(worn().state)), "newBudgets": True})
    world = following(SPARING, text)
    assert dict(world.state.restarts) == {}
    world.end("w", 0, error(step=1))
    world.settle()
    assert (world.state.phase, dict(world.state.restarts)) == (Phase.RUNNING, {"Process": 1})


def test_a_second_attempt_hands_on_the_restarts_of_both_attempts():
    world = following(SPARING, handed(worn().state))
    world.end("w", 0, error("KeyError", step=1))
    world.settle()
    told = carry(world.state)
    assert told["restarts"] == {"Job": 1, "Process": 1}
    assert [len(told["marks"][key]) for key in ("fail:w", "job", "w")] == [2, 1, 1]
    third = following(SPARING, handed(world.state, attempt=2), attempt=3)
    assert third.state.restarts == world.state.restarts


def test_counts_handed_on_are_added_once_however_often_they_are_told():
    world = following(SPARING, handed(worn().state))
    before = world.state
    world.send(carried(handed(worn().state), UID, 2))
    assert world.state == before
    world.crash_master()
    world.settle()
    assert dict(world.state.restarts) == {"Master": 1, "Process": 1}


def test_counts_handed_on_may_come_after_the_first_failure():
    world = World(job({"name": "w", "replicas": 2})).boot()
    world.end("w", 0, error(step=1))
    world.settle()
    world.send(carried(handed(worn().state), UID, 2))
    assert dict(world.state.restarts) == {"Process": 2}
    assert [mark.at for mark in world.state.marks["w"]] == [1000.0, 1000.0]


def test_marks_of_a_clock_that_was_ahead_are_of_now_at_the_latest():
    text = json.dumps({"job": UID, "attempt": 1, "state": {"v": 1, "marks": {"fail:w": [9e9, 900], "w": [9e9]}}})
    world = following(SPARING, text)
    assert world.state.marks["w"] == (BudgetMark(1010.0),)
    assert world.state.marks["fail:w"] == (BudgetMark(900.0), BudgetMark(1010.0))


def test_counts_of_roles_that_the_spec_lost_are_left():
    other = job(
        {"name": "w", "replicas": 2},
        faultTolerance={"rules": [{"name": "two", "onExitCodes": [2], "action": "RestartRole"}]},
    )
    keys = ("w", "gone", "fail:w", "fail:gone", "rule:two", "rule:gone", "job", "master")
    state = {
        "v": 1,
        "restarts": {"Moon": 3, "Role": 2},
        "roles": {"gone": 4, "w": 2},
        "marks": {key: [9] for key in keys},
    }
    world = following(other, json.dumps({"job": UID, "attempt": 1, "step": None, "state": state}))
    assert sorted(world.state.marks) == ["fail:w", "job", "master", "rule:two", "w"]
    assert dict(world.state.restarts) == {"Role": 2}
    assert world.state.roles["w"].restarts == 2
    assert world.notes(reasons.RESTART_COUNTS_RESTORED)[0].message == "restart counts of attempt 1: Moon 3, Role 2"


def test_restarts_handed_on_as_none_are_noted_as_none():
    text = json.dumps({"job": UID, "attempt": 1, "state": {"v": 1, "marks": {"fail:w": [9]}}})
    assert (
        following(SPARING, text).notes(reasons.RESTART_COUNTS_RESTORED)[0].message
        == "restart counts of attempt 1: none"
    )


GOOD = json.loads(handed(worn().state))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (json.dumps(GOOD)[:-9], "cannot be read"),
        ("[]", "cannot be read"),
        ("{}", "cannot be read: KeyError('attempt')"),
        (json.dumps({**GOOD, "state": []}), "cannot be read"),
        (json.dumps({**GOOD, "state": {}}), "cannot be read: KeyError('v')"),
        (json.dumps({**GOOD, "state": {"v": 1, "marks": {"w": [float("nan")]}}}), "a time of w is not finite"),
        (json.dumps({**GOOD, "state": {"v": 1, "restarts": {"Job": float("inf")}}}), "cannot be read"),
        (json.dumps({**GOOD, "state": {"v": 1, "restarts": 7}}), "cannot be read"),
        (json.dumps({**GOOD, "state": {"v": 2}}), "version 2, and this dljob reads version 1"),
        (json.dumps({**GOOD, "job": "f" * 32}), f"to another job, {'f' * 32}"),
        (json.dumps({**GOOD, "attempt": 2}), "to attempt 2, and this is attempt 2"),
        (json.dumps({**GOOD, "attempt": 0}), "to attempt 0"),
    ],
)
def test_counts_that_are_torn_foreign_or_of_another_version_are_left_and_noted(text, why):
    world = following(SPARING, text)
    assert (dict(world.state.restarts), dict(world.state.marks)) == ({}, {})
    (note,) = world.notes(reasons.RESTART_COUNTS_DISCARDED)
    assert note.message.startswith("the state of the previous attempt is not used: it ")
    assert why in note.message
    assert world.state.phase is Phase.RUNNING


def test_negative_counts_are_taken_for_none():
    text = json.dumps({**GOOD, "state": {"v": 1, "restarts": {"Job": -4}}})
    assert following(SPARING, text).state.restarts.get("Job", 0) == 0


@given(st.integers(0, 90), st.integers(1, 30))
def test_the_counts_handed_on_are_small_and_keep_the_newest(each, keys):
    state = World(SPARING).state
    marks = {f"k{n}": tuple(BudgetMark(1e9 + n + 30 * at) for at in range(each)) for n in range(keys)}
    told = carry(module.evolve(state, marks=state.marks.update(marks)))
    kept = [at for own in told.get("marks", {}).values() for at in own]
    assert len(json.dumps(told)) < 5000
    assert len(kept) == min(module.MARKS, keys * min(each, module.MARKS_A_KEY))
    dropped = {mark.at for own in marks.values() for mark in own[-module.MARKS_A_KEY :]} - set(kept)
    assert not dropped or max(dropped) <= min(kept)
