"""Closes the streams of callers that are gone: a killed process closes nothing, and its generator would keep its place.

A callee with open streams has one question at PrimeMaster, which is answered as soon as one of their callers has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeAlias

Caller: TypeAlias = tuple[str, int, int]
"""Role, rank and incarnation."""
AskEnded: TypeAlias = Callable[[list[Caller]], "Future[Any]"]
"""Asks PrimeMaster which of some callers have ended. The answer may be empty; the next question has it come at once."""

LOOK_S = 0.25
"""Seconds between two looks for an answer, or for callers of whom PrimeMaster has not been asked."""
RETRY_S = 5.0
"""Seconds until it is asked again after an error."""


class CallerWatch:
    """Asks about `callers()`, those of the open streams, while there are some, and calls `end` with the ended ones."""

    def __init__(
        self, ask: AskEnded | None, callers: Callable[[], set[Caller]], end: Callable[[Iterable[Caller]], None]
    ) -> None:
        self._ask = ask
        self._callers = callers
        self._end = end
        self._lock = threading.Lock()
        self._is_running = False

    def start(self) -> None:
        """Watch the callers of the streams that are open, and of those that open until none is."""
        with self._lock:
            if self._ask is None or self._is_running or not self._callers():
                return
            self._is_running = True
        try:
            threading.Thread(target=self._run, args=(self._ask,), name="dljob-callers", daemon=True).start()
        except RuntimeError:  # no thread is left: the next stream tries again
            self._is_running = False

    def _run(self, ask: AskEnded) -> None:
        asked: set[Caller] = set()
        question: Future[Any] | None = None
        while (callers := self._present()) is not None:
            if question is not None and question.done():
                failed = question.exception() is not None  # PrimeMaster does not answer, or is of an earlier version
                self._end(
                    [] if failed else [(role, rank, incarnation) for role, rank, incarnation in question.result()]
                )
                question = None
                if failed:
                    time.sleep(RETRY_S)
                continue
            if question is None or not callers <= asked:
                asked, question = callers, ask(sorted(callers))
            time.sleep(LOOK_S)

    def _present(self) -> set[Caller] | None:
        """Return the callers of the open streams; None where there are none, and the watch ends."""
        with self._lock:
            callers = self._callers()
            self._is_running = bool(callers)
            return callers or None
