"""Taking a thread back from user code: an error is raised in it, and nothing once it is back."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

ASK_S = 0.05
"""What user code gets to leave by itself: most is in a collective, or will be soon, and that fails."""
AGAIN_S = 0.5
"""How often it is tried again with code that goes on."""


class Recalled(BaseException):
    """Raised in user code that must end because its torch group meets anew; nobody is to catch it for good."""


class Recall:
    """The way back out of one run of user code."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._ident = 0
        self._ordered = threading.Event()

    @property
    def ordered(self) -> bool:
        """Whether user code was told to end: however it ends then, that is why."""
        return self._ordered.is_set()

    def run(self, work: Callable[[], T]) -> T | None:
        """Run work in this thread; None when it was called back. Whatever else it raises passes through."""
        with self._gate:
            self._ident = threading.get_ident()
        try:
            return work()
        except Recalled:
            return None
        finally:
            self._shut_gate()

    def order(self) -> None:
        """From now on user code is to end."""
        self._ordered.set()

    def interrupt(self) -> None:
        """Raise in user code; it comes at the thread's next step in Python, and not inside C code."""
        with self._gate:
            if self._ident:
                _raise_in(self._ident, Recalled)

    def _shut_gate(self) -> None:
        """Nothing is raised in this thread from here on, not even what is on its way."""
        while True:
            try:
                with self._gate:
                    self._ident = 0
                    _raise_in(threading.get_ident(), None)
            except Recalled:
                continue
            return


def _raise_in(ident: int, error: type[BaseException] | None) -> None:
    """Have an error raised in a thread; None takes back one that was not raised yet."""
    what = ctypes.py_object() if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), what)
