"""PrimeMaster's journal: all events in order, from which a new master rebuilds the state of the old one.

It is a chain of segments, numbered without a gap. A segment is claimed once, and starts with a header that names the
previous segment and the offset up to which that one counts: lines that an older master wrote after it was fenced are
ignored. A master claims its first segment *before* it reads its predecessor's, and looks for a later claim *after* each
commit; so of two masters at most one acts on its records. The number of a master's first segment is its epoch.

The journal rolls with its snapshots: the master claims the next segment, as its successor would, and writes the
snapshot there. A master that dies between any two of these writes leaves the same as one that dies at its start. A
start reads the newest segment that has a whole snapshot, and those after it; older ones are superseded
(`JournalStore.forget`).

A torn tail (the writer died in the middle of a line) is normal. Damage anywhere else is refused with its offset. See
docs/adr/0062 for the alternatives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from dljob.errors import DLJobError, JournalError
from dljob.runtime.journal.stores import JournalStore
from dljob.runtime.journal.volume import FULL
from dljob.tasks import ErrorLog
from dljob.telemetry.records import (
    Header,
    Record,
    Scan,
    SegmentBytes,
    encode_header,
    encode_line,
    read_header,
    scan_on,
    scan_tail,
    snapshot_at,
)

log = logging.getLogger(__package__)

T = TypeVar("T")

FEW = 16
"""Up to this many lines a snapshot goes into the present segment: so does the first one of a job."""
SNAPSHOT_BYTES = 16 * 2**20
"""Bytes behind a snapshot after which the next one is due, however few records they are: whoever reads the journal, a
standby as well as a new master, holds all records behind the last snapshot in memory, and several times as large."""
FULL_S = 600.0
"""Seconds to wait for room on a full volume. Ranks go on meanwhile, and nothing is decided."""
ROOM_HINT = "make room there, or set spec.master.journal.path"
DISK_HINT = "see what the kernel says of that disk (dmesg), or set spec.master.journal.path to another volume"
READ_HINT = "see that it is mounted, and that the user of Ray's workers may read and write it: ls -ld"
FIRST_S, MOST_S = 0.05, 5.0
"""Backoff on a full volume in seconds: the first pause, and the longest."""
FENCE_S = 1.0
"""Seconds between two looks for a later master while nothing is committed."""


class FencedError(DLJobError):
    """A later master has claimed the job: this one must stop at once."""


class _WritesEndedError(Exception):
    """This master writes no record any more: see `Journal.end_writes`."""


class JournalBrokenError(DLJobError):
    """The journal cannot be written any more; acknowledged records are safe."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The content of a journal, oldest record first: from the last whole snapshot on, or all without one."""

    epoch: int
    records: tuple[Record, ...]
    cores: frozenset[str] = frozenset()
    """Versions of the code that wrote the records."""
    reader: str = ""
    """Version of the code that reads them."""

    @property
    def foreign(self) -> bool:
        """Whether another version of the code wrote any of it."""
        return not self.cores <= {self.reader}


