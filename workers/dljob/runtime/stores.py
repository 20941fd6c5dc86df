"""Where a journal's bytes lie: a folder on a disk, or the backend's key-value store. Both keep one segment per epoch.

A store knows nothing of records. What it promises: `claim` has one winner per epoch; `append` returns when the bytes
would survive the death of this process (the file: of this machine); what is read is what was appended, in order, but
for a tail that was being written when its writer died.
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

from dljob.runtime.backend import KeyValue

T = TypeVar("T")
SUFFIX = ".jsonl"


class JournalStore(Protocol):
    """Segments of bytes by epoch."""

    @property
    def where(self) -> str:
        """The place, for messages."""
        ...

    async def epochs(self) -> tuple[int, ...]:
        """The epochs claimed so far, ascending."""
        ...

    async def claim(self, epoch: int) -> bool:
        """Make an epoch's segment; False when somebody else has it."""
        ...

    async def read(self, epoch: int) -> bytes:
        """All bytes of a segment."""
        ...

    async def append(self, epoch: int, data: bytes) -> None:
        """Add to a segment that this process claimed. After an OSError nothing more may be appended to it."""
        ...

    async def superseded(self, epoch: int) -> bool:
        """Whether a later epoch is claimed."""
        ...

    def superseded_now(self, epoch: int) -> bool | None:
        """The same without a loop, for the guard thread; None where that cannot be told."""
        ...

    async def forget(self, before: int) -> None:
        """The segments of epochs below `before` are not needed any more; a store may keep them."""
        ...

    async def close(self) -> None:
        """Release what it holds."""
        ...


class FileStore:
    """`<folder>/<epoch>.jsonl`, appended by one thread, which syncs before it answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="dljob-journal")
        self._fds: dict[int, int] = {}

    @property
    def where(self) -> str:
        """The folder."""
        return str(self.folder)

    async def _run(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, function)

    def _path(self, epoch: int) -> Path:
        return self.folder / f"{epoch:06d}{SUFFIX}"

    def _epochs(self) -> tuple[int, ...]:
        if not self.folder.is_dir():
            return ()
        stems = (path.stem for path in self.folder.glob(f"*{SUFFIX}"))
        return tuple(sorted(int(stem) for stem in stems if stem.isdigit()))

    async def epochs(self) -> tuple[int, ...]:
        """The epochs that have a file."""
        return await self._run(self._epochs)

    async def claim(self, epoch: int) -> bool:
        """Create the file with O_EXCL."""
        return await self._run(lambda: self._claim(epoch))

    def _claim(self, epoch: int) -> bool:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            fd = os.open(self._path(epoch), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except FileExistsError:
            return False
        self._fds[epoch] = fd
        _sync_folder(self.folder)
        return True

    async def read(self, epoch: int) -> bytes:
        """The file's bytes."""
        return await self._run(self._path(epoch).read_bytes)

    async def append(self, epoch: int, data: bytes) -> None:
        """Write and fdatasync."""
        await self._run(lambda: self._append(epoch, data))

    def _append(self, epoch: int, data: bytes) -> None:
        fd = self._fds[epoch]
        size = os.fstat(fd).st_size
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fdatasync(fd)
        except OSError:
            with suppress(OSError):
                os.ftruncate(fd, size)
            raise

    async def superseded(self, epoch: int) -> bool:
        """Whether a later file is there; looked at by the writer, so after all that was appended."""
        return await self._run(lambda: self.superseded_now(epoch))

    def superseded_now(self, epoch: int) -> bool:
        """Whether a later file is there."""
        return self._path(epoch + 1).exists() or any(other > epoch for other in self._epochs())

    async def forget(self, before: int) -> None:
        """Nothing: the job's folder keeps its whole journal."""

    async def close(self) -> None:
        """Close the files and end the thread."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        self._writer.shutdown(wait=False)


class KeyValueStore:
    """`<prefix><epoch>/<n>`: one value per commit. It is as durable as the backend keeps its values."""

    def __init__(self, kv: KeyValue, prefix: str) -> None:
        self._kv = kv
        self._prefix = prefix
        self._next: dict[int, int] = {}

    @property
    def where(self) -> str:
        """The prefix of its keys."""
        return f"key-value store, {self._prefix}*"

    def _key(self, epoch: int, n: int) -> str:
        return f"{self._prefix}{epoch:06d}/{n:012d}"

    async def epochs(self) -> tuple[int, ...]:
        """The epochs that have a claim."""
        keys = await self._kv.keys(self._prefix)
        return tuple(sorted({int(key.removeprefix(self._prefix).partition("/")[0]) for key in keys}))

    async def claim(self, epoch: int) -> bool:
        """Put the segment's first, empty value, if it is absent."""
        won = await self._kv.put_if_absent(self._key(epoch, 0), b"")
        if won:
            self._next[epoch] = 1
        return won

    async def read(self, epoch: int) -> bytes:
        """All values of the segment, one after another."""
        keys = await self._kv.keys(f"{self._prefix}{epoch:06d}/")
        values = [await self._kv.get(key) for key in keys]
        return b"".join(value or b"" for value in values)

    async def append(self, epoch: int, data: bytes) -> None:
        """Put the next value; one that is there already, with the same bytes, was put by an earlier try of this one."""
        n = self._next[epoch]
        key = self._key(epoch, n)
        # A head may store it and die before it answers; Ray's client sends it again to the next head, which has it
        # then. The same bytes there are ours: the epoch is this process's alone, and each line has its own number.
        if not await self._kv.put_if_absent(key, data) and await self._kv.get(key) != data:
            raise OSError(errno.EEXIST, f"somebody else writes {key}")
        self._next[epoch] = n + 1

    async def superseded(self, epoch: int) -> bool:
        """Whether a later claim is there."""
        return max(await self.epochs(), default=0) > epoch

    def superseded_now(self, epoch: int) -> None:  # noqa: ARG002 - the store speaks to the backend through the loop
        """Cannot be told here: each append finds out."""
        return

    async def forget(self, before: int) -> None:
        """Delete the older segments' values: the head keeps them in memory."""
        for epoch in await self.epochs():
            if epoch < before:
                await self._kv.delete(f"{self._prefix}{epoch:06d}/")

    async def close(self) -> None:
        """Nothing to release."""


def _sync_folder(folder: Path) -> None:
    """Make a new file's name as durable as its bytes."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
