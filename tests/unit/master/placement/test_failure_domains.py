"""Failure domains: after several failures in one rack all of its nodes are left at once, where others have room."""

from __future__ import annotations

from dataclasses import replace

import pytest
from master_kit import World, job, nodes

from dljob.master.placement import previous_attempt
from dljob.master.state import events as ev
from dljob.master.state.state import Phase, UnitPhase
from dljob.telemetry import reasons

PAIR = {"failureDomainLabel": "rack", "domainFailures": 2}


def racked(racks):
    """Nodes n0, n1, ... of one CPU in these racks; `-` is a node without the label."""
    views = nodes(len(racks), cpus=1)
    return tuple(
        replace(view, labels=(*view.labels, *((("rack", rack),) if rack != "-" else ())))
        for view, rack in zip(views, racks, strict=True)
    )


def boot(racks, replicas=3, **node):
    made = job({"name": "w", "replicas": replicas}, faultTolerance={"node": {**PAIR, **node}})
    return World(made, views=racked(racks)).boot()


def rack(world, node):
    return dict(next(view.labels for view in world.views if view.id == node)).get("rack")


def homes(world):
    return sorted(rack(world, own.node) or "-" for own in world.state.units.values() if own.phase is UnitPhase.HELD)


def lose(world, node, *, after=10.0):
    world.now += after
    world.lose_node(node)
    world.settle()


def later(world, seconds):
    world.settle()
    world.now += seconds
    world.send(ev.Tick())
    world.settle()


def held(world, value):
    """Nodes of a rack that hold units."""
    return sorted({own.node for own in world.state.units.values() if own.node and rack(world, own.node) == value})


def test_the_second_lost_node_of_a_rack_takes_its_other_nodes_with_it():
    world = boot("aaabbb")
    first, second, third = held(world, "a")
    lose(world, first)
    assert held(world, "a") == [second, third]
    lose(world, second)
    assert homes(world) == ["b", "b", "b"]
    assert world.state.exclusions[third].reason == reasons.DOMAIN_REPLACED
    (note,) = world.notes(reasons.DOMAIN_REPLACED)
    assert note.message == f"2 nodes of rack=a failed within 600 s; its other nodes are left with them: {third}"
    later(world, 5)
    assert world.state.phase is Phase.RUNNING
    assert world.state.restarts["Node"] == 2, "the second incident moves two ranks, and counts once"


def test_a_frozen_node_counts_as_one_that_is_lost():
    world = boot("aaabbb")
    first, second, third = held(world, "a")
    world.freeze_node(first)
    world.settle()
    world.now += 10
    world.freeze_node(second)
    world.settle()
    assert homes(world) == ["b", "b", "b"]
    assert set(world.state.exclusions) == {first, second, third}


def test_a_node_that_fails_twice_is_one_failed_node():
    world = boot("aaabbb", excludeSeconds=0, maxFailures=5)
    first = held(world, "a")[0]
    for _ in range(2):
        world.freeze_node(first)
        world.settle()
        world.thaw_node(first)
        later(world, 60)
    assert not world.notes(reasons.DOMAIN_REPLACED)


def test_failures_further_apart_than_the_window_are_not_counted_together():
    world = boot("aaabbb", domainWindowSeconds=60)
    first, second, _ = held(world, "a")
    lose(world, first)
    lose(world, second, after=61)
    assert not world.notes(reasons.DOMAIN_REPLACED)


def test_failures_of_two_racks_are_not_counted_together():
    world = boot("aabbcc", replicas=4)
    lose(world, held(world, "a")[0])
    lose(world, held(world, "b")[0])
    assert not world.notes(reasons.DOMAIN_REPLACED)


def test_without_room_for_the_whole_rack_only_the_failed_nodes_are_left():
    world = boot("aaabb")
    first, second, third = held(world, "a")
    lose(world, first)
    lose(world, second)
    assert homes(world) == ["a", "b", "b"]
    assert third not in world.state.exclusions
    (note,) = world.notes(reasons.DOMAIN_STAYS)
    assert note.message.startswith("2 nodes of rack=a failed within 600 s; its other nodes are used on: ")


def test_one_rack_for_all_nodes_is_never_left():
    world = boot("aaaaa", replicas=2)
    for _ in range(2):
        lose(world, held(world, "a")[0])
    assert len(world.notes(reasons.DOMAIN_STAYS)) == 1
    assert homes(world) == ["a", "a"]


def test_nodes_without_the_label_are_in_no_rack():
    world = boot("---bbb")
    for _ in range(2):
        node = next(own.node for own in world.state.units.values() if rack(world, own.node) is None)
        lose(world, node)
    assert not world.notes(reasons.DOMAIN_REPLACED)
    assert not world.notes(reasons.DOMAIN_STAYS)


def test_a_rack_is_left_for_nodes_without_the_label():
    world = boot("bbb---")
    for _ in range(2):
        lose(world, held(world, "b")[0])
    (note,) = world.notes(reasons.DOMAIN_REPLACED)
    assert "2 nodes of rack=b failed within 600 s" in note.message
    assert homes(world) == ["-", "-", "-"]


def test_nodes_lost_at_once_take_the_rest_of_their_rack_in_the_same_incident():
    world = boot("aaabbb")
    gone = held(world, "a")[:2]
    world.now += 10
    views = tuple(view for view in world.views if view.id not in gone)
    for node in gone:
        world.lose_node(node)
    world.send(ev.NodesSeen(views))
    world.settle()
    assert homes(world) == ["b", "b", "b"]
    assert world.state.restarts["Node"] == 1


def test_announced_departures_are_no_failures():
    world = boot("aaabbbbb")
    for node in held(world, "a")[:2]:
        world.now += 10
        world.views = tuple(replace(view, leaving=world.now + 60) if view.id == node else view for view in world.views)
        world.send(ev.NodesSeen(world.seen()))
        world.settle()
        lose(world, node)
    assert not world.notes(reasons.DOMAIN_REPLACED)


def test_the_next_attempt_counts_on_by_domain_and_not_by_node():
    world = boot("aaabbb", maxFailures=2)
    world.freeze_node(held(world, "a")[0])
    world.settle()
    marks = previous_attempt.carry(world.state)["marks"]
    assert "domain:a" in marks
    assert not [key for key in marks if key.startswith("node:")]


@pytest.mark.parametrize(("failures", "excluded"), [(1, True), (2, False)])
def test_a_node_is_excluded_from_the_failure_that_the_spec_says(failures, excluded):
    world = World(
        job({"name": "w", "replicas": 2}, faultTolerance={"node": {"maxFailures": failures}}), views=nodes(3, cpus=1)
    ).boot()
    node = world.state.units["w/0"].node
    world.freeze_node(node)
    world.settle()
    assert node in world.state.exclusions, "it does not answer"
    world.thaw_node(node)
    later(world, 31)
    assert (node in world.state.exclusions) is excluded


def test_the_second_failure_excludes_and_old_failures_are_forgotten():
    spec = {"node": {"maxFailures": 2}, "windowSeconds": 3600}
    world = World(job({"name": "w", "replicas": 2}, faultTolerance=spec), views=nodes(3, cpus=1)).boot()
    node = world.state.units["w/0"].node
    for _ in range(2):
        world.freeze_node(node)
        world.settle()
        world.thaw_node(node)
        later(world, 31)
    assert node in world.state.exclusions
    world.now += 4000
    other = world.state.units["w/1"].node
    world.freeze_node(other)
    world.settle()
    assert [key for key in world.state.marks if key.startswith("node:")] == [f"node:{other}"]