class Journal:
    """The journal of one master: `open` once, then `commit` as often as needed."""

    def __init__(self, store: JournalStore, core: str = "") -> None:
        self.store = store
        self._core = core
        self.epoch = 0
        self.segment = 0
        """Number of the segment that is written."""
        self._claimed = 0
        """Highest segment that this master has claimed, or is about to claim."""
        self.since_snapshot = self._bytes_since_snapshot = 0
        self._snapshot_bytes = 0
        """Bytes of the last snapshot that this master wrote."""
        self.stalled_s = 0.0
        """Seconds that writes waited for room on a full volume; the reader sets it back to 0."""
        self.stall = ""
        """Why a write waits for room now; empty while none does."""
        self._writes_ended = asyncio.Event()
        self.on_stall: Callable[[], None] = lambda: None
        """Called when a write begins to wait for room."""
        self._lines = self._bytes = 0
        """Lines and bytes of the segment that is written."""
        self._broken = self._broken_hint = ""
        self._scans: dict[int, Scan] = {}
        """The last scan of each segment, kept while this master follows another one."""

    async def follow(self) -> Replay:
        """Read the journal of the master that commands, without a claim; what was read before is not read again.

        Raises:
            JournalError: It cannot be read now, perhaps since a segment is just being archived.
        """
        chain, _ = await self._chain(await self.store.epochs())
        self._scans = {scan.header.epoch: scan for scan in chain if scan.header is not None}
        return self._replay(chain)

    async def highest(self) -> int:
        """Return the highest number that is claimed; 0 without any.

        Raises:
            JournalBrokenError: They cannot be read.
        """
        try:
            return max(await self.store.epochs(), default=0)
        except OSError as error:
            message = f"the journal in {self.store.place} cannot be read: {error.strerror or error}"
            raise JournalBrokenError(message, hint=f"{READ_HINT} {self.store.place}") from error

    async def claim(self, number: int) -> bool:
        """Claim one segment as this master's epoch; False when it, or a later one, is claimed already.

        Raises:
            JournalBrokenError: The volume stayed full, or failed.
        """
        if max(await self._patiently(self.store.epochs), default=0) != number - 1:
            return False
        if not await self._patiently(lambda: self.store.claim(number)):
            return False
        # Of two claims within a moment the later one counts, as for a master that writes.
        if await self._patiently(lambda: self.store.superseded(number)):
            return False
        self.epoch = self.segment = self._claimed = number
        return True

    async def open(self) -> Replay:
        """Claim the next epoch unless `claim` has, which fences its predecessor, and read the journal.

        Raises:
            JournalError: It cannot be read: it is damaged, or of another version, which is then left as it is.
            JournalBrokenError: The new segment cannot be written.
        """
        # Only a journal of another version is refused first: a claim would fence the master that can go on with it.
        if not self.epoch:
            await self._check_version()
        # What the predecessor writes after the claim is behind the fence, or it sees the claim and stops.
        epochs = await self._earlier() if self.epoch else await self._claim()
        chain, prev = await self._chain(epochs)
        self._scans.clear()
        await self._append(encode_header(Header(self.epoch, prev, core=self._core)), 1)
        return self._replay(chain)

    def _replay(self, chain: Sequence[Scan]) -> Replay:
        lines = [(record, seg.header.core) for seg in chain if seg.header is not None for record in seg.records]
        records = [record for record, _ in lines]
        # Older records are part of the snapshot.
        first = _last_snapshot(records)
        return Replay(self.epoch, tuple(records[first:]), frozenset(core for _, core in lines[first:]), self._core)

    async def _claim(self) -> tuple[int, ...]:
        # `claim` has failed: an epoch of a master that cannot write would fence one that can.
        self._check_broken()
        while True:
            epochs = await self._patiently(self.store.epochs)
            number = max(epochs, default=0) + 1
            # Two masters may try the same number: the one that loses reads the numbers again.
            if await self._patiently(lambda number=number: self.store.claim(number)):
                self.epoch = self.segment = self._claimed = number
                return epochs

    async def _check_version(self) -> None:
        for epoch in reversed(await self._patiently(self.store.epochs)):
            if (await self._read(epoch, lambda source, name: read_header(source, name=name)))[0] is not None:
                return

    async def _earlier(self) -> tuple[int, ...]:
        return tuple(epoch for epoch in await self._patiently(self.store.epochs) if epoch < self.epoch)

    async def _chain(self, epochs: Sequence[int]) -> tuple[list[Scan], tuple[str, int] | None]:
        """Return the segments that count, oldest first, with name and end of the last one."""
        # A claim without a header is of a master that died at once, or of one that is fenced: it knows nothing.
        for epoch in sorted(epochs, reverse=True):
            newest = await self._scan(epoch, None)
            if newest.header is not None:
                break
        else:
            return [], None  # every earlier master died before it had written its header
        # The new segment's header names this offset: what a fenced predecessor still appends behind it does not count.
        end = (_name(newest.header.epoch), newest.valid_bytes)
        chain, segment = [newest], newest
        # Backwards to a snapshot: the segments before it need not even exist any more.
        while segment.header is not None and segment.header.prev is not None and not snapshot_at(segment.records, 0):
            name, fence = segment.header.prev
            segment = await self._scan(int(name), fence)
            chain.append(segment)
        return chain[::-1], end

    async def _scan(self, epoch: int, fence: int | None) -> Scan:
        known = self._scans.get(epoch)

        def read(source: SegmentBytes, name: str) -> Scan:
            if known is not None:
                return scan_on(known, source, name=name, limit=fence)
            return scan_tail(source, name=name, limit=fence)

        return await self._read(epoch, read)

    async def _read(self, epoch: int, read: Callable[[SegmentBytes, str], T]) -> T:
        name = f"journal {self.store.place}, segment {_name(epoch)}"
        try:
            return await self.store.read(epoch, lambda source: read(source, name))
        except OSError as error:
            raise JournalError(f"{self.store.place}: segment {_name(epoch)}: {error.strerror}", offset=0) from error

    def end_writes(self) -> None:
        """Write no record any more, and wait for no room: the job is to end, and so needs no successor.

        A master that dies before that end has a successor that knows nothing of the order: it must be given again.
        """
        self._writes_ended.set()

    async def commit(self, records: Sequence[Record], *, aside: bool = False) -> None:
        """Make records durable. With `aside` a thread encodes them, since they are many or large.

        After `end_writes` it only looks for a later master.

        Raises:
            FencedError: A later master has the job; these records do not count.
            JournalBrokenError: The journal cannot be written any more.
        """
        first = self._lines
        data = await asyncio.to_thread(_encoded, first, records) if aside else _encoded(first, records)
        # The look for a later claim comes after the write: a master that finds none was still the owner at the write.
        with suppress(_WritesEndedError):
            await self._append(data, len(records))
            self.since_snapshot += len(records)
            self._bytes_since_snapshot += len(data)
        await self._check_fence()

    def snapshot_due(self, records: int) -> bool:
        """Return whether the next snapshot is due: after so many records, or after many bytes.

        Not before they are as many as those of a snapshot: most of what is written would be snapshots.
        """
        if self._writes_ended.is_set():
            return False
        if self.since_snapshot >= records:
            return True
        return self._bytes_since_snapshot >= max(SNAPSHOT_BYTES, self._snapshot_bytes)

    async def snapshot(self, records: Sequence[Record]) -> None:
        """Write a snapshot, in a new segment unless this one is short; a replay starts from it."""
        # A short segment needs no successor: the snapshot at the start of an epoch would roll it at once.
        if self._lines > FEW:
            try:
                await self._roll()
            except _WritesEndedError:
                return
        begin = self._bytes
        await self.commit(records, aside=len(records) > FEW)
        # Only after the commit: a snapshot that was not written must be tried again.
        self.since_snapshot = self._bytes_since_snapshot = 0
        self._snapshot_bytes = self._bytes - begin

    async def forget(self) -> str:
        """Archive the segments that the last snapshot supersedes; return a message about those dropped for good."""
        return await self.store.forget(self.segment)

    async def _roll(self) -> None:
        """Continue in the next segment, claimed as a successor would claim it, so that only one of both has it."""
        prev, number = (_name(self.segment), self._bytes), self.segment + 1
        self._claimed = number  # before it exists: the guard thread must not take it for a successor's claim
        try:
            is_claimed = await self._patiently(lambda: self.store.claim(number))
        except _WritesEndedError:
            self._claimed = self.segment
            raise
        if not is_claimed:
            self._claimed = self.segment
            raise self._fenced()
        self.segment, self._lines, self._bytes = number, 0, 0
        await self._append(encode_header(Header(number, prev, core=self._core)), 1)

    @property
    def position(self) -> tuple[int, int]:
        """The segment that is written, and its number of lines."""
        return self.segment, self._lines

    def superseded_now(self) -> bool | None:
        """Return whether a later master has claimed the job, without an event loop; None where it cannot tell."""
        return self.store.superseded_now(self._claimed) if self._claimed else False

    async def watch_fence(self) -> None:
        """Look for a later master again and again: in a quiet job no commit does, and no thread can ask Ray's store.

        Raises:
            FencedError: A later master has the job.
        """
        errors = ErrorLog("the look for a later master", log)
        while True:
            await asyncio.sleep(FENCE_S)
            segment = self.segment
            try:
                over = await self.store.superseded(segment)
                errors.worked()
            except Exception as error:  # noqa: BLE001 - Ray's head may be away; the next look is soon
                errors.failed(error)
                continue
            if over and 0 < segment == self._claimed:  # else the later claim is its own, by a roll, or it has none yet
                raise self._fenced()

    async def _check_fence(self) -> None:
        if await self.store.superseded(self.segment):
            raise self._fenced()

    def _check_broken(self) -> None:
        if self._broken:
            raise JournalBrokenError(self._broken, hint=self._broken_hint)

    def _fenced(self) -> FencedError:
        return FencedError(f"epoch {self.epoch} is over: a later master has claimed the job")

    async def _append(self, data: bytes, lines: int) -> None:
        # After a failed write the content of the disk is unknown.
        self._check_broken()
        await self._patiently(lambda: self.store.append(self.segment, data))
        self._lines += lines
        self._bytes += len(data)

    async def _patiently(self, write: Callable[[], Awaitable[T]]) -> T:
        """Retry a write while the volume is full; any other error breaks the journal for good.

        Raises:
            _WritesEndedError: `end_writes` was called, before or meanwhile.
        """
        waited, pause = 0.0, FIRST_S
        while True:
            if self._writes_ended.is_set():
                self.stall = ""
                raise _WritesEndedError
            try:
                done = await write()
            except OSError as error:
                if error.errno not in FULL or waited >= FULL_S:
                    raise self._cannot(error, waited) from error
                if not waited:
                    log.error("%s is full: %s; ranks go on, PrimeMaster waits", self.store.place, error.strerror)
                    self.stall = f"the journal cannot be written: {error.strerror} ({self.store.place})"
                    self.on_stall()
            else:
                self.stalled_s += waited
                self.stall = ""
                return done
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._writes_ended.wait()
            waited, pause = waited + pause, min(2 * pause, MOST_S)
            if self.segment:  # a successor may have claimed the job while this master waited
                await self._check_fence()

    def _cannot(self, error: OSError, waited: float) -> JournalBrokenError:
        full = f" (for {waited:.0f} s)" if waited else ""
        self._broken = f"the journal in {self.store.place} cannot be written: {error.strerror or error}{full}"
        self._broken_hint = ROOM_HINT if error.errno in FULL else DISK_HINT
        return JournalBrokenError(self._broken, hint=self._broken_hint)

    async def close(self) -> None:
        """Close the store."""
        await self.store.close()


def _encoded(first: int, records: Iterable[Record]) -> bytes:
    """Return the lines of records, numbered from `first`."""
    return b"".join(encode_line(number, record) for number, record in enumerate(records, first))


def _name(epoch: int) -> str:
    return f"{epoch:06d}"


def _last_snapshot(records: Sequence[Record]) -> int:
    """Return the index at which the last whole snapshot starts; 0 without one."""
    return next((at for at in range(len(records) - 1, -1, -1) if snapshot_at(records, at)), 0)
