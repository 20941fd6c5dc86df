"""Data shards: PrimeMaster leases them to ranks, takes them back, and hands out again what a restore undid.

Each position is processed exactly once with respect to checkpoints: work counts if it is contained in the checkpoint
that the successor of its process restores, and is handed out again otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple
from typing import Any

from immutables import Map

from dljob.master.state import shard_table
from dljob.master.state.checkpoint_ids import CheckpointId, RunId, Saves
from dljob.master.state.events import ShardsTold
from dljob.master.state.evolve import evolve
from dljob.master.state.shard_table import Acked, Holder, ShardLeases, ShardTable
from dljob.master.state.state import JobState, RankPhase
from dljob.master.state.transaction import StateTransaction
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted, is_or_are

ENDED_PHASES = (RankPhase.SUCCEEDED, RankPhase.FAILED, RankPhase.STOPPED)
FEEDS = 64
"""Largest number of data sets of a job: more are most likely one set under different names."""
FIRST = RunId(1, 1)
ROWS = 48
"""Number of intervals of a data set that are handed on to the next attempt, which keeps its state short."""


def handle_report(d: StateTransaction, event: ShardsTold) -> None:
    """Handle a process's report of finished shards, and lease it new ones."""
    if refused(d, event):
        return
    key, feed = (
        (event.role, event.rank),
        d.feeds.get(event.name) or shard_table.new_table(event.size, event.shard, event.epochs),
    )
    # Work of a former process still counts if its leases stand; new leases are for the present process only.
    cut = d.cuts.last if d.cuts.queues else None
    for start, end, step, revision in event.done:
        after = None if step is None else (step, revision)
        feed = shard_table.done(feed, key, event.incarnation, (start, end), after, cut=cut)
    feed = _source_told(d, event, feed)
    if not feed.order and event.order:
        feed = evolve(feed, order=event.order)
    if present(d, event):
        feed = _went_back(d, event, feed)
        held = feed.held.get(key)
        # Without a decision what to restore, the first question of the next process settles this.
        if held is not None and held.incarnation < event.incarnation:
            feed, held = shard_table.returned(feed, key), None
        who = held or ShardLeases(event.world, event.incarnation, event.life, event.saves)
        feed = shard_table.take(feed, key, evolve(who, saves=event.saves or who.saves), event.want)
    _put(d, event.name, feed)


def _went_back(d: StateTransaction, event: ShardsTold, feed: ShardTable) -> ShardTable:
    """Return the table after a process loaded a checkpoint again: what it did since, and what it holds, is to do."""
    if event.undone is None:
        return feed
    feed = shard_table.returned(feed, (event.role, event.rank))
    feed, again = shard_table.undone(feed, event.world, event.undone)
    _note_returned(d, event.world, event.name, feed, again)
    return feed


def _source_told(d: StateTransaction, event: ShardsTold, feed: ShardTable) -> ShardTable:
    """Return the table of a source after what a process saw of it: new partitions, and offsets that are gone."""
    before, who = feed, (event.role, event.rank)
    feed = shard_table.extended(feed, event.partitions)
    if added := feed.partitions[len(before.partitions) :]:
        d.note(reasons.SOURCE_CHANGED, event.name, f"new partitions: {', '.join(added)}")
    for run in event.lost:
        feed, before = shard_table.lost(feed, who, event.incarnation, run), feed
        if feed is not before:
            d.note(reasons.SOURCE_LOST, event.name, f"{_place(feed, run)} are lost: the source has them no longer")
    for word in event.news:
        d.note(reasons.SOURCE_CHANGED, event.name, word)
    return feed


def _place(feed: ShardTable, run: shard_table.Run) -> str:
    """Return an interval of a source in the words of users."""
    number, first = divmod(run[0], shard_table.SPAN)
    end = run[1] - number * shard_table.SPAN
    last = f"to {end - 1}" if end < shard_table.SPAN else "on"
    return f"offsets {first} {last} of {feed.partitions[number]}"


