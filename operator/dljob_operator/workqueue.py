"""Keys that wait for a pass: each at most once, never in two hands, later when asked, slower after each failure."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

FIRST_RETRY = 0.05
"""Seconds before the first repetition after a failure; doubled with each one in a row."""
LONGEST_RETRY = 60.0
VOID = 64
"""So many void entries of the heap are kept, beside one for each that counts."""


class Key(NamedTuple):
    """A DLJob."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class WorkQueue:
    """A work queue for one event loop. What is added while a worker has it is handed out again when it is done."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.waited: Callable[[float], None] = lambda _seconds: None
        """Told how long a key lay ready when it is taken."""
        self.retried: Callable[[], None] = lambda: None
        self._clock = clock
        self._ready: deque[Key] = deque()
        self._since: dict[Key, float] = {}
        """When it was added: those in `_ready`, and those that came while they were busy."""
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._due: dict[Key, float] = {}
        """The one time at which a key comes back by itself; entries of the heap that say another are void."""
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
        """Forget all keys, and take none: nobody works here now. Keys that workers have are left to them."""
        self._closed = True
        for each in (self._ready, self._since, self._failures, self._due, self._heap):
            each.clear()

    def open(self) -> None:
        """Take keys again."""
        self._closed = False

    def add(self, key: Key) -> None:
        """Hand a key out as soon as a worker is free."""
        if self._closed or key in self._since:
            return
        self._since[key] = self._clock()
        if key not in self._busy:
            self._ready.append(key)
            self._wake.set()

    def add_after(self, key: Key, delay: float) -> None:
        """Add a key in so many seconds, or earlier when it is due earlier already."""
        at = self._clock() + delay
        if not self._closed and at < self._due.get(key, float("inf")):
            self._due[key] = at
            heapq.heappush(self._heap, (at, key))
            if len(self._heap) > 2 * len(self._due) + VOID:
                # A deadline days ahead is said anew in each pass: what is void would lie here until then.
                self._heap = [(when, each) for each, when in self._due.items()]
                heapq.heapify(self._heap)
            self._wake.set()

    def retry(self, key: Key) -> float:
        """Add a key after a failure; returns the delay in seconds, twice as long each time and jittered by a fifth."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self.retried()
        delay = min(LONGEST_RETRY, FIRST_RETRY * 2.0 ** min(failures - 1, 30))
        delay *= random.uniform(0.8, 1.2)  # noqa: S311 - jitter
        self.add_after(key, delay)
        return delay

    def forget(self, key: Key) -> None:
        """The key's last pass was good."""
        self._failures.pop(key, None)

    def drop(self, key: Key) -> None:
        """Nothing more is to be done about a key; one that a worker has is left to it."""
        self.forget(key)
        self._due.pop(key, None)

    def take(self) -> Key | None:
        """The next key, which is busy until it is `done`; None when none is ready."""
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            at, key = heapq.heappop(self._heap)
            if self._due.get(key) == at:
                del self._due[key]
                self.add(key)
        if not self._ready:
            return None
        key = self._ready.popleft()
        self.waited(now - self._since.pop(key))
        self._busy.add(key)
        self._due.pop(key, None)  # the pass says anew when it wants to be back
        return key

    async def get(self) -> Key:
        """The next key, as soon as there is one."""
        while (key := self.take()) is None:
            self._wake.clear()
            limit = max(self._heap[0][0] - self._clock(), 0.0) if self._heap else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):  # wait_for loses a cancellation that comes with the key (3.11)
                    await self._wake.wait()
        if self._ready:
            self._wake.set()
        return key

    def done(self, key: Key) -> None:
        """The worker is through with a key."""
        self._busy.discard(key)
        if key in self._since:
            self._ready.append(key)
            self._wake.set()
