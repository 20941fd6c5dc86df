"""Restart in process: survivors of a torch group keep their processes and meet again under a new generation."""

from __future__ import annotations

import pytest
from master_kit import DONE, KILLED, World, error, host, job, nodes

from dljob.master.persistence.superseded import lasting
from dljob.master.placement.reissue import reissue
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.state import Phase, RankPhase

GROUP = {
    "name": "t",
    "type": "Elastic",
    "replicas": 4,
    "replicasPerGroup": 4,
    "restartPolicy": {"level": "InProcess", "maxRestarts": 3},
}
PEER = error("RuntimeError", message="Connection closed by peer")
QUICK = {"backoff": {"initialSeconds": 0}}


def world_of(*, spares=1, group=GROUP, **spec):
    tolerance = {**QUICK, "spares": {"processesPerNode": spares}, **spec}
    return World(job(group, {"name": "w", "driver": False}, faultTolerance=tolerance)).boot()


def restarts(world):
    return dict(world.state.restarts)


def lives(world):
    return [world.state.hosts[host("t", i)].incarnation for i in range(4)]


def incarnations(world):
    return [world.state.ranks["t", rank].incarnation for rank in range(4)]


def phases(world):
    return {world.state.ranks["t", rank].phase for rank in range(4)}


@pytest.mark.parametrize("victim", [0, 2])
def test_at_the_first_death_all_survivors_are_told_to_leave_and_keep_their_processes(victim):
    world = world_of()
    action_count = len(world.all_actions)
    world.kill("t", victim)
    world.deliver()
    asked = world.of(act.LeaveGroup, action_count)
    assert [(a.rank, a.incarnation) for a in asked] == [(rank, 1) for rank in range(4) if rank != victim]
    assert {a.actor for a in asked} <= {host.actor for host in world.state.hosts.values()}
    assert not world.of(act.StartRanks, action_count)
    world.settle()
    starts = world.of(act.StartRanks, action_count)
    assert sorted(a.host.index for a in starts) == [0, 1, 2, 3]
    assert {a.generation for a in starts} == {2}
    assert lives(world) == [2 if rank == victim else 1 for rank in range(4)]
    assert incarnations(world) == [2, 2, 2, 2]
    assert not world.of(act.SpawnHost, action_count), "the spare took its place"
    assert restarts(world) == {"InProcess": 1}
    assert world.state.phase is Phase.RUNNING
    (fault,) = world.state.faults
    assert (fault.level, fault.target) == ("InProcess", "t")
    assert world.state.ranks["w", 0].incarnation == 1


def test_the_store_stays_where_it_is():
    world = world_of()
    before = world.state.hosts[host("t", -1)]
    world.kill("t", 0)
    world.settle()
    assert world.state.hosts[host("t", -1)] == before


def test_without_a_spare_a_process_is_made_while_the_survivors_wait():
    world = world_of(spares=0)
    action_count = len(world.all_actions)
    world.kill("t", 1)
    world.deliver()
    assert [a.host.index for a in world.of(act.SpawnHost, action_count)] == [1]
    world.settle()
    assert lives(world) == [1, 2, 1, 1]


def test_a_survivor_that_only_heard_of_the_death_keeps_its_process_whoever_is_heard_first():
    world = world_of()
    world.end("t", 0, PEER)
    world.settle()
    assert lives(world) == [1, 1, 1, 1]
    world.kill("t", 2)
    world.settle()
    assert lives(world) == [1, 1, 2, 1]


def test_survivors_whose_collectives_fail_before_they_are_told_count_as_having_left():
    world = world_of()
    world.kill("t", 2)
    for rank in (0, 1, 3):
        world.end("t", rank, PEER)
    world.settle()
    assert lives(world) == [1, 1, 2, 1]
    assert restarts(world) == {"InProcess": 1}


def test_a_rank_that_failed_by_itself_gets_a_new_process():
    world = world_of()
    world.end("t", 3, error())
    world.settle()
    assert lives(world) == [1, 1, 1, 2]
    assert restarts(world) == {"InProcess": 1}


