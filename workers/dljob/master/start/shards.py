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


def handle_report(tx: StateTransaction, event: ShardsTold) -> None:
    """Handle a process's report of finished shards, and lease it new ones."""
    if refusal_reason(tx, event):
        return
    key, feed = (
        (event.role, event.rank),
        tx.feeds.get(event.name) or shard_table.new_table(event.size, event.shard, event.epochs),
    )
    # Work of a former process still counts if its leases stand; new leases are for the present process only.
    cut = tx.cuts.last_number if tx.cuts.queue_names else None
    for start, end, step, revision in event.done:
        saved_mark = None if step is None else (step, revision)
        feed = shard_table.finish_shard(feed, key, event.incarnation, (start, end), saved_mark, cut=cut)
    feed = _apply_source_news(tx, event, feed)
    if not feed.order and event.order:
        feed = evolve(feed, order=event.order)
    if is_from_present_process(tx, event):
        feed = _undo_repeated_work(tx, event, feed)
        leases = feed.leases.get(key)
        # Without a decision what to restore, the first question of the next process settles this.
        if leases is not None and leases.incarnation < event.incarnation:
            feed, leases = shard_table.take_back_leases(feed, key), None
        new_leases = leases or ShardLeases(event.world, event.incarnation, event.run_id, event.saves)
        new_leases = evolve(new_leases, saves=event.saves or new_leases.saves)
        feed = shard_table.lease_shards(feed, key, new_leases, event.want)
    _set_feed(tx, event.name, feed)


def _undo_repeated_work(tx: StateTransaction, event: ShardsTold, feed: ShardTable) -> ShardTable:
    """Return the table after a process loaded a checkpoint again: what it did since, and what it holds, is to do."""
    if event.undone is None:
        return feed
    feed = shard_table.take_back_leases(feed, (event.role, event.rank))
    feed, position_count = shard_table.undo_runs(feed, event.world, event.undone)
    _note_returned(tx, event.world, event.name, feed, position_count)
    return feed


def _apply_source_news(tx: StateTransaction, event: ShardsTold, feed: ShardTable) -> ShardTable:
    """Return the table of a source after what a process saw of it: new partitions, and offsets that are gone."""
    old_feed, holder = feed, (event.role, event.rank)
    feed = shard_table.add_partitions(feed, event.partitions)
    if added := feed.partitions[len(old_feed.partitions) :]:
        tx.note(reasons.SOURCE_CHANGED, event.name, f"new partitions: {', '.join(added)}")
    for run in event.lost:
        feed, old_feed = shard_table.drop_lost_positions(feed, holder, event.incarnation, run), feed
        if feed is not old_feed:
            offsets_text = _describe_interval(feed, run)
            tx.note(reasons.SOURCE_LOST, event.name, f"{offsets_text} are lost: the source has them no longer")
    for message in event.news:
        tx.note(reasons.SOURCE_CHANGED, event.name, message)
    return feed


def _describe_interval(feed: ShardTable, run: shard_table.Run) -> str:
    """Return an interval of a source in the words of users."""
    number, first = divmod(run[0], shard_table.SPAN)
    end = run[1] - number * shard_table.SPAN
    last = f"to {end - 1}" if end < shard_table.SPAN else "on"
    return f"offsets {first} {last} of {feed.partitions[number]}"


def refusal_reason(state: JobState | StateTransaction, event: ShardsTold) -> str:
    """Return why a process gets no shards of this data set; empty: it may get some."""
    if (event.role, event.rank) not in state.ranks:
        return f"there is no rank {event.role}/{event.rank}"
    feed = state.feeds.get(event.name)
    if feed is None:  # the first rank that names a data set defines it
        if len(state.feeds) >= FEEDS:
            return f"there are {FEEDS} data sets already; all ranks that share one give it the same name"
        is_valid = event.size > 0 and event.shard > 0 and event.epochs > 0
        return "" if is_valid else "its size, shard size and epochs are whole numbers from 1"
    if feed.unbounded is not (event.size == shard_table.SPAN):
        return f"it is a {'source' if feed.unbounded else 'data set'} already: give the other one another name"
    wanted_order = event.order or feed.order
    known_form, asked_form = (
        f"{counted(size, 'sample')} in shards of {shard}, {counted(epochs, 'time')} {order}"
        for size, shard, epochs, order in (
            (feed.size, feed.shard, feed.epochs, feed.order or wanted_order),
            (event.size, event.shard, event.epochs, wanted_order),
        )
    )
    difference = f"it is {known_form}, and not {asked_form}; under another name it begins anew"
    return "" if known_form == asked_form else difference


