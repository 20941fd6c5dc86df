"""What a failure restarts, when, how often, and when it ends the job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from immutables import Map
from master_kit import DONE, KILLED, World, error, host, job, nodes

from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.state import HostPhase, Phase, RankPhase
from dljob.master.state.views import Outcome, Reason
from dljob.master.transition import transition
from dljob.telemetry import reasons

PAIR = {"name": "t", "type": "Elastic", "replicas": 2, "replicasPerGroup": 2}
FORK = {"entrypoint": {"module": "train"}}


def exited(code):
    return Outcome(ok=False, reason=Reason.UNKNOWN, code=code)


def fail(world, role, rank, outcome=KILLED):
    world.kill(role, rank, outcome)
    world.settle()


def hit(world, role, rank, outcome):
    """User code of a rank fails; its process answers for it."""
    world.end(role, rank, outcome)
    world.settle()


def restarts(world):
    return dict(world.state.restarts)


def test_a_restart_says_which_rule_it_follows_what_it_costs_and_how_long_it_waits():
    world = World(job({"name": "w", "replicas": 4})).boot()
    fail(world, "w", 2)
    world.now += limits.SAME_FAILURE_WINDOW_S + 1
    world.kill("w", 2)
    reason = transition(world.state, world.pending[0], world.now).reason.partition("; Restarting w/2: ")[0]
    assert reason == (
        "restartPolicy of w restarts w at level Process; 2 of 10 restarts used within 1h00m; backoff 1.0 s"
    )


def test_a_killed_rank_restarts_alone_at_once_and_says_how_long_it_took():
    world = World(job({"name": "w", "replicas": 4})).boot()
    action_count = len(world.all_actions)
    world.kill("w", 2)
    kill, restarting, spawn = world.deliver()
    assert kill == act.KillHost(host("w", 2), 1, "w/2/1")
    assert (restarting.reason, restarting.target, restarting.level) == (reasons.RESTARTING, "w/2", "Process")
    assert spawn == act.SpawnHost(host("w", 2), 2, "w/2", 1, limits.SPAWN_S)
    assert world.state.phase is Phase.RECOVERING
    world.now += 0.25
    world.settle()
    assert world.state.phase is Phase.RUNNING
    (start,) = world.of(act.StartRanks, action_count)
    assert start.ranks[0].incarnation == 2
    assert start.ranks[0].restart_reason == "Unknown"
    (recovered,) = world.notes(reasons.RECOVERED)
    assert (recovered.target, recovered.level, recovered.seconds) == ("w/2", "Process", 0.25)
    (fault,) = world.state.faults
    assert (fault.target, fault.recovered_at - fault.detected_at) == ("w/2", 0.25)
    assert restarts(world) == {"Process": 1}
    assert [world.state.ranks["w", r].incarnation for r in range(4)] == [1, 1, 2, 1]


def test_a_rank_whose_code_failed_has_its_process_killed_before_the_next():
    world = World(job({"name": "w", "replicas": 2})).boot()
    world.end("w", 0, error())
    _, kill, spawn = world.deliver()
    assert kill == act.KillHost(host("w", 0), 1, "w/0/1")
    assert spawn.incarnation == 2


def test_an_error_restarts_once_and_nobody_again_when_others_end_well_after_it():
    world = World(job({"name": "a", "replicas": 2}, {"name": "b", "replicas": 2})).boot()
    hit(world, "a", 0, error())
    assert restarts(world) == {"Process": 1}
    for role, rank in (("b", 0), ("b", 1), ("a", 1), ("a", 0)):
        world.end(role, rank)
        world.settle()
    assert restarts(world) == {"Process": 1}
    assert world.state.verdict is not None
    assert world.state.verdict.ok
    assert {key: rank.incarnation for key, rank in world.state.ranks.items()} == {
        ("a", 0): 2, ("a", 1): 1, ("b", 0): 1, ("b", 1): 1,
    }  # fmt: skip


def test_the_second_failure_in_the_window_waits_and_each_wait_is_longer_up_to_a_bound():
    backoff = {"initialSeconds": 5, "multiplier": 3, "maxSeconds": 40}
    world = World(job({"name": "w"}, faultTolerance={"backoff": backoff})).boot()
    waits = []
    for _ in range(4):
        fail(world, "w", 0)
        waits.append(world.state.wake - world.now if world.state.incidents else 0.0)
        while world.state.incidents:
            world.tick()
            world.settle()
        world.now += 35
    assert waits == [0.0, 5.0, 15.0, 40.0]


def test_a_rank_that_ran_for_longer_than_the_longest_wait_begins_the_backoff_anew():
    world = World(job({"name": "w"}, faultTolerance={"backoff": {"initialSeconds": 2, "maxSeconds": 40}})).boot()
    waits = []
    for ran in (35, 35, 41, 35):
        world.now += ran
        fail(world, "w", 0)
        waits.append(world.state.wake - world.now if world.state.incidents else 0.0)
        while world.state.incidents:
            world.tick()
            world.settle()
    assert waits == [0.0, 2.0, 0.0, 2.0]
    assert restarts(world) == {"Process": 4}, "the budget counts them all the same"


def test_a_process_that_cannot_be_made_waits_longer_each_time_however_long_the_one_before_it_ran():
    world = World(job({"name": "w"}, faultTolerance={"backoff": {"initialSeconds": 2, "maxSeconds": 40}})).boot()
    world.now += 3600
    world.kill("w", 0)
    world.deliver()
    waits = []
    for life in range(2, 7):
        world.pending.clear()  # its process does not answer
        world.send(ev.HostLost(host("w", 0), life, KILLED), after=6.0)
        waits.append(min(state.backoff_until for state in world.state.incidents.values()) - world.now)
        world.tick()
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0]


def test_failures_outside_the_window_are_forgotten():
    world = World(job({"name": "w", "restartPolicy": {"maxRestarts": 1}}, faultTolerance={"windowSeconds": 100})).boot()
    for _ in range(4):
        fail(world, "w", 0)
        assert world.state.phase is Phase.RUNNING
        world.now += 101
    assert restarts(world) == {"Process": 4}


def test_an_exhausted_role_budget_restarts_the_job_and_an_exhausted_job_budget_ends_it():
    plan_and_spec = job(
        {"name": "w", "replicas": 2, "restartPolicy": {"maxRestarts": 2}},
        faultTolerance={"maxRestarts": 1, "backoff": {"initialSeconds": 0}},
    )
    world = World(plan_and_spec).boot()
    for _ in range(3):
        fail(world, "w", 0)
        world.now += 60
    assert restarts(world) == {"Process": 2, "Job": 1}
    assert world.state.phase is Phase.RUNNING
    assert [world.state.ranks["w", r].incarnation for r in range(2)] == [4, 2]
    assert "used up" in world.notes(reasons.ESCALATED)[0].message
    fail(world, "w", 1)
    assert world.state.verdict.reason == reasons.BUDGET_EXHAUSTED
    assert world.state.verdict.message.startswith("w/1: process gone")
    assert "1 of the job within 1h00m" in world.state.verdict.message
    assert world.state.phase is Phase.FAILED


def test_ranks_of_one_node_that_die_together_are_one_failure():
    world = World(job({"name": "w", "replicas": 4, "restartPolicy": {"maxRestarts": 1}}), count=1).boot()
    world.now += 10
    for rank in range(4):
        world.kill("w", rank)
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert restarts(world) == {"Process": 4}


def test_a_rank_that_keeps_crashing_quickly_is_counted_each_time():
    plan_and_spec = job(
        {"name": "w", "restartPolicy": {"maxRestarts": 1}},
        faultTolerance={"maxRestarts": 0, "backoff": {"initialSeconds": 0}},
    )
    world = World(plan_and_spec).boot()
    for _ in range(2):
        world.now += 0.5
        fail(world, "w", 0)
    assert world.state.verdict.reason == reasons.BUDGET_EXHAUSTED
    assert restarts(world) == {"Process": 1}


def test_a_host_that_never_comes_up_is_counted_each_time():
    plan_and_spec = job(
        {"name": "w", "restartPolicy": {"maxRestarts": 2}},
        faultTolerance={"maxRestarts": 0, "backoff": {"initialSeconds": 0}},
    )
    world = World(plan_and_spec)
    world.send(ev.NodesSeen(world.views))
    world.deliver()
    for life in (1, 2, 3):
        world.pending.clear()
        world.send(ev.HostLost(host("w", 0), life, KILLED), after=0.1)
    assert world.state.verdict.reason == reasons.BUDGET_EXHAUSTED


def test_one_death_in_a_group_restarts_the_group_and_the_others_deaths_are_no_more_failures():
    world = World(job(PAIR, {"name": "w", "driver": False, "replicas": 2})).boot()
    world.kill("t", 1)
    world.end("t", 0, error("RuntimeError", message="Connection closed by peer"))
    world.settle()
    assert restarts(world) == {"RoleGroup": 1}
    assert world.state.roles["t"].generation == 2
    assert [world.state.ranks["t", r].incarnation for r in range(2)] == [2, 2]
    assert [world.state.ranks["w", r].incarnation for r in range(2)] == [1, 1]
    assert len(world.state.faults) == 1


def test_a_group_in_a_living_fork_host_is_stopped_and_started_on_the_same_host():
    world = World(job({**PAIR, **FORK})).boot()
    action_count = len(world.all_actions)
    world.end("t", 1, exited(137))
    world.deliver()
    (stop,) = world.of(act.StopRanks, action_count)
    assert (stop.ranks, stop.grace_s) == ((0,), limits.SIGTERM_GRACE_S), "it may save first, as under torchrun"
    assert not world.of(act.StartRanks, action_count)
    world.settle()
    (start,) = world.of(act.StartRanks, action_count)
    assert (start.incarnation, start.generation) == (1, 2)
    assert [r.incarnation for r in start.ranks] == [2, 2]
    assert not world.of(act.SpawnHost, action_count)
    assert restarts(world) == {"RoleGroup": 1}


def test_a_fork_host_that_does_not_end_its_ranks_in_time_is_killed_and_made_anew():
    world = World(job({**PAIR, **FORK})).boot()
    world.end("t", 1, exited(137))
    world.deliver()
    world.pending.clear()
    world.tick()
    assert world.now == world.start + limits.SIGTERM_GRACE_S + limits.HOST_STOP_S
    world.settle()
    assert world.state.hosts[host("t", 0)].incarnation == 2
    assert world.state.phase is Phase.RUNNING
    assert restarts(world) == {"RoleGroup": 1}


def test_ranks_of_a_host_killed_for_another_rank_restart_with_it():
    world = World(job({"name": "a", "replicas": 3, "replicasPerGroup": 3, **FORK})).boot()
    world.end("a", 2)
    world.settle()
    world.send(ev.Commanded("c", "restart", "a/0"))
    world.pending.clear()
    world.tick()
    (incident,) = world.state.incidents.values()
    assert (incident.members, incident.unready_count) == ((("a", 0), ("a", 1)), 2)
    world.settle()
    assert [world.state.ranks["a", r].incarnation for r in range(3)] == [2, 2, 1]
    assert world.state.phase is Phase.RUNNING


def test_one_rank_of_an_actor_role_in_a_fork_host_restarts_alone_in_it():
    world = World(job({"name": "a", "replicas": 4, "replicasPerGroup": 2, **FORK})).boot()
    action_count = len(world.all_actions)
    hit(world, "a", 3, exited(1))
    (start,) = world.of(act.StartRanks, action_count)
    assert (start.host, start.incarnation, [r.rank for r in start.ranks]) == (host("a", 1), 1, [3])
    assert restarts(world) == {"Process": 1}


def test_a_lost_fork_host_takes_its_group_along():
    world = World(job({"name": "a", "replicas": 4, "replicasPerGroup": 2, **FORK})).boot()
    fail(world, "a", 3)
    assert restarts(world) == {"RoleGroup": 1}
    assert [world.state.ranks["a", r].incarnation for r in range(4)] == [1, 1, 2, 2]
    assert world.state.faults[0].target == "a/2"


def test_a_world_of_several_groups_restarts_as_a_role():
    world = World(job({"name": "t", "type": "Elastic", "replicas": 4, "replicasPerGroup": 2, **FORK})).boot()
    action_count = len(world.all_actions)
    hit(world, "t", 3, exited(1))
    assert restarts(world) == {"Role": 1}
    assert {a.generation for a in world.of(act.StartRanks, action_count)} == {2}
    assert not world.of(act.SpawnHost, action_count)


def test_a_lost_store_restarts_its_world_on_a_new_one():
    world = World(job(PAIR)).boot()
    world.kill_host(host("t", -1))
    world.settle()
    assert world.state.hosts[host("t", -1)].incarnation == 2
    assert world.state.roles["t"].generation == 2
    (note,) = world.notes(reasons.RESTARTING)
    assert note.message == "t/store: process gone, cause unknown; restarting 2 ranks"
    assert world.state.phase is Phase.RUNNING


def test_a_store_that_is_lost_after_its_world_ended_is_not_missed():
    world = World(job({**PAIR, "driver": False}, {"name": "w"})).boot()
    world.end_role("t")
    world.settle()
    world.kill_host(host("t", -1))
    world.settle()
    assert restarts(world) == {}
    assert world.state.hosts[host("t", -1)].phase is HostPhase.DOWN


def test_a_store_that_is_lost_after_a_rank_was_left_failed_is_not_missed():
    ignore_rule = {"rules": [{"name": "leave", "onExitCodes": [7], "action": "Ignore"}]}
    world = World(job({**PAIR, "driver": False}, {"name": "w"}, faultTolerance=ignore_rule)).boot()
    world.end("t", 0)
    hit(world, "t", 1, exited(7))
    world.kill_host(host("t", -1))
    world.settle()
    assert restarts(world) == {}
    assert [world.state.ranks["t", rank].phase for rank in range(2)] == [RankPhase.SUCCEEDED, RankPhase.FAILED]


def test_a_host_of_a_world_that_has_not_met_is_made_again_alone():
    world = World(job({"name": "t", "type": "Elastic", "replicas": 3}))
    world.send(ev.NodesSeen(world.views))
    for _ in range(3):
        world.deliver()
    world.pending.pop(1)
    world.kill_host(host("t", 0))
    world.settle()
    assert restarts(world) == {"Process": 1}
    assert [world.state.hosts[host("t", i)].incarnation for i in range(3)] == [2, 1, 1]
    assert world.state.phase is Phase.RUNNING


def before_the_store(*roles, **spec):
    """A job whose hosts are ready, and the stores of whose worlds are still being made."""
    world = World(job(*roles, **spec))
    world.send(ev.NodesSeen(world.views))
    while not any(isinstance(event, ev.HostReady) for event in world.pending):
        world.deliver()
    world.pending = [event for event in world.pending if event.host.index >= 0]
    world.settle()
    return world


def test_a_store_that_is_lost_before_its_world_has_met_is_made_again_alone():
    world = before_the_store({"name": "t", "type": "Elastic", "replicas": 4})
    assert world.state.roles["t"].ready_host_count == 4
    action_count = len(world.all_actions)
    world.kill_host(host("t", -1))
    world.deliver()
    assert [a.host.index for a in world.of(act.KillHost, action_count)] == [-1]
    assert [(a.host.index, a.incarnation) for a in world.of(act.SpawnHost, action_count)] == [(-1, 2)]
    world.settle()
    assert {state.incarnation for key, state in world.state.hosts.items() if key.index >= 0} == {1}
    assert restarts(world) == {"Process": 1}
    assert world.state.phase is Phase.RUNNING


def test_a_store_that_cannot_be_made_ends_the_waiting_hosts_once_its_budget_is_used_up():
    role = {"name": "t", "type": "Elastic", "replicas": 2, "restartPolicy": {"maxRestarts": 1}}
    world = before_the_store(role, faultTolerance={"backoff": {"initialSeconds": 5}})
    lives = []
    for life in (1, 2):
        world.send(ev.HostLost(host("t", -1), life, KILLED), after=60.0)
        while world.state.hosts[host("t", -1)].incarnation == life:
            world.tick()
        world.pending.clear()
        lives.append([world.state.hosts[host("t", index)].incarnation for index in range(2)])
    assert lives == [[1, 1], [2, 2]]
    assert restarts(world) == {"Process": 1, "Job": 1}


def test_never_ends_the_job_at_the_first_failure():
    world = World(job({"name": "w", "restartPolicy": {"level": "Never"}})).boot()
    fail(world, "w", 0)
    assert world.state.verdict.reason == reasons.FAIL_RULE
    assert "Never" in world.state.verdict.message


def test_an_error_that_must_repeat_ends_the_job_at_once_with_its_cause():
    world = World(job({"name": "w", "replicas": 2})).boot()
    outcome = replace(
        error("ModuleNotFoundError", message="No module named 'nope'", fatal=True), reason=Reason.IMPORT_ERROR
    )
    hit(world, "w", 1, outcome)
    assert world.state.phase is Phase.FAILED
    assert world.state.verdict.reason == reasons.USER_ERROR_REPEATS
    assert world.state.verdict.message.startswith(
        "w/1: ImportError: ModuleNotFoundError: No module named 'nope' (at train.py:7"
    )
    assert restarts(world) == {}


@pytest.mark.parametrize(
    ("first", "second", "ends"),
    [
        (error(), error(), True),
        (error(step=5), error(step=5), True),
        (error(step=5), error(step=4), True),
        (error(step=5), error(step=None), True),
        (error(step=5), error(step=6), False),
        (error(step=None), error(step=0), False),
        (error(), error("KeyError"), False),
        (error(), error(frame="train.py:9 in step"), False),
        (error(), KILLED, False),
        (replace(error(), error_type=""), replace(error(), error_type=""), False),
        (error("RuntimeError", message="gloo: Connection reset by peer"),) * 2 + (False,),
        (error("RuntimeError", message="tool: Connection reset by peer"),) * 2 + (True,),
        (error("DistBackendError"), error("DistBackendError"), False),
    ],
)
def test_the_same_error_at_the_same_place_without_progress_ends_the_job(first, second, ends):
    world = World(job({"name": "w"}, faultTolerance={"backoff": {"initialSeconds": 0}})).boot()
    hit(world, "w", 0, first)
    assert world.state.phase is Phase.RUNNING
    hit(world, "w", 0, second)
    assert (world.state.phase is Phase.FAILED) is ends


def test_an_error_is_forgotten_when_the_process_died_of_something_else_between():
    world = World(job({"name": "w"}, faultTolerance={"backoff": {"initialSeconds": 0}})).boot()
    hit(world, "w", 0, error())
    fail(world, "w", 0)
    world.now += 31
    hit(world, "w", 0, error())
    assert world.state.phase is Phase.RUNNING


def test_errors_of_a_torch_world_are_compared_whichever_rank_has_them():
    world = World(job(PAIR, faultTolerance={"backoff": {"initialSeconds": 0}})).boot()
    hit(world, "t", 0, error())
    hit(world, "t", 1, error())
    assert world.state.verdict.reason == reasons.USER_ERROR_REPEATS


def rules(*items):
    return {"rules": [{"name": f"r{i}", **item} for i, item in enumerate(items)], "backoff": {"initialSeconds": 0}}


def test_the_first_rule_that_matches_decides():
    tolerance = rules(
        {"roles": ["x"], "action": "Fail"},
        {"onReasons": ["UserError"], "action": "Fail"},
        {"onExitCodes": [9], "action": "Fail"},
        {"action": "RestartRole"},
        {"action": "Fail"},
    )
    world = World(job({"name": "w", "replicas": 2}, {"name": "x"}, faultTolerance=tolerance)).boot()
    hit(world, "w", 0, exited(1))
    assert restarts(world) == {"Role": 1}
    hit(world, "w", 0, exited(9))
    assert world.state.verdict.reason == reasons.FAIL_RULE
    assert "rule r2" in world.state.verdict.message


@pytest.mark.parametrize(
    ("named", "outcome", "done"),
    [
        ("Unknown", exited(137), {"Role": 1}),
        ("Killed", exited(137), {"Role": 1}),
        ("Killed", KILLED, {"Process": 1}),
        ("UserError", exited(137), {"Process": 1}),
    ],
)
def test_a_rule_about_unknown_is_about_killed_too(named, outcome, done):
    rule = rules({"onReasons": [named], "action": "RestartRole"})
    world = World(job({"name": "w", "replicas": 2}, faultTolerance=rule))
    hit(world.boot(), "w", 0, outcome)
    assert restarts(world) == done


def test_a_rule_without_attempts_left_escalates_to_what_it_says_or_one_level_up():
    tolerance = rules({"action": "RestartProcess", "maxAttempts": 1, "escalateTo": "Fail"})
    world = World(job({"name": "w"}, faultTolerance=tolerance)).boot()
    hit(world, "w", 0, exited(1))
    hit(world, "w", 0, exited(2))
    assert world.state.verdict.reason == reasons.FAIL_RULE
    unsaid = rules({"action": "RestartProcess", "maxAttempts": 1})
    world = World(job({"name": "w", "replicas": 4, "replicasPerGroup": 2}, faultTolerance=unsaid)).boot()
    hit(world, "w", 0, exited(1))
    hit(world, "w", 0, exited(2))
    assert restarts(world) == {"Process": 1, "RoleGroup": 1}
    world = World(job({"name": "w", "replicas": 4}, faultTolerance=unsaid)).boot()
    hit(world, "w", 0, exited(1))
    hit(world, "w", 0, exited(2))
    assert restarts(world) == {"Process": 1, "Role": 1}


@pytest.mark.parametrize(
    ("action", "role", "expected"),
    [
        ("RestartProcess", {}, {"Role": 1, "Job": 1}),
        ("RestartProcess", {"replicasPerGroup": 2}, {"RoleGroup": 1, "Job": 1}),
        ("RestartRoleGroup", {"replicasPerGroup": 2}, {"RoleGroup": 1, "Job": 1}),
        ("RestartInProcess", {}, {"InProcess": 1, "Role": 1}),
    ],
)
def test_a_worlds_rule_escalates_to_a_larger_restart_than_its_action(action, role, expected):
    tolerance = rules({"action": action, "maxAttempts": 1})
    plan_and_spec = job({"name": "t", "type": "Elastic", "replicas": 2, **role}, faultTolerance=tolerance)
    world = World(plan_and_spec).boot()
    for code in (1, 2):
        hit(world, "t", 0, exited(code))
        while world.state.phase is not Phase.RUNNING:
            world.tick()
            world.settle()
    assert restarts(world) == expected


@pytest.mark.parametrize("action", ["RestartJob", "Ignore"])
def test_a_rule_that_nothing_is_above_ends_the_job_when_its_attempts_are_used_up(action):
    world = World(job({"name": "w", "replicas": 3}, faultTolerance=rules({"action": action, "maxAttempts": 1}))).boot()
    hit(world, "w", 0, exited(1))
    assert world.state.verdict is None
    hit(world, "w", 1, exited(1))
    assert world.state.verdict.reason == reasons.BUDGET_EXHAUSTED


def test_restarts_of_a_rule_that_does_not_count_leave_the_budget_alone():
    tolerance = rules({"onExitCodes": [7], "action": "RestartProcess", "countsTowardsLimit": False})
    world = World(
        job({"name": "w", "restartPolicy": {"maxRestarts": 0}}, faultTolerance={**tolerance, "maxRestarts": 0})
    ).boot()
    for _ in range(3):
        hit(world, "w", 0, exited(7))
        assert world.state.phase is Phase.RUNNING
        world.now += 31
    hit(world, "w", 0, exited(8))
    assert world.state.verdict.reason == reasons.BUDGET_EXHAUSTED


def test_a_rule_that_names_the_reason_is_stronger_than_what_must_repeat_a_general_one_is_not():
    named = rules({"onReasons": ["UserError"], "action": "RestartProcess"})
    world = World(job({"name": "w"}, faultTolerance=named)).boot()
    hit(world, "w", 0, error())
    hit(world, "w", 0, error())
    assert world.state.phase is Phase.RUNNING
    general = rules({"action": "RestartProcess"})
    world = World(job({"name": "w"}, faultTolerance=general)).boot()
    hit(world, "w", 0, error())
    hit(world, "w", 0, error())
    assert world.state.phase is Phase.FAILED


def test_an_ignored_rank_stays_failed_and_the_job_ends_well_without_it():
    world = World(job({"name": "w", "replicas": 2}, faultTolerance=rules({"action": "Ignore"}))).boot()
    hit(world, "w", 0, exited(1))
    assert world.state.ranks["w", 0].phase is RankPhase.FAILED
    assert world.notes(reasons.IGNORED)
    world.end("w", 1, DONE)
    world.settle()
    assert world.state.phase is Phase.SUCCEEDED
    assert world.state.roles["w"].failed_count == 1


def test_a_node_loss_can_be_given_to_a_rule():
    world = World(job({"name": "w"}, faultTolerance=rules({"onReasons": ["NodeLost"], "action": "Fail"}))).boot()
    world.lose_node(world.state.units["w/0"].node)
    world.settle()
    assert world.state.verdict.reason == reasons.FAIL_RULE


def test_a_slow_start_that_its_probe_allows_is_no_restart_that_takes_too_long():
    probe = {"tcpSocket": {"port": 80}, "initialDelaySeconds": 10, "periodSeconds": 10, "failureThreshold": 120}
    plan_and_spec = job({"name": "s", "startupProbe": probe}, faultTolerance={"backoff": {"initialSeconds": 0}})
    world = World(plan_and_spec).boot()
    world.send(ev.HostLost(host("s", 0), 1, KILLED))
    (incident,) = world.state.incidents.values()
    assert incident.deadline == world.now + limits.RESTART_TIME_LIMIT_S + 10 + 120 * 10
    while world.state.verdict is None and world.state.incidents:
        world.tick()
        world.pending = [e for e in world.pending if not isinstance(e, ev.RankReady | ev.HostReady)]
        if any(state.level.value != "Process" for state in world.state.incidents.values()):
            break
    assert any("not ready 1810 s after" in note.message for note in world.notes(reasons.ESCALATED))


def test_a_restart_that_does_not_finish_in_time_goes_up_level_by_level():
    plan_and_spec = job(
        {"name": "w", "replicas": 4, "replicasPerGroup": 2, **FORK}, faultTolerance={"backoff": {"initialSeconds": 0}}
    )
    world = World(plan_and_spec).boot()
    world.end("w", 0, exited(1))
    levels = []
    while world.state.verdict is None:
        world.deliver() if world.pending and isinstance(world.pending[0], ev.RankEnded) else world.tick()
        world.pending = [e for e in world.pending if not isinstance(e, ev.RankReady | ev.HostReady)]
        (incident,) = world.state.incidents.values() or [None]
        if incident and incident.level.value not in levels:
            levels.append(incident.level.value)
    assert levels == ["Process", "RoleGroup", "Role", "Job"]
    assert world.state.verdict.reason == reasons.RESTART_TIMED_OUT
    assert world.now == world.start + 4 * limits.RESTART_TIME_LIMIT_S
    assert "not ready 600 s after" in world.state.verdict.message


def test_a_late_restart_without_budget_ends_the_job():
    plan_and_spec = job({"name": "w", "restartPolicy": {"maxRestarts": 1}}, faultTolerance={"maxRestarts": 0})
    world = World(plan_and_spec).boot()
    world.kill("w", 0)
    world.deliver()
    world.pending.clear()
    world.tick()
    assert world.state.verdict.reason == reasons.BUDGET_EXHAUSTED


def test_a_larger_restart_takes_over_what_a_smaller_one_was_about():
    plan_and_spec = job(
        {"name": "w", "replicas": 2}, faultTolerance=rules({"onExitCodes": [5], "action": "RestartRole"})
    )
    world = World(plan_and_spec).boot()
    world.kill("w", 0)
    world.deliver()
    world.end("w", 1, exited(5))
    world.deliver(len(world.pending) - 1)
    (incident,) = world.state.incidents.values()
    assert (incident.level.value, incident.unready_count, len(incident.fault_numbers)) == ("Role", 2, 2)
    world.settle()
    assert all(fault.recovered_at is not None for fault in world.state.faults)
    assert len(world.notes(reasons.RECOVERED)) == 1


def test_a_group_on_hold_is_taken_over_before_its_backoff_is_over():
    tolerance = {
        "backoff": {"initialSeconds": 50},
        "rules": [{"name": "five", "onExitCodes": [5], "action": "RestartRole"}],
    }
    world = World(job({"name": "w", "replicas": 2}, faultTolerance=tolerance)).boot()
    fail(world, "w", 0)
    world.now += 10
    fail(world, "w", 0)
    assert world.state.roles["w"].incidents_in_backoff == 1
    world.now += 10
    hit(world, "w", 1, exited(5))
    assert len(world.state.incidents) == 1
    while world.state.incidents:
        world.tick()
        world.settle()
    assert world.state.roles["w"].incidents_in_backoff == 0
    assert world.state.phase is Phase.RUNNING


def test_a_job_restart_starts_roles_in_order_again_and_forgets_what_later_ones_did():
    plan_and_spec = job(
        {"name": "prep", "driver": False},
        {"name": "serve", "driver": False, "dependsOn": [{"role": "prep", "condition": "Complete"}]},
        {"name": "main"},
    )
    world = World(plan_and_spec).boot()
    world.end("prep", 0)
    world.settle()
    assert world.state.roles["serve"].ready_count == 1
    action_count = len(world.all_actions)
    world.send(ev.Commanded("c", "restart", "job"))
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert [a.host.role for a in world.of(act.StartRanks, action_count)] == ["prep", "main"]
    assert world.state.roles["serve"].waiting_count == 1
    world.end("prep", 0)
    world.settle()
    assert world.state.roles["serve"].ready_count == 1


def test_only_the_last_ten_faults_are_kept():
    world = World(
        job({"name": "w", "restartPolicy": {"maxRestarts": 50}}, faultTolerance={"backoff": {"initialSeconds": 0}})
    ).boot()
    for _ in range(13):
        world.now += 60
        fail(world, "w", 0)
    assert len(world.state.faults) == 10
    assert restarts(world) == {"Process": 13}
    assert world.state.restarts == Map({"Process": 13})


def test_events_of_the_past_or_of_nobody_change_nothing():
    world = World(job({"name": "w", "replicas": 2}, PAIR)).boot()
    fail(world, "w", 0)
    before = world.state
    for event in (
        ev.HostLost(host("w", 0), 1, KILLED),
        ev.HostLost(host("w", 9), 1, KILLED),
        ev.HostReady(host("w", 0), 1, "n", 1, "x"),
        ev.HostReady(host("w", 0), 2, "n", 1, "x"),
        ev.HostReady(host("x", 0), 1, "n", 1, "x"),
        ev.RankReady("w", 0, 1, 1),
        ev.RankReady("w", 0, 2, 1),
        ev.RankReady("w", 9, 1, 1),
        ev.RankEnded("w", 0, 1, DONE),
        ev.RankEnded("x", 0, 1, DONE),
        ev.SpareLost("w", "n", 0, 1),
        ev.SpareReady("w", "n", 0, 1, "x", 1),
        ev.MasterStarted(1),
        ev.Released(),
    ):
        assert world.send(event) == (), event
    assert world.state is before


def test_of_two_late_restarts_the_first_takes_the_second_along():
    plan_and_spec = job({"name": "w", "replicas": 2}, faultTolerance={"backoff": {"initialSeconds": 0}})
    world = World(plan_and_spec, views=nodes(2, cpus=1)).boot()
    world.kill("w", 0)
    world.kill("w", 1)
    world.deliver()
    world.deliver()
    world.pending.clear()
    assert len(world.state.incidents) == 2
    world.tick()
    (incident,) = world.state.incidents.values()
    assert (incident.level.value, len(incident.fault_numbers)) == ("Role", 3)
    assert restarts(world) == {"Process": 2, "Role": 1}


def test_a_rank_can_leave_a_restart_for_another_while_the_rest_of_it_goes_on():
    world = World(job({"name": "w", "replicas": 2}), count=2).boot()
    (node,) = {unit.node for unit in world.state.units.values()}
    world.lose_node(node)
    world.deliver()
    (first,) = world.state.incidents.values()
    assert first.unready_count == 2
    world.send(ev.Commanded("c", "restart", "w/0"))
    assert sorted(i.unready_count for i in world.state.incidents.values()) == [1, 1]
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert len(world.notes(reasons.RECOVERED)) == 2


def test_a_group_that_is_being_ended_starts_only_when_its_backoff_is_over():
    plan_and_spec = job({**PAIR, **FORK}, faultTolerance={"backoff": {"initialSeconds": 5}})
    world = World(plan_and_spec).boot()
    hit(world, "t", 0, exited(1))
    world.now += 30
    action_count = len(world.all_actions)
    hit(world, "t", 0, exited(2))
    assert not world.of(act.StartRanks, action_count)
    while not world.of(act.StartRanks, action_count):
        world.tick()
    assert world.now == world.start + 35
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert world.state.roles["t"].generation == 3


def test_ranks_of_an_actor_group_end_first_and_start_when_the_backoff_is_over():
    group = {"name": "a", "replicas": 2, "replicasPerGroup": 2, "restartPolicy": {"level": "RoleGroup"}, **FORK}
    world = World(job(group, faultTolerance={"backoff": {"initialSeconds": 5}})).boot()
    hit(world, "a", 0, exited(1))
    world.now += 30
    action_count = len(world.all_actions)
    hit(world, "a", 0, exited(2))
    assert world.state.roles["a"].waiting_count == 2
    assert not world.of(act.StartRanks, action_count)
    while world.state.incidents:
        world.tick()
        world.settle()
    assert world.state.roles["a"].ready_count == 2
    assert restarts(world) == {"RoleGroup": 2}


def test_a_late_ready_of_the_process_before_says_nothing_about_the_present_one():
    world = World(job({"name": "w"})).boot()
    world.kill("w", 0)
    world.deliver()
    world.deliver()
    assert world.state.ranks["w", 0].phase is RankPhase.STARTING
    world.send(ev.RankReady("w", 0, 1, 1001))
    assert world.state.ranks["w", 0].phase is RankPhase.STARTING
    world.settle()
    assert world.state.ranks["w", 0].pid == 1002


def test_nobody_starts_on_a_host_that_is_still_ending_others():
    world = World(job({"name": "a", "replicas": 2, "replicasPerGroup": 2, **FORK})).boot()
    hit(world, "a", 0, DONE)
    world.send(ev.Commanded("c", "restart", "a"))
    assert [world.state.ranks["a", r].phase for r in range(2)] == [RankPhase.WAITING, RankPhase.STOPPING]
    world.settle()
    assert [world.state.ranks["a", r].phase for r in range(2)] == [RankPhase.READY, RankPhase.READY]
