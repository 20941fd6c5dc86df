"""The time for which threads of this process stand still for answers of other roles; `dljob advise` reads it.

Several threads that wait for one role at once count as one. Coroutines are not counted: their thread does other work
meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType

from dljob.runtime.process.worker_context import WAITED

NOTE_S = 1.0
"""Least seconds between two notes of a role: each is a write to shared memory."""

Note = Callable[[str, int], None]


class WaitClock:
    """The waits of this process for one role; used as a context manager around each."""

    def __init__(self, role: str, now: Callable[[], float] = time.monotonic) -> None:
        self._name = f"{WAITED}{role}"
        self._now = now
        self._lock = threading.Lock()
        self._waiting = 0
        self._since = self._spent = 0.0
        self._due = 0.0
        self.note: Note = lambda _name, _value: None

    def __enter__(self) -> None:
        with self._lock:
            if not self._waiting:
                self._since = self._now()
            self._waiting += 1

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._waiting -= 1
            if self._waiting:
                return
            now = self._now()
            self._spent += now - self._since
            if now < self._due:
                return
            self._due = now + NOTE_S
            spent = round(self._spent * 1000)
        self.note(self._name, spent)


_clocks: dict[str, WaitClock] = {}


def standing_still(role: str, note: Note) -> WaitClock:
    """Return the clock of a role; `note` notes a value of the present rank."""
    clock = _clocks.get(role) or _clocks.setdefault(role, WaitClock(role))
    clock.note = note
    return clock


# Its threads do not wait, and a lock may be held by one that it does not have.
os.register_at_fork(after_in_child=_clocks.clear)
