"""The keeper of one DataQueue: an actor on the head; a successor finds on disk all that it answered."""

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
    """By a name that is none of the user's."""
    return queue_folder(job) / hashlib.sha256(name.encode()).hexdigest()[:32]


class QueueKeeper(StorageActor):
    """The actor."""

    def __init__(self, job: JobInfo, name: str) -> None:
        super().__init__(job, name)
        self._opening: asyncio.Future[QueueStore] | None = None

    async def on_put(
        self, who: Who, bounds: tuple[int, int], which: tuple[str, int], body: bytes, wait_s: float
    ) -> tuple[str, PutRefusal | None]:
        """Take an item in, once there is room; (token, why not).

        `which`: the token of the queue that who asks knows, if any, as it is for no other; which put of its line it is.
        """
        store, (token, put) = await self._met(who, bounds), which
        if token not in ("", store.token):
            return store.token, None

        def taken() -> tuple[PutRefusal | None] | None:
            _be_present(store, who)
            why = store.put(who, put, body)
            return None if why is PutRefusal.FULL else (why,)

        found = await self.changes.until(taken, wait_s)
        if found == (None,):
            self.changes.happened()
        return store.token, found[0] if found else PutRefusal.FULL

    async def on_get(
        self, who: Who, bounds: tuple[int, int], turns: tuple[int, int, tuple[int, ...]], count: int, wait_s: float
    ) -> tuple[str, list[bytes] | None]:
        """The items of a get: None while there are not so many, fewer only once the queue is closed.

        `turns`: which get of its line it is, the last one whose answer has arrived, and what of that cannot be read.
        """
        store, (turn, seen, bad) = await self._met(who, bounds), turns
        if not store.heard(who, turn, seen, bad):
            return store.token, None

        def found() -> list[bytes] | None:
            _be_present(store, who)
            return store.take(who, count) if store.backlog.current(who, turn) else []

        with store.backlog.wanted(count):
            self.changes.happened()  # a put may go in that this one waits for
            items = await self.changes.until(found, wait_s)
        self.changes.happened()
        return store.token, items

    async def on_close(self, who: Who, bounds: tuple[int, int]) -> tuple[str, None]:
        """Take no more in."""
        store = await self._met(who, bounds)
        store.close_queue()
        self.changes.happened()
        return store.token, None

    async def on_stats(self, who: Who, bounds: tuple[int, int]) -> tuple[str, dict[str, Any]]:
        """How full it is."""
        store = await self._met(who, bounds)
        log = store.backlog
        return store.token, {"items": len(log.waiting), "bytes": log.bytes, "closed": log.closed}

    async def _met(self, who: Who, bounds: tuple[int, int]) -> QueueStore:
        """The store, once the process that had it before is gone."""
        if self._opening is None:
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
    """Refuse a process of the past, also one whose call waits since before: to it `[]` would be the queue's end."""
    if store.backlog.past(who):
        role, _, rank = who.rank.partition("/")
        raise CallError(f"a later process of {who.rank} has begun", role=role, rank=int(rank))
