"""Taking a thread back from user code: an error is raised in it, and nothing once it is back."""

from __future__ import annotations

import ctypes
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


class Recalled(BaseException):
    """Raised in user code that must end because its torch group meets anew; nobody is to catch it for good."""


class Recall:
    """The way back out of one run of user code."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._ident = 0
        self._sent = False
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
        except Recalled:  # also one that came before the gate was shut, and after the work's own end
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
        """Raise in user code; it comes at the thread's next step in Python, and not inside C code. False: none runs."""
        with self._gate:
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
            except Recalled:
                if not self._ident:
                    return


def _raise_in(ident: int) -> None:
    """Have the error raised in a thread."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Recalled))
