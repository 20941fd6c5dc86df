"""Which step a new life restores, what is void, and what may go: decisions without a file in sight.

A *life* is one run of all that save together: an Elastic role's generation, an Actor rank's incarnation. Before a life
loads it decides once, for all its ranks, from where; that decision also fences: what an earlier life saves beyond it
never counts, however late it comes.
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
class Found:
    """A checkpoint whose parts are all there; `bad` says why it cannot be used all the same."""

    mark: Mark
    world: int
    memory: bool = False
    bad: str = ""


def fence(mark: Mark, decisions: Iterable[Decision]) -> str:
    """Why a mark does not count: a later life went on from before it. Empty when it counts."""
    for decision in decisions:
        if mark.life < decision.life and (decision.chosen is None or mark > decision.chosen):
            since = f"from {decision.chosen}" if decision.chosen else "anew"
            return f"life {decision.life} has gone on {since}"
    return ""


def choose(found: Iterable[Found], decisions: Iterable[Decision], life: Life) -> tuple[Found | None, tuple[str, ...]]:
    """The newest checkpoint that a life may restore, and a word on each newer one that was passed over.

    Memory goes before disk for the same mark; what the life itself has saved is what it goes on from.
    """
    decided = tuple(decisions)
    skipped: list[str] = []
    for one in sorted(found, key=lambda f: (f.mark, f.memory), reverse=True):
        why = one.bad or fence(one.mark, decided)
        if one.mark.life > life:
            why = f"it is of a later life than {life}"
        if not why:
            return one, tuple(skipped)
        skipped.append(f"{one.mark} was passed over: {why}")
    return None, tuple(skipped)


def expired(there: Iterable[Mark], whole: Iterable[Mark], decisions: Iterable[Decision], keep: int) -> list[Mark]:
    """What may go: all but the newest `keep` whole ones that count, and what is newer than the oldest of those."""
    decided = tuple(decisions)
    good = sorted((mark for mark in whole if not fence(mark, decided)), reverse=True)[:keep]
    if len(good) < keep:
        return []
    return [mark for mark in there if mark < good[-1]]
