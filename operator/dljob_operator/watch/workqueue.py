"""Work queue of keys: each at most once, never with two workers, delayed on request, with backoff after failures."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from dljob_operator.watch.clock import MACHINE, OperatorClock

FIRST_RETRY = 0.05
"""Delay, in seconds, of the first retry; it doubles with each failure in a row."""
LONGEST_RETRY = 60.0
VOID = 64
"""Void entries that the heap may hold, beyond one for each valid entry."""


class Key(NamedTuple):
    """Namespace and name of a DLJob."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class WorkQueue:
    """A work queue for one event loop. A key added while a worker has it is handed out again after that."""

    def __init__(self, clock: OperatorClock = MACHINE) -> None:
        self.waited: Callable[[float], None] = lambda _seconds: None
        """Called with the seconds that a key was ready before it was taken."""
        self.retried: Callable[[], None] = lambda: None
        self._now, self._jitter = clock.monotonic, clock.jitter
        self._ready: deque[Key] = deque()
        self._since: dict[Key, float] = {}
        """Time of addition, of keys in `_ready` and of those added while busy."""
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._due: dict[Key, float] = {}
        """The one time at which a key returns by itself; heap entries with another time are void."""
        self._heap: list[tuple[float, Key]] = []
        self._wake = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def busy(self) -> frozenset[Key]:
        """Keys that workers have."""
        return frozenset(self._busy)

    def close(self) -> None:
        """Drop all keys and refuse new ones, while this operator does not lead. Workers keep the keys they have."""
        self._closed = True
        for table in (self._ready, self._since, self._failures, self._due, self._heap):
            table.clear()

    def open(self) -> None:
        """Accept keys again."""
        self._closed = False

    def add(self, key: Key) -> None:
        """Hand a key out as soon as a worker is free."""
        # Added already and not taken yet: one pass serves both additions.
        if self._closed or key in self._since:
            return
        self._since[key] = self._now()
        # Busy: `done` hands it out again, so that no two workers have it at once.
        if key not in self._busy:
            self._ready.append(key)
            self._wake.set()

    def add_after(self, key: Key, delay: float) -> None:
        """Add a key after `delay` seconds, or earlier when it is already due earlier."""
        at = self._now() + delay
        if not self._closed and at < self._due.get(key, float("inf")):
            self._due[key] = at
            heapq.heappush(self._heap, (at, key))
            if len(self._heap) > 2 * len(self._due) + VOID:
                # Each pass renews a deadline that is days ahead: its void entries would stay in the heap until then.
                self._heap = [(when, due_key) for due_key, when in self._due.items()]
                heapq.heapify(self._heap)
            self._wake.set()

    def retry(self, key: Key) -> float:
        """Add a key after a failure; return the delay in seconds, which doubles each time, with a jitter of a fifth."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self.retried()
        delay = min(LONGEST_RETRY, FIRST_RETRY * 2.0 ** min(failures - 1, 30)) * self._jitter()
        self.add_after(key, delay)
        return delay

    def forget(self, key: Key) -> None:
        """Reset the backoff of a key, whose last pass succeeded."""
        self._failures.pop(key, None)

    def drop(self, key: Key) -> None:
        """Cancel a key's delayed return; a worker that has it keeps it."""
        self.forget(key)
        self._due.pop(key, None)

    def take(self) -> Key | None:
        """Return the next key, which is busy until `done`; None when none is ready."""
        now = self._now()
        while self._heap and self._heap[0][0] <= now:
            at, key = heapq.heappop(self._heap)
            # Otherwise the entry is void: the key was taken, or became due earlier.
            if self._due.get(key) == at:
                del self._due[key]
                self.add(key)
        if not self._ready:
            return None
        key = self._ready.popleft()
        self.waited(now - self._since.pop(key))
        self._busy.add(key)
        self._due.pop(key, None)  # the pass decides anew when to return
        return key

    async def get(self) -> Key:
        """Wait for the next key."""
        while (key := self.take()) is None:
            # No await lies between `take` and this, so no addition is missed.
            self._wake.clear()
            limit = max(self._heap[0][0] - self._now(), 0.0) if self._heap else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):  # wait_for can lose a cancellation that comes with the key (3.11)
                    await self._wake.wait()
        # Further keys may be ready: wake another worker.
        if self._ready:
            self._wake.set()
        return key

    def done(self, key: Key) -> None:
        """Return a key from a worker; hand it out again if it was added meanwhile."""
        self._busy.discard(key)
        if key in self._since:
            self._ready.append(key)
            self._wake.set()
