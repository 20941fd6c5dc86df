"""Restarts while nothing of a role runs: in place of a job's restart that waits, and of roles that wait for others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from master_kit import World, job, nodes

from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state.state import Phase
from dljob.master.state.views import Level
from dljob.telemetry import reasons

JOB = {"level": "Job"}
WORLD = {"name": "t", "type": "Elastic", "replicas": 2}


def in_backoff(*roles, views=None, **spec):
    """A job whose first role failed so often that the restart of the job waits."""
    world = World(job(*roles, **spec), views=views or nodes(6, cpus=1)).boot()
    for _ in range(2):
        world.kill(roles[0]["name"], 0)
        world.settle()
    (waiting,) = world.state.incidents.values()
    assert (waiting.level, waiting.is_backoff_over) == ("Job", False)
    return world


def starts(world, since):
    return [a.host.role for a in world.of(act.StartRanks, since)]


@pytest.mark.parametrize("role", [WORLD, {"name": "t", "replicas": 2}])
def test_a_restart_that_takes_all_of_a_waiting_job_restart_starts_what_that_took_down(role):
    world = in_backoff({**role, "restartPolicy": JOB})
    due = world.now
    world.send(ev.Commanded("c", "restart", "t"))
    world.settle()
    assert (world.state.phase, world.now) == (Phase.RUNNING, due)
    assert dict(world.state.restarts) == {"Job": 2, "Role": 1}


def test_the_last_of_several_that_took_it_apart_starts_them_in_order():
    first = {"name": "a", "restartPolicy": JOB}
    world = in_backoff(first, {"name": "b", "dependsOn": [{"role": "a", "condition": "Ready"}]})
    before = len(world.all_actions)
    world.send(ev.Commanded("b", "restart", "b"))
    world.settle()
    assert starts(world, before) == []
    assert world.state.phase is Phase.RECOVERING
    world.send(ev.Commanded("a", "restart", "a"))
    world.settle()
    assert starts(world, before) == ["a", "b"]
    assert (world.state.phase, len(world.state.incidents)) == (Phase.RUNNING, 0)


def test_roles_left_in_a_job_restart_still_wait_for_it():
    world = in_backoff({"name": "a", "restartPolicy": JOB}, {"name": "b"})
    (waiting,) = world.state.incidents.values()
    world.send(ev.Commanded("b", "restart", "b"))
    world.settle()
    assert world.state.live_rank_count == 0
    world.tick()
    world.settle()
    assert world.now == waiting.backoff_until
    assert world.state.phase is Phase.RUNNING


def test_units_that_go_to_another_domain_leave_the_backoff_of_the_job_as_it_is():
    rack = {"annotations": {"scheduling.dljob.io/topology-key": "rack"}}
    views = tuple(replace(v, labels=(*v.labels, ("rack", r))) for v, r in zip(nodes(5, 1), "bbaaa", strict=True))
    world = in_backoff({"name": "t", "replicas": 2, "restartPolicy": JOB, **rack}, {"name": "x"}, views=views)
    world.lose_node(world.state.units["t/1"].node)
    world.settle()
    assert world.notes(reasons.TOPOLOGY_DOMAIN_CHANGED)
    (waiting,) = world.state.incidents.values()
    assert waiting.backoff_until > world.now
    assert world.state.live_rank_count == 0
    while world.state.incidents:
        world.tick()
        world.settle()
    assert (world.now, world.state.phase) == (waiting.backoff_until, Phase.RUNNING)


TRAIN = {"name": "t", "type": "Elastic", "replicas": 2}
AFTER = {"driver": True, "dependsOn": [{"role": "t", "condition": "Complete"}]}


def waiting(kind, count=6, **spec):
    """A role that waits for another to complete, and a third that waits for it."""
    last = {"name": "end", "dependsOn": [{"role": "ev", "condition": "Ready"}]}
    return World(job(TRAIN, {"name": "ev", **AFTER, **kind}, last, **spec), views=nodes(count, cpus=1)).boot()


@pytest.mark.parametrize("leaves", [World.lose_node, World.drain_node])
@pytest.mark.parametrize("kind", [{}, {"type": "Elastic", "replicas": 2}])
def test_a_lost_node_of_a_role_that_has_not_begun_moves_its_unit_and_restarts_nothing(kind, leaves):
    world = waiting(kind)
    left = world.state.units["ev/0"].node
    leaves(world, left)
    world.settle()
    moved = world.notes(reasons.UNIT_RESCHEDULED)
    assert [note.target for note in moved] == ["ev/0"]
    assert [len(table) for table in (world.state.restarts, world.state.incidents, world.state.marks)] == [0, 0, 0]
    assert world.state.phase is Phase.RUNNING
    world.end_role("t")
    world.settle()
    assert [world.state.roles[name].was_ready for name in ("ev", "end")] == [True, True]


@pytest.mark.parametrize(("target", "waits"), [("ev", "t"), ("ev/0", "t"), ("end", "ev")])
def test_a_restart_of_a_role_that_has_not_begun_is_refused(target, waits):
    world = waiting({})
    (note,) = world.send(ev.Commanded("1", "restart", target))
    assert note.reason == reasons.COMMAND_REFUSED
    assert note.message.endswith(f"{target.partition('/')[0]} has not begun: it waits for {waits}")
    world.end_role("t")
    world.settle()
    world.send(ev.Commanded("2", "restart", target))
    world.settle()
    assert world.state.restarts[Level.ROLE if "/" not in target else Level.PROCESS] == 1


def test_a_role_that_has_not_begun_gets_another_size_without_a_restart():
    elastic = {"type": "Elastic", "replicas": 2, "minReplicas": 1, "maxReplicas": 2}
    group = {"name": "any", "replicas": 8, "cpu": "4"}
    world = waiting(elastic, 5, nodeGroups=[group])
    world.lose_node(world.state.units["ev/1"].node)
    world.settle()
    while not world.notes(reasons.RESIZED):
        world.tick()
        world.settle()
    assert [len(table) for table in (world.state.restarts, world.state.incidents)] == [0, 0]
    world.end_role("t")
    world.settle()
    assert world.state.roles["ev"].ready_count == 1
    assert world.state.phase is Phase.RUNNING
