"""The shard table of a data set that ranks share: intervals of positions that are to do, leased, or done.

Position p belongs to epoch p // size; no shard crosses the end of an epoch. Intervals are [start, end). Each finished
interval is stored with the last checkpoint before it, so that a restore knows what to hand out again.
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
    """The shards leased to one process of a rank."""

    world: str
    incarnation: int
    run_id: RunId
    saves: bool
    """Whether the process saves or loads checkpoints: then only its successor's restore tells which work counts."""
    runs: Runs = ()


@dataclass(frozen=True, slots=True)
class Acked:
    """An interval that a world finished. `mark` is the newest checkpoint that its run had saved (step -1: none)."""

    world: str
    mark: CheckpointId
    start: int
    end: int


SPAN = 1 << 48
"""Offsets of a partition of a source. Partition n has the positions from n * SPAN on: it is an epoch of its own."""
PARTITIONS = 1024
"""Largest number of partitions that a source ever had."""
STATELESS = "*"
"""The world of all ranks without a state: their finished intervals are marked with the last cut begun before them."""


def cut_mark(number: int) -> CheckpointId:
    """Return a cut as the checkpoint of the ranks without a state."""
    return CheckpointId(RunId(1, 1), number)


@dataclass(frozen=True, slots=True)
class ShardTable:
    """One data set. A position that is neither to do, nor held, nor acknowledged is done for good."""

    size: int
    shard: int
    epochs: int
    todo: Runs
    leases: Map[Holder, ShardLeases] = field(default_factory=Map[Holder, ShardLeases])
    acked: tuple[Acked, ...] = ()
    settled: Map[str, Runs] = field(default_factory=Map[str, Runs])
    """World -> intervals in the oldest checkpoint left: to do again only if the world restores none, or an older one.

    Kept for Elastic roles alone; the work of an Actor rank is done for good then.
    """
    partitions: tuple[str, ...] = ()
    """The partitions of a source, in the order in which they appeared; empty for a data set."""
    order: str = ""
    """Which sample is at a position, in words: ranks with different orders would share no data set. Empty: unknown."""

    @property
    def unbounded(self) -> bool:
        """Whether it is the table of a source, which has no end."""
        return self.size == SPAN

    @property
    def over(self) -> bool:
        """Whether no interval is to do or leased. Acknowledged work may still come back by a restore."""
        return not self.unbounded and not self.todo and not any(leases.runs for leases in self.leases.values())


def new_table(size: int, shard: int, epochs: int) -> ShardTable:
    """Return the table of a new data set: all its positions are to do."""
    # What a source has is told later, partition by partition.
    return ShardTable(size, shard, epochs, () if size == SPAN else ((0, size * epochs),))


def add_partitions(feed: ShardTable, partitions: Iterable[tuple[str, int]]) -> ShardTable:
    """Return the table of a source with further partitions, each from its first offset on; known ones stay."""
    for name, first in partitions:
        number = len(feed.partitions)
        if name not in feed.partitions and number < PARTITIONS and 0 <= first < SPAN:
            rest = (number * SPAN + first, number * SPAN + SPAN)
            feed = evolve(feed, partitions=(*feed.partitions, name), todo=merge_runs((*feed.todo, rest)))
    return feed


def open_partitions(feed: ShardTable) -> int:
    """Return the number of partitions of a source that are not gone for good."""
    runs = [*feed.todo, *(run for lease in feed.leases.values() for run in lease.runs)]
    return len(partitions_of(runs))


def drop_lost_positions(feed: ShardTable, holder: Holder, incarnation: int, run: Run) -> ShardTable:
    """Return the table without leased positions that the source has no longer: no restore brings them back."""
    lease = feed.leases.get(holder)
    if lease is None or lease.incarnation != incarnation or (rest_runs := cut_out(lease.runs, run)) is None:
        return feed
    return evolve(feed, leases=feed.leases.set(holder, evolve(lease, runs=rest_runs)))


def cut_out(runs: Runs, run: Run) -> Runs | None:
    """Return leased intervals without a part of one of them; None where none has that part."""
    for index, (start, end) in enumerate(runs):
        if start <= run[0] < run[1] <= end:
            parts = tuple(part for part in ((start, run[0]), (run[1], end)) if part[0] < part[1])
            return (*runs[:index], *parts, *runs[index + 1 :])
    return None


ROWS = 1024
"""Number of acknowledged intervals from which on a world gets shards next to its own ones (see `lease_shards`)."""


def merge_runs(runs: Iterable[Run]) -> Runs:
    """Return the intervals, sorted, with those that touch or overlap joined."""
    joined: list[Run] = []
    for start, end in sorted(runs):
        if joined and joined[-1][1] >= start:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return tuple(joined)


def coarsen(runs: Runs, most: int) -> Runs:
    """Reduce to at most `most` intervals: those with the smallest gaps between them are joined, the gaps included."""
    if len(runs) <= most:
        return runs
    # The smallest gaps cost the least: their positions, though done, are done again.
    gaps = sorted((after[0] - before[1], after[0]) for before, after in pairwise(runs))
    joined = {start for _, start in gaps[: len(runs) - most]}
    coarse_runs: list[Run] = []
    for start, end in runs:
        if start in joined:
            coarse_runs[-1] = (coarse_runs[-1][0], end)
        else:
            coarse_runs.append((start, end))
    return tuple(coarse_runs)


