"""What checkpoints are called, and which of them count. Values without a file in sight.

A *world* is all that save together: an Elastic role, or one Actor rank. A *life* is one run of a world: the role's
generation, the rank's incarnation. Before a life loads it is decided once, for all its ranks, from where; that also
fences: what an earlier life saves beyond it never counts, however late it comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Life:
    """Counts lives, the job's attempts first."""

    attempt: int
    number: int

    def __str__(self) -> str:
        return f"{self.attempt}.{self.number}"


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A saved step of a life; a later life's is newer, whatever the steps are."""

    life: Life
    step: int

    def __str__(self) -> str:
        return f"step {self.step} of life {self.life}"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a life restored; None: it began anew."""

    life: Life
    chosen: Mark | None


@dataclass(frozen=True, slots=True)
class Committed:
    """A checkpoint whose parts are all on disk, and when that was journaled (unix seconds)."""

    mark: Mark
    at: float


@dataclass(frozen=True, slots=True)
class Saves:
    """What is known of a world's checkpoints: the newest that count, and the last decisions, oldest first."""

    committed: tuple[Committed, ...] = ()
    decisions: tuple[Decision, ...] = ()

    @property
    def last(self) -> Committed | None:
        """The newest that counts."""
        return self.committed[-1] if self.committed else None

    def superseded(self, life: Life) -> str:
        """The later life that has begun; empty: none has."""
        later = [made.life for made in self.decisions if made.life > life]
        return str(max(later)) if later else ""

    def decision(self, life: Life) -> Decision | None:
        """What a life restored, once that is decided."""
        return next((made for made in self.decisions if made.life == life), None)


def role_of(world: str) -> str:
    """`trainer` of the world `trainer` (an Elastic role) or `trainer/3` (an Actor rank)."""
    return world.partition("/")[0]


def fence(mark: Mark, decisions: Iterable[Decision]) -> str:
    """Why a mark does not count: a later life went on from before it. Empty when it counts."""
    for decision in decisions:
        if mark.life < decision.life and (decision.chosen is None or mark > decision.chosen):
            since = f"from {decision.chosen}" if decision.chosen else "anew"
            return f"life {decision.life} has gone on {since}"
    return ""