def test_a_rank_that_ended_well_gets_a_new_process_and_starts_again_with_the_others():
    world = world_of()
    world.end("t", 1)
    world.settle()
    world.kill("t", 0)
    world.settle()
    assert lives(world) == [2, 2, 1, 1]
    assert incarnations(world) == [2, 2, 2, 2]


def test_a_survivor_that_does_not_leave_in_time_gets_a_new_process():
    world = world_of()
    world.deaf.add(("t", 1))
    began = world.now
    world.kill("t", 0)
    world.settle()
    assert phases(world) == {RankPhase.WAITING, RankPhase.STOPPING}
    world.tick()
    assert world.now == began + limits.LEAVE_GROUP_S
    world.settle()
    assert lives(world) == [2, 2, 1, 1]
    assert restarts(world) == {"InProcess": 1}
    assert world.state.phase is Phase.RUNNING


def test_a_second_death_while_they_leave_is_part_of_the_same_restart():
    world = world_of()
    world.kill("t", 0)
    world.deliver()
    world.kill("t", 1)
    world.pending.insert(0, world.pending.pop())
    world.settle()
    assert lives(world) == [2, 2, 1, 1]
    assert restarts(world) == {"InProcess": 1}


def test_a_second_death_while_they_meet_makes_them_leave_again_with_their_processes():
    world = world_of()
    world.kill("t", 0)
    while world.state.roles["t"].generation == 1:
        world.deliver()
    world.kill("t", 1)
    world.settle()
    assert lives(world) == [2, 2, 1, 1]
    assert incarnations(world) == [3, 3, 3, 3]
    assert world.state.roles["t"].generation == 3
    assert restarts(world) == {"InProcess": 2}


def test_a_death_after_all_have_left_only_makes_that_process_anew():
    world = world_of(spares=0)
    world.kill("t", 0)
    world.deliver()
    ready = [e for e in world.pending if isinstance(e, ev.HostReady)]
    world.pending = [e for e in world.pending if e not in ready]
    world.settle()
    assert phases(world) == {RankPhase.WAITING}
    world.kill("t", 1)
    world.pending += ready
    world.settle()
    assert lives(world) == [2, 2, 1, 1]
    assert world.state.phase is Phase.RUNNING


def test_a_store_that_is_lost_is_made_anew_and_nobody_else():
    world = world_of()
    world.kill_host(host("t", -1))
    world.settle()
    assert world.state.hosts[host("t", -1)].incarnation == 2
    assert lives(world) == [1, 1, 1, 1]
    assert incarnations(world) == [2, 2, 2, 2]


def test_a_lost_node_takes_its_ranks_along_and_leaves_the_others_their_processes():
    world = World(job({**GROUP, "replicasPerGroup": 2}, faultTolerance=QUICK), views=nodes(3, cpus=2)).boot()
    seat = world.state.units["t/1"].node
    world.lose_node(seat)
    world.settle()
    assert lives(world) == [1, 1, 2, 2]
    assert restarts(world) == {"Node": 1, "InProcess": 1}


@pytest.mark.parametrize(("size", "larger"), [(4, "RoleGroup"), (2, "Role")])
def test_a_restart_in_process_that_takes_too_long_restarts_the_processes(size, larger):
    world = world_of(spares=0, group={**GROUP, "replicasPerGroup": size})
    world.kill("t", 0)
    world.deliver()
    world.pending = [e for e in world.pending if not isinstance(e, ev.HostReady)]
    world.settle()
    began = world.now
    while larger not in restarts(world):
        world.tick()
    assert world.now >= began + limits.RESTART_TIME_LIMIT_S
    world.settle()
    assert lives(world) == [3, 2, 2, 2]
    assert world.state.phase is Phase.RUNNING


def test_a_budget_that_is_used_up_restarts_the_job():
    world = world_of()
    for _ in range(4):
        world.kill("t", 2)
        world.settle()
        world.now += 31
    assert restarts(world) == {"InProcess": 3, "Job": 1}
    assert world.state.phase is Phase.RUNNING


def test_backoff_holds_the_new_world_back_and_not_the_leaving():
    world = world_of(backoff={"initialSeconds": 7})
    world.kill("t", 0)
    world.settle()
    world.kill("t", 1)
    began = world.now
    world.settle()
    assert phases(world) == {RankPhase.WAITING}
    while phases(world) == {RankPhase.WAITING}:
        world.tick()
    assert world.now == began + 7
    world.settle()
    assert lives(world) == [2, 2, 1, 1]