def refused(state: JobState | StateTransaction, event: ShardsTold) -> str:
    """Return why a process gets no shards of this data set; empty: it may get some."""
    if (event.role, event.rank) not in state.ranks:
        return f"there is no rank {event.role}/{event.rank}"
    feed = state.feeds.get(event.name)
    if feed is None:  # the first rank that names a data set defines it
        if len(state.feeds) >= FEEDS:
            return f"there are {FEEDS} data sets already; all ranks that share one give it the same name"
        sound = event.size > 0 and event.shard > 0 and event.epochs > 0
        return "" if sound else "its size, shard size and epochs are whole numbers from 1"
    if feed.unbounded is not (event.size == shard_table.SPAN):
        return f"it is a {'source' if feed.unbounded else 'data set'} already: give the other one another name"
    wanted_order = event.order or feed.order
    present_table, wanted_table = (
        f"{counted(size, 'sample')} in shards of {shard}, {counted(epochs, 'time')} {order}"
        for size, shard, epochs, order in (
            (feed.size, feed.shard, feed.epochs, feed.order or wanted_order),
            (event.size, event.shard, event.epochs, wanted_order),
        )
    )
    differs = present_table != wanted_table
    return f"it is {present_table}, and not {wanted_table}; under another name it begins anew" if differs else ""


def present(state: JobState | StateTransaction, event: ShardsTold) -> bool:
    """Whether the event is from the rank's present process, in a life of its world that no later one has superseded."""
    own = state.ranks[event.role, event.rank]
    superseded = state.saves.get(event.world, Saves()).superseded(event.life)
    has_left = own.phase in ENDED_PHASES or own.phase is RankPhase.ABSENT
    return own.incarnation == event.incarnation and not has_left and not superseded


def return_leases(d: StateTransaction) -> None:
    """Take back the leases of processes that are gone.

    A process that saves checkpoints keeps its leases until its successor restores: only then is it known which of the
    shards were done (`decided`). While the job ends all keep them: savers still report what is in the last saves.
    """
    if not d.feeds or not d.phase.active:
        return
    for key in sorted(d.touched.ranks):
        rank = d.ranks[key]
        for name, feed in d.feeds.items():
            held = feed.held.get(key)
            if held is None:
                continue
            # A rank that has ended or left for good has no successor that could restore: its leases come back at once.
            # The world of several ranks starts anew without the one that left, and restores.
            has_left = rank.phase in ENDED_PHASES or (rank.phase is RankPhase.ABSENT and "/" in held.world)
            over = rank.incarnation != held.incarnation or not rank.phase.live
            if has_left or (over and not held.saves):
                _put(d, name, shard_table.returned(feed, key))


def committed(d: StateTransaction, world: str, oldest: CheckpointId) -> None:
    """Drop the acknowledgements that are contained in the oldest checkpoint left: they cannot be undone singly."""
    for name, feed in d.feeds.items():
        _put(d, name, shard_table.settled(feed, world, oldest, remember="/" not in world))


def decided(
    d: StateTransaction, world: str, life: RunId, chosen: CheckpointId | None, oldest: CheckpointId | None
) -> None:
    """Hand out again the work that is not in the checkpoint which a life restores. `oldest`: that of `committed`."""
    for name, feed in d.feeds.items():
        new, again = shard_table.restored(feed, world, life, chosen, oldest)
        _put(d, name, new)
        _note_returned(d, world, name, feed, again)


def _note_returned(d: StateTransaction, world: str, name: str, feed: ShardTable, again: int) -> None:
    if again:
        d.note(reasons.DATA_RETURNED, world, _returned_again(feed, name, again))


def _returned_again(feed: ShardTable, name: str, count: int) -> str:
    things = counted(count, "offset" if feed.unbounded else "sample")
    return f"{things} of {name} {is_or_are(count)} handed out again"


def cut_committed(d: StateTransaction, oldest: int) -> None:
    """Settle the work of ranks without a state that is in the oldest cut left."""
    for name, feed in d.feeds.items():
        _put(d, name, shard_table.settled(feed, shard_table.STATELESS, shard_table.cut_mark(oldest), remember=True))


