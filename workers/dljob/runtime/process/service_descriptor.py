"""A caller's knowledge of the roles that it calls: their service descriptors, round-robin turns, calls in flight."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from concurrent.futures import Future
from typing import Any

from dljob.calls.mark import ServiceDescriptor

DescriptorVersion = tuple[int, int]
"""A role's number of ranks and the incarnation of its rank 0; 0 where unknown. A change makes a descriptor stale."""


class ServiceDescriptors:
    """Shared by all handles of a process, so that turns and calls in flight count across its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptors: dict[str, tuple[DescriptorVersion, ServiceDescriptor]] = {}
        self._turns: Counter[str] = Counter()
        self._in_flight: dict[str, Counter[int]] = defaultdict(Counter)

    def get(self, role: str, version: DescriptorVersion) -> ServiceDescriptor | None:
        """Return the descriptor of a role; None before a rank has sent it, and once `version` has changed since."""
        # A role that restarted or was resized may serve other methods, or lie on another mesh.
        when, descriptor = self._descriptors.get(role, (None, None))
        return descriptor if when == version else None

    def learn(self, role: str, descriptor: ServiceDescriptor, version: DescriptorVersion) -> ServiceDescriptor:
        """Store a role's descriptor. All its ranks send the same, until it restarts or its number of ranks changes."""
        self._descriptors[role] = version, descriptor
        return descriptor

    def turn(self, role: str) -> int:
        """Return the number of turns taken before, and take one."""
        with self._lock:
            self._turns[role] += 1
            return self._turns[role] - 1

    def in_flight(self, role: str) -> dict[int, int]:
        """Return rank -> number of calls in flight."""
        with self._lock:
            return dict(self._in_flight[role])

    def count(self, role: str, rank: int, future: Future[Any]) -> None:
        """Count a call as in flight until it ends."""
        with self._lock:
            self._in_flight[role][rank] += 1
        future.add_done_callback(lambda _: self._ended(role, rank))

    def _ended(self, role: str, rank: int) -> None:
        with self._lock:
            self._in_flight[role][rank] -= 1
