"""A data set that ranks share, as intervals of positions: what is to do, who holds what, what is done since which save.

Position p is in epoch p // size; no shard crosses the end of an epoch. An interval is [start, end).
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from immutables import Map

from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.master.state.evolve import evolve

Run: TypeAlias = tuple[int, int]
"""[start, end)."""
Runs: TypeAlias = tuple[Run, ...]
Holder: TypeAlias = tuple[str, int]
"""(role, rank)."""


@dataclass(frozen=True, slots=True)
class ShardLeases:
    """The leases of one process of a rank."""

    world: str
    incarnation: int
    life: RunId
    saves: bool
    """Whether it saves or loads: then what it did is known for sure only when its successor goes on."""
    runs: Runs = ()


@dataclass(frozen=True, slots=True)
class Acked:
    """Done by a world in a life after it had saved a step (-1: before its first): `mark` says both."""

    world: str
    mark: CheckpointId
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ShardTable:
    """One data set. What is neither to do nor held nor acked is done for good."""

    size: int
    shard: int
    epochs: int
    todo: Runs
    held: Map[Holder, ShardLeases] = field(default_factory=Map[Holder, ShardLeases])
    acked: tuple[Acked, ...] = ()
    settled: Map[str, Runs] = field(default_factory=Map[str, Runs])
    """What Elastic roles did before the oldest checkpoint that is left: to do again only if none is left."""

    @property
    def over(self) -> bool:
        """Whether nothing is to do, and nothing can come back from a process that holds it."""
        return not self.todo and not any(held.runs for held in self.held.values())


def made(size: int, shard: int, epochs: int) -> ShardTable:
    """A data set of which nothing is done."""
    return ShardTable(size, shard, epochs, ((0, size * epochs),))


ROWS = 1024
"""So many intervals that are done, and not in a checkpoint for good, before a world stays in a stretch of its own."""


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


def covered(mark: CheckpointId, chosen: CheckpointId | None) -> bool:
    """Whether what was done then is in a checkpoint."""
    if chosen is None:
        return False
    return mark.life < chosen.life or (mark.life == chosen.life and mark.step < chosen.step)


def take(feed: ShardTable, holder: Holder, who: ShardLeases, want: int) -> ShardTable:
    """Lease positions that are to do until the process holds `want` shards.

    The lowest ones; where that would make an interval of each shard for good, since worlds take turns and none of them
    has a checkpoint to put them in, those that touch what is the world's already.
    """
    todo, runs = list(feed.todo), list(who.runs)
    near = len(feed.acked) >= ROWS
    while todo and len(runs) < want:
        index, begin = _nearest(feed, todo, who.world, runs) if near else (0, todo[0][0])
        start, end = todo[index]
        stop = min(end, begin + feed.shard, (begin // feed.size + 1) * feed.size)
        runs.append((begin, stop))
        todo[index : index + 1] = [one for one in ((start, begin), (stop, end)) if one[0] < one[1]]
    if len(runs) == len(who.runs) and holder in feed.held:
        return feed
    return evolve(feed, todo=tuple(todo), held=feed.held.set(holder, evolve(who, runs=tuple(runs))))


def _nearest(feed: ShardTable, todo: list[Run], world: str, runs: list[Run]) -> tuple[int, int]:
    """Where a world goes on: after the last of what it has, or in the middle of the longest interval of the epoch."""
    ends = {end for _, end in runs} | {one.end for one in feed.acked if one.world == world}
    here = (todo[0][0] // feed.size + 1) * feed.size
    lengths = [(min(end, here) - start, index) for index, (start, end) in enumerate(todo) if start < here]
    for _, index in lengths:
        if todo[index][0] in ends:
            return index, todo[index][0]
    length, index = max(lengths)
    start = todo[index][0]
    return index, start + length // feed.shard // 2 * feed.shard


def returned(feed: ShardTable, holder: Holder) -> ShardTable:
    """A process holds nothing any more: what it held is to do again."""
    held = feed.held.get(holder)
    if held is None:
        return feed
    return evolve(feed, todo=merged((*feed.todo, *held.runs)), held=feed.held.delete(holder))


def done(feed: ShardTable, holder: Holder, incarnation: int, run: Run, after: int | None) -> ShardTable:
    """A process has done a shard that it holds; one that it does not hold changes nothing."""
    held = feed.held.get(holder)
    if held is None or held.incarnation != incarnation or run not in held.runs:
        return feed
    left = evolve(held, runs=tuple(one for one in held.runs if one != run))
    feed = evolve(feed, held=feed.held.set(holder, left))
    if after is None:
        return feed
    return evolve(feed, acked=_joined(feed.acked, Acked(held.world, CheckpointId(held.life, after), *run)))


def _joined(acked: tuple[Acked, ...], new: Acked) -> tuple[Acked, ...]:
    """The intervals with one more, in order: one that touches another of its world and save becomes one with it."""
    at = bisect(acked, new.start, key=_start)
    first = last = at
    if at and _touch(acked[at - 1], new):
        first, new = at - 1, evolve(new, start=acked[at - 1].start)
    if at < len(acked) and _touch(new, acked[at]):
        last, new = at + 1, evolve(new, end=acked[at].end)
    return (*acked[:first], new, *acked[last:])


def _start(one: Acked) -> int:
    return one.start


def _touch(one: Acked, other: Acked) -> bool:
    return one.end == other.start and (one.world, one.mark) == (other.world, other.mark)


def _split(acked: tuple[Acked, ...], which: Callable[[Acked], bool]) -> tuple[list[Acked], tuple[Acked, ...]]:
    """Those of which it is so, and the others."""
    return [one for one in acked if which(one)], tuple(one for one in acked if not which(one))


def settled(feed: ShardTable, world: str, oldest: CheckpointId, *, remember: bool) -> ShardTable:
    """What is in the oldest checkpoint that is left is done for good."""
    sure, rest = _split(feed.acked, lambda one: one.world == world and covered(one.mark, oldest))
    if not sure:
        return feed
    if not remember:
        return evolve(feed, acked=rest)
    runs = merged((*feed.settled.get(world, ()), *((one.start, one.end) for one in sure)))
    return evolve(feed, acked=rest, settled=feed.settled.set(world, runs))


def restored(feed: ShardTable, world: str, life: RunId, chosen: CheckpointId | None) -> tuple[ShardTable, int]:
    """A life of a world goes on from a checkpoint: what was done after it is to do again; and how many positions."""
    for holder, held in feed.held.items():
        if held.world == world and held.life < life:
            feed = returned(feed, holder)
    again, kept = _split(feed.acked, lambda one: one.world == world and not covered(one.mark, chosen))
    runs = [(one.start, one.end) for one in again]
    if chosen is None and world in feed.settled:
        runs += feed.settled[world]
        feed = evolve(feed, settled=feed.settled.delete(world))
    if not runs:
        return feed, 0
    return evolve(feed, todo=merged((*feed.todo, *runs)), acked=kept), sum(end - start for start, end in runs)
