"""Coupled restarts: who restarts with whom, in which order, for which reason, and what it costs."""

from __future__ import annotations

import pytest
from master_kit import KILLED, World, error, job, nodes

from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.state import Phase, RankPhase
from dljob.master.state.views import Outcome, Reason
from dljob.telemetry import reasons

ROUTER = {"name": "router", "replicas": 2, "dependsOn": [{"role": "engine"}]}
SCRIPTS = {"entrypoint": {"module": "serve"}, "replicas": 2, "replicasPerGroup": 2}


def engine(*others, replicas=3, **policy):
    return {
        "name": "engine",
        "replicas": replicas,
        "driver": False,
        "restartPolicy": {"with": list(others or ("router",)), **policy},
    }


def incarnations(world, role):
    return [world.state.ranks[role, rank].incarnation for rank in range(world.plan.roles[role].replicas)]


def spent(world):
    """The budgets that were charged, with the number of their restarts."""
    return {key: len(marks) for key, marks in world.state.marks.items() if not key.startswith("fail:")}


def test_one_rank_takes_the_whole_coupled_role_along_and_its_own_budget_pays_once():
    world = World(job(engine(), ROUTER, {"name": "other"})).boot()
    world.kill("engine", 1)
    world.settle()
    assert incarnations(world, "engine") == [1, 2, 1]
    assert incarnations(world, "router") == [2, 2]
    assert incarnations(world, "other") == [1]
    assert dict(world.state.restarts) == {"Process": 1}
    assert spent(world) == {"engine": 1}
    assert {name: role.restarts for name, role in world.state.roles.items()} == {"engine": 1, "router": 1, "other": 0}
    (fault,) = world.state.faults
    assert (fault.rank, fault.level, fault.recovered_at) == ("engine/1", "Process", world.now)
    assert world.state.phase is Phase.RUNNING


def test_the_other_way_round_nobody_restarts_unless_it_is_said_too():
    world = World(job(engine(), ROUTER)).boot()
    world.kill("router", 0)
    world.settle()
    assert (incarnations(world, "engine"), incarnations(world, "router")) == ([1, 1, 1], [2, 1])


def test_the_timeline_and_the_ranks_say_for_whom_they_restart():
    world = World(job(engine(), ROUTER)).boot()
    world.end("engine", 1, error())
    world.settle()
    (restarting,), (along,) = world.notes(reasons.RESTARTING), world.notes(reasons.RESTARTED_WITH)
    assert restarting.target == "engine/1"
    assert restarting.message.endswith("restarting 3 ranks")
    assert (along.target, along.level) == ("router", "")
    assert along.message == "2 ranks restarting with engine/1: restartPolicy.with of engine names router"
    assert world.state.ranks["engine", 1].restart_reason == "UserError"
    assert {world.state.ranks["router", rank].restart_reason for rank in range(2)} == {"RestartedWith"}


def test_roles_that_those_name_restart_too_and_the_timeline_names_the_nearest():
    chain = [engine("router"), {**ROUTER, "restartPolicy": {"with": ["cache"]}}, {"name": "cache"}]
    world = World(job(*chain)).boot()
    world.kill("engine", 0)
    world.settle()
    assert incarnations(world, "cache") == [2]
    assert world.notes(reasons.RESTARTED_WITH)[-1].message.endswith("restartPolicy.with of router names cache")


def test_roles_that_name_each_other_restart_whole_at_the_level_role():
    world = World(job(engine(), {**ROUTER, "restartPolicy": {"with": ["engine"]}})).boot()
    world.kill("engine", 1)
    world.settle()
    assert (incarnations(world, "engine"), incarnations(world, "router")) == ([2, 2, 2], [2, 2])
    assert dict(world.state.restarts) == {"Role": 1}
    assert world.notes(reasons.RESTARTING)[0].target == "engine"
    assert world.notes(reasons.RESTARTED_WITH)[0].target == "router"


def test_ranks_start_again_in_the_order_of_their_dependencies():
    world = World(job(engine(), ROUTER)).boot()
    action_count = len(world.all_actions)
    world.kill("engine", 1)
    world.settle()
    assert [start.host.role for start in world.of(act.StartRanks, action_count)] == ["engine", "router", "router"]
    # Their processes come up meanwhile: only the ranks wait.
    assert [spawn.host.role for spawn in world.of(act.SpawnHost, action_count)] == ["engine", "router", "router"]


