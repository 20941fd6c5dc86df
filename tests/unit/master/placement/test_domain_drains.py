"""Servers whose role goes to another topology domain: they finish their requests first, or stay where they are."""

from __future__ import annotations

from dataclasses import replace

from immutables import Map
from master_kit import KILLED, World, host, job, nodes

from dljob.master import status
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.evolve import evolve
from dljob.master.state.state import Phase, RankPhase, UnitPhase
from dljob.master.state.transaction import StateTransaction
from dljob.telemetry import reasons

DRAIN_S = 60
SERVER = {"entrypoint": {"module": "serve.py"}, "driver": False, "ports": [{"name": "http"}]}
RACK = {"annotations": {"scheduling.dljob.io/topology-key": "rack"}}


def racked(racks):
    views = nodes(len(racks), cpus=1)
    return tuple(replace(view, labels=(*view.labels, ("rack", rack))) for view, rack in zip(views, racks, strict=True))


def serving(role=None, **more):
    """Three servers in rack b, each on a node of its own, and a driver elsewhere."""
    drain = {"signal": "SIGUSR1", "timeoutSeconds": DRAIN_S}
    server = {"name": "s", "replicas": 3, **SERVER, **RACK, "drain": drain, **(role or {})}
    world = World(job(server, {"name": "w"}, **more), views=racked("bbbaaaa")).boot()
    for rank in range(3):
        world.send(ev.RankServes("s", rank, 1, (("http", f"10.0.0.{rank}:80"),), ready=True))
    return world


def lose(world, unit="s/0"):
    """A server's node is gone; the ends of the others stay on their way."""
    world.now += 10
    world.lose_node(world.state.units[unit].node)
    return settle(world)


def settle(world):
    held = []
    while world.pending:
        event = world.pending.pop(0)
        if isinstance(event, ev.RankEnded):
            held.append(event)
        else:
            world.send(event)
    return held


def give(world, held):
    world.pending += held
    world.settle()


def racks_of(world):
    labels = {view.id: dict(view.labels)["rack"] for view in world.views}
    return [
        labels[own.node] if own.phase is UnitPhase.HELD else "" for _, own in sorted(world.state.units.items())[:-1]
    ]


def phases(world):
    return [world.state.ranks["s", rank].phase.value for rank in range(3)]


def kills(world, since):
    return [a.host for a in world.of(act.KillHost, since) if a.host.role == "s"]


def test_servers_finish_their_requests_before_they_go_to_another_domain():
    world = serving()
    since = len(world.all_actions)
    held = lose(world)
    assert phases(world) == ["Waiting", "Stopping", "Stopping"]
    assert status.endpoints(world.state)["s"] == []
    assert [(a.host.index, a.ranks) for a in world.of(act.StopRanks, since)] == [(1, (1,)), (2, (2,))]
    assert world.state.domain_move.finish_by == world.now + DRAIN_S + limits.SIGTERM_GRACE_S
    (note,) = [note for note in world.notes(reasons.NO_ROOM) if note.target == "s"]
    assert note.message == "it goes to another topology domain: 2 servers of it finish requests first, within 90 s"
    assert kills(world, since) == [host("s", 0)], "only the lost one is ended"
    give(world, held[:1])
    assert (phases(world), racks_of(world)) == (["Waiting", "Waiting", "Stopping"], ["", "b", "b"])
    give(world, held[1:])
    assert racks_of(world) == ["a", "a", "a"]
    assert [world.state.ranks["s", rank].incarnation for rank in range(3)] == [2, 2, 2]
    assert (world.state.phase, world.state.domain_move) == (Phase.RUNNING, None)


def test_servers_that_ignore_their_drain_go_to_another_domain_in_time():
    world = serving()
    lose(world)
    at = world.now
    while world.state.domain_move is not None:
        world.tick()
    world.settle()
    assert (world.now, racks_of(world)) == (at + DRAIN_S + limits.SIGTERM_GRACE_S, ["a", "a", "a"])


def test_servers_start_again_where_they_are_if_their_domain_has_room_meanwhile():
    world = serving()
    held = lose(world)
    world.add_node(racked("bbbaaaab")[7])
    held += settle(world)
    assert racks_of(world) == ["b", "b", "b"], "the lost one has its place at once"
    give(world, held[:1])
    assert phases(world) == ["Ready", "Waiting", "Stopping"]
    since = len(world.all_actions)
    give(world, held[1:])
    assert phases(world) == ["Ready", "Ready", "Ready"]
    assert (kills(world, since), racks_of(world)) == ([], ["b", "b", "b"])
    assert not world.notes(reasons.TOPOLOGY_DOMAIN_CHANGED)


