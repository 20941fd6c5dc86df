"""Stores of a journal's bytes: a folder on a disk, or the backend's key-value store. Both keep numbered segments.

A store knows nothing of records. Its promises: `claim` has one winner per segment; `append` returns when the bytes
would survive the death of this process (in a folder: of this machine); a read returns what was appended, in order,
except for a tail that was being written when its writer died.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from dljob.runtime.backend.interface import KeyValue
from dljob.runtime.checkpoint.disk import make_folder
from dljob.runtime.journal.closed_segments import archive, sync_folder
from dljob.runtime.journal.volume import reserve
from dljob.telemetry.records import SegmentBytes

T = TypeVar("T")
SUFFIX = ".jsonl"
CLOSED = "closed"
"""Folder of superseded segments, inside that of the journal."""
RESERVE = 256 << 10
"""Bytes of the volume that are the journal's own: decisions go on for a while on one that ranks have filled."""
AT_ONCE = 64
"""Values that are read from the backend at a time."""


class JournalStore(Protocol):
    """Segments of bytes, by number (the first one of a master is its epoch)."""

    @property
    def place(self) -> str:
        """The place, for messages."""
        ...

    async def epochs(self) -> tuple[int, ...]:
        """Return the numbers claimed so far, ascending."""
        ...

    async def claim(self, epoch: int) -> bool:
        """Create a segment; False when another process has it."""
        ...

    async def read(self, epoch: int, work: Callable[[SegmentBytes], T]) -> T:
        """Return the result of `work` on a segment's bytes, run in a thread."""
        ...

    async def append(self, epoch: int, data: bytes) -> None:
        """Append to a segment that this process claimed. After an OSError only the same bytes may be tried again."""
        ...

    async def superseded(self, epoch: int) -> bool:
        """Return whether a later segment is claimed."""
        ...

    def superseded_now(self, epoch: int) -> bool | None:
        """Return whether a later segment is claimed, without an event loop (for the guard thread); None if unknown."""
        ...

    async def forget(self, before: int) -> str:
        """Put away segments below `before`, which no start reads; return a message about dropped ones."""
        ...

    async def close(self) -> None:
        """Release files and threads."""
        ...


class FileStore:
    """`<folder>/<number>.jsonl`, appended by one thread, which syncs before it answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # One thread: appends keep their order, and a look for a later claim comes after all of them.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="dljob-journal")
        self._fds: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        """Bytes that were appended and synced, by segment."""

    @property
    def place(self) -> str:
        """The folder."""
        return str(self.folder)

    async def _run(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, function)

    def _path(self, epoch: int) -> Path:
        return self.folder / f"{epoch:06d}{SUFFIX}"

    def _epochs(self) -> tuple[int, ...]:
        # Not by `glob`, which takes a folder that may not be read for an empty one: the job would begin anew.
        try:
            paths = [Path(name) for name in os.listdir(self.folder)]  # noqa: PTH208 - `iterdir` reads no sooner
        except FileNotFoundError:
            return ()
        return tuple(sorted(int(path.stem) for path in paths if path.suffix == SUFFIX and path.stem.isdigit()))

    async def epochs(self) -> tuple[int, ...]:
        """Return the numbers that have a file."""
        return await self._run(self._epochs)

    async def claim(self, epoch: int) -> bool:
        """Create the file with O_EXCL, which has one winner."""
        return await self._run(lambda: self._claim(epoch))

    def _claim(self, epoch: int) -> bool:
        make_folder(self.folder)
        try:
            fd = os.open(self._path(epoch), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except FileExistsError:
            return False
        try:
            sync_folder(self.folder)
        except OSError:
            os.close(fd)
            self._path(epoch).unlink()  # a claim without an owner would fence the next try
            raise
        self._fds[epoch], self._sizes[epoch] = fd, 0
        return True

    async def read(self, epoch: int, work: Callable[[SegmentBytes], T]) -> T:
        """Return the result of `work` on the file."""
        return await self._run(lambda: self._read(epoch, work))

    def _read(self, epoch: int, work: Callable[[SegmentBytes], T]) -> T:
        with self._path(epoch).open("rb") as file:

            def part(start: int, end: int) -> bytes:
                file.seek(start)
                return file.read(end - start)

            return work(SegmentBytes(os.fstat(file.fileno()).st_size, part))

    async def append(self, epoch: int, data: bytes) -> None:
        """Write the bytes, and fdatasync."""
        await self._run(lambda: self._append(epoch, data))

    def _append(self, epoch: int, data: bytes) -> None:
        fd, size = self._fds[epoch], self._sizes[epoch]
        try:
            if os.fstat(fd).st_size > size:
                os.ftruncate(fd, size)  # remains of a failed try
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            # Data and size are enough: the folder was synced when the file was created.
            os.fdatasync(fd)
        except OSError:
            if not self.superseded_now(epoch):  # a successor may have read whole lines already: those must stay
                with suppress(OSError):  # the next try truncates again
                    os.ftruncate(fd, size)
            raise
        self._sizes[epoch] = size + len(data)
        reserve(fd, RESERVE)

    async def superseded(self, epoch: int) -> bool:
        """Return whether a later file exists; asked in the writer's thread, so after all that was appended."""
        return await self._run(lambda: self.superseded_now(epoch))

    def superseded_now(self, epoch: int) -> bool:
        """Return whether a later file exists."""
        # The usual answer is one look: numbers have no gap, so a successor has mostly claimed the next one.
        if self._path(epoch + 1).exists():
            return True
        try:
            return any(other_epoch > epoch for other_epoch in self._epochs())
        except PermissionError:  # the folder may still be written, and the next number is the one that tells
            return False

    async def forget(self, before: int) -> str:
        """Compress older segments into a folder beside the journal, as far as there is room."""
        await self._run(lambda: self._release(before))
        old = [self._path(epoch) for epoch in await self.epochs() if epoch < before]
        return await asyncio.to_thread(archive, old, self.folder / CLOSED)

    def _release(self, before: int) -> None:
        for epoch in [epoch for epoch in self._fds if epoch < before]:
            self._close(epoch)

    def _close(self, epoch: int) -> None:
        fd = self._fds.pop(epoch)
        if not self.superseded_now(epoch):  # gives the reserved room back; a successor may just read the end
            with suppress(OSError):
                os.ftruncate(fd, self._sizes[epoch])
        os.close(fd)

    async def close(self) -> None:
        """Close the files and end the thread."""
        for epoch in list(self._fds):
            self._close(epoch)
        self._writer.shutdown(wait=False)


