"""The lines by which this process puts and gets: each thread has one to a queue, whatever objects it uses.

What a line got last is done with when it asks for the next. Were there one for each object, the last item of each that
is gone would be held for ever; were there one for the process, a thread would say that what another is at is done with.
A forked child has lines of its own: what its parent holds stays held, and their puts are counted apart.
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from dataclasses import dataclass, field

from dljob.runtime.process.context import current_worker


class _Thread:
    """Is there as long as its thread is, also one that Python did not start."""


class _Here(threading.local):
    def __init__(self) -> None:
        self.thread = _Thread()


@dataclass(slots=True, eq=False)
class QueueSession:
    """One line to a queue, and how far it is."""

    queue: str
    life: tuple[str, int]
    """Of the rank that drew it: its name and its incarnation."""
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    puts: int = 0
    turn: int = 0
    """The last get that was asked."""
    seen: int = 0
    """The last get whose answer has arrived."""
    bad: tuple[int, ...] = ()
    """Which items of it could not be read, counted from 0: they alone are done with then."""
    putting: threading.Lock = field(default_factory=threading.Lock)
    getting: threading.Lock = field(default_factory=threading.Lock)
    owner: weakref.ref[_Thread] | None = None
    users: weakref.WeakSet[_Thread] = field(default_factory=weakref.WeakSet[_Thread])
    """The threads that have used it, its owner too."""

    def free_for(self, thread: _Thread) -> bool:
        """Whether a thread may go on with it: it is its own, or all who used it are over; and nobody waits by it."""
        own = self.owner is not None and self.owner() is thread
        return (own or not self.users) and not self.putting.locked() and not self.getting.locked()


class QueueSessions:
    """All lines of this process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may come in between
        self._here = _Here()
        self._drawn: list[QueueSession] = []
        self._by: weakref.WeakKeyDictionary[object, QueueSession] = weakref.WeakKeyDictionary()

    def of(self, user: object, queue: str) -> QueueSession:
        """The line that an object of a queue has; at its first use that of this thread, which may be a new one.

        Lines of an earlier life of the rank are left: a thread of it may wait by them still.
        """
        me, thread = current_worker(), self._here.thread
        life = (me.name, me.incarnation)
        with self._lock:
            self._drawn = [line for line in self._drawn if line.life == life]
            line = self._by.get(user)
            if line is None or line not in self._drawn:
                line = self._by[user] = self._own(queue, life, thread)
            line.users.add(thread)
            return line

    def _own(self, queue: str, life: tuple[str, int], thread: _Thread) -> QueueSession:
        free = [line for line in self._drawn if line.queue == queue and line.free_for(thread)]
        line = max(free, key=lambda one: bool(one.users), default=None)
        if line is None:
            line = QueueSession(queue, life)
            self._drawn.append(line)
        line.owner = weakref.ref(thread)
        return line


_lines = QueueSessions()


def _begin_anew() -> None:
    global _lines  # noqa: PLW0603 - of the process
    _lines = QueueSessions()


os.register_at_fork(after_in_child=_begin_anew)  # two processes on one line: each other's puts were taken for repeated


def line_of(user: object, queue: str) -> QueueSession:
    """See Lines."""
    return _lines.of(user, queue)
