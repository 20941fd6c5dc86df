"""Filter of node lists: only a change that can affect a decision reaches PrimeMaster, as every event is journaled."""

from __future__ import annotations

import time
from collections.abc import Callable

from dljob.master.placement import elastic
from dljob.master.state.state import JobState
from dljob.master.state.views import NodeView

LISTS_WITH_ROOM = 5
"""Number of consecutive node lists, a second apart, with free capacity before a role grows into it: on a shared Ray
other jobs come and go all the time."""
REST = 20
"""Pause after a capacity check, as a multiple of the time that it took: with thousands of units it blocks the event
loop for a good part of a second."""


class NodeChangeFilter:
    """Compares each list of nodes with the last one that PrimeMaster received, and decides whether it is news.

    While a unit is to be placed every change is news. Otherwise free capacity matters only to roles that are to have
    more ranks: capacity that lasts for `LISTS_WITH_ROOM` lists is news, and so is less than a role is about to take.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._last_received: object = None
        self._lists_with_room = 0
        self._clock = clock
        self._rests_until = 0.0

    def is_relevant(self, state: JobState, nodes: tuple[NodeView, ...]) -> bool:
        """Return whether PrimeMaster must receive these nodes; if so, count them as received."""
        settled = elastic.is_settled(state)
        # Free capacity counts only while nothing is being placed; otherwise every change is news.
        change = self._room(state, nodes) if settled else 0
        self._lists_with_room = self._lists_with_room if settled else 0
        if (
            _view(nodes, settled=settled) == self._last_received
            and change >= 0
            and self._lists_with_room < LISTS_WITH_ROOM
        ):
            return False
        self.record(state, nodes)
        return True

    def record(self, state: JobState, nodes: tuple[NodeView, ...]) -> None:
        """Note that PrimeMaster received these nodes, from any source.

        Other parts list nodes as well; without this an older list that arrives later would pass for no change.
        """
        self._last_received, self._lists_with_room = _view(nodes, settled=elastic.is_settled(state)), 0

    def _room(self, state: JobState, nodes: tuple[NodeView, ...]) -> int:
        """Return how capacity changed for roles that are to grow: > 0 more, < 0 less, 0 no change or still resting."""
        began = self._clock()
        if began < self._rests_until:
            return 0
        change = elastic.room(state, nodes)
        took = self._clock() - began
        self._rests_until = began + took * REST
        self._lists_with_room = self._lists_with_room + 1 if change > 0 else 0
        return change


def _view(nodes: tuple[NodeView, ...], *, settled: bool) -> object:
    return tuple((n.id, n.total, n.labels, n.leaving, () if settled else n.free) for n in nodes)
