"""Another number of ranks in process: who stays keeps its process, who goes ends in good order."""

from __future__ import annotations

import pytest
from elastic_kit import boot, join, lose, ready, wait_for
from immutables import Map
from master_kit import host

from dljob.master.placement.reissue import reissue
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.state import Phase
from dljob.telemetry import reasons

STAYS = {"restartPolicy": {"level": "InProcess"}, "replicas": 4, "minReplicas": 2, "maxReplicas": 4}


def lives(world, size=4):
    return [world.state.hosts[host("e", index)].incarnation for index in range(size)]


def scale(world, count, number=1):
    world.send(ev.Commanded(f"s{number}", "scale", "e", "somebody", count))


def until_asked(world, seen):
    """Copies are on disk, and ranks were asked to leave."""
    for _ in range(20):
        if asked := world.of(act.LeaveGroup, seen):
            return asked
        if world.pending:
            world.deliver()
        else:
            world.tick()
    raise AssertionError("nobody was asked to leave")


def until_ready(world, count):
    """Time passes, and nodes are seen as they are, until so many ranks are ready."""
    for _ in range(40):
        world.settle()
        world.send(ev.NodesSeen(world.seen()))
        world.settle()
        if ready(world) == set(range(count)) and world.state.phase is Phase.RUNNING:
            return
        world.tick()
    raise AssertionError(f"{sorted(ready(world))} are ready, the job is {world.state.phase}")


def leave_all(world):
    while world.state.roles["e"].stopping_count:
        world.deliver()


def test_four_ranks_become_two_and_four_again_and_ranks_that_stay_keep_their_processes():
    world = boot(4, STAYS)
    seen = len(world.all_actions)
    scale(world, 2)
    asked = until_asked(world, seen)
    assert [(a.rank, a.drops_rank) for a in asked] == [(0, False), (1, False), (2, True), (3, True)]
    assert world.of(act.KillHost, seen) == [], "who goes leaves its code first"
    assert world.of(act.Unreserve, seen) == []
    assert world.of(act.SaveCopies, seen), "there is a step to go on from"
    leave_all(world)
    assert {a.host.index for a in world.of(act.KillHost, seen)} == {2, 3}
    assert {a.unit for a in world.of(act.Unreserve, seen)} == {"e/2", "e/3"}
    world.settle()
    assert ready(world) == {0, 1}
    assert lives(world, 2) == [1, 1]
    assert {start.world_size for start in world.of(act.StartRanks, seen)} == {2}
    assert world.state.sizes["e"].all_leave_user_code is False
    scale(world, 4, 2)
    until_ready(world, 4)
    assert lives(world) == [1, 1, 2, 2]
    assert world.state.restarts == Map({"InProcess": 2}), "each is one restart, however many steps it takes"
    assert [fault.recovered_at is not None for fault in world.state.faults] == [True, True]
    assert not world.state.marks, "no budget pays for it"


def test_ranks_that_stay_keep_their_processes_when_a_lost_node_has_no_replacement():
    world = boot(4, STAYS)
    lose(world, "e/3")
    wait_for(world, reasons.RESIZED)
    assert ready(world) == {0, 1, 2}
    assert lives(world, 3) == [1, 1, 1]
    assert world.state.restarts == Map({"Node": 1, "InProcess": 1})


def test_a_rank_that_does_not_leave_gets_a_new_process_and_keeps_nobody_waiting():
    world = boot(4, STAYS)
    world.deaf = {("e", 1), ("e", 3)}
    seen = len(world.all_actions)
    scale(world, 2)
    until_asked(world, seen)
    asked = world.now
    world.settle()
    world.tick()
    assert world.now == asked + limits.LEAVE_GROUP_S
    world.settle()
    assert ready(world) == {0, 1}
    assert lives(world, 2) == [1, 2]


def test_a_growth_whose_room_is_gone_when_all_have_left_is_none_and_costs_no_process():
    world = boot(2, {**STAYS, "replicas": 2, "maxReplicas": 3})
    scale(world, 3)
    (fresh,) = join(world)
    seen = len(world.all_actions)
    until_asked(world, seen)
    world.lose_node(fresh.id)
    world.pending.insert(0, world.pending.pop())
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert ready(world) == {0, 1}
    assert lives(world, 2) == [1, 1]
    assert not world.state.sizes["e"].all_leave_user_code
    assert not world.notes(reasons.RESIZED)
    assert world.state.restarts == Map({"InProcess": 1})


@pytest.mark.parametrize("target", ["e", "job"])
def test_a_restart_of_another_kind_in_between_puts_the_resize_off(target):
    world = boot(4, STAYS)
    seen = len(world.all_actions)
    scale(world, 2)
    until_asked(world, seen)
    while world.state.roles["e"].stopping_count > 1:
        world.deliver()
    world.send(ev.Commanded("r", "restart", target))
    assert lives(world) == [2, 2, 2, 2], "each process is replaced once"
    assert world.state.sizes["e"].size == 4
    assert not world.state.sizes["e"].all_leave_user_code
    until_ready(world, 2)
    assert lives(world, 2) == [2, 2]


def test_a_later_order_while_they_leave_is_obeyed_after_this_one():
    world = boot(4, STAYS)
    seen = len(world.all_actions)
    scale(world, 2)
    until_asked(world, seen)
    scale(world, 4, 2)
    leave_all(world)
    assert world.state.sizes["e"].size == 2, "who was told to go for good goes"
    until_ready(world, 4)
    assert lives(world) == [1, 1, 2, 2]


def test_a_master_that_takes_over_asks_for_the_same_resize():
    world = boot(4, STAYS)
    seen = len(world.all_actions)
    scale(world, 2)
    asked = until_asked(world, seen)
    again = [a for a in reissue(world.state, world.now) if isinstance(a, act.LeaveGroup)]
    assert again == asked
    world.crash_master()
    world.settle()
    assert ready(world) == {0, 1}
    assert lives(world, 2) == [1, 1]


def test_time_that_jumps_lets_those_who_left_start_as_they_were_and_the_number_is_looked_at_again():
    world = boot(4, STAYS)
    seen = len(world.all_actions)
    scale(world, 2)
    until_asked(world, seen)
    while world.state.roles["e"].stopping_count > 1:
        world.deliver()
    world.now += 10 * limits.LEAVE_GROUP_S
    world.send(ev.Tick())
    leave_all(world)
    assert world.state.sizes["e"].size == 4
    assert not world.state.sizes["e"].all_leave_user_code
    until_ready(world, 2)
    assert lives(world, 2) == [1, 1]