def is_covered(mark: CheckpointId, chosen: CheckpointId | None) -> bool:
    """Whether work acknowledged with this mark is contained in the chosen checkpoint."""
    return chosen is not None and mark < chosen


def lease_shards(feed: ShardTable, holder: Holder, lease: ShardLeases, want: int) -> ShardTable:
    """Lease positions to a process until it holds `want` shards, of a source `want` partitions, the lowest ones first.

    When worlds take turns and none of them has a checkpoint, each shard would stay an interval of its own, and the
    table would grow without bound. From ROWS intervals on a world therefore gets shards that touch its own ones.
    """
    if not wants_more(feed, holder, want):
        return feed
    if feed.unbounded:
        remaining_todo, runs = _whole_partitions(feed.todo, lease.runs, want)
        return evolve(feed, todo=remaining_todo, leases=feed.leases.set(holder, evolve(lease, runs=runs)))
    todo, runs = list(feed.todo), list(lease.runs)
    takes_nearest = len(feed.acked) >= ROWS
    while todo and len(runs) < want:
        index, begin = _nearest(feed, todo, lease.world, runs) if takes_nearest else (0, todo[0][0])
        start, end = todo[index]
        stop = min(end, begin + feed.shard, (begin // feed.size + 1) * feed.size)  # not beyond the epoch
        runs.append((begin, stop))
        todo[index : index + 1] = [part for part in ((start, begin), (stop, end)) if part[0] < part[1]]
    return evolve(feed, todo=tuple(todo), leases=feed.leases.set(holder, evolve(lease, runs=tuple(runs))))


def wants_more(feed: ShardTable, holder: Holder, want: int) -> bool:
    """Whether `lease_shards` changes the table for a process that wants so many shards, or partitions of a source."""
    if (lease := feed.leases.get(holder)) is None:
        return True
    if not feed.unbounded:
        return bool(feed.todo) and len(lease.runs) < want
    partitions = partitions_of(lease.runs)
    return bool(feed.todo and want) and (len(partitions) < want or not partitions.isdisjoint(partitions_of(feed.todo)))


def _whole_partitions(todo: Runs, runs: Runs, want: int) -> tuple[Runs, Runs]:
    """Return what is left to do of a source, and the leases of a process that reads `want` partitions.

    A restore may leave several intervals of a partition: one process gets all of them, or two would read it at once.
    """
    if not want:
        return todo, runs
    pieces, partitions = _by_partition(todo), partitions_of(runs)
    for start, _ in pieces:
        if len(partitions) < want:
            partitions.add(start // SPAN)
    taken_runs = [piece for piece in pieces if piece[0] // SPAN in partitions]
    remaining_runs = [piece for piece in pieces if piece[0] // SPAN not in partitions]
    return merge_runs(remaining_runs), _by_partition((*runs, *taken_runs))


def _by_partition(runs: Iterable[Run]) -> Runs:
    """Return the intervals of a source, sorted, joined within a partition, and cut where one ends."""
    return tuple(
        (max(start, number * SPAN), min(end, number * SPAN + SPAN))
        for start, end in merge_runs(runs)
        for number in sorted(partitions_of([(start, end)]))
    )


def partitions_of(runs: Iterable[Run]) -> set[int]:
    """Return the numbers of the partitions of a source in which intervals lie."""
    return {number for start, end in runs for number in range(start // SPAN, (end - 1) // SPAN + 1)}


def _nearest(feed: ShardTable, todo: list[Run], world: str, runs: list[Run]) -> tuple[int, int]:
    """Return where a world continues: after one of its own intervals, or in the middle of the longest free one.

    The middle leaves both neighbours room to grow without meeting the new one soon.
    """
    ends = {end for _, end in runs} | {ack.end for ack in feed.acked if ack.world == world}
    # Only within the first epoch that is not finished.
    epoch_end = (todo[0][0] // feed.size + 1) * feed.size
    lengths = [(min(end, epoch_end) - start, index) for index, (start, end) in enumerate(todo) if start < epoch_end]
    for _, index in lengths:
        if todo[index][0] in ends:
            return index, todo[index][0]
    length, index = max(lengths)
    start = todo[index][0]
    return index, start + length // feed.shard // 2 * feed.shard


def take_back_leases(feed: ShardTable, holder: Holder) -> ShardTable:
    """Return the table after a process lost its leases: they are to do again."""
    lease = feed.leases.get(holder)
    if lease is None:
        return feed
    return evolve(feed, todo=merge_runs((*feed.todo, *lease.runs)), leases=feed.leases.delete(holder))


def finish_shard(
    feed: ShardTable,
    holder: Holder,
    incarnation: int,
    run: Run,
    saved_mark: tuple[int, int] | None,
    *,
    cut: int | None = None,
) -> ShardTable:
    """Return the table after a process finished a leased shard. A shard that it does not hold changes nothing.

    `after` is (step, revision) of the newest saved checkpoint, or None for a process that saves nothing: its work is
    done for good, unless the job can go back to a cut. `cut`: the last one that was begun; None: the job has no queues.
    """
    lease = feed.leases.get(holder)
    # The lease was taken back, and the shard may be leased to another rank: it would be done twice.
    if lease is None or lease.incarnation != incarnation or (rest := cut_out(lease.runs, run)) is None:
        return feed
    remaining_lease = evolve(lease, runs=rest)
    feed = evolve(feed, leases=feed.leases.set(holder, remaining_lease))
    if saved_mark is not None:
        ack = Acked(lease.world, CheckpointId(lease.run_id, *saved_mark), *run)
        return evolve(feed, acked=_add_acked(feed.acked, ack))
    # What came of the shard was in a queue before this report: a cut begun since has it.
    return feed if cut is None else evolve(feed, acked=_add_acked(feed.acked, Acked(STATELESS, cut_mark(cut), *run)))


def undo_runs(feed: ShardTable, world: str, runs: Iterable[Run]) -> tuple[ShardTable, int]:
    """Return the table after a process went back to before it finished these intervals, and the positions to do again.

    What is not acknowledged any more is settled, and stays done.
    """
    acked, undone_runs, lost_runs = list[Acked](), list[Run](), merge_runs(runs)
    for ack in feed.acked:
        start = ack.start
        for first, last in lost_runs if ack.world == world else ():
            begin, end = max(start, first), min(ack.end, last)
            if begin < end:
                undone_runs.append((begin, end))
                acked += [evolve(ack, start=start, end=begin)] if start < begin else []
                start = end
        acked += [evolve(ack, start=start)] if start < ack.end else []
    if not undone_runs:
        return feed, 0
    todo = merge_runs((*feed.todo, *undone_runs))
    return evolve(feed, todo=todo, acked=tuple(acked)), sum(end - start for start, end in undone_runs)


def _add_acked(acked: tuple[Acked, ...], new_ack: Acked) -> tuple[Acked, ...]:
    """Return the intervals with one more, in order; it is joined with neighbours of the same world and mark."""
    index = bisect(acked, new_ack.start, key=_start)
    first = last = index
    if index and _touch(acked[index - 1], new_ack):
        first, new_ack = index - 1, evolve(new_ack, start=acked[index - 1].start)
    if index < len(acked) and _touch(new_ack, acked[index]):
        last, new_ack = index + 1, evolve(new_ack, end=acked[index].end)
    return (*acked[:first], new_ack, *acked[last:])


def _start(ack: Acked) -> int:
    return ack.start


def _touch(first: Acked, second: Acked) -> bool:
    return first.end == second.start and (first.world, first.mark) == (second.world, second.mark)


def _split(acked: tuple[Acked, ...], is_chosen: Callable[[Acked], bool]) -> tuple[list[Acked], tuple[Acked, ...]]:
    """Return the intervals that satisfy a condition, and the others."""
    return [ack for ack in acked if is_chosen(ack)], tuple(ack for ack in acked if not is_chosen(ack))


def settle_until(feed: ShardTable, world: str, oldest: CheckpointId, *, remember: bool) -> ShardTable:
    """Return the table after older checkpoints were dropped: work in the oldest one left is acknowledged no longer.

    `remember`: keep its intervals in `settled`, in case it cannot be restored.
    """
    settled_acks, rest = _split(feed.acked, lambda ack: ack.world == world and is_covered(ack.mark, oldest))
    if not settled_acks:
        return feed
    if not remember:
        return evolve(feed, acked=rest)
    runs = merge_runs((*feed.settled.get(world, ()), *((ack.start, ack.end) for ack in settled_acks)))
    return evolve(feed, acked=rest, settled=feed.settled.set(world, runs))


def restore_checkpoint(
    feed: ShardTable, world: str, run_id: RunId, chosen: CheckpointId | None, oldest: CheckpointId | None = None
) -> tuple[ShardTable, int]:
    """Return the table after a run restored a checkpoint, and the number of positions that are to do again.

    `oldest`: the checkpoint as of which the work of the world was settled last.
    """
    # Leases of earlier runs end here: only now is it known that none of their work after the checkpoint counts.
    for holder, lease in feed.leases.items():
        if lease.world == world and lease.run_id < run_id:
            feed = take_back_leases(feed, holder)
    undone_acks, other_acks = _split(feed.acked, lambda ack: ack.world == world and not is_covered(ack.mark, chosen))
    runs = [(ack.start, ack.end) for ack in undone_acks]
    # Without the oldest checkpoint even the work is lost that it had contained. Which part of that an older one has is
    # not known: all of it is done again.
    if world in feed.settled and (chosen is None or (oldest is not None and chosen < oldest)):
        runs += feed.settled[world]
        feed = evolve(feed, settled=feed.settled.delete(world))
    if not runs:
        return feed, 0
    position_count = sum(end - start for start, end in runs)
    return evolve(feed, todo=merge_runs((*feed.todo, *runs)), acked=other_acks), position_count
