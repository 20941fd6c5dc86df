"""The actor of one DataQueue, on the head. Its successor finds on disk everything that it has answered."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

from dljob.calls.backlog import PutRefusal, Who
from dljob.errors import CallError
from dljob.runtime.process.messages import JobInfo, queue_folder
from dljob.runtime.queues.store import QueueStore
from dljob.runtime.rpc.storage_actor import StorageActor


def folder_of(job: JobInfo, name: str) -> Path:
    """Return the folder of a queue; a hash, since the user's name may not be a file name."""
    return queue_folder(job) / hashlib.sha256(name.encode()).hexdigest()[:32]


class QueueKeeper(StorageActor):
    """Serves the requests of one queue. Each may be repeated: the caller may have lost the answer."""

    def __init__(self, job: JobInfo, name: str) -> None:
        super().__init__(job, name)
        self._opening: asyncio.Future[QueueStore] | None = None

    async def on_put(
        self, who: Who, bounds: tuple[int, int], which: tuple[str, int], body: bytes, wait_s: float
    ) -> tuple[str, PutRefusal | None]:
        """Append an item, once there is room. Returns (token, why not).

        `which`: the queue's token as the caller knows it, else "", and the number of this put in its session. A put for
        a queue with another token is not appended: that queue's items are lost, which the caller must learn first.
        """
        store, (token, put) = await self._open_store(who, bounds), which
        if token not in ("", store.token):
            return store.token, None

        def taken() -> tuple[PutRefusal | None] | None:
            _be_present(store, who)
            why = store.put(who, put, body)
            return None if why is PutRefusal.FULL else (why,)

        found = await self.changes.until(taken, wait_s)
        # Only an appended item wakes the consumers that wait for one.
        if found == (None,):
            self.changes.happened()
        return store.token, found[0] if found else PutRefusal.FULL

    async def on_get(
        self, who: Who, bounds: tuple[int, int], turns: tuple[int, int, tuple[int, ...]], count: int, wait_s: float
    ) -> tuple[str, list[bytes] | None]:
        """Return the items of a get: None while there are too few; fewer only once the queue is closed.

        `turns`: the number of this get in its session, the last one whose answer arrived, and the indices of the items
        in that answer that cannot be unpickled.
        """
        store, (turn, seen, bad) = await self._open_store(who, bounds), turns
        if not store.begin_get(who, turn, seen, bad):
            return store.token, None

        def found() -> list[bytes] | None:
            _be_present(store, who)
            return store.take(who, count) if store.backlog.current(who, turn) else []

        with store.backlog.counted_as_waiting(count):
            self.changes.happened()  # a put may wait for room that this get makes
            items = await self.changes.until(found, wait_s)
        self.changes.happened()
        return store.token, items

    async def on_close(self, who: Who, bounds: tuple[int, int]) -> tuple[str, None]:
        """Close the queue to puts."""
        store = await self._open_store(who, bounds)
        store.close_queue()
        self.changes.happened()
        return store.token, None

    async def on_stats(self, who: Who, bounds: tuple[int, int]) -> tuple[str, dict[str, Any]]:
        """Return the items and bytes that wait, and whether the queue is closed."""
        store = await self._open_store(who, bounds)
        log = store.backlog
        return store.token, {"items": len(log.waiting), "bytes": log.bytes, "closed": log.closed}

    async def gauge(self) -> tuple[int, int] | None:
        """Return the items that wait and the most that may, for the job's samples; None before the first request."""
        if self._opening is None or not self._opening.done() or self._opening.exception() is not None:
            return None
        log = self._opening.result().backlog
        return len(log.waiting), log.max_items

    async def _open_store(self, who: Who, bounds: tuple[int, int]) -> QueueStore:
        """Open the store at the first request; this waits until no other process has it."""
        if self._opening is None:
            # In a thread, since opening waits for the lock that a dying predecessor may still hold.
            opening = asyncio.to_thread(QueueStore, folder_of(self.job, self.name), bounds)
            self._opening = asyncio.ensure_future(opening)
        try:
            store = await asyncio.shield(self._opening)
        except Exception:
            self._opening = None
            raise
        store.check(bounds)
        store.meet(who)
        _be_present(store, who)
        return store


def _be_present(store: QueueStore, who: Who) -> None:
    """Refuse an earlier incarnation, even a call of it that already waits: it would take `[]` for the queue's end.

    Raises:
        CallError: A later incarnation of the rank has used the queue.
    """
    if store.backlog.past(who):
        role, _, rank = who.rank.partition("/")
        raise CallError(f"a later process of {who.rank} has begun", role=role, rank=int(rank))
