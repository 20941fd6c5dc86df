"""Process spares: kept per node and role, taken by whoever needs a process there."""

from __future__ import annotations

from dataclasses import replace

from master_kit import KILLED, World, host, job, nodes

from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.state import Phase, SparePhase
from dljob.master.state.views import Outcome
from dljob.telemetry import reasons

SPARES = {"spares": {"processesPerNode": 1}, "backoff": {"initialSeconds": 0}}


def test_each_node_gets_its_spares_once_the_role_is_ready_there():
    world = World(job({"name": "w", "replicas": 2}, faultTolerance=SPARES), views=nodes(2, cpus=1)).boot()
    assert [(a.role, a.node, a.slot, a.incarnation) for a in world.of(act.SpawnSpare)] == [
        ("w", "n0", 0, 1),
        ("w", "n1", 0, 1),
    ]
    assert {s.phase for s in world.state.spares.values()} == {SparePhase.READY}


def test_a_killed_rank_takes_the_spare_of_its_node_and_starts_at_once():
    world = World(
        job({"name": "w", "replicas": 2, "accelerator": {"count": 1}}, faultTolerance=SPARES), views=nodes(1, GPU=4)
    )
    world.boot()
    devices = world.state.hosts[host("w", 1)].devices
    seen = len(world.all_actions)
    world.kill("w", 1)
    actions = [a for a in world.deliver() if not isinstance(a, act.Note)]
    kill, start = actions
    assert isinstance(kill, act.KillHost)
    assert (start.actor, start.incarnation) == ("spare ('w', 'n0', 0) 1", 2)
    assert [rank.devices for rank in start.ranks] == [devices]
    assert devices
    world.settle()
    assert not world.of(act.SpawnHost, seen)
    (spawned,) = world.of(act.SpawnSpare, seen)
    assert spawned.incarnation == 2
    assert world.state.spares["w", "n0", 0].phase is SparePhase.READY


def test_ranks_beyond_the_spares_get_new_processes():
    pair = {"name": "t", "type": "Elastic", "replicas": 2, "replicasPerGroup": 2}
    world = World(job(pair, faultTolerance=SPARES), views=nodes(1)).boot()
    seen = len(world.all_actions)
    world.kill("t", 0)
    world.settle()
    assert len(world.of(act.SpawnHost, seen)) == 1
    assert len(world.of(act.StartRanks, seen)) == 2
    assert world.state.phase is Phase.RUNNING


def test_a_spare_that_was_taken_but_is_dead_is_a_failure_like_any_other():
    world = World(job({"name": "w", "replicas": 2}, faultTolerance=SPARES), views=nodes(1)).boot()
    world.spares.clear()
    world.kill("w", 0)
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert world.state.restarts["Process"] == 2


def test_a_spare_without_the_devices_of_its_host_is_not_taken():
    gpu = {"name": "w", "replicas": 1, "accelerator": {"count": 1}}
    world = World(job(gpu, faultTolerance=SPARES), views=nodes(2, GPU=1)).boot()
    world.send(ev.SpareReady("w", "n1", 0, 1, "x", 1))
    state = world.state
    moved = replace(state.hosts[host("w", 0)], node="elsewhere")
    world.state = replace(state, hosts=state.hosts.set(host("w", 0), moved))
    seen = len(world.all_actions)
    world.kill("w", 0)
    world.deliver()
    assert world.of(act.SpawnHost, seen)


def test_a_lost_spare_is_replaced_until_it_failed_to_come_up_too_often():
    world = World(job({"name": "w"}, faultTolerance=SPARES), views=nodes(1)).boot()
    key = ("w", "n0", 0)
    world.send(ev.SpareLost(*key, 1))
    assert world.state.spares[key].incarnation == 2
    world.pending.clear()
    for life in range(2, 2 + limits.SPARE_FAILURES):
        world.send(ev.SpareLost(*key, life))
    assert world.state.spares[key].phase is SparePhase.LOST
    assert len(world.notes(reasons.SPARE_POOL_DEGRADED)) == 1
    before = world.state
    assert world.send(ev.SpareLost(*key, 4)) == ()
    assert world.state is before


