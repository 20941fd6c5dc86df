"""`source(name, uri)`: ranks share a stream of events without an end, of which a restore loses and repeats none.

PrimeMaster leases partitions to ranks and journals the offsets that are done, in the table that `shards` uses: there
partition n is epoch n. Events are read when a batch is asked for, never ahead of it: a slow trainer slows the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dljob.errors import UsageError
from dljob.master.state.shard_table import SPAN, Runs, cut_out, merge_runs
from dljob.runtime.checkpoint.checkpoints import checkpoint, new_client
from dljob.runtime.checkpoint.client import CheckpointClient
from dljob.runtime.data import source_cursor
from dljob.runtime.data.leases import LeaseClient, Run, check_process
from dljob.runtime.data.source_cursor import Cursor
from dljob.runtime.data.source_reader import Extent, OpenSource, SourceError, SourceEvent, SourceReader
from dljob.runtime.process import extensions
from dljob.runtime.process.context import current_worker
from dljob.runtime.queues import session
from dljob.runtime.weights.event_times import event_times

SOURCES = "dljob.sources"
BATCH, LINGER_S, MOST_BYTES, IDLE_S = 256, 0.1, 16 << 20, 10.0
"""Defaults: events of a batch, the wait for more of them, bytes of a batch, and when a partition is idle."""
LOOK_S = 1.0
"""Seconds between two looks at the partitions."""
POLL_S = 0.02
"""Seconds until a source that had nothing is asked again."""
REPORT = 64
"""Batches that are done until they are reported without a save."""
NEWS = 64
"""Number of different words about a source that a process tells: more repeat what is known."""
LAG = "source:"
"""Prefix of the value that a rank notes: the offsets that it has not read."""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events that are leased to this process. Iterating them marks them done at the end."""

    events: tuple[SourceEvent, ...]
    runs: tuple[Run, ...]
    """Their positions: partition number * 2^48 + offset, [start, end)."""
    watermark: float | None
    """The time up to which events were read in all partitions of this rank that are not idle (unix seconds)."""
    _done: Callable[[Sequence[Run], Sequence[SourceEvent]], None]

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[SourceEvent]:
        yield from self.events
        self.done()

    def done(self) -> None:
        """Mark the events done: the next `checkpoint.save` includes them."""
        self._done(self.runs, self.events)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is full: its number of events, its bytes, and the seconds since its first event."""

    events: int
    size: int
    linger_s: float

    def full(self, count: int, size: int, age_s: float) -> bool:
        """Whether nothing is added any more. A first event that is larger than a batch is a batch of its own."""
        return count >= self.events or size >= self.size or (count > 0 and age_s >= self.linger_s)


class _Filling:
    """A batch that is being filled."""

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self.events: list[SourceEvent] = []
        self.runs: list[Run] = []
        self.size = 0
        self.begun = 0.0

    def full(self, now: float) -> bool:
        return self.limits.full(len(self.events), self.size, now - self.begun)

    def room(self) -> int:
        return self.limits.events - len(self.events)

    def fits(self, event: SourceEvent) -> bool:
        return not self.events or self.size + len(event.value) <= self.limits.size

    def add(self, run: Run, events: Sequence[SourceEvent], now: float) -> None:
        if not self.events:
            self.begun = now
        self.events += events
        self.size += sum(len(event.value) for event in events)
        for index, (begin, last) in enumerate(self.runs):
            if last == run[0]:
                self.runs[index] = begin, run[1]
                return
        # Also where offsets between were lost, or were done before: an interval with a hole is in no lease.
        self.runs.append(run)


class EventSource(LeaseClient):
    """A source as a rank's process reads it: an iterator over batches of the partitions that it is leased."""

    _kind = "source"

    def __init__(
        self,
        client: CheckpointClient,
        name: str,
        reader: SourceReader,
        limits: BatchLimits,
        *,
        latest: bool = False,
        idle_s: float = IDLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(client, {"size": SPAN, "shard": SPAN, "epochs": 1}, name, wait=False)
        self._reader = reader
        self._limits = limits
        self._latest = latest
        self._idle_s = idle_s
        self._clock = clock
        self._names: tuple[str, ...] = ()
        self._open = 0
        """Partitions of which PrimeMaster knows that they are not gone."""
        self._cursors: dict[int, Cursor] = {}
        self._handed_out: Runs = ()
        """Positions of events that are in batches, and not done."""
        self._seen: dict[str, Extent] = {}
        self._lost: list[Run] = []
        self._news: list[str] = []
        self._told_words: set[str] = set()
        self._looked_at = float("-inf")
        self._turn = 0

    def __iter__(self) -> Iterator[EventBatch]:
        return self

    def __next__(self) -> EventBatch:
        batch = self.take()
        if batch is None:
            raise StopIteration
        return batch

    def take(self, timeout: float | None = None) -> EventBatch | None:
        """Return the next batch; None when the rank is to end, or when nothing came for `timeout` seconds.

        Raises:
            UsageError: A later object of the name reads it in this process, or this is a child of the rank.
            CheckpointError: A later process of this rank has taken its place.
        """
        self._attach()
        began, filling = self._clock(), _Filling(self._limits)
        stopping = current_worker().stopping
        while not filling.full(now := self._clock()):
            self._check_reads()
            if now - self._looked_at >= LOOK_S and self._look(now):
                filling = _Filling(self._limits)
            if not self._read(filling):
                late = timeout is not None and not filling.events and now - began >= timeout
                if late or stopping.wait(POLL_S):
                    break
        if not filling.events:
            return None
        self._check_reads()
        session.continue_in(self._epoch)
        with self._lock:
            self._handed_out = merge_runs((*self._handed_out, *filling.runs))
        return EventBatch(tuple(filling.events), tuple(filling.runs), self.watermark, self._finished)

    @property
    def watermark(self) -> float | None:
        """The time up to which events were read in all partitions of this rank that are not idle (unix seconds)."""
        return source_cursor.watermark(self._cursors.values(), self._clock(), self._idle_s)

    @property
    def lag(self) -> int:
        """Offsets of this rank's partitions that were not read when they were last looked at."""
        return sum(cursor.lag for cursor in self._cursors.values())

    def close(self) -> None:
        """Report finished positions, and close the source."""
        super().close()
        self._reader.close()

    # -- reading

    def _read(self, filling: _Filling) -> int:
        """Add events to a batch, one partition after the other; each batch begins with another one."""
        before, order = len(filling.events), sorted(self._cursors)
        self._turn = (self._turn + 1) % max(1, len(order))
        for number in (*order[self._turn :], *order[: self._turn]):
            cursor, now = self._cursors[number], self._clock()
            if not filling.full(now) and not cursor.fenced and cursor.unread:
                self._read_partition(filling, cursor, now)
        return len(filling.events) - before

    def _read_partition(self, filling: _Filling, cursor: Cursor, now: float) -> None:
        """Add events of a partition to a batch, up to the end of the interval that its cursor reads."""
        start, base = cursor.position, cursor.number * SPAN
        try:
            read_events = self._reader.read(cursor.name, start, filling.room())
        except SourceError as error:
            self._say(f"{cursor.name}: {error.message}; it is asked again")
            return
        events, run = self._fitting(filling, cursor, read_events, now), (base + start, base + cursor.position)
        if events:
            filling.add(run, events, now)
        elif run[0] < run[1]:  # the source has no event in the rest of the interval: there is nothing to train on
            with self._lock:
                self._note_done(run)
        if cursor.position >= cursor.until:
            source_cursor.read_next(cursor, cursor.rest)

    def _fitting(
        self, filling: _Filling, cursor: Cursor, read_events: Sequence[SourceEvent], now: float
    ) -> list[SourceEvent]:
        """Return the new events that the batch has room for; the others are read again."""
        events, size = list[SourceEvent](), filling.size
        repeated, count = cursor.repeated, len(filling.events)
        for event in read_events:
            if event.offset >= cursor.until:  # it is another interval's, or done: whether it fits does not matter
                source_cursor.fresh(cursor, [event], now)
                break
            if len(events) >= filling.room():
                break
            large = len(event.value) > self._limits.size
            if size + len(event.value) > self._limits.size and (count or events):
                break
            if large:
                self._say(
                    f"{cursor.name} has an event of {len(event.value)} bytes at offset {event.offset}, and a batch has"
                    f" at most {self._limits.size}: it is a batch of its own"
                )
            new = source_cursor.fresh(cursor, [event], now)
            events += new
            size += sum(len(event_added.value) for event_added in new)
        if cursor.repeated > repeated == 0:
            self._say(f"{cursor.name} gave offsets again that were read: they are left out")
        return events

    # -- leases

    def _look(self, now: float) -> bool:
        """Look at the partitions, tell PrimeMaster what is new, and take the leases that it gives.

        Return whether events that were read before are read again: the rank or the job has gone back meanwhile.
        """
        self._looked_at, before = now, (self._epoch, self._place.run_id)
        if (extents := self._partitions()) is not None:
            self._seen = extents
            for cursor in self._cursors.values():
                unread, base = cursor.unread, cursor.number * SPAN
                news = source_cursor.look(cursor, self._seen.get(cursor.name), SPAN)
                lost = source_cursor.common(unread, news.lost) if news.lost else ()
                self._lost += [(base + start, base + end) for start, end in lost]
                self._say(news.word)
        unknown = [name for name in self._seen if name not in self._names]
        want = max(1, source_cursor.share(self._open + len(unknown), current_worker().world_size))
        plain = checkpoint.saved is None and self._done
        hungry = len(self._cursors) - self._held_count() < want
        if unknown or self._lost or self._news or hungry or plain or len(self._done) >= REPORT:
            self._ask_for_leases(want)
        current_worker().note(f"{LAG}{self._name}", self.lag)
        return (self._epoch, self._place.run_id) != before

    def _partitions(self) -> dict[str, Extent] | None:
        try:
            extents = dict(self._reader.partitions())
        except SourceError as error:
            # What a source does not say is no news of its partitions: none of them is gone.
            self._say(f"it does not answer: {error.message}; it is asked again")
            return None
        if not extents and not self._names:
            self._say("it has no partitions yet")
        large = [name for name, extent in extents.items() if not 0 <= extent.first <= extent.next < SPAN]
        for name in large:
            self._say(f"{name} has offsets that are not whole numbers from 0 to 2^48: it is left out")
            del extents[name]
        return extents

    def _say(self, word: str) -> None:
        """Tell users a word about the source, once."""
        if word and word not in self._told_words and len(self._told_words) < NEWS:
            self._told_words.add(word)
            self._news.append(word)

    def _question(self, want: int) -> dict[str, Any]:
        first_offsets = {
            name: extent.next if self._latest and not self._names else extent.first
            for name, extent in self._seen.items()
        }
        new = [(name, first) for name, first in sorted(first_offsets.items()) if name not in self._names]
        # A save repeats what is done; what is lost and new goes with a question of its own.
        source_fields = {"partitions": new, "lost": list(self._lost), "news": list(self._news)} if want else {}
        return {**super()._question(want), **source_fields}

    def _answered(self, question: Mapping[str, Any], reply: Mapping[str, Any]) -> None:
        """Take the leases of an answer: a partition that is new to this process begins where PrimeMaster says."""
        self._names, self._open = tuple(reply["names"]), int(reply["open"])
        self._lost = self._lost[len(question.get("lost", ())) :]
        self._news = self._news[len(question.get("news", ())) :]
        if int(reply["epoch"]) != self._epoch:
            # The job went back to a cut: what this process read since is not done, and is read again.
            self._drop_positions()
            self._epoch, self._done = int(reply["epoch"]), []
        runs: list[Run] = [(start, end) for start, end in reply["runs"]]
        held_numbers = {start // SPAN for start, _ in runs}
        self._cursors = {number: kept_cursor for number, kept_cursor in self._cursors.items() if number in held_numbers}
        # A lease that it has already may be read in part, or wholly: only new ones are to be read.
        for start, end in source_cursor.added(runs, self._leased):
            number, offset = divmod(start, SPAN)
            if number not in self._cursors:
                name = self._names[number]
                end_offset = self._seen[name].next if name in self._seen else offset
                self._cursors[number] = Cursor(number, name, offset, end_offset, until=offset)
            cursor = self._cursors[number]
            source_cursor.read_next(cursor, merge_runs((*cursor.unread, (offset, end - number * SPAN))))
        self._leased = runs

    def _held_count(self) -> int:
        """Return the number of partitions of which all leases are read: they do not count as wanted."""
        return sum(not cursor.unread for cursor in self._cursors.values())

    def _drop(self) -> None:
        super()._drop()
        self._drop_positions()
        self._looked_at = float("-inf")

    def _drop_positions(self) -> None:
        self._cursors, self._leased, self._handed_out = {}, [], ()

    def _finished(self, runs: Sequence[Run], events: Sequence[SourceEvent]) -> None:
        event_times.used(event.time for event in events)
        with self._lock:
            self._check_reads()
            for run in runs:
                # Otherwise it is done, or the lease was lost with an earlier incarnation, and the work does not count.
                remaining = cut_out(self._handed_out, run)
                if remaining is not None and run[0] // SPAN in self._cursors:
                    self._handed_out = remaining
                    self._note_done(run)


def source(
    name: str,
    uri: str,
    *,
    batch: int = BATCH,
    linger: float = LINGER_S,
    most_bytes: int = MOST_BYTES,
    begin: str = "earliest",
    idle: float = IDLE_S,
    **options: Any,
) -> EventSource:
    """Return this rank's batches of a stream of events; other ranks that give the same name get other partitions.

    Args:
        name: Name of the source in the whole job; all ranks give the same URI.
        uri: `file:/data/clicks.log`, `kafka://broker:9092/clicks`, or what an installed package reads.
        batch: Most events in a batch.
        linger: Seconds since the first event of a batch after which it is handed out though it is not full.
        most_bytes: Most bytes of a batch; a larger event is a batch of its own.
        begin: Where a new source begins: "earliest", or "latest" for what comes from now on.
        idle: Seconds without events after which a partition does not hold the watermark back.
        **options: Options of the scheme.

    Raises:
        UsageError: A number is out of range, no package reads the scheme, or this is a child of the rank. Of two
            objects of a name in a process, the one that began first raises it when it is used after the other one has
            begun.
        CheckpointError: The name belongs to a data set, or a later process of this rank has taken its place.
    """
    for key, value in {"batch": batch, "most_bytes": most_bytes}.items():
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
            raise UsageError(f"source({name!r}, {key}={value!r}): wanted a whole number from 1")
    for key, seconds in {"linger": linger, "idle": idle}.items():
        if not 0 <= seconds < float("inf"):
            raise UsageError(f"source({name!r}, {key}={seconds!r}): wanted seconds from 0")
    if begin not in ("earliest", "latest"):
        raise UsageError(f"source({name!r}, begin={begin!r}): wanted 'earliest' or 'latest'")
    check_process(f"source({name!r})")
    scheme = uri.partition(":")[0]
    opened: OpenSource = extensions.load(SOURCES, scheme, f"source({name!r}): the scheme", "")
    reader = opened(uri, options)
    if missing := [method for method in ("partitions", "read", "close") if not hasattr(reader, method)]:
        raise UsageError(
            f"source({name!r}): what reads the scheme {scheme!r} returned {reader!r}, which has no {missing[0]}()",
            hint=f"an entry point of {SOURCES} returns an object with partitions, read and close: docs/howto/online.md",
        )
    limits = BatchLimits(batch, most_bytes, linger)
    new_source = EventSource(new_client(), name, reader, limits, latest=begin == "latest", idle_s=idle)
    checkpoint.feeds.append(new_source)
    return new_source