def test_all_of_them_have_ended_before_one_starts_again():
    world = World(job(engine("scripts"), {"name": "scripts", **SCRIPTS})).boot()
    world.hold = True
    world.kill("engine", 1)
    world.deliver()
    assert {world.state.ranks["scripts", rank].phase for rank in range(2)} == {RankPhase.STOPPING}
    # The new host of the engine answers while the scripts still end.
    ready = next(e for e in world.pending if isinstance(e, ev.HostReady))
    world.pending.remove(ready)
    world.send(ready)
    assert world.state.ranks["engine", 1].phase is RankPhase.WAITING
    action_count = len(world.all_actions)
    world.settle()
    assert {start.host.role for start in world.of(act.StartRanks, action_count)} == {"engine", "scripts"}
    assert incarnations(world, "engine") == [1, 2, 1]


def test_a_rank_that_fails_again_meanwhile_waits_for_the_end_of_those_that_took_it_along():
    """Its own restart takes nobody along, and the scripts whose restart it has left still end."""
    scripts = {"name": "scripts", **SCRIPTS, "restartPolicy": {"with": ["router"]}}
    world = World(job(scripts, {"name": "router"})).boot()
    world.hold = True
    world.send(ev.Commanded("c1", "restart", "scripts/0"))
    script_ends = [event for event in world.pending if isinstance(event, ev.RankEnded)]
    world.pending = [event for event in world.pending if event not in script_ends]
    world.settle()
    world.kill("router", 0)
    world.settle()
    assert world.state.ranks["scripts", 0].phase is RankPhase.STOPPING
    assert world.state.ranks["router", 0].phase is RankPhase.WAITING
    world.pending += script_ends
    world.settle()
    assert (incarnations(world, "scripts"), incarnations(world, "router")) == ([2, 1], [2])


def test_a_role_that_two_roles_of_a_lost_node_take_along_starts_once_both_have_ended():
    """It has a spare, so that it could start at once with the caller, beside scripts of the other node."""
    wide = {"resources": {"cpu": "2"}, "restartPolicy": {"level": "Role", "with": ["router"]}}
    scripts = {"name": "scripts", **SCRIPTS, "replicas": 4, **wide}
    spares = {"faultTolerance": {"spares": {"processesPerNode": 1}}}
    roles = job({"name": "router"}, {"name": "caller", **wide}, scripts, **spares)
    world = World(roles, views=nodes(3, cpus=6)).boot()
    node = world.state.units["caller/0"].node
    assert node != world.state.units["router/0"].node
    world.hold = True
    world.lose_node(node)
    world.deliver()
    assert {world.state.ranks["scripts", rank].phase for rank in range(4)} == {RankPhase.STOPPING, RankPhase.WAITING}
    assert world.state.ranks["router", 0].phase is RankPhase.WAITING
    world.settle()
    assert incarnations(world, "router") == [2]


@pytest.mark.parametrize("naming_role", ["server", "client"])
def test_a_restart_of_the_job_starts_a_role_once_the_server_of_its_pair_has_finished_its_requests(naming_role):
    server = {"name": "server", "entrypoint": {"module": "serve"}, "driver": False, "ports": [{"name": "http"}]}
    server["drain"] = {"signal": "SIGUSR1", "timeoutSeconds": 60}
    client = {"name": "client"}
    policy = {"restartPolicy": {"with": ["client" if naming_role == "server" else "server"]}}
    roles = [role | policy if role["name"] == naming_role else role for role in (server, client)]
    world = World(job(*roles)).boot()
    world.hold = True
    world.send(ev.Commanded("c1", "restart", "job"))
    server_ends = [event for event in world.pending if isinstance(event, ev.RankEnded)]
    world.pending = [event for event in world.pending if event not in server_ends]
    world.settle()
    assert (world.state.ranks["server", 0].phase, world.state.ranks["client", 0].phase) == (
        RankPhase.STOPPING,
        RankPhase.WAITING,
    )
    world.pending += server_ends
    world.settle()
    assert (incarnations(world, "server"), incarnations(world, "client")) == ([2], [2])


def test_ranks_that_were_let_go_on_still_wait_for_their_dependencies():
    scripts = {"name": "scripts", **SCRIPTS, "dependsOn": [{"role": "router"}]}
    world = World(job(engine("router", "scripts"), ROUTER, scripts)).boot()
    action_count = len(world.all_actions)
    world.kill("engine", 1)
    world.settle()
    assert [start.host.role for start in world.of(act.StartRanks, action_count)] == [
        "engine",
        "router",
        "router",
        "scripts",
    ]


def test_scripts_that_ignore_the_order_to_end_are_killed_and_the_pair_goes_on():
    world = World(job(engine("scripts"), {"name": "scripts", **SCRIPTS})).boot()
    world.deaf.update({("scripts", 0), ("scripts", 1)})
    world.kill("engine", 1)
    world.settle()
    if any(world.state.ranks["scripts", rank].phase is RankPhase.STOPPING for rank in range(2)):
        assert (
            next(iter(world.state.incidents.values())).stop_by
            == world.now + limits.HOST_STOP_S + limits.SIGTERM_GRACE_S
        )
        world.tick()
        world.settle()
    assert incarnations(world, "engine") == [1, 2, 1]
    assert incarnations(world, "scripts") == [2, 2]


