"""A restart of the job, and servers whose role waits for another one to complete: they finish their requests first."""

from __future__ import annotations

import pytest
from master_kit import KILLED, World, host, job, nodes

from dljob.master import status
from dljob.master.failure import restart
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.state import HostPhase, Phase, RankPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Level
from dljob.telemetry import reasons

DRAIN_S = 60
SERVER = {"name": "s", "entrypoint": {"module": "serve.py"}, "ports": [{"name": "http"}]}
LATER = {"driver": False, "dependsOn": [{"role": "first", "condition": "Complete"}]}
DRAIN = {"drain": {"signal": "SIGUSR1", "timeoutSeconds": DRAIN_S}}


def serving(replicas=1, **more):
    """A job whose first role has completed, with servers that began after it."""
    server = {**SERVER, **LATER, **DRAIN, "replicas": replicas, **more}
    plan_and_spec = job({"name": "first"}, server, {"name": "d", "driver": True})
    world = World(plan_and_spec, views=nodes(8, cpus=2)).boot()
    world.end_role("first")
    world.settle()
    for rank in range(replicas):
        world.send(ev.RankServes("s", rank, 1, (("http", f"10.0.0.{rank}:80"),), ready=True))
    return world


def again(world, number=1):
    """Order a restart of the job; the ends of the servers stay on their way."""
    since = len(world.all_actions)
    world.send(ev.Commanded(f"again {number}", "restart", "job"))
    end_events = [event for event in world.pending if isinstance(event, ev.RankEnded) and event.role == "s"]
    world.pending = [event for event in world.pending if event not in end_events]
    world.settle()
    return end_events, since


def give(world, end_events):
    world.pending += end_events
    world.settle()


def stops(world, since):
    return [(a.host.role, a.ranks, a.grace_s) for a in world.of(act.StopRanks, since)]


def kills(world, since):
    return [a.host.role for a in world.of(act.KillHost, since) if a.host.role == "s"]


def phase(world, rank=0):
    return world.state.ranks["s", rank].phase


@pytest.mark.parametrize("more", [{}, {"type": "Elastic", "replicasPerGroup": 1}])
def test_a_server_that_waits_for_another_role_finishes_its_requests_before_it_begins_anew(more):
    world = serving(**more)
    end_events, since = again(world)
    assert stops(world, since) == [("s", (0,), limits.SIGTERM_GRACE_S)]
    assert kills(world, since)[1:] == [] if more else kills(world, since) == []
    assert status.endpoints(world.state)["s"] == [], "it is out of the endpoints at once"
    stop_by = world.state.roles["s"].stop_by
    assert stop_by == world.now + DRAIN_S + limits.SIGTERM_GRACE_S + limits.HOST_STOP_S
    assert world.state.phase is Phase.RUNNING, "the restart of the others does not wait for it"
    give(world, end_events)
    assert (phase(world), world.state.roles["s"].stop_by) == (RankPhase.WAITING, None)
    assert world.state.hosts[host("s", 0)].phase is HostPhase.DOWN, "a restart of the job keeps no process"
    world.end_role("first")
    world.settle()
    state = world.state.ranks["s", 0]
    assert (state.phase, state.incarnation, state.restart_reason) == (RankPhase.READY, 2, "Requested")


def test_a_server_that_ignores_its_drain_is_killed_and_begins_anew():
    world = serving(2)
    end_events, _ = again(world)
    give(world, end_events[:1])
    assert [phase(world, rank) for rank in (0, 1)] == [RankPhase.WAITING, RankPhase.STOPPING]
    since = len(world.all_actions)
    world.end_role("first")
    world.settle()
    assert phase(world) is RankPhase.WAITING, "its turn has come, and an earlier process of its role is there"
    while world.state.roles["s"].stop_by is not None:
        world.tick()
    assert len(kills(world, since)) == 1
    world.settle()
    assert [world.state.ranks["s", rank].incarnation for rank in (0, 1)] == [2, 2]
    assert [fault.reason for fault in world.state.faults] == ["Requested"]


