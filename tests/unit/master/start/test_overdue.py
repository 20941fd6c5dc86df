"""Restarts that take too long: while who is in them, or who they wait for, has no place, that has the time it needs."""

from __future__ import annotations

from master_kit import World, job, nodes

from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.state import Phase, UnitPhase

PATIENT = {"node": {"pendingTimeoutSeconds": 5000}}
READY = (ev.RankReady,)


def settle(world, without=READY):
    """All answers but these arrive, which never do."""
    while world.pending:
        event = world.pending.pop(0)
        if not isinstance(event, without):
            world.send(event)


def pass_by(world, seconds, without=READY):
    end = world.now + seconds
    while (world.state.wake or end) < end:
        world.tick()
        settle(world, without)
    world.now = end


def levels(world):
    return [incident.level.value for incident in world.state.incidents.values()]


def test_a_lost_unit_of_a_role_that_ended_gives_a_restart_no_more_time():
    prep = {"name": "prep", "driver": False}
    made = job({"name": "w", "replicas": 2}, prep, faultTolerance=PATIENT)
    world = World(made, views=nodes(3, cpus=1)).boot()
    world.end("prep", 0)
    world.settle()
    world.lose_node(world.state.units["prep/0"].node)
    world.settle()
    world.kill("w", 0)
    settle(world)
    assert world.state.units["prep/0"].phase is UnitPhase.LOST
    pass_by(world, limits.RESTART_TIME_LIMIT_S + 1)
    assert levels(world) == ["Role"]


def test_a_rank_of_a_world_waits_for_the_unit_of_another():
    made = job({"name": "t", "type": "Elastic", "replicas": 2}, faultTolerance=PATIENT)
    world = World(made, views=nodes(2, cpus=1))
    world.send(ev.MasterStarted(1))
    world.send(ev.NodesSeen(world.seen()))
    while world.pending and not any(isinstance(event, ev.HostReady) for event in world.pending):
        world.deliver()
    world.kill("t", 0)
    world.deliver(-1)
    world.lose_node(world.state.units["t/1"].node)
    world.deliver(-1)
    world.settle()
    assert levels(world) == ["Process", "Process"]
    pass_by(world, 3 * limits.RESTART_TIME_LIMIT_S)
    assert levels(world) == ["Process", "Process"]
    world.add_node(nodes(4, cpus=1)[3])
    world.settle()
    assert world.state.phase is Phase.RUNNING


def test_a_role_that_waits_for_another_has_the_time_that_role_needs():
    first, second = {"name": "a"}, {"name": "b", "dependsOn": [{"role": "a", "condition": "Ready"}]}
    world = World(job(first, second, faultTolerance=PATIENT), views=nodes(2, cpus=1)).boot()
    world.send(ev.Commanded("c", "restart", "job"))
    world.lose_node(world.state.units["a/0"].node)
    world.settle()
    assert levels(world) == ["Job", "Process"]
    pass_by(world, 3 * limits.RESTART_TIME_LIMIT_S)
    assert levels(world) == ["Job", "Process"]
    world.add_node(nodes(4, cpus=1)[3])
    world.settle()
    assert world.state.phase is Phase.RUNNING
