"""What is one failure: a node that goes is heard of in several ways, in any order, and a budget pays once."""

from __future__ import annotations

import pytest
from master_kit import KILLED, World, error, job, nodes

from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.state import Phase
from dljob.master.state.views import Outcome, Reason

PEER = error("DistBackendError", message="Connection closed by peer")
ONCE = {"restartPolicy": {"maxRestarts": 1}}
WORLD = {"name": "t", "type": "Elastic", "replicas": 2, **ONCE}
ACTORS = {"name": "t", "replicas": 2, **ONCE}


def world_of(role, count=4, **tolerance):
    world = World(job(role, faultTolerance={"maxRestarts": 0, **tolerance}), views=nodes(count, cpus=1)).boot()
    world.now += 100
    return world


def lose(world, unit):
    world.lose_node(world.state.units[unit].node)
    world.settle()


@pytest.mark.parametrize("after", [0.0, limits.SAME_FAILURE_WINDOW_S])
@pytest.mark.parametrize("role", [WORLD, ACTORS])
def test_a_process_that_dies_before_its_node_is_gone_is_the_same_failure(role, after):
    world = world_of(role)
    world.kill("t", 1)
    world.deliver()
    world.now += after
    lose(world, "t/1")
    assert world.state.phase is Phase.RUNNING
    assert len(world.state.marks["t"]) == 1


def test_a_peers_error_that_tells_of_a_node_before_it_is_gone_is_the_same_failure():
    world = world_of({**WORLD, "replicas": 3}, 5)
    world.end("t", 0, PEER)
    world.deliver()
    lose(world, "t/1")
    assert world.state.phase is Phase.RUNNING
    assert len(world.state.marks["t"]) == 1
    lose(world, "t/2")
    assert world.state.phase is Phase.FAILED, "that error was told to follow from the first node"


def test_a_node_lost_long_after_or_another_node_is_another_failure():
    for unit, after in (("t/1", limits.SAME_FAILURE_WINDOW_S + 1), ("t/0", 1.0)):
        world = world_of(WORLD)
        world.kill("t", 1)
        world.settle()
        world.now += after
        lose(world, unit)
        assert world.state.phase is Phase.FAILED


def test_an_error_of_another_role_is_another_failure():
    both = ({**ACTORS, "name": "a"}, WORLD)
    world = World(job(*both, faultTolerance={"maxRestarts": 0}), views=nodes(6, cpus=1)).boot()
    world.now += 100
    world.end("a", 0, PEER)
    world.deliver()
    lose(world, "t/1")
    assert [len(world.state.marks[role]) for role in ("a", "t")] == [1, 1]


def test_nodes_that_go_one_after_the_other_are_one_failure_of_those_who_ran_all_along():
    world = world_of(ACTORS)
    lose(world, "t/0")
    world.now += 2
    lose(world, "t/1")
    assert world.state.phase is Phase.RUNNING
    assert len(world.state.marks["t"]) == 1


RACK = {**WORLD, "replicas": 6}


def go_together(world, units, every_s=0.0, remove=World.freeze_node, *, begins=False):
    """Take the nodes of units away, one after the other, before the role is ready again; `begins`: its ranks start."""
    for victim in [world.state.units[unit].node for unit in units]:
        world.send(ev.NodesSeen(world.seen()))  # as the node watch does before it reports a frozen node
        before, world.pending = world.pending, []
        remove(world, victim)
        world.deliver()
        world.pending = [*before, *world.pending]
        while begins and (pending_events := [e for e in world.pending if not isinstance(e, ev.RankReady)]):
            world.deliver(world.pending.index(pending_events[0]))
        world.now += every_s


@pytest.mark.parametrize("remove", [World.freeze_node, World.lose_node])
@pytest.mark.parametrize(("every_s", "begins"), [(0.0, False), (1.0, False), (1.0, True)])
def test_nodes_of_a_world_that_end_together_are_one_failure_without_backoff(remove, every_s, begins):
    world = world_of(RACK, 20)
    go_together(world, [f"t/{rank}" for rank in range(4)], every_s, remove, begins=begins)
    assert world.state.incidents
    assert all(incident.is_backoff_over for incident in world.state.incidents.values())
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert len(world.state.marks["t"]) == len(world.state.marks["fail:t"]) == 1


def test_a_rack_of_which_some_nodes_freeze_and_others_are_lost_is_one_failure():
    world = world_of(RACK, 20)
    go_together(world, ["t/0", "t/1"], begins=True)
    go_together(world, ["t/2", "t/3"], remove=World.lose_node, begins=True)
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert len(world.state.marks["t"]) == 1


