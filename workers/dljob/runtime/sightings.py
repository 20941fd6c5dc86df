"""Which looks at the nodes PrimeMaster is to hear of: those that may change what it decides, for each is journaled."""

from __future__ import annotations

import time
from collections.abc import Callable

from dljob.master import elastic
from dljob.master.state import JobState, Phase
from dljob.master.views import NodeView

ROOM_LOOKS = 5
"""So many looks in a row, a second apart, there is room before a role is to grow into it: on a shared Ray others come
and go all the time."""
REST = 20
"""For so many times as long as a look for room took there is none: of thousands of units it takes a good part of a
second, in which PrimeMaster does nothing else."""


class Sightings:
    """What was told of the nodes.

    While something is to be placed every change is news. Else what is free matters only to roles that are to have more
    ranks: room that lasts is news, and so is less of it than a role is about to take.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._told: object = None
        self._lasts = 0
        self._clock = clock
        self._rests_until = 0.0

    def news(self, state: JobState, nodes: tuple[NodeView, ...]) -> bool:
        """Whether PrimeMaster is to hear of these nodes; it is taken for told."""
        settled = state.phase is Phase.RUNNING and all(own.save_by is None for own in state.sizes.values())
        view = tuple((n.id, n.total, n.labels, n.leaving, () if settled else n.free) for n in nodes)
        change = self._room(state, nodes) if settled else 0
        self._lasts = self._lasts if settled else 0
        if view == self._told and change >= 0 and self._lasts < ROOM_LOOKS:
            return False
        self._told, self._lasts = view, 0
        return True

    def _room(self, state: JobState, nodes: tuple[NodeView, ...]) -> int:
        """What the nodes change for roles that are to have more ranks, 0 while it rests."""
        began = self._clock()
        if began < self._rests_until:
            return 0
        change = elastic.room(state, nodes)
        took = self._clock() - began
        self._rests_until = began + took * REST
        self._lasts = self._lasts + 1 if change > 0 else 0
        return change
