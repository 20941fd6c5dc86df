"""Units that lost their node and whose ranks have all ended: in nobody's way, and there again for a restart."""

from __future__ import annotations

import pytest
from elastic_kit import boot, join, lose, ready, wait_for
from master_kit import World, job, nodes

from dljob.master import status
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.state import Phase, UnitPhase
from dljob.telemetry import reasons

PREP = {"name": "prep", "driver": False, "resources": {"cpu": "1"}}
GROW_S = 60


def prepared(**role):
    """`e` has 3 ranks, `prep` has ended; each has a node with one processor."""
    world = boot(4, role, PREP)
    world.end("prep", 0)
    world.settle()
    return world


def shown(world):
    seen = status.brief(world.state, world.now, {})
    return seen["phase"], seen["reason"], seen["message"]


def ended_and_lost():
    """`a` has ended and lost its node, `b` runs."""
    world = World(job({"name": "a", "driver": False}, {"name": "b"}), views=nodes(2, cpus=1)).boot()
    world.end("a", 0)
    world.settle()
    lose(world, "a/0")
    return world


def test_a_loss_after_the_role_went_on_with_fewer_has_all_its_time():
    world = boot(3, {"minReplicas": 2})
    lose(world, "e/2")
    wait_for(world, reasons.RESIZED)
    assert world.state.phase is Phase.RUNNING
    assert world.state.search.deadline is None
    world.now = world.start + 290
    lose(world, "e/1")
    while world.state.verdict is None:
        world.tick()
    assert world.state.verdict.reason == reasons.NO_ROOM_FOR_LOST_UNITS
    assert world.now == world.start + 590


def test_a_loss_after_that_of_ended_ranks_has_all_its_time():
    world = ended_and_lost()
    world.now = world.start + 290
    lose(world, "b/0")
    while world.state.verdict is None:
        world.tick()
    assert world.state.verdict.message.startswith("1 unit ")
    assert world.now == world.start + 590


def test_a_role_that_shrinks_when_the_patience_ends_does_not_fail_the_job():
    elastic = {"shrinkAfterSeconds": 20}
    world = boot(3, faultTolerance={"node": {"pendingTimeoutSeconds": 20}, "elastic": elastic})
    lose(world, "e/2")
    wait_for(world, reasons.RESIZED)
    assert world.now == world.start + 20
    assert world.state.phase is Phase.RUNNING


def test_nobody_is_told_of_room_that_ended_ranks_lack():
    world = ended_and_lost()
    assert shown(world) == ("Running", "Running", "")
    assert world.notes(reasons.NO_ROOM) == []


def test_a_role_shrinks_beside_ended_ranks_that_have_no_place():
    world = prepared(minReplicas=2)
    lose(world, "prep/0")
    lose(world, "e/2")
    assert wait_for(world, reasons.RESIZED).message.startswith("2 ranks instead of 3")
    assert ready(world) == {0, 1}
    assert world.state.units["prep/0"].phase is UnitPhase.LOST
    assert shown(world) == ("Running", "Running", "e has 2 of 3 wanted ranks: no room for more")


def test_no_rank_gives_its_node_to_one_that_has_ended():
    world = prepared(minReplicas=1)
    lose(world, "prep/0")
    lose(world, "e/2")
    wait_for(world, reasons.RESIZED)
    assert ready(world) == {0, 1}


def test_a_waiting_rank_gets_a_place_before_an_ended_one():
    world = ended_and_lost()
    lose(world, "b/0")
    assert world.state.search.no_room_reason
    join(world)
    assert world.state.phase is Phase.RUNNING
    assert world.state.units["b/0"].phase is UnitPhase.HELD
    assert world.state.units["a/0"].phase is UnitPhase.LOST


def test_ended_ranks_get_the_room_that_nobody_else_wants():
    world = ended_and_lost()
    (node,) = join(world)
    assert world.state.units["a/0"].node == node.id
    assert world.state.held_unit_count == 2
    assert world.state.phase is Phase.RUNNING


def test_a_growing_role_gets_room_before_an_ended_one():
    world = prepared(minReplicas=2)
    lose(world, "e/2")
    wait_for(world, reasons.RESIZED)
    world.now += GROW_S
    lose(world, "prep/0")
    join(world)
    assert world.state.units["prep/0"].phase is UnitPhase.LOST
    wait_for(world, reasons.RESIZED)
    assert ready(world) == {0, 1, 2}
    join(world)
    assert world.state.units["prep/0"].phase is UnitPhase.HELD


@pytest.mark.parametrize("target", ["prep", "job"])
def test_a_restart_finds_ended_ranks_a_place_at_once(target):
    world = prepared(minReplicas=2)
    lose(world, "e/2")
    wait_for(world, reasons.RESIZED)
    lose(world, "prep/0")
    (node,) = join(world)
    world.send(ev.Commanded("c", "restart", target))
    world.settle()
    assert world.state.units["prep/0"].node == node.id
    assert ready(world, "prep") == {0}
    assert world.state.phase is Phase.RUNNING


def test_a_refused_place_for_them_is_asked_for_again_later_and_tells_nothing():
    world = ended_and_lost()
    for node in nodes(9, cpus=1)[8:]:
        world.add_node(node)
    world.deliver()
    world.pending.clear()
    world.send(ev.UnitRefused("a/0", 2, "taken by another job"))
    assert shown(world) == ("Running", "Running", "")
    assert world.state.search.deadline is None
    world.tick()
    world.settle()
    assert world.state.units["a/0"].phase is UnitPhase.HELD
    assert world.state.search.attempt == 0


def test_ranks_of_a_role_that_goes_on_need_no_place_once_they_ended_and_one_when_it_grows():
    world = boot(3)
    lose(world, "e/2")
    wait_for(world, reasons.RESIZED)
    world.now += GROW_S
    world.end("e", 0)
    world.settle()
    lose(world, "e/0")
    assert world.state.sizes["e"].shrink_at is None
    join(world)
    assert world.state.sizes["e"].target == 0
    join(world)
    wait_for(world, reasons.RESIZED)
    assert ready(world) == {0, 1, 2}


def test_a_restart_takes_too_long_whatever_ended_ranks_lack():
    world = ended_and_lost()
    world.send(ev.Commanded("c", "restart", "b"))
    world.pending.clear()  # nobody ever hears of the new process
    while not world.notes(reasons.ESCALATED):
        world.tick()
        world.pending.clear()
    assert world.now == world.start + limits.RESTART_TIME_LIMIT_S


def test_the_last_try_places_who_waits_and_not_who_has_ended():
    made = job({"name": "a", "driver": False}, {"name": "b"}, faultTolerance={"node": {"excludeSeconds": 9000}})
    world = World(made, views=nodes(2, cpus=1), own_nodes=True).boot()
    world.end("a", 0)
    world.settle()
    home = world.state.units["b/0"].node
    lose(world, "a/0")
    world.freeze_node(home)
    world.deliver()
    world.thaw_node(home)
    world.settle()
    assert world.state.units["b/0"].phase is UnitPhase.LOST
    while world.notes(reasons.NODE_READMITTED) == []:
        world.tick()
        world.settle()
    assert world.now == world.start + 300
    assert world.state.phase is Phase.RUNNING
    assert world.state.units["b/0"].node == home