def test_nodes_that_end_one_soon_after_the_other_are_counted_again_when_the_first_was_long_ago():
    world = world_of({**RACK, "restartPolicy": {"maxRestarts": 9}}, 20)
    go_together(world, ["t/0", "t/1", "t/2"], limits.SAME_FAILURE_WINDOW_S - 1, begins=True)
    assert [mark.at for mark in world.state.marks["t"]] == [1100.0, 1100.0 + 2 * (limits.SAME_FAILURE_WINDOW_S - 1)]


def test_a_node_that_freezes_once_the_world_has_come_back_is_another_failure():
    world = world_of(RACK, 20)
    go_together(world, ["t/0"])
    world.settle()
    go_together(world, ["t/1"])
    assert world.state.verdict is not None


def test_nodes_that_freeze_together_use_one_attempt_of_a_rule():
    rule = {"name": "rack", "onReasons": ["NodeFrozen"], "action": "RestartJob", "maxAttempts": 1}
    world = world_of(RACK, 20, rules=[rule], maxRestarts=1)
    go_together(world, ["t/0", "t/1", "t/2"])
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert len(world.state.marks["rule:rack"]) == len(world.state.marks["job"]) == 1


RESTARTS_JOB = {"name": "whole", "onReasons": ["NodeLost", "NodeFrozen"], "action": "RestartJob", "maxAttempts": 1}
ROLES = [{"name": name, "replicas": 2} for name in ("a", "b")]


def assert_one_restart_of_the_job(world):
    assert world.state.phase is Phase.RUNNING
    assert world.state.restarts["Job"] == len(world.state.marks["job"]) == 1
    assert {rank.incarnation for rank in world.state.ranks.values()} == {2}


def test_a_node_with_ranks_of_two_roles_whose_budgets_are_used_up_is_charged_to_the_job_once():
    roles = [{**role, "restartPolicy": {"maxRestarts": 0}} for role in ROLES]
    world = World(job(*roles, faultTolerance={"maxRestarts": 1}), views=nodes(2, cpus=4)).boot()
    assert {unit.node for unit in world.state.units.values()} == {"n0"}
    lose(world, "a/0")
    assert_one_restart_of_the_job(world)


def test_a_node_with_ranks_of_two_roles_uses_one_attempt_of_a_rule_that_restarts_the_job():
    world = World(job(*ROLES, faultTolerance={"rules": [RESTARTS_JOB]}), views=nodes(2, cpus=4)).boot()
    lose(world, "a/0")
    assert_one_restart_of_the_job(world)
    assert len(world.state.marks["rule:whole"]) == 1


@pytest.mark.parametrize("remove", [World.freeze_node, World.lose_node])
def test_nodes_of_two_roles_that_end_together_are_charged_to_the_job_once(remove):
    world = World(job(*ROLES, faultTolerance={"rules": [RESTARTS_JOB]}), views=nodes(8, cpus=1)).boot()
    go_together(world, ["a/0", "b/0"], 1.0, remove)
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert len(world.state.marks["rule:whole"]) == len(world.state.marks["job"]) == 1


def test_a_role_that_must_not_restart_fails_the_job_though_another_one_restarts_it():
    never = {"name": "c", "restartPolicy": {"level": "Never"}}
    rule = {**RESTARTS_JOB, "roles": ["a", "b"]}
    world = World(job(*ROLES, never, faultTolerance={"rules": [rule]}), views=nodes(2, cpus=5)).boot()
    lose(world, "a/0")
    assert world.state.phase is Phase.FAILED


def test_a_node_that_goes_in_the_backoff_of_its_processes_does_not_cut_that_short():
    world = world_of({**WORLD, "restartPolicy": {"maxRestarts": 9}}, backoff={"initialSeconds": 60})
    world.kill("t", 0)
    world.settle()
    world.kill("t", 1)
    world.settle()
    (waiting,) = world.state.incidents.values()
    world.now += 2
    lose(world, "t/1")
    assert {incident.backoff_until for incident in world.state.incidents.values()} == {waiting.backoff_until}
    assert len(world.state.marks["t"]) == 2


def test_a_node_that_is_taken_away_is_one_failure_also_where_that_was_not_announced_in_time():
    world = world_of(WORLD)
    preemption = Outcome(ok=False, reason=Reason.PREEMPTED)
    world.kill("t", 1, preemption)
    world.deliver()
    host = world.state.job.roles["t"].host_of(1)
    world.send(ev.HostLost(host, world.state.hosts[host].incarnation, preemption), after=1.0)
    world.settle()
    assert world.state.phase is Phase.RUNNING
    world.kill("t", 1, KILLED)
    world.settle()
    assert world.state.phase is Phase.FAILED
