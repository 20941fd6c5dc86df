"""Queue sessions of this process: one per thread and queue, whichever objects of the queue the thread uses.

A session's next get acknowledges its previous items. One per object would leak the last items of each object that is
gone; one per process would let a thread acknowledge items that another still works on. A forked child has sessions of
its own: its parent's items stay held, and its puts are numbered separately.
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from dataclasses import dataclass, field

from dljob.calls.queue_cut import CutStamp
from dljob.runtime.process.context import current_worker


class _Thread:
    """A mark that lives as long as its thread, also for threads that Python did not start."""

    epoch = 0
    """The history of the job in which this thread got its last item (`CutStamp.epoch`), of which its puts are made."""


class CutNumbers:
    """The cuts that this process knows of."""

    last_taken = 0
    """The last cut in which it saved its state."""
    last_seen = 0
    """The last cut after which an answer to it was given."""


cut_numbers = CutNumbers()


class _ThreadLocal(threading.local):
    def __init__(self) -> None:
        self.thread = _Thread()


@dataclass(slots=True, eq=False)
class QueueSession:
    """The numbers of one session's puts and gets."""

    queue: str
    creator: tuple[str, int]
    """The rank that created it: its name and incarnation."""
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    token: str = ""
    """The life of the queue's folder as its last answer told it; empty before the first."""
    puts: int = 0
    turn: int = 0
    """The number of the last get that was sent."""
    last_seen_turn: int = 0
    """The number of the last get whose answer arrived."""
    bad: tuple[int, ...] = ()
    """The indices of the items in that answer that could not be unpickled: only those are acknowledged then."""
    putting: threading.Lock = field(default_factory=threading.Lock)
    getting: threading.Lock = field(default_factory=threading.Lock)
    owner: weakref.ref[_Thread] | None = None
    users: weakref.WeakSet[_Thread] = field(default_factory=weakref.WeakSet[_Thread])
    """The threads that have used it, its owner included."""

    @property
    def stamp(self) -> CutStamp:
        """The stamp of the next request (`dljob.calls.queue_cut`)."""
        thread = self.owner() if self.owner is not None else None
        return CutStamp(thread.epoch if thread is not None else 0, cut_numbers.last_taken, cut_numbers.last_seen)

    def learn(self, stamp: CutStamp) -> None:
        """Take the stamp of an answer."""
        thread = self.owner() if self.owner is not None else None
        if thread is not None:
            thread.epoch = max(thread.epoch, stamp.epoch)
        cut_numbers.last_seen = max(cut_numbers.last_seen, stamp.observed_cut)

    def follow(self, sent: str, token: str) -> bool:
        """Take the token of an answer to a request that had `sent`; return whether items were lost in between."""
        # An answer that was under way when another request heard of a newer folder does not bring the old one back.
        if self.token == sent:
            self.token = token
        return sent not in ("", token)

    def free_for(self, thread: _Thread) -> bool:
        """Whether a thread may use it: the thread owns it, or all its users are finished; and no thread waits in it."""
        is_owner = self.owner is not None and self.owner() is thread
        return (is_owner or not self.users) and not self.putting.locked() and not self.getting.locked()


class QueueSessions:
    """All sessions of this process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may use a queue while its thread holds the lock
        self._thread_local = _ThreadLocal()
        self._drawn: list[QueueSession] = []
        self._by: weakref.WeakKeyDictionary[object, QueueSession] = weakref.WeakKeyDictionary()

    def of(self, user: object, queue: str) -> QueueSession:
        """Return the session of an object of a queue; at the object's first use that of this thread, maybe a new one.

        Sessions of an earlier incarnation of the rank are dropped: a thread of it may still wait in them.
        """
        me, thread = current_worker(), self._thread_local.thread
        creator = (me.name, me.incarnation)
        with self._lock:
            self._drawn = [line for line in self._drawn if line.creator == creator]
            # An object keeps the session of its first use, so that threads which share it are one consumer.
            line = self._by.get(user)
            if line is None or line not in self._drawn:
                line = self._by[user] = self._session_of_thread(queue, creator, thread)
            line.users.add(thread)
            return line

    def marked(self) -> dict[str, tuple[QueueSession, tuple[str, ...]]]:
        """Return queue -> a session of it, and the names of those of this thread, whose items are in its state."""
        thread, sessions_by_queue = self._thread_local.thread, dict[str, tuple[QueueSession, tuple[str, ...]]]()
        me = current_worker()
        with self._lock:
            for line in self._drawn:
                if line.creator == (me.name, me.incarnation):
                    first, session_names = sessions_by_queue.get(line.queue, (line, ()))
                    is_of_thread = thread in line.users or (line.owner is not None and line.owner() is thread)
                    sessions_by_queue[line.queue] = first, (*session_names, *((line.name,) if is_of_thread else ()))
        return sessions_by_queue

    def continue_in(self, epoch: int) -> None:
        """Let this thread work in a history of the job: it has got a shard of it, and puts what comes of that."""
        thread = self._thread_local.thread
        thread.epoch = max(thread.epoch, epoch)

    def _session_of_thread(self, queue: str, creator: tuple[str, int], thread: _Thread) -> QueueSession:
        # Preferably the thread's own; else one of a finished thread, whose last items are acknowledged by this use.
        free = [line for line in self._drawn if line.queue == queue and line.free_for(thread)]
        line = max(free, key=lambda free_line: bool(free_line.users), default=None)
        if line is None:
            line = QueueSession(queue, creator)
            self._drawn.append(line)
        line.owner = weakref.ref(thread)
        return line


_lines = QueueSessions()


def _reset_after_fork() -> None:
    global _lines  # noqa: PLW0603 - of the process
    _lines = QueueSessions()


# On a session shared with its parent, a child's puts would be taken for repeats.
os.register_at_fork(after_in_child=_reset_after_fork)


def marked() -> dict[str, tuple[QueueSession, tuple[str, ...]]]:
    """Return the queues of this process; see `QueueSessions.marked`."""
    return _lines.marked()


def continue_in(epoch: int) -> None:
    """Let this thread work in a history of the job; see `QueueSessions.continue_in`."""
    _lines.continue_in(epoch)


def line_of(user: object, queue: str) -> QueueSession:
    """Return a session of this process; see `QueueSessions.of`."""
    return _lines.of(user, queue)
