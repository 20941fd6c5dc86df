"""What all keepers share: they answer calls as a rank's host does, and end when their job has no master any more."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TypeVar

from dljob.runtime.process import wire
from dljob.runtime.process.guard import EndCode, Guard, Lease, end
from dljob.runtime.process.messages import Call, JobInfo, Reply
from dljob.runtime.rpc import storage_actors

T = TypeVar("T")


class ChangeSignal:
    """Wakes who waits for a change, all of them."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def happened(self) -> None:
        """Something is other than it was."""
        self._event.set()
        self._event = asyncio.Event()

    async def until(self, look: Callable[[], T | None], wait_s: float) -> T | None:
        """What `look` finds, as soon as it finds something; None after `wait_s` seconds."""
        end = time.monotonic() + wait_s
        while (found := look()) is None and (left := end - time.monotonic()) > 0:
            try:
                await asyncio.wait_for(self._event.wait(), left)
            except TimeoutError:
                return look()
        return found


class StorageActor:
    """The base of keepers. A method `on_NAME` is what ranks call as NAME; all may be sent again."""

    def __init__(self, job: JobInfo, name: str) -> None:
        self.job, self.name = job, name
        self.changes = ChangeSignal()
        lease = Lease(job.lease_s)
        self._guard = Guard(lease, lambda: end(EndCode.SIGTERM, "SIGTERM from outside"))
        storage_actors.follow_master(job, lease)

    async def invoke(self, packed: bytes, payload: bytes = b"", common: bytes = b"") -> bytes | Reply:
        """Answer a call. Its arguments are in the packed call, or beside it where they are large."""
        call, small = Call.unpacked(packed)
        try:
            args, kwargs = wire.arguments(payload or small, common)
            value = await getattr(self, f"on_{call.method}")(*args, **kwargs)
            reply = Reply(payload=wire.dump(value, call.method), idempotent=True)
        except Exception as error:  # noqa: BLE001 - who asked hears of it
            reply = Reply(error_type=type(error).__name__, message=str(error), idempotent=True)
        return reply.packed() if len(reply.payload) < wire.LARGE else reply

    async def pid(self) -> int:
        """Its process."""
        return os.getpid()
