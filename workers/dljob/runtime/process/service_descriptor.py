"""What a process knows of the roles that it calls: their cards, its turns, and how many of its calls are under way."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from concurrent.futures import Future
from typing import Any

from dljob.calls.mark import ServiceDescriptor

Heard = tuple[int, int]
"""Of a role: how many ranks it has, and which incarnation its rank 0 is; 0 where that was not heard of."""


class Cards:
    """One for all handles of a process: turns are taken by all threads together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Heard, ServiceDescriptor]] = {}
        self._turns: Counter[str] = Counter()
        self._in_flight: dict[str, Counter[int]] = defaultdict(Counter)

    def known(self, role: str, heard: Heard) -> ServiceDescriptor | None:
        """The card of a role; None while none of its ranks has told it, and since other things are heard of it."""
        when, card = self._known.get(role, (None, None))
        return card if when == heard else None

    def learn(self, role: str, card: ServiceDescriptor, heard: Heard) -> ServiceDescriptor:
        """A rank of the role told it; all of them tell the same, until it restarts or has another number of ranks."""
        self._known[role] = heard, card
        return card

    def turn(self, role: str) -> int:
        """How many calls took turns before."""
        with self._lock:
            self._turns[role] += 1
            return self._turns[role] - 1

    def in_flight(self, role: str) -> dict[int, int]:
        """Rank -> calls under way."""
        with self._lock:
            return dict(self._in_flight[role])

    def count(self, role: str, rank: int, future: Future[Any]) -> None:
        """One more is under way, until it ends."""
        with self._lock:
            self._in_flight[role][rank] += 1
        future.add_done_callback(lambda _: self._ended(role, rank))

    def _ended(self, role: str, rank: int) -> None:
        with self._lock:
            self._in_flight[role][rank] -= 1
