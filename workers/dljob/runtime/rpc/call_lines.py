"""Call lines: small calls between processes of one machine, over Unix sockets instead of Ray (docs/adr/0137).

Ray takes half a millisecond for a call, most of it in locks and switches between threads. What is large goes by Ray, so
that it is mapped and not copied, and so does whatever goes to another machine. A line that breaks says nothing about
the callee: Ray is asked about it then.
"""

from __future__ import annotations

import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from hashlib import sha256

from dljob.runtime.process.daemon_threads import DaemonThreads
from dljob.runtime.process.messages import Reply
from dljob.runtime.rpc.lines import Line, LineListener, LineReader

KEPT_S = 60.0
"""Seconds for a caller to fetch a large answer."""
THREADS = 64
"""Most calls by lines that run at once in a process, as many as by Ray."""

log = logging.getLogger(__package__)

Took = Callable[[bytes | None], None]
"""What is told of a call: its answer, or None when the line broke before."""


def address(uid: str, actor: str) -> str:
    """Return the abstract address (`man 7 unix`) of the process of an actor of a job."""
    return f"\0dljob-calls-{sha256(f'{uid}/{actor}'.encode()).hexdigest()[:32]}"


class CallLine:
    """The caller's end of a line."""

    def __init__(self) -> None:
        self.line: Line | None = None
        self.is_closed = False
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Took] = {}

    def send(self, message: bytes, took: Took) -> bool:
        """Send a call; return whether `took` is going to be called. False: the callee has not received it."""
        if self.line is None or self.is_closed:
            return False
        number = next(self._numbers)
        self._waiting[number] = took
        try:
            self.line.send(number, message)
        except OSError:
            # Whoever takes it out of the table answers for it: the reader may have told of its loss already.
            return self._waiting.pop(number, None) is None
        return True

    def answered(self, _: Line, number: int, answer: bytes) -> None:
        """Tell of an answer."""
        if (took := self._waiting.pop(number, None)) is not None:
            took(answer)

    def closed(self) -> None:
        """Tell of the loss of all calls without an answer."""
        self.is_closed = True
        while self._waiting:
            with suppress(KeyError):  # a sender that has failed takes its own
                self._waiting.popitem()[1](None)


class CallLines:
    """The lines of one process to others, by the names of their actors."""

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self._lock = threading.Lock()
        self._reader: LineReader | None = None
        self._lines: dict[str, CallLine] = {}

    def send(self, actor: str, message: bytes, took: Took) -> bool:
        """Send a call to an actor's process; return whether `took` is going to be called.

        False: the process has not received it, as there is no line to it. Its line that broke is not made again.
        """
        line = self._lines.get(actor)
        if line is None:
            with self._lock:
                line = self._lines[actor] = self._lines.get(actor) or self._connected(actor)
        return line.send(message, took)

    def _connected(self, actor: str) -> CallLine:
        self._reader = self._reader or LineReader()
        try:
            return connected(address(self._uid, actor), self._reader)
        except OSError:  # on another machine nobody listens there
            return CallLine()


def connected(address: str, reader: LineReader) -> CallLine:
    """Return a line to whoever listens at an address; raises OSError where nobody does."""
    call_line = CallLine()
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(address)
    except OSError:
        line.close()
        raise
    call_line.line = reader.add(line, call_line.answered, call_line.closed)
    return call_line


class LargeAnswers:
    """Answers that are too large for a line, until their callers fetch them by Ray: it maps what a line would copy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, Reply]] = {}
        """Call id -> when its answer is dropped, in seconds of the monotonic clock, and the answer; oldest first."""
        self._is_watched = False

    def keep(self, call: str, reply: Reply) -> None:
        """Keep the answer to a call, for a while: its caller may be gone."""
        with self._lock:
            self._kept[call] = (time.monotonic() + KEPT_S, reply)
            if self._is_watched:
                return
            self._is_watched = True
        # One thread for all: thousands of answers may be on their way.
        try:
            threading.Thread(target=self._drop_old, name="dljob-large-answers", daemon=True).start()
        except RuntimeError:  # the limit of processes: the next answer tries again
            self._is_watched = False

    def take(self, call: str) -> Reply | None:
        """Return the answer to a call, once; None where none is kept."""
        if call not in self._kept:
            return None
        with self._lock:
            return self._kept.pop(call, (0.0, None))[1]

    def _drop_old(self) -> None:
        while (left_s := self._next_drop()) is not None:
            time.sleep(left_s)

    def _next_drop(self) -> float | None:
        """Drop what was kept for long enough; returns the seconds until the next one was, None where none is left."""
        with self._lock:
            while self._kept:
                call = next(iter(self._kept))
                if (left_s := self._kept[call][0] - time.monotonic()) > 0:
                    return left_s
                del self._kept[call]
            self._is_watched = False
            return None


class LineServer:
    """The callee's end: answers each message by `answer`, which must not raise, in threads of its own.

    An answer that comes later is a future, and keeps no thread.
    """

    def __init__(self, address: str, answer: Callable[[bytes], bytes | Future[bytes]]) -> None:
        """Listen at an address; raises OSError where somebody does already."""
        self._answer = answer
        self._threads = DaemonThreads(THREADS, "dljob-call")
        LineListener(address, LineReader(), self._on_message, "dljob-call-lines")

    def _on_message(self, line: Line, number: int, message: bytes) -> None:
        self._threads.submit(partial(self._run, line, number, message))

    def _run(self, line: Line, number: int, message: bytes) -> None:
        answer = self._answer(message)
        if isinstance(answer, Future):
            answer.add_done_callback(lambda done: self._send(line, number, done.result()))
        else:
            self._send(line, number, answer)

    def _send(self, line: Line, number: int, answer: bytes) -> None:
        with suppress(OSError):  # the caller is gone
            line.send(number, answer)
