"""PrimeMaster's journal: what happened, in order, a segment per epoch, so a new master knows what the old one knew.

A segment starts with a header that names the segment before it and the offset up to which that one counts: whatever an
older master wrote after it was fenced is ignored. A master makes its own segment *before* it reads its predecessor's,
and looks for a later one *after* each commit; so of two masters at most one acts on what it wrote.

A torn tail (the writer died in the middle of a line) is normal. Damage anywhere else is refused with its offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dljob.errors import DLJobError, JournalError
from dljob.runtime.stores import JournalStore
from dljob.telemetry.records import Header, Record, Scan, encode_header, encode_line, scan


class FencedError(DLJobError):
    """A later master has claimed the job: this one must stop at once."""


class JournalBrokenError(DLJobError):
    """The journal cannot be written any more; what was acknowledged is safe."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What the journal knows: the records from the last whole snapshot on, or all of them, oldest first."""

    epoch: int
    records: tuple[Record, ...]
    cores: frozenset[str] = frozenset()
    """Which code wrote them; "" is code before journals said so."""
    reader: str = ""
    """Which code reads them."""

    @property
    def foreign(self) -> bool:
        """Whether other code wrote any of it."""
        return not self.cores <= {self.reader}


class Journal:
    """One master's journal. `open` once, then `commit` as often as needed."""

    def __init__(self, store: JournalStore, core: str = "") -> None:
        self.store = store
        self._core = core
        self.epoch = 0
        self.since_snapshot = 0
        self._lines = 0
        self._broken = ""

    async def open(self) -> Replay:
        """Claim the next epoch, fence its predecessor, and read what is known.

        Raises:
            JournalError: What is known cannot be read: it is damaged, or of a newer version.
            JournalBrokenError: The new segment cannot be written.
        """
        epochs = await self._claim()
        chain, prev = await self._chain(epochs)
        await self._append(encode_header(Header(self.epoch, prev, core=self._core)), 1)
        lines = [(record, seg.header.core) for seg in chain if seg.header is not None for record in seg.records]
        records = [record for record, _ in lines]
        first = _last_snapshot(records)
        return Replay(self.epoch, tuple(records[first:]), frozenset(core for _, core in lines[first:]), self._core)

    async def _claim(self) -> tuple[int, ...]:
        while True:
            try:
                epochs = await self.store.epochs()
                self.epoch = max(epochs, default=0) + 1
                if await self.store.claim(self.epoch):
                    return epochs
            except OSError as error:
                raise self._cannot(error) from error

    async def _chain(self, epochs: Sequence[int]) -> tuple[list[Scan], tuple[str, int] | None]:
        """The segments that count, oldest first; the name and end of the last one."""
        for epoch in sorted(epochs, reverse=True):
            newest = await self._scan(epoch, None)
            if newest.header is not None:
                break
        else:
            return [], None  # no master ever lived long enough to write its header
        end = (_name(newest.header.epoch), newest.valid_bytes)
        chain, segment = [newest], newest
        while segment.header is not None and segment.header.prev is not None and not _snapshot_at(segment.records, 0):
            name, fence = segment.header.prev
            segment = await self._scan(int(name), fence)
            chain.append(segment)
        return chain[::-1], end

    async def _scan(self, epoch: int, fence: int | None) -> Scan:
        try:
            data = await self.store.read(epoch)
        except OSError as error:
            raise JournalError(f"{self.store.where}: segment {_name(epoch)}: {error.strerror}", offset=0) from error
        return scan(data, name=f"journal {self.store.where}, segment {_name(epoch)}", limit=fence)

    async def commit(self, records: Sequence[Record]) -> None:
        """Make records durable.

        Raises:
            FencedError: A later master is there; what was written does not count.
            JournalBrokenError: Nothing can be written any more.
        """
        lines = [encode_line(self._lines + i, record) for i, record in enumerate(records)]
        await self._append(b"".join(lines), len(lines))
        self.since_snapshot += len(records)
        if await self.store.superseded(self.epoch):
            raise FencedError(f"epoch {self.epoch} is over: a later master has claimed the job")

    async def snapshot(self, records: Sequence[Record]) -> None:
        """Write a snapshot; a replay starts from it, and older segments may go."""
        first = self._lines == 1
        await self.commit(records)
        self.since_snapshot = 0
        if first:
            await self.store.forget(self.epoch)

    async def _append(self, data: bytes, lines: int) -> None:
        if self._broken:
            raise JournalBrokenError(self._broken)
        try:
            await self.store.append(self.epoch, data)
        except OSError as error:
            raise self._cannot(error) from error
        self._lines += lines

    def _cannot(self, error: OSError) -> JournalBrokenError:
        self._broken = f"the journal in {self.store.where} cannot be written: {error.strerror or error}"
        return JournalBrokenError(self._broken, hint="make room there, or set spec.master.journal.path")

    async def close(self) -> None:
        """Close the store."""
        await self.store.close()


def _name(epoch: int) -> str:
    return f"{epoch:06d}"


def _snapshot_at(records: Sequence[Record], at: int) -> bool:
    """Whether a whole snapshot starts there."""
    if at >= len(records) or records[at]["k"] != "snapshot" or records[at]["i"]:
        return False
    parts = records[at : at + records[at]["of"]]
    return len(parts) == records[at]["of"] and all(part["k"] == "snapshot" for part in parts)


def _last_snapshot(records: Sequence[Record]) -> int:
    """Where the last whole snapshot starts; 0 when there is none."""
    return next((at for at in range(len(records) - 1, -1, -1) if _snapshot_at(records, at)), 0)