def cut_restored(d: StateTransaction, back: int) -> None:
    """Hand out again what ranks without a state did after the cut that the job goes back to; 0: all that they did.

    These ranks live on, and may put what comes of a shard that they hold into a queue which drops it: their leases end.
    """
    chosen = shard_table.cut_mark(back) if back else None
    for name, feed in d.feeds.items():
        new = feed
        for holder, held in feed.held.items():
            new = new if held.saves else shard_table.returned(new, holder)
        new, again = shard_table.restored(new, shard_table.STATELESS, FIRST, chosen)
        _put(d, name, new)
        if again:
            d.note(reasons.DATA_RETURNED, "job", f"{_returned_again(feed, name, again)}, as of the cut")


def carry(state: JobState, rows: int | None = None) -> dict[str, Any]:
    """Return the data positions for the next attempt, as JSON; beyond `rows` (ROWS) intervals some is done again."""
    return {name: _carry(feed, rows) for name, feed in sorted(state.feeds.items())}


def _carry(feed: ShardTable, most: int | None = None) -> list[Any]:
    """Return one data set for `carry`. Leased shards count as to do: their processes end with the attempt."""
    # Of a source, whose offsets must not be read twice, at least two intervals for each partition.
    most = max(ROWS if most is None else most, 2 * len(feed.partitions))
    held = [run for held in feed.held.values() for run in held.runs]
    # Acknowledgements that do not fit are dropped, and their intervals are done again.
    acked, spilt = feed.acked[-most:], feed.acked[:-most]
    todo = shard_table.coarse(shard_table.merged((*feed.todo, *held, *((one.start, one.end) for one in spilt))), most)
    # Joining neighbours may have included acknowledged intervals: these are then done again, and must not count twice.
    known = [one for one in acked if not any(start <= one.start < end for start, end in todo)]
    rows = [
        [one.world, *astuple(one.mark.life), one.mark.step, one.start, one.end]
        + ([one.mark.revision] if one.mark.revision else [])
        for one in known
    ]
    settled = {
        world: [list(run) for run in shard_table.coarse(runs, most)] for world, runs in sorted(feed.settled.items())
    }
    todo_rows = [list(run) for run in todo]
    return [feed.size, feed.shard, feed.epochs, todo_rows, rows, settled, list(feed.partitions), feed.order]


def carried(told: Mapping[str, Any]) -> tuple[tuple[str, ShardTable], ...]:
    """Return the data sets that `carry` wrote. Raises ValueError, TypeError or KeyError for another form."""
    found: list[tuple[str, ShardTable]] = []
    for name, (size, shard, epochs, todo, rows, *more) in told.items():
        acked = [
            Acked(
                str(row[0]),
                CheckpointId(RunId(int(row[1]), int(row[2])), int(row[3]), *map(int, row[6:])),
                *map(int, row[4:6]),
            )
            for row in rows
        ]
        done: Mapping[str, Any] = more[0] if more else {}
        sure = Map({str(world): _runs(own) for world, own in done.items()})
        names = tuple(str(each) for each in more[1]) if len(more) > 1 else ()
        feed = ShardTable(int(size), int(shard), int(epochs), _runs(todo), acked=tuple(acked), settled=sure)
        feed = evolve(feed, partitions=names, order=str(more[2]) if len(more) > 2 else "")
        found.append((str(name), feed))
    return tuple(found)


def _runs(told: Iterable[Any]) -> shard_table.Runs:
    return tuple((int(start), int(end)) for start, end in told)


def _put(d: StateTransaction, name: str, feed: ShardTable) -> None:
    # An unchanged table must stay the same object, or the event would make a new version of the state.
    if d.feeds.get(name) is not feed:
        d.feeds = d.feeds.set(name, feed)


def runs_of(state: JobState, name: str, holder: Holder, incarnation: int) -> shard_table.Runs:
    """Return the shards leased to a process; empty for a former one."""
    feed = state.feeds.get(name)
    held = feed and feed.held.get(holder)
    return held.runs if held is not None and held.incarnation == incarnation else ()
