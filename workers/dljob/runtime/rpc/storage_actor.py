"""The base of actors that keep data for ranks: queues and weight channels. They end when their job's master is gone."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TypeVar

from dljob.runtime.process import wire
from dljob.runtime.process.guard import EndCode, Guard, Lease, end
from dljob.runtime.process.messages import Call, JobInfo, Reply
from dljob.runtime.rpc import object_store, storage_actors

T = TypeVar("T")


class ChangeSignal:
    """Wakes all coroutines that wait for a change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def happened(self) -> None:
        """Wake every waiter. A new event takes the place of the old, so that none needs to be cleared."""
        self._event.set()
        self._event = asyncio.Event()

    async def until(self, look: Callable[[], T | None], wait_s: float) -> T | None:
        """Call `look` after each change until it returns something, and return that; None after `wait_s` seconds."""
        end = time.monotonic() + wait_s
        while (result := look()) is None and (seconds_left := end - time.monotonic()) > 0:
            try:
                await asyncio.wait_for(self._event.wait(), seconds_left)
            except TimeoutError:
                return look()
        return result


class StorageActor:
    """An actor that answers calls as a rank's host does: NAME calls the method `on_NAME`, which must be idempotent."""

    def __init__(self, job: JobInfo, name: str) -> None:
        self.job, self.name = job, name
        self.changes = ChangeSignal()
        lease = Lease(job.lease_s)
        self._guard = Guard(lease, lambda: end(EndCode.SIGTERM, "SIGTERM from outside"))
        # A detached actor outlives its creator: without the lease it would outlive the job, too.
        storage_actors.follow_master(job, lease)

    async def invoke(self, packed: bytes, payload: bytes = b"", common: bytes = b"") -> bytes | Reply:
        """Answer a packed call, whose arguments are inside it, or beside it where they are large."""
        call, small = Call.unpacked(packed)
        try:
            args, kwargs = wire.arguments(payload or small, common)
            value = await getattr(self, f"on_{call.method}")(*args, **kwargs)
            reply = Reply(payload=wire.dump(value, call.method), idempotent=True)
        except Exception as error:  # noqa: BLE001 - the caller receives it
            reply = Reply(error_type=type(error).__name__, message=str(error), idempotent=True)
        return object_store.answer(reply, f"{self.name}.{call.method}")

    async def pid(self) -> int:
        """Return the actor's process id."""
        return os.getpid()
