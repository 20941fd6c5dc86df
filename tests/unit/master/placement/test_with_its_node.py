"""A host that went with its node, heard of before the list of nodes says so; and evidence that comes before the end."""

from __future__ import annotations

from master_kit import World, host, job, nodes

from dljob.master.ledger.view import shown
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state.evolve import evolve
from dljob.master.state.state import Phase
from dljob.master.state.views import Clue, Outcome, Reason
from dljob.telemetry import reasons

WITH_ITS_NODE = Outcome(ok=False, reason=Reason.NODE_LOST, message="its node is gone")
GONE = Outcome(ok=False, reason=Reason.UNKNOWN, detail="its worker process has died")
OOM = Clue("kernel", "Out of memory: Killed process 7 (w/1)")


def incidents(world):
    return [(fault.reason, fault.target, fault.level) for fault in world.state.faults]


def spent(world, role):
    (own,) = [row["accounts"] for row in shown(world.state, world.now)["roles"] if row["name"] == role]
    return own


def two_on_a_node():
    """`w` and `v` on one node, another one is free; and the node."""
    roles = ({"name": "w", "resources": {"cpu": "1"}}, {"name": "v", "resources": {"cpu": "1"}})
    world = World(job(*roles), views=nodes(2, cpus=2)).boot()
    node = world.state.units["w/0"].node
    assert world.state.units["v/0"].node == node
    return world, node


def test_all_ranks_of_a_lost_node_move_at_the_first_report():
    world, node = two_on_a_node()
    seen = len(world.all_actions)
    world.lose_node(node)
    world.pending.clear()
    world.send(ev.HostLost(host("w", 0), 1, WITH_ITS_NODE))
    assert incidents(world) == [("NodeLost", "w/0", "Process"), ("NodeLost", "v/0", "Process")]
    assert [note.target for note in world.notes(reasons.NODE_LOST)] == ["job"]
    assert world.of(act.SpawnHost, seen) == [], "nobody is made again where nothing is"
    world.send(ev.HostLost(host("v", 0), 1, WITH_ITS_NODE))
    world.send(ev.NodesSeen(world.seen()))
    world.settle()
    assert world.state.phase is Phase.RUNNING
    assert {unit.node for unit in world.state.units.values()}.isdisjoint({node})
    assert len(incidents(world)) == 2
    assert world.state.restarts["Node"] == 1


def test_a_host_of_which_nobody_knows_the_node_is_lost_alone():
    world = World(job({"name": "w"}), views=nodes(1)).boot()
    own = world.state.hosts[host("w", 0)]
    world.state = evolve(world.state, hosts=world.state.hosts.set(host("w", 0), evolve(own, node="")))
    world.hold = True
    world.send(ev.HostLost(host("w", 0), 1, WITH_ITS_NODE))
    assert incidents(world) == [("NodeLost", "w/0", "Process")]
    assert world.state.nodes, "no node is struck off for it"


def test_a_job_that_ends_moves_nothing():
    world, _ = two_on_a_node()
    world.send(ev.Commanded("c", "stop"))
    world.send(ev.HostLost(host("w", 0), 1, WITH_ITS_NODE))
    world.settle()
    assert (world.state.phase, world.state.restarts.get("Node")) == (Phase.STOPPED, None)


def test_ranks_of_a_lost_node_count_as_heard_as_late_as_the_reported_one():
    world, node = two_on_a_node()
    world.lose_node(node)
    world.pending.clear()
    world.send(ev.HostLost(host("w", 0), 1, WITH_ITS_NODE, seen=world.now + 3), after=5)
    assert spent(world, "v") == {"productive": 3, "detect": 2}
    world.now += 1
    assert spent(world, "v")["schedule"] == 1


def test_evidence_before_the_end_is_there_when_it_is_decided():
    rule = {"name": "memory", "onReasons": ["OOMKilled"], "action": "RestartRole"}
    world = World(job({"name": "w", "replicas": 2}, faultTolerance={"rules": [rule]}), views=nodes(2)).boot()
    world.send(ev.CauseLearned("w/1", (OOM,), incarnation=1))
    world.kill("w", 1, GONE)
    world.settle()
    assert incidents(world) == [("OOMKilled", "w", "Role")]
    assert not world.state.notices
    world.kill("w", 1, GONE)
    world.settle()
    assert incidents(world)[1] == ("Unknown", "w/1", "Process"), "it was of one end only"


def test_evidence_about_nobody_that_lives_is_nothing():
    world = World(job({"name": "w", "replicas": 2}), views=nodes(2)).boot()
    before = world.state
    for target, incarnation in (("w/9", 1), ("w/x", 1), ("v/0", 1), ("w/1", 2), ("w/1", 0)):
        world.send(ev.CauseLearned(target, (OOM,), incarnation))
    assert world.state is before
