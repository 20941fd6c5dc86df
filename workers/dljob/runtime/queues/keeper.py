"""The actor of one DataQueue, on the head. Its successor finds on disk everything that it has answered."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from pathlib import Path
from typing import Any, TypeAlias

import ray

from dljob.calls.backlog import FailedItem, HolderEnd, PutRefusal, QueueCaller
from dljob.calls.queue_cut import CutStamp
from dljob.errors import CallError
from dljob.runtime.backend.masters import find_master
from dljob.runtime.process.messages import JobInfo, queue_folder
from dljob.runtime.queues.store import ANY, QueueStore
from dljob.runtime.rpc.storage_actor import StorageActor

log = logging.getLogger(__package__)

AGAIN_S, ANSWER_S = 0.2, 10.0
"""Seconds between two calls to a PrimeMaster that is away, and for its answer."""

Bounds: TypeAlias = tuple[int, int, int]
"""`max_items`, `max_bytes` and `max_deliveries` (0: deliveries are not counted), which all ranks must give alike."""
NO_MASTER = {"epoch": 0, "path": "", "crc": 0}


def folder_of(job: JobInfo, name: str) -> Path:
    """Return the folder of a queue; a hash, since the user's name may not be a file name."""
    return queue_folder(job) / hashlib.sha256(name.encode()).hexdigest()[:32]


