"""Taking a thread back from user code: an error is raised in it, and nothing once it is back.

The error arrives between two steps of Python code. Right after `lock.acquire()` that is before the `try` whose
`finally` would release the lock, so a thread that takes a lock is let be until it has it.
"""

from __future__ import annotations

import ctypes
import dis
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

ASK_S = 0.05
"""What user code gets to leave by itself: most is in a collective, or will be soon, and that fails."""
AGAIN_S = 0.5
"""How often what code waits for that goes on is broken off again."""
PATIENCE_S = 3.0
"""How long code to which the error came has to clean up before another one, for code that caught the first."""


LOCKING = 6
"""So often in a row a thread that takes a lock is let be; then it polls one, and whoever polls must be called back."""
_TAKES = ("acquire", "__enter__", "_acquire_restore")


class ThreadInterrupted(BaseException):
    """Raised in user code that must end because its torch group meets anew; nobody is to catch it for good."""


class ThreadInterrupt:
    """The way back out of one run of user code."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._ident = 0
        self._sent = False
        self._locking = 0
        self._ordered = threading.Event()

    @property
    def ordered(self) -> bool:
        """Whether user code was told to end: however it ends then, that is why."""
        return self._ordered.is_set()

    def run(self, work: Callable[[], T]) -> T | None:
        """Run work in this thread; None when it was called back. Whatever else it raises passes through."""
        try:
            try:
                with self._gate:
                    self._ident = threading.get_ident()
                return work()
            finally:
                self._shut_gate()
        except ThreadInterrupted:  # also one that came before the gate was shut, and after the work's own end
            self._shut_gate()
            return None

    @contextmanager
    def held(self) -> Generator[None]:
        """Nothing is raised in here, in this thread: half an import, for one, cannot be made again in a process."""
        with self._gate:
            ident, self._ident = self._ident, 0
        try:
            yield
        finally:
            with self._gate:
                self._ident = ident

    def order(self) -> None:
        """From now on user code is to end."""
        self._ordered.set()

    def interrupt(self) -> bool:
        """Raise in user code; it comes at the thread's next step in Python, and not inside C code.

        False: none runs, or it takes a lock just now: try again.
        """
        with self._gate:
            if self._ident and self._locking < LOCKING and takes_lock(self._ident):
                self._locking += 1
                return False
            self._locking = 0
            if self._ident:
                self._sent = True
                _raise_in(self._ident)
            return bool(self._ident)

    def _shut_gate(self) -> None:
        """Nothing is raised in this thread from here on, not even what is on its way.

        A thread has room for one error on its way: a last one takes the place of any other, and is awaited. Taking it
        back, by none in its place, would leave Python 3.11 looking for it for ever, and under a tracer (a debugger,
        coverage) it would do nothing else: only an error clears the signal, and a traced RESUME is repeated until then.
        """
        while True:
            try:
                with self._gate:
                    self._ident = 0
                if self._sent:
                    _raise_in(threading.get_ident())
                    while True:
                        pass
                return
            except ThreadInterrupted:
                if not self._ident:
                    return


def takes_lock(ident: int) -> bool:
    """Whether a thread is in a call that takes a lock, or has just come back from one.

    `Condition.wait` takes a lock of its own, which nobody misses.
    """
    frame = sys._current_frames().get(ident)
    if frame is None or frame.f_code is threading.Condition.wait.__code__:
        return False
    here, name = frame.f_lasti, ""
    begin = next((one.positions for one in dis.get_instructions(frame.f_code) if one.offset == here), None)
    for one in dis.get_instructions(frame.f_code):
        if one.offset >= here:
            break
        at = one.positions
        called = one.opname in ("LOAD_METHOD", "LOAD_ATTR")
        if called and begin and at and (at.lineno, at.col_offset) == (begin.lineno, begin.col_offset):
            name = str(one.argval)
    return name in _TAKES


def _raise_in(ident: int) -> None:
    """Have the error raised in a thread."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(ThreadInterrupted))
