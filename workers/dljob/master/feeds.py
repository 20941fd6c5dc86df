"""A data set that ranks share, as intervals of positions: what is to do, who holds what, what is done since which save.

Position p is in epoch p // size; no shard crosses the end of an epoch. An interval is [start, end).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from immutables import Map

from dljob.master.evolve import evolve
from dljob.master.marks import Life, Mark

Run: TypeAlias = tuple[int, int]
"""[start, end)."""
Runs: TypeAlias = tuple[Run, ...]
Holder: TypeAlias = tuple[str, int]
"""(role, rank)."""


@dataclass(frozen=True, slots=True)
class Held:
    """The leases of one process of a rank."""

    world: str
    incarnation: int
    life: Life
    saves: bool
    """Whether it saves or loads: then what it did is known for sure only when its successor goes on."""
    runs: Runs = ()


@dataclass(frozen=True, slots=True)
class Acked:
    """Done by a world in a life after it had saved a step (-1: before its first): `mark` says both."""

    world: str
    mark: Mark
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Feed:
    """One data set. What is neither to do nor held nor acked is done for good."""

    size: int
    shard: int
    epochs: int
    todo: Runs
    held: Map[Holder, Held] = field(default_factory=Map[Holder, Held])
    acked: tuple[Acked, ...] = ()
    settled: Map[str, Runs] = field(default_factory=Map[str, Runs])
    """What Elastic roles did before the oldest checkpoint that is left: to do again only if none is left."""

    @property
    def over(self) -> bool:
        """Whether nothing is to do, and nothing can come back from a process that holds it."""
        return not self.todo and not any(held.runs for held in self.held.values())


def made(size: int, shard: int, epochs: int) -> Feed:
    """A data set of which nothing is done."""
    return Feed(size, shard, epochs, ((0, size * epochs),))


def merged(runs: Iterable[Run]) -> Runs:
    """Intervals, sorted, made one where they touch."""
    found: list[Run] = []
    for start, end in sorted(runs):
        if found and found[-1][1] >= start:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return tuple(found)


def coarse(runs: Runs, most: int) -> Runs:
    """No more intervals than `most`: those with the smallest gaps between them are joined, gaps and all."""
    if len(runs) <= most:
        return runs
    gaps = sorted((after[0] - before[1], after[0]) for before, after in pairwise(runs))
    joined = {start for _, start in gaps[: len(runs) - most]}
    found: list[Run] = []
    for start, end in runs:
        if start in joined:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return tuple(found)


def covered(mark: Mark, chosen: Mark | None) -> bool:
    """Whether what was done then is in a checkpoint."""
    if chosen is None:
        return False
    return mark.life < chosen.life or (mark.life == chosen.life and mark.step < chosen.step)


def take(feed: Feed, holder: Holder, who: Held, want: int) -> Feed:
    """Lease the lowest positions that are to do until the process holds `want` shards."""
    todo, runs = list(feed.todo), list(who.runs)
    while todo and len(runs) < want:
        start, end = todo[0]
        stop = min(end, start + feed.shard, (start // feed.size + 1) * feed.size)
        runs.append((start, stop))
        todo[:1] = [(stop, end)] if stop < end else []
    if len(runs) == len(who.runs) and holder in feed.held:
        return feed
    return evolve(feed, todo=tuple(todo), held=feed.held.set(holder, evolve(who, runs=tuple(runs))))


def returned(feed: Feed, holder: Holder) -> Feed:
    """A process holds nothing any more: what it held is to do again."""
    held = feed.held.get(holder)
    if held is None:
        return feed
    return evolve(feed, todo=merged((*feed.todo, *held.runs)), held=feed.held.delete(holder))


def done(feed: Feed, holder: Holder, incarnation: int, run: Run, after: int | None) -> Feed:
    """A process has done a shard that it holds; one that it does not hold changes nothing."""
    held = feed.held.get(holder)
    if held is None or held.incarnation != incarnation or run not in held.runs:
        return feed
    left = evolve(held, runs=tuple(one for one in held.runs if one != run))
    feed = evolve(feed, held=feed.held.set(holder, left))
    if after is None:
        return feed
    return evolve(feed, acked=_joined(feed.acked, Acked(held.world, Mark(held.life, after), *run)))


def _joined(acked: tuple[Acked, ...], new: Acked) -> tuple[Acked, ...]:
    """What one world did after one save is kept as few intervals."""
    same = [one for one in acked if (one.world, one.mark) == (new.world, new.mark)]
    rest = tuple(one for one in acked if (one.world, one.mark) != (new.world, new.mark))
    runs = merged([*((one.start, one.end) for one in same), (new.start, new.end)])
    return (*rest, *(Acked(new.world, new.mark, start, end) for start, end in runs))


def settled(feed: Feed, world: str, oldest: Mark, *, remember: bool) -> Feed:
    """What is in the oldest checkpoint that is left is done for good."""
    sure = [one for one in feed.acked if one.world == world and covered(one.mark, oldest)]
    if not sure:
        return feed
    rest = tuple(one for one in feed.acked if one not in sure)
    if not remember:
        return evolve(feed, acked=rest)
    runs = merged((*feed.settled.get(world, ()), *((one.start, one.end) for one in sure)))
    return evolve(feed, acked=rest, settled=feed.settled.set(world, runs))


def restored(feed: Feed, world: str, life: Life, chosen: Mark | None) -> tuple[Feed, int]:
    """A life of a world goes on from a checkpoint: what was done after it is to do again; and how many positions."""
    for holder, held in feed.held.items():
        if held.world == world and held.life < life:
            feed = returned(feed, holder)
    again = [one for one in feed.acked if one.world == world and not covered(one.mark, chosen)]
    runs = [(one.start, one.end) for one in again]
    kept = tuple(one for one in feed.acked if one not in again)
    if chosen is None and world in feed.settled:
        runs += feed.settled[world]
        feed = evolve(feed, settled=feed.settled.delete(world))
    if not runs:
        return feed, 0
    return evolve(feed, todo=merged((*feed.todo, *runs)), acked=kept), sum(end - start for start, end in runs)
