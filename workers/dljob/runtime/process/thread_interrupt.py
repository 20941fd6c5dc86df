"""Interrupting user code in its thread: raise an exception in it, and none once the thread has left user code.

CPython raises it between two bytecode instructions. Right after `lock.acquire()` that is before the `try` whose
`finally` would release the lock, so a thread that is taking a lock is not interrupted until it has it.
"""

from __future__ import annotations

import ctypes
import dis
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

ASK_S = 0.05
"""Seconds for user code to leave by itself: mostly it is in a collective, or soon will be, which fails."""
AGAIN_S = 0.5
"""Seconds between attempts to break off the collectives of user code that does not leave."""
PATIENCE_S = 3.0
"""Seconds for user code to clean up after the exception, before it gets another in case it swallowed the first."""


LOCKING = 6
"""Consecutive interrupts that are withheld from a thread that is taking a lock. One that still does is polling a lock,
and must be interrupted all the same."""
_TAKES = ("acquire", "__enter__", "_acquire_restore")


class ThreadInterrupted(BaseException):
    """Raised in user code that must end because its torch group forms again. User code must not swallow it."""


class ThreadInterrupt:
    """Interrupts one run of user code.

    The gate (a lock, and the thread's id while user code runs) makes sure that no exception is raised outside of it.
    """

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._ident = 0
        self._sent, self._sent_at = False, 0.0
        self._locking = 0
        self._ordered = threading.Event()

    @property
    def ordered(self) -> bool:
        """Whether user code was ordered to end; then that is the cause of its end, however it ends."""
        return self._ordered.is_set()

    def run(self, work: Callable[[], T]) -> T | None:
        """Run work in this thread; None if it was interrupted. Any other exception passes through."""
        try:
            try:
                with self._gate:
                    self._ident = threading.get_ident()
                return work()
            finally:
                # Even as the work ends by itself: from here on the thread is dljob's, and must not be interrupted.
                self._shut_gate()
        except ThreadInterrupted:  # it may come between the work's own end and the gate's closing
            self._shut_gate()
            return None

    @contextmanager
    def held_back(self) -> Generator[None]:
        """Block interrupts of this thread within the block: half an import cannot be repeated in a process."""
        with self._gate:
            ident, self._ident = self._ident, 0
        try:
            yield
        finally:
            with self._gate:
                self._ident = ident

    def order(self) -> None:
        """Order user code to end."""
        self._ordered.set()

    def interrupt(self, patience_s: float = 0.0) -> bool:
        """Raise ThreadInterrupted in user code. It strikes at the thread's next bytecode, so never inside C code.

        Nothing is raised within `patience_s` of the last time: user code cleans up then, also where a second order to
        end it comes. Returns False if no user code runs, or if it is taking a lock: try again.
        """
        with self._gate:
            if self._sent and time.monotonic() < self._sent_at + patience_s:
                return True
            # Under the gate: the thread cannot leave user code between this check and the exception.
            if self._ident and self._locking < LOCKING and takes_lock(self._ident):
                self._locking += 1
                return False
            # Counted in a row: a thread that got out of the lock meanwhile has its grace again.
            self._locking = 0
            if self._ident:
                self._sent, self._sent_at = True, time.monotonic()
                _raise_in(self._ident)
            return bool(self._ident)

    def _shut_gate(self) -> None:
        """Close the gate: nothing is raised in this thread from here on, a pending exception included.

        A thread has room for one pending exception, so another one is sent, which replaces it, and is awaited here.
        Clearing the pending one instead would leave Python 3.11 looking for it for ever, and under a tracer (debugger,
        coverage) it would do nothing else: only an exception clears the eval-breaker signal, and a traced RESUME is
        repeated until then.
        """
        while True:
            try:
                with self._gate:
                    self._ident = 0
                # Nothing was sent, so nothing can be pending: the usual end of user code costs one lock.
                if self._sent:
                    _raise_in(threading.get_ident())
                    # Spin: the exception strikes only between bytecodes, and it is pending already.
                    while True:
                        pass
                return
            except ThreadInterrupted:
                if not self._ident:
                    return


def takes_lock(ident: int) -> bool:
    """Whether a thread is in a call that takes a lock, or has just returned from one.

    `Condition.wait` does not count: the lock it takes is private to the wait, so no other thread needs it.
    """
    frame = sys._current_frames().get(ident)
    if frame is None or frame.f_code is threading.Condition.wait.__code__:
        return False
    offset, name = frame.f_lasti, ""
    # The method called by the current instruction is the last attribute loaded at the same source position.
    begin = next(
        (instruction.positions for instruction in dis.get_instructions(frame.f_code) if instruction.offset == offset),
        None,
    )
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset >= offset:
            break
        at = instruction.positions
        called = instruction.opname in ("LOAD_METHOD", "LOAD_ATTR")
        if called and begin and at and (at.lineno, at.col_offset) == (begin.lineno, begin.col_offset):
            name = str(instruction.argval)
    return name in _TAKES


def _raise_in(ident: int) -> None:
    """Make CPython raise ThreadInterrupted in a thread."""
    # The only way into another thread: it sets the exception, and the thread's next bytecode raises it.
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(ThreadInterrupted))
