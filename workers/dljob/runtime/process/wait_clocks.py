"""The time for which threads of this process stand still for other roles, queues or weights, for ledger and advice.

Several threads that wait for one role at once count as one. Coroutines are not counted: their thread does other work
meanwhile. A wait counts when it ends, and every two seconds while it lasts.
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
        self._noted = -1
        """Milliseconds that were noted last."""
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
            if now >= self._due:
                self._write(self._spent, now)

    def note_present(self) -> None:
        """Note what was waited so far, the wait that has not ended included."""
        with self._lock:
            now = self._now()
            self._write(self._spent + (now - self._since if self._waiting else 0.0), now)

    def _write(self, spent: float, now: float) -> None:
        # Under the lock: a smaller number after a larger one would look like another process's.
        self._due = now + NOTE_S
        milliseconds = round(spent * 1000)
        if milliseconds > self._noted:
            self._noted = milliseconds
            self.note(self._name, milliseconds)


_clocks: dict[str, WaitClock] = {}


def standing_still(role: str, note: Note) -> WaitClock:
    """Return the clock of a role; `note` notes a value of the present rank."""
    clock = _clocks.get(role) or _clocks.setdefault(role, WaitClock(role))
    clock.note = note
    return clock


def note_present() -> None:
    """Note for each role what was waited for it so far."""
    for clock in list(_clocks.values()):
        clock.note_present()


# A forked child has none of the threads that wait, and one of them may have held a lock.
os.register_at_fork(after_in_child=_clocks.clear)