def test_a_server_that_ignored_its_drain_is_ended_where_it_stays():
    world = serving()
    held = lose(world)
    world.add_node(racked("bbbaaaab")[7])
    settle(world)
    give(world, held[:1])
    since = len(world.all_actions)
    while world.state.domain_move is not None:
        world.tick()
    assert kills(world, since) == [host("s", 2)]
    world.settle()
    assert phases(world) == ["Ready", "Ready", "Ready"]
    assert racks_of(world) == ["b", "b", "b"]


def test_servers_that_ignored_their_drain_are_ended_in_time_though_the_lost_one_is_still_being_reserved():
    world = serving()
    lose(world)
    ends_at = world.state.domain_move.finish_by
    world.add_node(racked("bbbaaaab")[7])
    world.deliver()
    assert world.pending == [ev.UnitReserved("s/0", 2, "n7")], "the new node has not answered yet"
    since = len(world.all_actions)
    while world.now < ends_at:
        world.tick()
    assert (world.now, kills(world, since)) == (ends_at, [host("s", 1), host("s", 2)])
    world.settle()
    assert (phases(world), racks_of(world)) == (["Ready", "Ready", "Ready"], ["b", "b", "b"])


def test_a_server_that_leaves_its_fleet_does_not_start_again():
    world = serving({"minReplicas": 1, "maxReplicas": 3})
    world.send(ev.Commanded("less", "scale", "s", count=2))
    world.tick()
    held = lose(world)
    assert (world.state.sizes["s"].leaving, world.state.domain_move.units) == ((2,), ("s/1", "s/2"))
    world.add_node(racked("bbbaaaab")[7])
    settle(world)
    give(world, [event for event in held if event.rank == 1])
    while world.state.domain_move is not None:
        world.tick()
    world.settle()
    assert phases(world) == ["Ready", "Ready", "Absent"]


def test_servers_start_again_if_no_other_domain_has_room_any_longer():
    world = serving()
    held = lose(world)
    for view in [view for view in world.views if dict(view.labels)["rack"] == "a"][:2]:
        if view.id != world.state.units["w/0"].node:
            world.lose_node(view.id)
    held += settle(world)
    give(world, held)
    assert (phases(world), racks_of(world)) == (["Waiting", "Ready", "Ready"], ["", "b", "b"])
    assert "room" in world.state.search.no_room_reason


def test_a_server_whose_host_or_node_is_lost_in_its_drain_goes_with_the_others():
    for lost in ("host", "node"):
        world = serving()
        held = lose(world)
        if lost == "host":
            world.send(ev.HostLost(host("s", 1), 1, KILLED))
        else:
            world.lose_node(world.state.units["s/1"].node)
            world.pending = [event for event in world.pending if not isinstance(event, ev.HostLost)]
            settle(world)
        assert phases(world)[1] == "Waiting"
        give(world, [event for event in held if event.rank == 2])
        assert racks_of(world) == ["a", "a", "a"]
        assert phases(world) == ["Ready", "Ready", "Ready"]


def test_the_search_for_room_does_not_end_while_servers_finish():
    wait = {"node": {"pendingTimeoutSeconds": 60}}
    world = serving(faultTolerance=wait)
    lose(world)
    at = world.now
    while world.state.domain_move is not None:
        world.tick()
    world.settle()
    assert (world.now, racks_of(world)) == (at + DRAIN_S + limits.SIGTERM_GRACE_S, ["a", "a", "a"])
    assert world.state.verdict is None


def test_a_restart_of_servers_that_are_to_go_starts_them_in_the_other_domain():
    world = serving()
    held = lose(world)
    world.send(ev.Commanded("r", "restart", "s"))
    held += settle(world)
    (incident,) = world.state.incidents.values()
    assert incident.is_backoff_over
    give(world, held)
    assert racks_of(world) == ["a", "a", "a"]
    assert phases(world) == ["Ready", "Ready", "Ready"]


def test_a_new_master_waits_for_servers_that_finish():
    world = serving()
    lose(world)
    since = len(world.all_actions)
    world.crash_master()
    assert [a.ranks for a in world.of(act.StopRanks, since)] == [(1,), (2,)]
    world.settle()
    assert racks_of(world) == ["a", "a", "a"]


def test_servers_stay_if_the_lost_one_is_not_needed_any_longer():
    world = serving()
    held = lose(world)
    d = StateTransaction(world.state, world.now)
    d.set_rank(("s", 0), evolve(d.ranks["s", 0], phase=RankPhase.SUCCEEDED, incident=0))
    d.incidents = Map()
    world.state, world.hold = d.freeze(), True
    give(world, held)
    assert (phases(world), racks_of(world)) == (["Succeeded", "Ready", "Ready"], ["", "b", "b"])
    assert world.state.domain_move is None