def test_a_torch_world_waits_until_the_last_rank_of_its_pair_has_ended():
    pair = {"name": "world", "type": "Elastic", "replicas": 2, "replicasPerGroup": 2, "restartPolicy": {"with": ["s"]}}
    world = World(job({**pair, "replicasPerGroup": 1}, {"name": "s", **SCRIPTS})).boot()
    world.hold = True
    world.kill("world", 1)
    world.deliver()
    for event in [e for e in world.pending if isinstance(e, ev.HostReady)]:
        world.pending.remove(event)
        world.send(event)
    assert {world.state.ranks["world", rank].phase for rank in range(2)} == {RankPhase.WAITING}
    world.settle()
    assert (incarnations(world, "world"), incarnations(world, "s")) == ([2, 2], [2, 2])


def test_a_role_that_has_not_begun_or_has_completed_is_left_alone():
    late = {"name": "late", "dependsOn": [{"role": "first", "condition": "Complete"}]}
    roles = [engine("late", "done"), {"name": "first"}, late, {"name": "done", "replicas": 1}]
    world = World(job(*roles)).boot()
    world.end("done", 0)
    world.settle()
    world.kill("engine", 0)
    world.settle()
    assert (incarnations(world, "late"), incarnations(world, "done")) == ([0], [1])
    assert world.notes(reasons.RESTARTED_WITH) == []


def test_a_lost_node_with_both_roles_is_one_restart_of_the_pair():
    wide = {"resources": {"cpu": "2"}}
    roles = [{**engine(replicas=2), **wide}, {"name": "router", "replicas": 2, **wide}]
    world = World(job(*roles), count=4).boot()
    node = world.state.units["engine/0"].node
    assert world.state.units["router/0"].node == node
    world.lose_node(node)
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert dict(world.state.restarts) == {"Node": 1, "Process": 1}
    assert spent(world) == {"engine": 1}


def test_a_failure_of_level_job_beside_a_coupled_one_restarts_the_job():
    roles = [engine(replicas=1), {"name": "router", "restartPolicy": {"level": "Job"}}]
    world = World(job(*roles), count=2).boot()
    world.lose_node(world.state.units["router/0"].node)
    world.settle()
    assert world.state.restarts["Job"] == 1


def test_news_of_the_coupled_role_that_come_late_become_the_first_cause():
    """The router only told of the engine: what the engine died of came after it was taken down for the pair."""
    pair = [engine(replicas=1), {"name": "router", "restartPolicy": {"with": ["engine"]}}]
    world = World(job(*pair)).boot()
    lost = Outcome(ok=False, reason=Reason.NETWORK, error_type="PeerLostError", message="engine/0 is gone")
    world.end("router", 0, lost)
    world.deliver()
    assert world.state.ranks["engine", 0].phase is RankPhase.WAITING
    world.send(ev.RankEnded("engine", 0, 1, error()))
    world.settle()
    (fault,) = world.state.faults
    assert (fault.rank, fault.reason) == ("engine/0", "UserError")
    assert [consequence.rank for consequence in fault.consequences] == ["router/0"]


def test_an_ordered_restart_takes_the_pair_along_without_a_charge():
    world = World(job(engine(), ROUTER)).boot()
    world.send(ev.Commanded("c1", "restart", "engine/0"))
    world.settle()
    assert (incarnations(world, "engine"), incarnations(world, "router")) == ([2, 1, 1], [2, 2])
    assert spent(world) == {}


def test_a_restart_in_process_keeps_its_own_survivors_and_no_rank_of_the_pair():
    trainer = {
        "name": "t",
        "type": "Elastic",
        "replicas": 2,
        "restartPolicy": {"level": "InProcess", "with": ["engine"]},
    }
    world = World(job(trainer, {"name": "engine", "driver": False})).boot()
    world.kill("t", 1)
    world.settle()
    lives = {name: world.state.hosts[world.key_host(*name)].incarnation for name in (("t", 0), ("t", 1), ("engine", 0))}
    assert lives == {("t", 0): 1, ("t", 1): 2, ("engine", 0): 2}
    assert (incarnations(world, "t"), incarnations(world, "engine")) == ([2, 2], [2])


@pytest.mark.parametrize("level", ["Process", "RoleGroup", "Role"])
def test_a_used_up_budget_escalates_with_the_pair(level):
    world = World(job(engine(replicas=2, level=level, maxRestarts=0), ROUTER)).boot()
    world.kill("engine", 0, KILLED)
    world.settle()
    assert dict(world.state.restarts) == {"Job": 1}
    assert incarnations(world, "router") == [2, 2]
