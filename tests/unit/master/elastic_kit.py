"""Worlds with an elastic role, and events in them."""

from __future__ import annotations

from master_kit import World, job, nodes

from dljob.master.state import events as ev
from dljob.master.state.state import Phase, RankPhase


def boot(count=3, role=None, *others, own_nodes=False, extra=(), group=None, **spec):
    """Return a running world: 3 ranks (at least 1) of one CPU on nodes with one CPU each."""
    e = {"name": "e", "type": "Elastic", "replicas": 3, "minReplicas": 1, "maxReplicas": 4, **(role or {})}
    any_ = {"name": "any", "replicas": 8, "maxReplicas": 9, "cpu": "4", **(group or {})}
    made = job(e, *others, nodeGroups=[any_], **spec)
    world = World(made, views=(*nodes(count, cpus=1), *extra), own_nodes=own_nodes).boot()
    world.send(ev.NodesSeen(world.seen()))
    assert world.state.phase is Phase.RUNNING
    return world


ROOMY = nodes(20, cpus=1)[17:]


def fleet(count=3, *, extra=ROOMY, role=None, **spec):
    """Return a running world whose ranks are those of an Actor role, beside a small driver."""
    driver = {"name": "d", "resources": {"cpu": "0.01"}}
    return boot(count, {"type": "Actor", "driver": False, **(role or {})}, driver, extra=extra, **spec)


def lose(world, unit):
    node = world.state.units[unit].node
    world.lose_node(node)
    world.settle()
    return node


def wait_for(world, reason, ticks=20):
    """Advance time until another note with this reason appears; returns the note."""
    before = len(world.notes(reason))
    while len(world.notes(reason)) == before:
        ticks -= 1
        assert ticks, f"no {reason}"
        world.tick()
        world.settle()
    return world.notes(reason)[-1]


def join(world, count=1):
    numbers = [n for n in range(8, 40) if f"n{n}" not in {view.id for view in world.views}]
    fresh = tuple(nodes(40, cpus=1)[n] for n in numbers[:count])
    for node in fresh:
        world.add_node(node)
    world.settle()
    return fresh


def ready(world, role="e"):
    return {rank for (name, rank), own in world.state.ranks.items() if name == role and own.phase is RankPhase.READY}
