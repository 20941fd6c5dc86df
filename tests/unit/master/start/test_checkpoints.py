"""Checkpoints in the journal: what counts, what is refused, what was lost; handed on to the next attempt."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from master_kit import KILLED, UID, World, job

from dljob.master.placement import previous_attempt as carrying
from dljob.master.placement.previous_attempt import carried, carry
from dljob.master.start import checkpoints
from dljob.master.state import events as ev
from dljob.master.state.checkpoint_ids import CheckpointId, Committed, RestoreDecision, RunId, Saves, fence
from dljob.master.status import brief
from dljob.telemetry import reasons

A, B, C = RunId(1, 1), RunId(1, 2), RunId(1, 3)
MADE = job({"name": "t", "type": "Elastic", "replicas": 2}, {"name": "w", "driver": False, "replicas": 2})


@pytest.fixture
def world():
    return World(MADE).boot()


def steps(world, name="t"):
    return [one.mark.step for one in world.state.saves.get(name, Saves()).committed]


def shown(world):
    progress = brief(world.state, world.now, {})["progress"]
    return progress["lastCheckpointStep"], progress["lastCheckpointTime"]


def test_the_last_two_count_and_the_last_is_shown(world):
    assert shown(world) == (None, None)
    for step in (1, 2, 2, 3):
        world.send(ev.CheckpointCommitted("t", CheckpointId(A, step)), after=1)
    assert steps(world) == [2, 3]
    assert shown(world) == (3, "1970-01-01T00:16:44.000Z")


def test_the_shown_checkpoint_is_that_of_the_first_driver_role_that_saves_or_of_the_last_saver(world):
    world.send(ev.CheckpointCommitted("w/1", CheckpointId(A, 9)), after=1)
    world.send(ev.CheckpointCommitted("w/0", CheckpointId(A, 8)), after=1)
    assert shown(world)[0] == 8
    world.send(ev.CheckpointCommitted("t", CheckpointId(A, 3)))
    assert shown(world)[0] == 3
    before = world.state
    world.send(ev.CheckpointCommitted("x", CheckpointId(A, 3)))
    world.send(ev.CheckpointDecided("x/0", B, None))
    assert world.state == before


def test_an_old_process_is_refused_what_its_successor_went_on_without(world):
    for step in (1, 2, 3):
        world.send(ev.CheckpointCommitted("t", CheckpointId(A, step)))
    world.send(ev.CheckpointDecided("t", B, CheckpointId(A, 2), 3))
    assert steps(world) == [2]
    world.send(ev.CheckpointCommitted("t", CheckpointId(A, 4)))
    assert steps(world) == [2]
    assert [n.target for n in world.notes(reasons.CHECKPOINT_REFUSED)] == ["t"]
    assert checkpoints.refusal_reason(world.state, "t", CheckpointId(A, 4)) == "run 1.2 has restored step 2 of run 1.1"
    world.send(ev.CheckpointCommitted("t", CheckpointId(B, 3)))
    assert steps(world) == [2, 3]


def test_the_first_word_on_a_life_counts_and_an_old_life_has_none(world):
    world.send(ev.CheckpointCommitted("t", CheckpointId(A, 1)))
    world.send(ev.CheckpointDecided("t", B, CheckpointId(A, 1)))
    world.send(ev.CheckpointDecided("t", B, None))
    assert world.state.saves["t"].decision(B) == RestoreDecision(B, CheckpointId(A, 1))
    world.send(ev.CheckpointDecided("t", A, None))
    assert world.state.saves["t"].decision(A) is None
    assert checkpoints.superseded_reason(world.state, "t", A) == "run 1.2 of t has begun"
    assert checkpoints.superseded_reason(world.state, "t", C) == ""
    assert steps(world) == [1]


def test_the_steps_lost_are_told_with_the_fault(world):
    world.send(ev.CheckpointDecided("t", A, None, None))
    assert world.notes(reasons.CHECKPOINT_RESTORED) == []
    world.send(ev.CheckpointCommitted("t", CheckpointId(A, 40)))
    world.kill("t", 1)
    world.settle()
    world.send(ev.MasterStarted(2))
    world.send(ev.CheckpointDecided("t", B, CheckpointId(A, 40), 47))
    faults = {fault.target: fault.lost for fault in world.state.faults}
    assert faults["master"] is None
    assert brief(world.state, world.now, {})["recentFaults"][0]["lostSteps"] == 7
    (note,) = world.notes(reasons.CHECKPOINT_RESTORED)
    assert note.message == "run 1.2 restores step 40 of run 1.1; step 47 had been reached, 7 steps are lost"


def test_one_lost_step_is_told_in_the_singular(world):
    world.send(ev.CheckpointDecided("w/0", B, None, 1))
    (note,) = world.notes(reasons.CHECKPOINT_RESTORED)
    assert note.message.endswith("step 1 had been reached, 1 step is lost")


def test_the_greatest_loss_of_ranks_that_save_alone_is_told_with_the_fault_only(world):
    world.send(ev.CheckpointDecided("w/0", B, None, 5))
    assert [n.message for n in world.notes(reasons.CHECKPOINT_RESTORED)] == [
        "run 1.2 begins from step 0: there is no checkpoint; step 5 had been reached, 5 steps are lost"
    ]
    assert world.state.faults == ()
    world.end("w", 1, KILLED)
    world.settle()
    world.send(ev.CheckpointDecided("w/1", B, None, 9))
    world.send(ev.CheckpointDecided("w/0", C, None, 2))
    world.send(ev.CheckpointDecided("w/1", C, None, None))
    assert world.state.faults[-1].lost == 9


lives = st.builds(RunId, st.just(1), st.integers(1, 4))
marks = st.builds(CheckpointId, lives, st.integers(0, 4))
happenings = st.lists(
    st.builds(ev.CheckpointCommitted, st.just("t"), marks)
    | st.builds(ev.CheckpointDecided, st.just("t"), lives, st.none() | marks),
    max_size=12,
)


@given(happenings)
def test_no_void_save_is_taken_for_a_checkpoint_in_any_order_of_events(told):
    world = World(MADE)
    made = {}
    for event in told:
        world.send(event)
        own = world.state.saves.get("t", Saves())
        for decision in own.decisions:
            assert made.setdefault(decision.run_id, decision.chosen) == decision.chosen
        assert not any(fence(one.mark, own.decisions) for one in own.committed)
        assert list(own.committed) == sorted(own.committed, key=lambda one: one.mark)
        assert len(own.committed) <= checkpoints.KEPT
        if isinstance(event, ev.CheckpointCommitted) and not checkpoints.refusal_reason(world.state, "t", event.mark):
            assert own.last is not None
            assert own.last.mark >= event.mark


def test_the_last_checkpoint_is_handed_on(world):
    world.send(ev.CheckpointCommitted("t", CheckpointId(A, 40)))
    told = carry(world.state)
    assert told == {"v": 1, "checkpoints": {"t": [1, 1, 40, 1000.0]}}
    text = json.dumps({"job": UID, "attempt": 1, "state": told})
    nxt = World(job({"name": "t", "type": "Elastic", "replicas": 2}))
    nxt.now = 999.0
    nxt.send(ev.CheckpointCommitted("t", CheckpointId(RunId(2, 1), 41)))
    nxt.send(carried(text, UID, 2))
    assert nxt.state.saves["t"].committed == (
        Committed(CheckpointId(A, 40), 999.0),
        Committed(CheckpointId(RunId(2, 1), 41), 999.0),
    )
    assert shown(nxt)[0] == 41
    strange = json.dumps({"job": UID, "attempt": 1, "state": {"v": 1, "checkpoints": {"x": [1, 1, 40, 1000.0]}}})
    other = World(MADE)
    other.send(carried(strange, UID, 2))
    assert not other.state.saves
    wrong = {"v": 1, "checkpoints": {"t": [1, 1, 40, float("inf")]}}
    assert "not finite" in carried(json.dumps({"job": UID, "attempt": 1, "state": wrong}), UID, 2).why


def test_only_the_newest_checkpoints_of_many_worlds_are_handed_on(world, monkeypatch):
    monkeypatch.setattr(carrying, "WORLDS", 1)
    world.send(ev.CheckpointCommitted("w/0", CheckpointId(A, 1)), after=1)
    world.send(ev.CheckpointCommitted("w/1", CheckpointId(A, 2)), after=1)
    assert list(carry(world.state)["checkpoints"]) == ["w/1"]


def test_damage_on_disk_is_told_with_the_restore_decision(world):
    world.send(ev.CheckpointDecided("t", B, None, 5, ("step 4 of run 1.1 is passed over: its manifest is damaged",)))
    (damaged,) = world.notes(reasons.CHECKPOINT_DAMAGED)
    assert (damaged.target, damaged.message) == ("t", "step 4 of run 1.1 is passed over: its manifest is damaged")
    (restored,) = world.notes(reasons.CHECKPOINT_RESTORED)
    assert restored.message.startswith("run 1.2 begins from step 0: no checkpoint can be read; step 5 had been reached")


def test_damage_is_a_problem_of_the_job_to_its_end_and_no_phase(world):
    damage = tuple(f"step {step} of run 1.1 is passed over: x.part is corrupt" for step in (4, 3))
    world.send(ev.CheckpointDecided("t", B, None, 5, damage))
    shown = brief(world.state, world.now, {})
    (problem,) = shown["problems"]
    assert (problem["reason"], problem["target"]) == (reasons.CHECKPOINT_DAMAGED, "t")
    assert problem["message"].startswith("run 1.2 begins from step 0: no checkpoint can be read; step 5 had been")
    assert problem["message"].endswith(f"{damage[0]}, and 1 more")
    assert shown["reason"] != reasons.CHECKPOINT_DAMAGED


def test_a_step_that_a_life_saves_again_is_a_newer_checkpoint(world):
    first, again = CheckpointId(A, 3), CheckpointId(A, 3, 7)
    assert (str(first), str(again)) == ("step 3 of run 1.1", "step 3, revision 7 of run 1.1")
    assert [CheckpointId.of(mark.json()) for mark in (first, again)] == [first, again]
    world.send(ev.CheckpointCommitted("t", first))
    world.send(ev.CheckpointCommitted("t", again))
    assert [one.mark for one in world.state.saves["t"].committed] == [first, again]
    world.send(ev.CheckpointDecided("t", B, first))
    assert checkpoints.refusal_reason(world.state, "t", again) == "run 1.2 has restored step 3 of run 1.1"