def test_a_role_whose_earlier_ranks_end_has_not_begun():
    world = serving()
    end_events, _ = again(world)
    world.end_role("first")
    world.settle()
    (note,) = world.send(ev.Commanded("s", "restart", "s"))
    assert (note.reason, note.message) == (
        reasons.COMMAND_REFUSED,
        "restart refused: s has not begun: it waits for the end of its earlier ranks",
    )
    give(world, end_events)
    assert world.state.ranks["s", 0].incarnation == 2


def test_a_second_restart_of_the_job_gives_a_drain_no_more_time():
    world = serving()
    end_events, _ = again(world)
    stop_by = world.state.roles["s"].stop_by
    world.now += 30
    _, since = again(world, 2)
    assert stops(world, since) == [("s", (0,), limits.SIGTERM_GRACE_S)]
    assert world.state.roles["s"].stop_by == stop_by
    give(world, end_events)
    world.end_role("first")
    world.settle()
    assert world.state.ranks["s", 0].incarnation == 2


def test_a_server_whose_host_dies_in_its_drain_is_no_failure():
    world = serving(2, replicasPerGroup=2)
    end_events, _ = again(world)
    world.pending.append(end_events[0])
    world.settle()
    assert [phase(world, rank) for rank in (0, 1)] == [RankPhase.WAITING, RankPhase.STOPPING]
    assert world.state.hosts[host("s", 0)].phase is HostPhase.READY, "its other rank still finishes"
    world.send(ev.HostLost(host("s", 0), 1, KILLED))
    world.end_role("first")
    world.settle()
    assert [world.state.ranks["s", rank].incarnation for rank in (0, 1)] == [2, 2]
    assert [fault.reason for fault in world.state.faults] == ["Requested"]
    assert dict(world.state.restarts) == {"Job": 1}


def test_a_server_whose_node_is_lost_in_its_drain_begins_anew_elsewhere():
    world = serving()
    again(world)
    lost_node = world.state.units["s/0"].node
    world.lose_node(lost_node)
    world.pending = [event for event in world.pending if not isinstance(event, ev.HostLost)]
    world.settle()
    assert (phase(world), world.state.roles["s"].stop_by) == (RankPhase.WAITING, None)
    world.end_role("first")
    world.settle()
    assert world.state.ranks["s", 0].incarnation == 2
    assert world.state.units["s/0"].node != lost_node


def test_a_role_begins_anew_with_the_job_while_the_restart_of_that_waits():
    world = serving()
    end_events, _ = again(world)
    order = restart.RestartOrder(Level.JOB, "d", (0,), "UserError", "it failed", backoff_s=10.0)
    d = StateTransaction(world.state, world.now)
    restart.begin_restart(d, order)
    world.state = d.freeze()
    world.pending.clear()
    (waiting,) = world.state.incidents.values()
    assert (waiting.level, waiting.is_backoff_over) == ("Job", False)
    world.hold = True  # the model did not carry out the orders of this restart
    give(world, end_events)
    assert phase(world) is RankPhase.WAITING
    assert not any(state.hosts_ordered for state in world.state.roles.values())


def test_a_new_master_asks_a_server_again_that_is_to_begin_anew():
    world = serving()
    again(world)
    since = len(world.all_actions)
    world.crash_master()
    assert [(role, ranks) for role, ranks, _ in stops(world, since)] == [("s", (0,))]
    world.settle()
    assert phase(world) is RankPhase.WAITING
    world.end_role("first")
    world.settle()
    assert world.state.ranks["s", 0].incarnation == 2


def test_a_job_that_ends_meanwhile_begins_nothing_anew():
    world = serving()
    again(world)
    since = len(world.all_actions)
    world.send(ev.Commanded("stop", "stop", "job"))
    world.settle()
    assert world.state.phase is Phase.STOPPING, "the server has the time of its drain"
    world.tick()
    world.settle()
    assert (world.state.phase, world.of(act.StartRanks, since)) == (Phase.STOPPED, [])
