"""Servers of nodes that are announced to go: out of the endpoints first, requests end, then they move or wait."""

from __future__ import annotations

import json

from master_kit import World, job, nodes

from dljob.master import status
from dljob.master.persistence.codec import replay
from dljob.master.placement.reissue import reissue
from dljob.master.placement.timers import earliest_timer
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.state import Phase, RankPhase
from dljob.master.state.views import Clue, Outcome
from dljob.telemetry import reasons


def where(world, unit="s/0"):
    return world.state.units[unit].node


SERVER = {"replicas": 2, "entrypoint": {"module": "serve.py"}, "driver": False, "ports": [{"name": "http"}]}


def servers(seconds=20, count=3):
    roles = [{"name": "s", **SERVER, "drain": {"signal": "SIGUSR1", "timeoutSeconds": seconds}}, {"name": "w"}]
    world = World(job(*roles), views=nodes(count, cpus=1)).boot()
    for rank in (0, 1):
        world.send(ev.RankServes("s", rank, 1, (("http", f"10.0.0.{rank}:80"),), ready=True))
    return world


def serving(world):
    return [row["rank"] for row in status.endpoints(world.state)["s"]]


def ends_not(world):
    """Let a server ignore its drain."""
    world.pending = [event for event in world.pending if not isinstance(event, ev.RankEnded)]


def to_the_drain_without_end(world):
    victim = where(world, "s/0")
    world.drain_node(victim, 0.0)
    world.deliver()
    world.send(ev.CopiesSaved(victim))
    return victim


def to_the_drain(world, notice=300):
    """Announce the departure of the node of server 0, and go on to the moment at which the server is asked to end."""
    victim = where(world, "s/0")
    world.drain_node(victim, world.now + notice)
    world.deliver()
    world.send(ev.CopiesSaved(victim))
    return victim


def test_a_server_of_a_departing_node_leaves_the_endpoints_and_finishes_before_it_moves():
    world = servers(count=4)
    victim = to_the_drain(world)
    assert serving(world) == [1]
    order = world.of(act.StopRanks)[-1]
    assert (order.host.role, order.ranks, order.grace_s) == ("s", (0,), limits.SIGTERM_GRACE_S)
    assert where(world, "s/0") == victim, "it is still there, with its requests"
    assert not world.of(act.KillHost)
    assert reasons.NODE_LEAVING in {note.reason for note in world.notes(reasons.NODE_LEAVING)}
    assert "1 server of it finish" in world.notes(reasons.NODE_LEAVING)[-1].message
    world.send(ev.RankEnded("s", 0, 1, Outcome(ok=True)))
    assert where(world, "s/0") != victim
    world.settle()
    assert world.state.ranks["s", 0].incarnation == 2
    assert world.state.ranks["s", 1].incarnation == 1, "the other one served on"
    assert world.state.departures[victim].drain_by is None


def test_two_drained_servers_of_a_node_leave_together():
    """The second one is waited for."""
    roles = [
        {"name": "s", **SERVER, "replicasPerGroup": 2, "drain": {"timeoutSeconds": 20}, "resources": {"cpu": "500m"}},
        {"name": "w"},
    ]
    world = World(job(*roles), views=nodes(3, cpus=1)).boot()
    victim = to_the_drain(world)
    assert world.of(act.StopRanks)[-1].ranks == (0, 1)
    world.send(ev.RankEnded("s", 0, 1, Outcome(ok=True)))
    assert where(world, "s/0") == victim
    assert not [a for a in world.of(act.StartRanks) if any(each.incarnation == 2 for each in a.ranks)]
    world.send(ev.RankEnded("s", 1, 1, Outcome(ok=True)))
    assert where(world, "s/0") != victim


def test_a_server_that_ignores_its_drain_leaves_when_its_time_is_over():
    world = servers(count=4)
    victim = to_the_drain(world)
    by = world.state.departures[victim].drain_by
    assert by == world.now + 20 + limits.SIGTERM_GRACE_S
    assert earliest_timer(world.state) == by
    ends_not(world)
    world.now = by
    world.send(ev.Tick())
    assert where(world, "s/0") != victim
    assert world.state.departures[victim].drain_by is None


def test_a_drain_is_no_longer_than_the_node_is_there():
    world = servers(seconds=600, count=4)
    victim = to_the_drain(world, notice=100)
    assert earliest_timer(world.state) == world.state.departures[victim].gone_at - limits.PARTING_S
    ends_not(world)
    world.send(ev.Tick(), after=100 - limits.PARTING_S)
    assert where(world, "s/0") != victim, "it leaves while the node is there"