def test_events_of_an_old_spare_change_nothing():
    world = World(job({"name": "w"}, faultTolerance=SPARES), views=nodes(1)).boot()
    world.send(ev.SpareLost("w", "n0", 0, 1))
    before = world.state
    world.send(ev.SpareLost("w", "n0", 0, 1))
    world.send(ev.SpareReady("w", "n0", 0, 1, "old", 1))
    assert world.state is before


def test_spares_go_with_their_node_and_come_where_ranks_moved_to():
    world = World(job({"name": "w", "replicas": 2}, faultTolerance=SPARES), views=nodes(3, cpus=1)).boot()
    old = {u.node for u in world.state.units.values()}
    (fresh,) = {"n0", "n1", "n2"} - old
    victim = world.state.units["w/0"].node
    world.lose_node(victim)
    world.settle()
    assert {key[1] for key in world.state.spares} == (old - {victim}) | {fresh}


def test_a_node_that_was_left_gets_no_spares_when_a_restart_of_whom_lived_there_is_over():
    world = World(job({"name": "a"}, {"name": "c"}, faultTolerance=SPARES), views=nodes(3, cpus=1)).boot()
    world.send(ev.Commanded("x", "restart"))
    left = world.state.units["c/0"].node
    world.lose_node(left)
    world.deliver(len(world.pending) - 1)
    assert world.state.units["c/0"].node != left
    seen = len(world.all_actions)
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert left not in {a.node for a in world.of(act.SpawnSpare, seen)}
    assert left not in {node for _, node, _ in world.state.spares}


def test_a_job_without_spares_orders_none():
    world = World(job({"name": "w"})).boot()
    world.kill("w", 0, KILLED)
    world.settle()
    assert not world.of(act.SpawnSpare)


def test_a_spare_that_is_on_its_way_is_not_ordered_twice():
    world = World(job({"name": "w", "replicas": 2}, faultTolerance=SPARES), views=nodes(1)).boot()
    world.kill("w", 0)
    world.settle()
    world.send(ev.SpareLost("w", "n0", 0, 2))
    world.pending.clear()
    world.now += 60
    world.kill("w", 0)
    seen = len(world.all_actions)
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert not world.of(act.SpawnSpare, seen)


def test_a_spare_whose_death_is_heard_only_after_it_was_taken_is_a_lost_host():
    world = World(job({"name": "w", "replicas": 2}, faultTolerance=SPARES), views=nodes(1)).boot()
    world.kill("w", 0)
    world.deliver()
    world.pending.clear()
    assert world.state.hosts[host("w", 0)].actor == "spare ('w', 'n0', 0) 1"
    lost = ev.SpareLost("w", "n0", 0, 1)
    assert world.send(lost)
    assert world.state.hosts[host("w", 0)].incarnation == 3
    world.settle()
    assert world.state.phase is Phase.RUNNING
    before = world.state
    assert world.send(lost) == ()
    assert world.state is before


def test_a_role_that_ended_has_its_spares_killed_and_gets_new_ones_when_it_is_restarted():
    world = World(job({"name": "w", "driver": False}, {"name": "x"}, faultTolerance=SPARES), views=nodes(1)).boot()
    world.end("w", 0)
    world.settle()
    (kill,) = world.of(act.KillSpare)
    assert (kill.role, kill.incarnation, kill.actor) == ("w", 1, "spare ('w', 'n0', 0) 1")
    before = world.state
    assert world.send(ev.SpareLost("w", "n0", 0, 1)) == ()
    assert world.state is before
    world.send(ev.Commanded("c", "restart", "w"))
    world.settle()
    assert [a.incarnation for a in world.of(act.SpawnSpare) if a.role == "w"] == [1, 2]


def test_a_spare_that_dies_while_the_job_ends_is_not_made_again():
    world = World(job({"name": "w"}, faultTolerance=SPARES), views=nodes(1)).boot()
    world.send(ev.RankEnded("w", 0, 1, Outcome(ok=True)))
    assert world.state.phase is Phase.STOPPING
    seen = len(world.all_actions)
    world.send(ev.SpareLost("w", "n0", 0, 1))
    assert not world.of(act.SpawnSpare, seen)
    assert world.state.spares["w", "n0", 0].phase is SparePhase.TAKEN