def is_from_present_process(state: JobState | StateTransaction, event: ShardsTold) -> bool:
    """Whether the event is from the rank's present process, in a run of its world that no later one has superseded."""
    rank_state = state.ranks[event.role, event.rank]
    superseded_by = state.saves.get(event.world, Saves()).superseded(event.run_id)
    has_left = rank_state.phase in ENDED_PHASES or rank_state.phase is RankPhase.ABSENT
    return rank_state.incarnation == event.incarnation and not has_left and not superseded_by


def return_leases(tx: StateTransaction) -> None:
    """Take back the leases of processes that are gone.

    A process that saves checkpoints keeps its leases until its successor restores: only then is it known which of the
    shards were done. While the job ends all keep them: savers still report what is in the last saves.
    """
    if not tx.feeds or not tx.phase.active:
        return
    for key in sorted(tx.changes.ranks):
        rank_state = tx.ranks[key]
        for name, feed in tx.feeds.items():
            leases = feed.leases.get(key)
            if leases is None:
                continue
            # A rank that has ended or left for good has no successor that could restore: its leases come back at once.
            # The world of several ranks starts anew without the one that left, and restores.
            is_absent = rank_state.phase is RankPhase.ABSENT and "/" in leases.world
            has_left = rank_state.phase in ENDED_PHASES or is_absent
            has_ended = rank_state.incarnation != leases.incarnation or not rank_state.phase.live
            if has_left or (has_ended and not leases.saves):
                _set_feed(tx, name, shard_table.take_back_leases(feed, key))


def settle_oldest_checkpoint(tx: StateTransaction, world: str, oldest: CheckpointId) -> None:
    """Drop the acknowledgements that are contained in the oldest checkpoint left: they cannot be undone singly."""
    for name, feed in tx.feeds.items():
        _set_feed(tx, name, shard_table.settle_until(feed, world, oldest, remember="/" not in world))


def return_work_after_checkpoint(
    tx: StateTransaction, world: str, run_id: RunId, chosen: CheckpointId | None, oldest: CheckpointId | None
) -> None:
    """Hand out again the work that is not in the checkpoint which a run restores. `oldest`: the oldest settled one."""
    for name, feed in tx.feeds.items():
        new_feed, position_count = shard_table.restore_checkpoint(feed, world, run_id, chosen, oldest)
        _set_feed(tx, name, new_feed)
        _note_returned(tx, world, name, feed, position_count)


def _note_returned(tx: StateTransaction, world: str, name: str, feed: ShardTable, position_count: int) -> None:
    if position_count:
        tx.note(reasons.DATA_RETURNED, world, _describe_returned(feed, name, position_count))


def _describe_returned(feed: ShardTable, name: str, position_count: int) -> str:
    positions = counted(position_count, "offset" if feed.unbounded else "sample")
    return f"{positions} of {name} {is_or_are(position_count)} handed out again"


def settle_oldest_cut(tx: StateTransaction, oldest: int) -> None:
    """Settle the work of ranks without a state that is in the oldest cut left."""
    oldest_mark = shard_table.cut_mark(oldest)
    for name, feed in tx.feeds.items():
        _set_feed(tx, name, shard_table.settle_until(feed, shard_table.STATELESS, oldest_mark, remember=True))