class KeyValueStore:
    """`<prefix><number>/<n>`: one value for each commit, as durable as the backend keeps its values."""

    def __init__(self, kv: KeyValue, prefix: str) -> None:
        self._kv = kv
        self._prefix = prefix
        self._next: dict[int, int] = {}
        self._kept: dict[str, bytes] = {}
        """Values of the segments read last, which never change: a standby reads them again and again."""

    @property
    def place(self) -> str:
        """The prefix of its keys."""
        return f"key-value store, {self._prefix}*"

    def _key(self, epoch: int, n: int) -> str:
        return f"{self._prefix}{epoch:06d}/{n:012d}"

    async def epochs(self) -> tuple[int, ...]:
        """Return the numbers that have a claim."""
        keys = await self._kv.keys(self._prefix)
        return tuple(sorted({int(key.removeprefix(self._prefix).partition("/")[0]) for key in keys}))

    async def claim(self, epoch: int) -> bool:
        """Put the segment's first, empty value if it is absent; False also where it was deleted before."""
        if not await self._kv.put_if_absent(self._key(epoch, 0), b""):
            return False
        # The put may come late, after a pause of this machine: others went on and deleted this number and those before
        # it. It must not stay then, as `superseded` takes its absence for the fence. While the number before is there,
        # this one was never deleted, and must stay: it is the fence of that one.
        newest = (await self.epochs())[-1:] == (epoch,)
        if not newest and await self._kv.get(self._key(epoch - 1, 0)) is None:
            await self._kv.delete(self._key(epoch, 0))
            return False
        # 0 is the claim itself, so the first commit has number 1.
        self._next[epoch] = 1
        return True

    async def read(self, epoch: int, work: Callable[[SegmentBytes], T]) -> T:
        """Return the result of `work` on all values of the segment; AT_ONCE of them are read at a time."""
        keys = await self._kv.keys(f"{self._prefix}{epoch:06d}/")
        new = [key for key in keys if key not in self._kept]
        # Some at a time: a journal may have thousands of values, and the head answers others, too.
        for start in range(0, len(new), AT_ONCE):
            some = new[start : start + AT_ONCE]
            values = await asyncio.gather(*(self._kv.get(key) for key in some))
            self._kept.update((key, value) for key, value in zip(some, values, strict=True) if value is not None)
        older = self._key(max(0, epoch - 1), 0)
        self._kept = {key: value for key, value in self._kept.items() if key >= older}
        data = b"".join(self._kept.get(key, b"") for key in keys)
        return await asyncio.to_thread(work, SegmentBytes(len(data), lambda start, end: data[start:end]))

    async def append(self, epoch: int, data: bytes) -> None:
        """Put the next value. The same bytes under its key come from an earlier try of this call."""
        n = self._next[epoch]
        key = self._key(epoch, n)
        self._kept.clear()  # who writes has read all that it will
        # A head may store the value and die before it answers; Ray's client then sends it again to the next head, which
        # has it already. The same bytes are ours: the segment is this process's alone, and each line has its number.
        if not await self._kv.put_if_absent(key, data) and await self._kv.get(key) != data:
            raise OSError(errno.EEXIST, f"another process writes {key}")
        self._next[epoch] = n + 1

    async def superseded(self, epoch: int) -> bool:
        """Return whether a later claim exists: two gets, however many keys there are.

        Claims have no gap, and superseded ones are deleted in ascending order. So if the next claim is gone, this
        segment's own claim, which is read after it, is gone too. `claim` leaves none that came back.
        """
        if await self._kv.get(self._key(epoch + 1, 0)) is not None:
            return True
        return await self._kv.get(self._key(epoch, 0)) is None

    def superseded_now(self, epoch: int) -> None:  # noqa: ARG002 - the backend is asked through the loop
        """Return None: only a loop can ask the backend, and each commit finds out."""
        return

    async def forget(self, before: int) -> str:
        """Delete older segments, oldest first: the head keeps them in memory."""
        for epoch in await self.epochs():
            if epoch < before:
                await self._kv.delete(f"{self._prefix}{epoch:06d}/")
                self._next.pop(epoch, None)
        return ""

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""