class QueueKeeper(StorageActor):
    """Serves the requests of one queue. Each may be repeated: the caller may have lost the answer."""

    def __init__(self, job: JobInfo, name: str) -> None:
        super().__init__(job, name)
        self._opening: asyncio.Future[QueueStore] | None = None
        self._writing = asyncio.Lock()
        """Held while the file of a cut is written: a new PrimeMaster repeats the order of the lost one."""

    async def on_put(
        self,
        caller: QueueCaller,
        bounds: Bounds,
        which: tuple[str, int],
        body: bytes,
        wait_s: float,
        *,
        stamp: CutStamp = ANY,
        key: str = "",
    ) -> tuple[str, tuple[PutRefusal | None, CutStamp] | None]:
        """Append an item, once there is room. Returns (folder id, (why not, stamp)).

        `which`: the folder id that the caller knows, else "", and the number of this put in its session. A put for
        another folder is not appended: that queue's items are lost, which the caller must learn first.
        """
        store, (folder_id, put_number) = await self._open_store(caller, bounds), which
        if folder_id not in ("", store.folder_id):
            return store.folder_id, None

        def try_put() -> tuple[PutRefusal | None] | None:
            _be_present(store, caller)
            refusal = store.put(caller, put_number, body, stamp, key)
            return None if refusal is PutRefusal.FULL else (refusal,)

        result = await self.changes.until(try_put, wait_s)
        # Only an appended item wakes the consumers that wait for one.
        if result == (None,):
            self.changes.happened()
        return store.folder_id, (result[0] if result else PutRefusal.FULL, store.answer_stamp(caller, put=True))

    async def on_get(
        self,
        caller: QueueCaller,
        bounds: Bounds,
        turns: tuple[int, int, tuple[int, ...]],
        count: int,
        wait_s: float,
        *,
        stamp: CutStamp = ANY,
    ) -> tuple[str, tuple[list[bytes], CutStamp] | None]:
        """Return (folder id, (items of a get, stamp)).

        Without items while there are too few; fewer only once the queue is closed.

        `turns`: the number of this get in its session, the last one whose answer arrived, and the indices of the items
        in that answer that cannot be unpickled.
        """
        store, (number, received, unreadable) = await self._open_store(caller, bounds), turns
        if not store.begin_get(caller, number, received, unreadable, stamp):
            return store.folder_id, None

        def try_take() -> list[bytes] | None:
            _be_present(store, caller)
            return store.take(caller, count, stamp) if store.backlog.is_last_get(caller, number) else []

        with store.backlog.count_waiting_get(count):
            self.changes.happened()  # a put may wait for room that this get makes
            items = await self.changes.until(try_take, wait_s)
        self.changes.happened()
        return store.folder_id, None if items is None else (items, store.answer_stamp(caller))

    async def on_mark(self, caller: QueueCaller, number: int, lines: tuple[str, ...]) -> bool:
        """Take the marker of a rank that saves its state in a cut; False if this queue has no part in that cut.

        `lines`: the sessions whose items are in the state.
        """
        store = await self._opened()
        if store is None:  # the process that began the cut is gone
            return False
        _be_present(store, caller)
        done = store.mark(caller, number, lines)
        self.changes.happened()  # the rank may now get items of after the cut
        return done

    # -- what PrimeMaster asks

    async def begin_cut(self, number: int, members: dict[str, int]) -> list[str] | None:
        """Begin a cut; return the ranks that have got items of this queue. None: it has no items yet."""
        store = await self._opened()
        return None if store is None else store.begin_cut(number, members)

    async def seal_cut(self, number: int, path: str) -> dict[str, Any]:
        """Write the items of a cut to a file; return what is in it, or why it could not be written."""
        store = await self._opened()
        sealed_cut = None if store is None else store.seal_cut(number, self.name)
        if sealed_cut is None:
            return {"why": f"the process of queue {self.name} was replaced during the cut"}
        try:
            # In a thread: ranks put and get meanwhile.
            async with self._writing:
                items, size, crc = await asyncio.to_thread(sealed_cut.write, Path(path))
        except OSError as error:
            return {"why": f"queue {self.name} cannot be written to {path}: {error.strerror or error}"}
        return {"why": "", "items": items, "bytes": size, "crc": crc}

    async def end_incarnations(
        self, ends: dict[str, tuple[int, str, str]]
    ) -> dict[str, list[tuple[str, int, bool]] | None]:
        """Take back what ended processes held: rank -> (incarnation, a `HolderEnd`, its error).

        Returns for each rank whose failure items of this queue pay: (key or number, failed deliveries, whether it is
        set aside) of each; None for a rank whose role pays (`Backlog.end_incarnation`).
        """
        payers = dict[str, list[tuple[str, int, bool]] | None]()
        store = await self._opened()
        if store is None:
            return payers
        dead = store.backlog.dead
        for rank, (incarnation, end, error) in ends.items():
            items = store.end_incarnation(rank, incarnation, HolderEnd(end), error)
            if items is None:
                payers[rank] = None
            elif items:
                payers[rank] = [(item.key or f"#{item.number}", item.deliveries, item.number in dead) for item in items]
        self.changes.happened()
        return payers

    async def end_cut(self) -> None:
        """Forget the cut under way: it is committed, or given up."""
        if (store := await self._opened()) is not None:
            store.end_cut()
            self.changes.happened()

    async def go_back(self, epoch: int, path: str, crc: int) -> tuple[str, str]:
        """Go back to a cut, without a path to an empty queue; return (folder id, why that cannot be).

        Both may be empty: the id before the first request, the reason when it is done.
        """
        folder_id = ""
        try:
            if (store := await self._opened()) is not None:
                store.restore(epoch, Path(path) if path else None, crc)
                folder_id = store.folder_id
        except OSError as error:
            return folder_id, f"queue {self.name} cannot go back to {path}: {error.strerror or error}"
        self.changes.happened()
        return folder_id, ""

    async def _opened(self) -> QueueStore | None:
        return None if self._opening is None else await asyncio.shield(self._opening)

    async def on_close(self, caller: QueueCaller, bounds: Bounds) -> tuple[str, None]:
        """Close the queue to puts."""
        store = await self._open_store(caller, bounds)
        store.close_queue()
        self.changes.happened()
        return store.folder_id, None

    async def on_stats(self, caller: QueueCaller, bounds: Bounds) -> tuple[str, dict[str, Any]]:
        """Return the items and bytes that wait, how many are handed out or set aside, and whether it is closed."""
        store = await self._open_store(caller, bounds)
        log = store.backlog
        waiting = len(log.waiting)
        counts = {"items": waiting, "bytes": log.bytes, "held": len(log.sizes) - waiting, "dead": len(log.dead)}
        return store.folder_id, {**counts, "closed": log.closed}

    async def on_dead(self, caller: QueueCaller, bounds: Bounds) -> tuple[str, list[tuple[FailedItem, bytes]]]:
        """Return the items that were set aside, the oldest first, each with its bytes."""
        store = await self._open_store(caller, bounds)
        return store.folder_id, store.dead_items()

    async def gauge(self) -> tuple[int, int] | None:
        """Return the items that wait and the most that may, for the job's samples; None before the first request."""
        if self._opening is None or not self._opening.done() or self._opening.exception() is not None:
            return None
        log = self._opening.result().backlog
        return len(log.waiting), log.max_items

    async def _open_store(self, caller: QueueCaller, bounds: Bounds) -> QueueStore:
        """Open the store at the first request; this waits until no other process has it."""
        if self._opening is None:
            # In a thread, since opening waits for the lock that a dying predecessor may still hold.
            self._opening = asyncio.ensure_future(self._open(bounds))
        try:
            store = await asyncio.shield(self._opening)
        except Exception:
            self._opening = None
            raise
        store.check(bounds)
        store.register(caller)
        _be_present(store, caller)
        return store

    async def _open(self, bounds: Bounds) -> QueueStore:
        store = await asyncio.to_thread(QueueStore, folder_of(self.job, self.name), bounds)
        try:
            start_state = await asyncio.to_thread(self._introduce, store.folder_id)
            store.restore(
                start_state["epoch"], Path(start_state["path"]) if start_state["path"] else None, start_state["crc"]
            )
        except BaseException:
            store.close()
            raise
        return store

    def _introduce(self, token: str) -> dict[str, Any]:
        """Tell PrimeMaster of this queue; return the cut that the job last went back to. Waits while it is away."""
        while ray.is_initialized():  # else it is an object in a process of its own, and no actor
            try:
                master: Any = find_master(self.job)
                return ray.get(master.queue_opened.remote(self.name, token), timeout=ANSWER_S)
            except ValueError:  # there is no PrimeMaster, and so no cut
                break
            except Exception as error:  # noqa: BLE001 - PrimeMaster comes back, or the lease ends this actor
                log.info("queue %s waits for PrimeMaster: %r", self.name, error)
                time.sleep(AGAIN_S)
        return NO_MASTER


def _be_present(store: QueueStore, caller: QueueCaller) -> None:
    """Refuse an earlier incarnation, even a call of it that already waits: it would take `[]` for the queue's end.

    Raises:
        CallError: A later incarnation of the rank has used the queue.
    """
    if store.backlog.is_replaced(caller):
        role, _, rank = caller.rank.partition("/")
        raise CallError(f"a later process of {caller.rank} has begun", role=role, rank=int(rank))
