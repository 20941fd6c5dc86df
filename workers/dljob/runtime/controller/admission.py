"""Lock that serialises the reservations of all jobs of one Ray: two gangs that fit alone must not half-fill it.

The lock is a sequence of numbered keys in Ray's key-value store, whose only atomic operation is put-if-absent; the
highest number is the present turn. The next turn is taken by writing the next number if it is absent, once the present
one is marked free or its holder has not renewed it for `LEASE_S`. Numbers only grow, so no turn is taken twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from dljob.runtime.backend.interface import KeyValue
from dljob.tasks import TaskOwner

PREFIX = "dljob/lock/admission/"
FREE = b"free"
# Five renewals fit into a lease: a holder that is slow keeps its turn, one that died gives it up soon.
LEASE_S = 5.0
RENEW_S = 1.0
RETRY_S = (0.02, 0.25)


class AdmissionLock:
    """One job's side of the lock. Concurrent reservations of the job share one turn."""

    def __init__(self, kv: KeyValue, owner: str, tasks: TaskOwner) -> None:
        self._kv = kv
        self._owner = owner
        self._tasks = tasks
        self._users = 0
        self._gate = asyncio.Lock()
        self._turn = 0
        self._renewal: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Return a context manager that holds the lock; the last user of a shared turn frees it."""
        # The gate makes one of several concurrent reservations take the turn; the rest share it.
        async with self._gate:
            if self._users == 0:
                self._turn = await self._take()
                turn = self._turn
                self._renewal = self._tasks.repeat("renewal of the admission lock", lambda: self._renew(turn))
            self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0:
                await self._free()

    async def _take(self) -> int:
        loop = asyncio.get_running_loop()
        last_value, since = b"", loop.time()
        while True:
            turn, value = await self._present()
            # Silence is measured by this process's own clock from a changed value on: clocks of machines may differ.
            if value != last_value:
                last_value, since = value, loop.time()
            # Held by an earlier master of this job: it is fenced, so its lease need not be waited for.
            is_own_turn = value.startswith(self._owner.encode() + b" ")
            if value == FREE or is_own_turn or not turn or loop.time() - since > LEASE_S:
                # Two may find the turn free; put-if-absent lets one of them have it, and the other looks again.
                if await self._kv.put_if_absent(_key(turn + 1), self._value(0)):
                    await self._forget(turn)
                    return turn + 1
                continue
            await asyncio.sleep(random.uniform(*RETRY_S))  # noqa: S311 - jitter, not a secret

    async def _present(self) -> tuple[int, bytes]:
        keys = await self._kv.keys(PREFIX)
        turn = max((int(key.removeprefix(PREFIX)) for key in keys), default=0)
        return turn, (await self._kv.get(_key(turn)) or b"") if turn else b""

    async def _forget(self, last: int) -> None:
        for key in await self._kv.keys(PREFIX):
            if int(key.removeprefix(PREFIX)) <= last:
                await self._kv.delete(key)

    async def _renew(self, turn: int) -> None:
        count = 0
        while True:
            await asyncio.sleep(RENEW_S)
            count += 1
            await self._kv.put(_key(turn), self._value(count))

    async def _free(self) -> None:
        if self._renewal:
            self._renewal.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewal
        self._renewal = None
        # A holder that was frozen longer than the lease has lost its turn, and must not free another's.
        if (await self._present())[0] == self._turn:
            await self._kv.put(_key(self._turn), FREE)

    def _value(self, count: int) -> bytes:
        return f"{self._owner} {count}".encode()


def _key(turn: int) -> str:
    return f"{PREFIX}{turn:012d}"