def test_a_rule_can_ask_for_it_and_roles_that_cannot_restart_their_processes():
    rule = {"name": "stay", "onReasons": ["Unknown"], "action": "RestartInProcess"}
    group = {**GROUP, "restartPolicy": {}}
    world = world_of(group=group, rules=[rule])
    world.kill("t", 1)
    world.settle()
    world.kill("w", 0)
    world.settle()
    assert restarts(world) == {"InProcess": 1, "Process": 1}
    assert lives(world) == [1, 2, 1, 1]


def test_a_rule_whose_attempts_are_used_up_restarts_the_processes():
    rule = {"name": "stay", "onReasons": ["Unknown"], "action": "RestartInProcess", "maxAttempts": 1}
    world = world_of(rules=[rule])
    for _ in range(2):
        world.kill("t", 1)
        world.settle()
    assert restarts(world) == {"InProcess": 1, "RoleGroup": 1}


def test_a_restart_that_is_ordered_replaces_the_processes():
    world = world_of(spares=0)
    world.send(ev.Commanded("c", "restart", "t"))
    world.settle()
    assert lives(world) == [2, 2, 2, 2]


def test_a_larger_restart_takes_over_from_those_who_were_leaving():
    world = world_of(spares=0)
    world.kill("t", 0)
    world.deliver()
    world.send(ev.Commanded("c", "restart", "t"))
    world.settle()
    assert lives(world) == [3, 2, 2, 2]
    assert phases(world) == {RankPhase.READY}


def test_a_master_that_takes_over_asks_again_who_has_not_left():
    world = world_of()
    world.kill("t", 0)
    world.deliver()
    assert [a.rank for a in reissue(world.state, world.now) if isinstance(a, act.LeaveGroup)] == [1, 2, 3]
    world.crash_master()
    world.settle()
    assert lives(world) == [2, 1, 1, 1]
    assert world.state.phase is Phase.RUNNING


def test_late_words_of_a_rank_that_left_change_nothing():
    world = world_of()
    world.kill("t", 0)
    world.settle()
    before = world.state
    for event in (ev.RankEnded("t", 1, 1, DONE), ev.RankEnded("t", 1, 1, PEER), ev.RankReady("t", 1, 1, 7)):
        world.send(event)
    assert world.state.ranks == before.ranks
    assert world.state.roles == before.roles


def test_a_rank_that_leaves_when_the_job_ends_counts_as_stopped():
    world = world_of()
    world.kill("t", 0)
    world.deliver()
    world.send(ev.Commanded("c", "stop", "job"))
    world.settle()
    assert world.state.phase is Phase.STOPPED


def test_an_order_to_leave_does_not_outlast_the_end_of_its_host():
    leave = act.LeaveGroup(host("t", 1), 1, "t/1/1", 1, 1, "Unknown")
    assert lasting([leave, act.KillHost(host("t", 1), 1, "t/1/1")]) == [act.KillHost(host("t", 1), 1, "t/1/1")]
    assert lasting([leave, act.KillHost(host("t", 1), 2, "t/1/2")])[0] == leave


def test_a_host_that_was_never_heard_of_again_is_lost_all_the_same():
    world = world_of()
    world.kill("t", 0)
    world.deliver()
    world.kill("t", 3, KILLED)
    world.settle()
    assert lives(world) == [2, 1, 1, 2]


def test_ranks_of_a_script_are_stopped_by_their_incarnation():
    group = {**GROUP, "restartPolicy": {}, "entrypoint": {"module": "train"}}
    world = World(job(group)).boot()
    for incarnation in (1, 2):
        action_count = len(world.all_actions)
        world.end("t", 0, KILLED)
        world.deliver()
        (stop,) = world.of(act.StopRanks, action_count)
        assert (stop.ranks, stop.incarnations) == ((1, 2, 3), (incarnation,) * 3)
        assert stop in reissue(world.state, world.now)
        world.settle()
        world.now += 5
