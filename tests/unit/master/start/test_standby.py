"""Spare nodes: which stand by, what is kept warm there, and how the pool fills up again."""

from __future__ import annotations

from dataclasses import replace

from master_kit import World, job, nodes

from dljob.master.start.standby import standby_nodes
from dljob.master.state import actions as act
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.state import Phase, SparePhase

WARM = {"spares": {"nodes": 1}, "backoff": {"initialSeconds": 0}}
PAIR = {"name": "w", "replicas": 2, "resources": {"cpu": "1"}}


def world(*roles, count=2, **fault_tolerance):
    views = tuple(replace(node, labels=()) for node in nodes(count, cpus=2))
    return World(job(*roles or (PAIR,), faultTolerance=WARM | fault_tolerance), views=views).boot()


def warm(w):
    """(Node, role) -> how many processes wait there."""
    found = {}
    for (role, node, _), spare in w.state.spares.items():
        if spare.phase is SparePhase.READY:
            found[node, role] = found.get((node, role), 0) + 1
    return found


def test_a_spare_node_has_a_process_for_each_host_that_a_node_may_lose():
    w = world({**PAIR, "replicas": 3}, {"name": "one", "resources": {"cpu": "1"}}, count=3)
    assert list(standby_nodes(w.state).values()) == [("n2",)]
    most = max(sum(u.node == node for name, u in w.state.units.items() if name[0] == "w") for node in ("n0", "n1"))
    assert warm(w) == {("n2", "w"): most, ("n2", "one"): 1}


def test_a_lost_node_costs_no_new_process_and_leaves_the_pool_short_until_a_node_joins():
    w = world()
    seen = len(w.all_actions)
    w.lose_node("n0")
    w.settle()
    assert {u.node for u in w.state.units.values()} == {"n1"}
    assert not w.of(act.SpawnHost, seen)
    assert w.state.phase is Phase.RUNNING
    assert (list(standby_nodes(w.state).values()), warm(w)) == ([()], {})
    w.add_node(replace(w.views[0], id="n9"))
    w.settle()
    assert list(standby_nodes(w.state).values()) == [("n9",)]
    assert warm(w) == {("n9", "w"): 2}


def test_a_node_whose_exclusion_ends_fills_the_pool_again():
    w = world(leaseSeconds=5, node={"excludeSeconds": 10})
    w.freeze_node("n0")
    w.settle()
    assert warm(w) == {}
    w.thaw_node("n0")
    w.settle()
    assert warm(w) == {}
    while w.state.exclusions:
        w.tick()
    w.settle()
    assert warm(w) == {("n0", "w"): 2}


def test_spares_of_a_lost_spare_node_are_forgotten_and_another_node_takes_its_place():
    w = world(count=3)
    ((first,),) = standby_nodes(w.state).values()
    w.lose_node(first)
    w.settle()
    ((second,),) = standby_nodes(w.state).values()
    assert second != first
    assert warm(w) == {(second, "w"): 2}
    assert w.state.restarts.get("Node") is None


def test_a_spare_of_a_spare_node_that_dies_is_made_again():
    w = world()
    w.send(ev.SpareLost("w", "n1", 1, 1))
    w.settle()
    assert warm(w) == {("n1", "w"): 2}
    assert w.state.spares["w", "n1", 1].incarnation == 2


def test_spares_left_on_a_warm_node_are_ended_once_ranks_live_there():
    w = world({**PAIR, "replicas": 3}, count=3, spares={"nodes": 1, "processesPerNode": 1})
    small = next(n for n in ("n0", "n1") if sum(u.node == n for u in w.state.units.values()) == 1)
    w.lose_node(small)
    w.settle()
    assert warm(w) == {(node, "w"): 1 for node in {u.node for u in w.state.units.values()}}


def test_hosts_with_devices_get_none_there_since_nobody_knows_which_devices_they_will_have():
    views = tuple(replace(node, labels=()) for node in nodes(2, cpus=2, GPU=2))
    w = World(job({**PAIR, "accelerator": {"count": 1}}, faultTolerance=WARM), views=views).boot()
    assert list(standby_nodes(w.state).values()) == [("n1",)]
    assert warm(w) == {}
    w.lose_node("n0")
    w.settle()
    assert (w.state.phase, {u.node for u in w.state.units.values()}) == (Phase.RUNNING, {"n1"})


def test_a_role_that_ended_needs_no_process_on_a_spare_node():
    w = world(PAIR, {"name": "short", "driver": False, "resources": {"cpu": "1"}}, count=3)
    assert ("n2", "short") in warm(w)
    w.end("short", 0)
    w.settle()
    assert not any(role == "short" for _, role in warm(w))


def test_nodes_without_group_labels_count_as_nodes_of_every_group():
    views = tuple(replace(node, labels=()) for node in nodes(1, cpus=2))
    w = World(job(PAIR, faultTolerance=WARM), views=views)
    w.send(ev.MasterStarted(1))
    w.send(ev.NodesSeen(w.seen()))
    assert "there is none (kept free as spares: 1 of" in w.state.search.no_room_reason
    w.add_node(replace(views[0], id="n9"))
    w.settle()
    assert w.state.phase is Phase.RUNNING


def test_a_node_where_no_process_comes_up_stands_by_no_more_and_another_takes_its_place():
    w = world(count=3)
    ((first,),) = standby_nodes(w.state).values()
    w.pending.clear()
    for life in range(1, 2 + limits.SPARE_FAILURES):  # the first one had come up
        w.send(ev.SpareLost("w", first, 0, life))
        w.pending.clear()
    assert w.state.spares["w", first, 0].phase is SparePhase.LOST
    ((second,),) = standby_nodes(w.state).values()
    assert second != first
    ordered = {(order.node, order.slot) for order in w.of(act.SpawnSpare) if order.node == second}
    assert ordered == {(second, 0), (second, 1)}
    assert not w.state.spares["w", first, 1].phase.alive
