"""Commands: once each, and in words when they make no sense."""

from __future__ import annotations

import pytest
from master_kit import World, job

from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state.state import Phase
from dljob.telemetry import reasons

ROLES = ({"name": "w", "replicas": 3}, {"name": "t", "type": "Elastic", "replicas": 2, "replicasPerGroup": 2})


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("w/1", {("w", 1)}),
        ("w", {("w", 0), ("w", 1), ("w", 2)}),
        ("t/1", {("t", 0), ("t", 1)}),
        ("job", {("w", 0), ("w", 1), ("w", 2), ("t", 0), ("t", 1)}),
    ],
)
def test_a_restart_restarts_its_target_and_nothing_else(target, expected):
    world = World(job(*ROLES)).boot()
    seen = len(world.all_actions)
    world.send(ev.Commanded("1", "restart", target, "alice"))
    world.settle()
    again = {(a.host.role, r.rank) for a in world.of(act.StartRanks, seen) for r in a.ranks}
    assert again == expected
    assert {r.restart_reason for a in world.of(act.StartRanks, seen) for r in a.ranks} == {"Requested"}
    assert world.state.phase is Phase.RUNNING
    (note,) = world.notes(reasons.COMMAND_ACCEPTED)
    assert (note.target, note.message) == (target, "restart by alice")


def test_a_command_happens_once_by_its_id():
    world = World(job(*ROLES)).boot()
    assert world.send(ev.Commanded("1", "restart", "w/0"))
    assert world.send(ev.Commanded("1", "restart", "w/0")) == ()
    assert world.send(ev.Commanded("1", "stop")) == ()
    world.settle()
    assert world.state.ranks["w", 0].incarnation == 2


def test_ordered_restarts_use_up_no_budget_and_wait_for_nothing():
    world = World(job({"name": "w", "restartPolicy": {"maxRestarts": 0}}, faultTolerance={"maxRestarts": 0})).boot()
    for number in range(3):
        world.send(ev.Commanded(str(number), "restart", "w"))
        world.settle()
        assert world.state.phase is Phase.RUNNING
    assert world.state.restarts["Role"] == 3
    assert not world.state.marks


@pytest.mark.parametrize(
    ("kind", "target", "why"),
    [
        ("restart", "nobody", "no target nobody; targets are job, a role (w, t), or a rank as w/0"),
        ("restart", "w/3", "no target w/3"),
        ("restart", "w/x", "no target w/x"),
        ("restart", "w/", "no target w/"),
        ("restart", "master", "no target master"),
        ("stop", "w", "only the job can be stopped, not w"),
        ("suspend", "w", "only the job can be suspended, not w"),
        ("dance", "job", "no such command: dance"),
    ],
)
def test_a_command_that_makes_no_sense_is_answered_and_changes_nothing_else(kind, target, why):
    world = World(job(*ROLES)).boot()
    before = world.state
    (note,) = world.send(ev.Commanded("1", kind, target))
    assert (note.reason, note.target) == (reasons.COMMAND_REFUSED, target)
    assert why in note.message
    assert world.state.ranks is before.ranks
    assert world.state.phase is Phase.RUNNING


def test_a_restart_before_the_start_or_after_the_verdict_is_refused():
    world = World(job(*ROLES))
    (note,) = world.send(ev.Commanded("1", "restart", "job"))
    assert "not started" in note.message
    world.boot()
    world.send(ev.Commanded("2", "stop"))
    (note,) = world.send(ev.Commanded("3", "restart", "job"))
    assert "ending" in note.message