def test_servers_of_a_node_that_is_almost_gone_leave_with_its_ranks():
    """They finish what they can while the copies come to disk, and are not waited for."""
    world = servers(count=4)
    victim = where(world, "s/0")
    world.drain_node(victim, world.now + 1)
    world.deliver()
    world.send(ev.Tick())
    assert (serving(world), where(world, "s/0")) == ([1], victim)
    ends_not(world)
    world.send(ev.CopiesSaved(victim))
    assert where(world, "s/0") != victim


def test_servers_stay_endpoints_while_no_other_node_has_room():
    world = servers(count=3)
    victim = to_the_drain(world)
    assert serving(world) == [0, 1]
    assert (where(world, "s/0"), world.of(act.StopRanks)) == (victim, [])
    assert earliest_timer(world.state) == world.now + 300 - limits.DEPART_S - 20, "only while there is time for a drain"


def drained_in_place(world, notice=300):
    """Let a node without another one's room be announced, until its server is asked to finish."""
    victim = to_the_drain(world, notice)
    if world.state.departures[victim].drain_at is None:
        return victim  # the notice is so short that it was asked at once
    world.now = earliest_timer(world.state)
    world.send(ev.Tick())
    return victim


def mixed():
    """A server and a rank of another role share a node; there is no other one."""
    roles = [{"name": "s", **SERVER, "replicas": 1, "drain": {"timeoutSeconds": 20}}, {"name": "w"}]
    world = World(job(*roles), views=nodes(1, cpus=2)).boot()
    world.send(ev.RankServes("s", 0, 1, (("http", "10.0.0.1:80"),), ready=True))
    return world


def test_servers_without_another_place_finish_in_time_and_the_other_ranks_of_the_node_stay():
    world = mixed()
    victim = drained_in_place(world)
    assert serving(world) == []
    (order,) = world.of(act.StopRanks)
    assert (order.host.role, order.ranks) == ("s", (0,))
    world.send(ev.RankEnded("s", 0, 1, Outcome(ok=True)))
    own = world.state.departures[victim]
    assert (own.drained, own.drain_by, own.drain_at) == (True, None, None)
    assert [(key, rank.phase) for key, rank in sorted(world.state.ranks.items())] == [
        (("s", 0), RankPhase.WAITING),
        (("w", 0), RankPhase.READY),
    ]
    assert earliest_timer(world.state) == own.gone_at + limits.ANNOUNCED_END_WINDOW_S, "no timer spins"
    assert not world.of(act.KillHost)
    assert len(world.of(act.StartRanks)) == 2, "it does not begin again on a node that is taken away"


def test_drained_servers_begin_where_there_is_room_and_when_there_is():
    world = mixed()
    victim = drained_in_place(world)
    world.send(ev.RankEnded("s", 0, 1, Outcome(ok=True)))
    world.add_node(nodes(3, cpus=2)[2])
    world.settle()
    assert where(world, "s/0") == "n2" != victim
    assert world.state.ranks["s", 0].incarnation == 2
    assert world.state.phase is Phase.RUNNING


def test_a_place_that_comes_during_a_drain_is_taken_after_it_or_before_the_node_is_gone():
    world = mixed()
    victim = drained_in_place(world, notice=30)
    ends_not(world)
    assert (
        earliest_timer(world.state) == world.state.departures[victim].drain_by > world.state.departures[victim].gone_at
    )
    world.add_node(nodes(3, cpus=2)[2])
    world.send(ev.NodesSeen(world.seen()))
    assert where(world, "s/0") == victim
    assert earliest_timer(world.state) == world.state.departures[victim].gone_at - limits.PARTING_S
    world.send(ev.Tick(), after=30 - limits.PARTING_S)
    assert where(world, "s/0") == "n2"


def test_drained_servers_of_a_node_that_stays_after_all_serve_again():
    world = mixed()
    victim = where(world, "s/0")
    world.send(ev.CauseLearned(f"node/{victim}", (Clue("pod", "EvictionByEvictionAPI: Eviction API: evicting"),)))
    world.send(ev.Tick())
    assert serving(world) == [], "Kubernetes tells no time: its servers finish at once"
    world.send(ev.CopiesSaved(victim))
    world.send(ev.RankEnded("s", 0, 1, Outcome(ok=True)))
    world.now = earliest_timer(world.state)
    world.send(ev.Tick())
    assert not world.state.departures
    assert world.state.ranks["s", 0].phase is RankPhase.STARTING
    assert world.state.ranks["s", 0].incarnation == 2


