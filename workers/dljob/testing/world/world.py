"""A job's simulated world: one PrimeMaster (the real core), and a model of all that the core can observe.

A driver advances a world by moves: `moves()` lists the possible ones, `faults(...)` the possible faults, `apply(move)`
makes one (the same move in the same world leads to the same world), `clone()` copies the world to try a move on, and
`violations()` lists the broken invariants. Items that have not taken effect yet are in `pending`; the driver chooses
when each does. A world itself has no randomness.

    world = World(plan, spec, nodes)
    while move := choose(world.moves()):
        world.apply(move)
        assert not world.problems
"""

from __future__ import annotations

from dljob.master.state.events import Tick
from dljob.master.transition import next_wake
from dljob.testing.world import events, invariants
from dljob.testing.world import faults as mishaps
from dljob.testing.world.model import Arrive, FaultMove, Happen, Move, Pending, Wake
from dljob.testing.world.prime_master import MasterWorld


class World(MasterWorld):
    """One job and its surroundings, as a driver sees them; `WorldState` has the attributes."""

    def moves(self) -> list[Move]:
        """Return the possible moves without faults."""
        possible: list[Move] = [Happen(number) for number in self.pending]
        if self.state is not None and next_wake(self.state) is not None:
            possible.append(Wake())
        return possible

    def faults(self, *kinds: str) -> list[Move]:
        """Return the possible faults of these kinds (see `mishaps.FAULTS`): one for each victim."""
        return [fault for kind in kinds for fault in mishaps.possible(self, kind)]

    def apply(self, move: Move) -> None:
        """Make a move. Time advances only when an item or a timer is later than now."""
        match move:
            case Happen(number, more):
                popped = [self._pop(number_or_item) for number_or_item in (number, *more)]
                self.now = (
                    max(self.now, *(number_or_item.least for number_or_item in popped))
                    if more
                    else max(self.now, popped[0].least)
                )
                events.happen(self, popped[0].item, *(number_or_item.item for number_or_item in popped[1:]))
            case Wake():
                self.now = max(self.now, (self.wake_at() or self.now))
                self.tell((Arrive(Tick()),))
            case FaultMove():
                mishaps.fault(self, move)

    def _pop(self, number: int) -> Pending:
        self.arriving.pop(number, None)
        self.carrying.pop(number, None)
        return self.pending.pop(number)

    def clone(self) -> World:
        """Return an independent copy of the world."""
        # Tables are copied; the values in them are frozen, and shared.
        new = object.__new__(World)
        new.__dict__.update(
            {
                name: value.copy() if isinstance(value, dict | list | set) else value
                for name, value in vars(self).items()
            }
        )
        return new

    def violations(self) -> list[str]:
        """Return all broken invariants, after a check of the whole world."""
        return [*self.problems, *invariants.sweep(self)]
