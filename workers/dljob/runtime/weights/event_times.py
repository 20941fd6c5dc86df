"""Times of the events of sources that this process has used, from which PrimeMaster tells how fresh the servers are."""

from __future__ import annotations

import threading
from collections.abc import Iterable


class EventTimes:
    """The earliest time of the events that were used since the last version of the weights was published."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: float | None = None

    def used(self, times: Iterable[float]) -> None:
        """Take the times of events that are in the weights from now on (unix seconds)."""
        with self._lock:
            self._first = min((*times, *(() if self._first is None else (self._first,))), default=None)

    def published(self) -> float:
        """Return the earliest time since the last call; 0 without an event."""
        with self._lock:
            first, self._first = self._first, None
            return first or 0.0


event_times = EventTimes()