def return_work_after_cut(tx: StateTransaction, cut_number: int) -> None:
    """Hand out again what ranks without a state did after the cut that the job goes back to; 0: all that they did.

    These ranks live on, and may put what comes of a shard that they hold into a queue which drops it: their leases end.
    """
    chosen = shard_table.cut_mark(cut_number) if cut_number else None
    for name, feed in tx.feeds.items():
        new_feed = feed
        for holder, leases in feed.leases.items():
            new_feed = new_feed if leases.saves else shard_table.take_back_leases(new_feed, holder)
        new_feed, position_count = shard_table.restore_checkpoint(new_feed, shard_table.STATELESS, FIRST, chosen)
        _set_feed(tx, name, new_feed)
        if position_count:
            message = f"{_describe_returned(feed, name, position_count)}, as of the cut"
            tx.note(reasons.DATA_RETURNED, "job", message)


def carry_positions(state: JobState, rows: int | None = None) -> dict[str, Any]:
    """Return the data positions for the next attempt, as JSON; beyond `rows` (ROWS) intervals some is done again."""
    return {name: _carry(feed, rows) for name, feed in sorted(state.feeds.items())}


def _carry(feed: ShardTable, max_rows: int | None = None) -> list[Any]:
    """Return one data set for `carry_positions`. Leased shards count as to do: their processes end with the attempt."""
    # Of a source, whose offsets must not be read twice, at least two intervals for each partition.
    max_rows = max(ROWS if max_rows is None else max_rows, 2 * len(feed.partitions))
    leased_runs = [run for leases in feed.leases.values() for run in leases.runs]
    # Acknowledgements that do not fit are dropped, and their intervals are done again.
    acked, dropped = feed.acked[-max_rows:], feed.acked[:-max_rows]
    todo_runs = (*feed.todo, *leased_runs, *((ack.start, ack.end) for ack in dropped))
    todo = shard_table.coarsen(shard_table.merge_runs(todo_runs), max_rows)
    # Joining neighbours may have included acknowledged intervals: these are then done again, and must not count twice.
    remaining = [ack for ack in acked if not any(start <= ack.start < end for start, end in todo)]
    rows = [
        [ack.world, *astuple(ack.mark.run_id), ack.mark.step, ack.start, ack.end]
        + ([ack.mark.revision] if ack.mark.revision else [])
        for ack in remaining
    ]
    settled = {
        world: [list(run) for run in shard_table.coarsen(runs, max_rows)]
        for world, runs in sorted(feed.settled.items())
    }
    todo_rows = [list(run) for run in todo]
    return [feed.size, feed.shard, feed.epochs, todo_rows, rows, settled, list(feed.partitions), feed.order]


def read_carried_positions(data: Mapping[str, Any]) -> tuple[tuple[str, ShardTable], ...]:
    """Return the data sets that `carry_positions` wrote. Raises ValueError, TypeError or KeyError for another form."""
    feeds: list[tuple[str, ShardTable]] = []
    for name, (size, shard, epochs, todo, rows, *more) in data.items():
        acked = [
            Acked(
                str(row[0]),
                CheckpointId(RunId(int(row[1]), int(row[2])), int(row[3]), *map(int, row[6:])),
                *map(int, row[4:6]),
            )
            for row in rows
        ]
        done: Mapping[str, Any] = more[0] if more else {}
        settled = Map({str(world): _runs(runs) for world, runs in done.items()})
        names = tuple(map(str, more[1])) if len(more) > 1 else ()
        feed = ShardTable(int(size), int(shard), int(epochs), _runs(todo), acked=tuple(acked), settled=settled)
        feed = evolve(feed, partitions=names, order=str(more[2]) if len(more) > 2 else "")
        feeds.append((str(name), feed))
    return tuple(feeds)


def _runs(rows: Iterable[Any]) -> shard_table.Runs:
    return tuple((int(start), int(end)) for start, end in rows)


def _set_feed(tx: StateTransaction, name: str, feed: ShardTable) -> None:
    # An unchanged table must stay the same object, or the event would make a new version of the state.
    if tx.feeds.get(name) is not feed:
        tx.feeds = tx.feeds.set(name, feed)


def runs_of(state: JobState, name: str, holder: Holder, incarnation: int) -> shard_table.Runs:
    """Return the shards leased to a process; empty for a former one."""
    feed = state.feeds.get(name)
    leases = feed and feed.leases.get(holder)
    return leases.runs if leases is not None and leases.incarnation == incarnation else ()
