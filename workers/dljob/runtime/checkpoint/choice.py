"""Which step a new life restores, and what may go: decisions without a file in sight (`dljob.master.marks`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dljob.master.marks import Decision, Life, Mark, fence


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint whose parts are all there; `bad` says why it cannot be used all the same."""

    mark: Mark
    world: int
    memory: bool = False
    bad: str = ""


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
