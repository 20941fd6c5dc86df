"""Room that others free, or take, while a job runs: when it is worth telling."""

from __future__ import annotations

from dataclasses import replace

import pytest
from elastic_kit import boot, lose, ready, wait_for
from master_kit import nodes

from dljob.master.placement import elastic
from dljob.master.state import events as ev
from dljob.telemetry import reasons

TAKEN = nodes(9, cpus=2)[8]
"""A node of two processors."""


def beside_another(free=0, **role):
    """`e` goes on with 2 of 3; of a node of two processors another job has taken all but so many."""
    world = boot(3, role, {"name": "d"}, extra=nodes(4, cpus=1)[3:])
    lose(world, "e/2")
    wait_for(world, reasons.RESIZED)
    world.views = (*world.views, TAKEN)
    others(world, free)
    world.send(ev.NodesSeen(world.seen()))
    return world


def others(world, free):
    """The other job leaves so many processors."""
    left = tuple((name, int(free * amount / 2)) for name, amount in TAKEN.total if free)
    world.views = tuple(replace(view, free=left) if view.id == TAKEN.id else view for view in world.views)


def test_room_that_another_job_frees_is_worth_telling_until_it_is_told():
    world = beside_another()
    for free in (0, 0.5):
        others(world, free)
        assert elastic.room(world.state, world.seen()) == 0
    others(world, 1)
    assert elastic.room(world.state, world.seen()) == 1
    world.send(ev.NodesSeen(world.seen()))
    assert elastic.room(world.state, world.seen()) == 0
    wait_for(world, reasons.RESIZED)
    assert ready(world) == {0, 1, 2}


def test_room_that_another_job_takes_again_is_worth_telling():
    world = beside_another(1)
    assert world.state.sizes["e"].target == 3
    others(world, 0)
    assert elastic.room(world.state, world.seen()) == -1
    world.send(ev.NodesSeen(world.seen()))
    assert world.state.sizes["e"].move_at is None
    assert elastic.room(world.state, world.seen()) == 0


@pytest.mark.parametrize(("first", "then", "change"), [(1, 2, 0), (2, 1, -1)])
def test_free_room_is_news_only_when_it_is_less_than_a_role_is_about_to_take(first, then, change):
    world = beside_another()
    world.send(ev.Commanded("c", "scale", "e", "me", 4))
    others(world, first)
    world.send(ev.NodesSeen(world.seen()))
    assert world.state.sizes["e"].target == 2 + first
    others(world, then)
    assert elastic.room(world.state, world.seen()) == change


def test_room_is_nothing_to_a_role_that_has_what_it_is_to_have_or_has_ended():
    world = beside_another(driver=False)
    world.end_role("e")
    world.settle()
    others(world, 2)
    assert elastic.room(world.state, world.seen()) == 0
    assert elastic.room(boot(3).state, nodes(9, cpus=4)) == 0
