"""A world whose PrimeMasters keep their journals by the real `Journal`, in memory: a segment each."""

from __future__ import annotations

import json
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from dljob.errors import JournalError
from dljob.master.persistence.changes import Written, changes
from dljob.master.persistence.codec import decode_state, event_record, replay, snapshot_records
from dljob.master.state.events import Commanded
from dljob.master.state.state import JobState
from dljob.runtime.journal.journal import FencedError, Journal
from dljob.telemetry.records import Record, SegmentBytes
from dljob.testing.world import invariants
from dljob.testing.world.state import EPOCH_S, UID
from dljob.testing.world.world import World

T = TypeVar("T")


def done(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nobody."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


class Segments:
    """A store in memory."""

    place = "memory"

    def __init__(self) -> None:
        self.bytes: dict[int, bytes] = {}

    async def epochs(self):
        return tuple(sorted(self.bytes))

    async def claim(self, epoch):
        return self.bytes.setdefault(epoch, b"") == b""

    async def read(self, epoch, work):
        data = self.bytes[epoch]
        return work(SegmentBytes(len(data), lambda start, end: data[start:end]))

    async def append(self, epoch, data):
        self.bytes[epoch] += data

    async def superseded(self, epoch):
        return max(self.bytes) > epoch

    async def forget(self, before):
        return ""

    async def close(self):
        pass


class Segmented(World):
    """Every event is in the journal before anybody acts upon it; each boot reads what all masters before it wrote.

    A master that dies lives on a little as far as its journal goes: what it still writes counts for nothing.
    Every third one begins with a snapshot.
    """

    def _surround(self, nodes):
        super()._surround(nodes)
        self.store = Segments()
        self.writer: Journal | None = None
        self.written, self.noted = 0, self.begin

    def _write(self) -> None:
        if self.writer is None:
            return
        records = [event_record(event, at) for at, event in self.journal[self.written :]]
        self.written = len(self.journal)
        change = changes(self.noted, self.known)
        self.noted = self.known
        done(self.writer.commit([*records, {"k": "change", "d": change}]))

    def carry_out(self, actions, doomed=None):
        self._write()
        super().carry_out(actions, doomed)

    def boot(self) -> None:
        former, self.writer = self.writer, Journal(self.store)
        known = done(self.writer.open())
        if former is not None:
            self._outlive(former)
            job = self.begin.job  # sizes have changed since
            state = replay(job.plan, job.spec, UID, known.records, start=EPOCH_S, own_nodes=job.own_nodes)
            if invariants.text(state) != invariants.text(self.known):
                self.problems.append(f"segments: {len(known.records)} records do not lead to the state")
            if invariants.text(self._read(known.records)) != invariants.text(self.known):
                self.problems.append(f"segments: {len(known.records)} records do not make the state for other code")
            if known.epoch % 3 == 0:
                self.noted = self.known
                done(self.writer.snapshot(snapshot_records(self.known, self.clock())))
        super().boot()

    def _read(self, records: Sequence[Record]) -> JobState:
        """The state as somebody knows it who folds no event."""
        chunks = [record["d"] for record in records if record["k"] == "snapshot"]
        written = Written(json.loads("".join(chunks) or invariants.text(self.begin)))
        for record in records:
            if record["k"] == "change":
                with suppress(JournalError):  # the state tells
                    written.lay(record["d"])
        return decode_state(written.data(), self.job)

    def _outlive(self, former: Journal) -> None:
        """A master that others think dead writes once more."""
        with suppress(FencedError):
            done(former.commit([event_record(Commanded("late", "stop"), self.now)]))
            raise AssertionError("nobody told it that it is over")