def test_servers_that_ignore_a_drain_in_place_are_killed_once_and_start_anew_if_the_node_stays():
    world = mixed()
    victim = drained_in_place(world)
    ends_not(world)
    world.now = world.state.departures[victim].drain_by
    world.send(ev.Tick())
    assert [kill.host.role for kill in world.of(act.KillHost)] == ["s"]
    assert world.state.departures[victim].drained
    assert world.state.ranks["s", 0].phase is RankPhase.WAITING
    begun = len(world.all_actions)
    world.send(ev.RankEnded("s", 0, 1, Outcome(ok=False)))
    assert not world.of(act.SpawnHost, begun)


def test_servers_serve_on_a_node_that_is_drained_without_a_deadline():
    """It is there until its ranks leave."""
    world = mixed()
    victim = to_the_drain_without_end(world)
    assert serving(world) == [0]
    assert world.state.departures[victim].drain_at is None


def test_a_server_that_ends_well_before_its_drain_needs_none():
    world = mixed()
    victim = to_the_drain(world)
    world.send(ev.RankEnded("s", 0, 1, Outcome(ok=True)))
    world.now = earliest_timer(world.state)
    world.send(ev.Tick())
    assert world.state.departures[victim].drained
    assert not world.of(act.StopRanks)


def test_a_departing_node_whose_ranks_have_all_ended_has_no_drain():
    roles = [{"name": "s", **SERVER, "replicas": 1, "drain": {"timeoutSeconds": 20}}, {"name": "w"}]
    world = World(job(*roles), views=nodes(2, cpus=1)).boot()
    victim = to_the_drain(world)
    world.send(ev.RankEnded("s", 0, 1, Outcome(ok=True)))
    world.now = earliest_timer(world.state)
    world.send(ev.Tick())
    assert world.state.departures[victim].drain_at is None
    assert earliest_timer(world.state) > world.now


def test_a_later_master_orders_the_drain_again_and_keeps_its_time():
    world = servers(count=4)
    victim = to_the_drain(world)
    again = replay(
        world.plan, world.spec, world.state.job.uid, json.loads(json.dumps(world.journal)), start=world.start
    )
    assert again.departures[victim].drain_by == world.state.departures[victim].drain_by
    assert [a.ranks for a in reissue(again, world.now) if isinstance(a, act.StopRanks)] == [(0,)]


def test_servers_of_a_fleet_that_can_do_without_them_leave_with_it_instead():
    """The drain of a role that gets smaller is its own; it is not ordered twice."""
    fleet = {**SERVER, "type": "Actor", "minReplicas": 1, "maxReplicas": 2, "drain": {"timeoutSeconds": 20}}
    world = World(job({"name": "s", **fleet}, {"name": "w"}), views=nodes(3, cpus=1)).boot()
    victim = where(world)
    world.drain_node(victim, world.now + 60)
    world.deliver()
    own = world.state.departures[victim]
    assert own.drain_at == own.save_by, "it leaves with its fleet, after the copies are on disk"
    world.hold = True
    world.send(ev.CopiesSaved(victim))
    own = world.state.departures[victim]
    assert (own.drain_at, own.drain_by) == (own.gone_at - limits.DEPART_S - 20, None)
    assert [stop.leaves for stop in world.of(act.StopRanks)] == [True]
    for at in (own.drain_at, own.drain_at + limits.FINISH_S, own.gone_at - limits.PARTING_S):
        assert world.state.departures[victim].drain_at == at
        world.now = at
        world.send(ev.Tick())
    assert (world.state.sizes["s"].size, world.state.departures[victim].drain_at) == (1, None)
    assert [stop.leaves for stop in world.of(act.StopRanks)] == [True]


def test_a_server_that_a_restart_drains_already_is_waited_for_and_begins_again_if_its_node_stays():
    world = servers(count=3)
    world.send(ev.NodesSeen(world.seen()))
    victim = where(world)
    world.send(ev.Commanded("1", "restart", "s/0"))
    asked = len(world.of(act.StopRanks))
    world.send(ev.CauseLearned(f"node/{victim}", (Clue("pod", "EvictionByEvictionAPI: Eviction API: evicting"),)))
    world.send(ev.Tick())
    assert world.state.departures[victim].drain_by is not None
    assert len(world.of(act.StopRanks)) == asked, "it is not asked twice"
    world.send(ev.RankEnded("s", 0, 1, Outcome(ok=True)))
    world.send(ev.CopiesSaved(victim))
    assert world.state.ranks["s", 0].phase is RankPhase.WAITING
    world.now = world.state.departures[victim].gone_at + limits.ANNOUNCED_END_WINDOW_S
    world.send(ev.Tick())
    assert [world.state.ranks["s", rank].phase for rank in (0, 1)] == [RankPhase.STARTING, RankPhase.READY]
