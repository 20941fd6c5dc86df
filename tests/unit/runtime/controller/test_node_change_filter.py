"""Which looks at the nodes are journaled: all that may change something, and no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from master_shell_kit import World

from dljob.master.state.evolve import evolve
from dljob.master.state.sizing import Sizing
from dljob.master.state.state import JobState, Phase, UnitPhase, UnitState, homeless_units
from dljob.master.state.views import NodeView
from dljob.runtime.controller import node_change_filter as module
from dljob.runtime.controller.node_change_filter import LISTS_WITH_ROOM, NodeChangeFilter

FULL = (NodeView("n1", (("CPU", 8),), (("CPU", 1),), (), "127.0.0.1"),)
ROOM = (replace(FULL[0], free=(("CPU", 8),)),)


@pytest.fixture
def state(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> JobState:
    """A job that runs, for which one processor is no room."""
    monkeypatch.setattr(module.elastic, "room", lambda _state, nodes: int(nodes[0].free == ROOM[0].free))
    return evolve(World(tmp_path).setup().initial(0.0), phase=Phase.RUNNING)


def sightings() -> NodeChangeFilter:
    """Whose looks take no time."""
    return NodeChangeFilter(lambda: 0.0)


def test_while_something_is_placed_every_change_is_news(state):
    recovering, it = evolve(state, phase=Phase.RECOVERING), sightings()
    assert [it.is_relevant(recovering, nodes) for nodes in (FULL, FULL, ROOM, ROOM, FULL)] == [
        True,
        False,
        True,
        False,
        True,
    ]
    assert it.is_relevant(state, FULL), "it runs now: that may be later than the last change"
    assert not it.is_relevant(state, FULL)


def test_free_room_is_news_when_it_lasts(state):
    it = sightings()
    assert it.is_relevant(state, FULL)
    assert [it.is_relevant(state, ROOM) for _ in range(LISTS_WITH_ROOM)] == [False] * (LISTS_WITH_ROOM - 1) + [True]


def test_free_room_that_comes_and_goes_is_no_news(state):
    it = sightings()
    it.is_relevant(state, FULL)
    looks = ([ROOM] * (LISTS_WITH_ROOM - 1) + [FULL]) * 50
    assert not any(it.is_relevant(state, nodes) for nodes in looks)


def test_less_than_a_role_is_about_to_take_is_news_at_once(state, monkeypatch):
    it = sightings()
    it.is_relevant(state, ROOM)
    monkeypatch.setattr(module.elastic, "room", lambda *_: -1)
    assert it.is_relevant(state, FULL)


def test_while_a_role_is_about_to_move_every_change_is_news(state):
    it = sightings()
    it.is_relevant(state, FULL)
    moving = evolve(state, sizes=state.sizes.set("worker", Sizing(1, 2, target=2, save_by=9.0)))
    assert [it.is_relevant(moving, nodes) for nodes in (FULL, ROOM, ROOM, FULL)] == [True, True, False, True]


def test_while_a_unit_of_a_role_with_bounds_has_no_node_every_change_is_news(state):
    it = sightings()
    it.is_relevant(state, FULL)
    unit = next(iter(state.units))
    lost = state.units.set(unit, UnitState(UnitPhase.LOST, 1))
    wants = evolve(
        state, units=lost, homeless=homeless_units(lost), sizes=state.sizes.set("worker", Sizing(1, 2, target=0))
    )
    assert [it.is_relevant(wants, nodes) for nodes in (FULL, ROOM, ROOM, FULL)] == [True, True, False, True]


def test_a_node_that_comes_is_news_at_once(state):
    it = sightings()
    it.is_relevant(state, FULL)
    assert it.is_relevant(state, (*FULL, replace(FULL[0], id="n2")))


def test_an_old_look_of_somebody_else_that_came_late_is_mended_by_the_next(state):
    it, both = sightings(), (*FULL, replace(FULL[0], id="n2"))
    assert it.is_relevant(state, both)
    it.record(state, FULL)
    assert [it.is_relevant(state, both) for _ in range(2)] == [True, False]


def test_slow_looks_at_the_room_are_made_rarely(state, monkeypatch):
    now, looks = [0.0], list[float]()

    def slow(_state: JobState, _nodes: tuple[NodeView, ...]) -> int:
        looks.append(now[0])
        now[0] += 0.5
        return 0

    monkeypatch.setattr(module.elastic, "room", slow)
    it = NodeChangeFilter(lambda: now[0])
    for second in range(25):
        now[0] = max(now[0], float(second))
        it.is_relevant(state, FULL)
    assert looks == [0.0, 10.0, 20.0]
