"""The future of a call that goes by a line; the thread that reads the line completes it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from typing import Any

from dljob.runtime.process.messages import Reply
from dljob.runtime.process.worker_context import RankCall
from dljob.runtime.rpc.direct import SLICE_S, TOGETHER_S


class LineBrokenError(Exception):
    """The line broke before the answer came; the callee may be alive."""


class LaterAnswer:
    """The answer of a call that the client's loop waits for."""

    def __init__(self) -> None:
        self.future: Future[Reply] = Future()
        # A future that can be cancelled would be, by a task that is late.
        self.future.set_running_or_notify_cancel()

    def __await__(self) -> Generator[Any, None, Reply]:
        return asyncio.wrap_future(self.future).__await__()


class LineCall(Future[Reply]):
    """A call's future. Whatever is no plain answer in time goes to the client's loop, as with `DirectCall`."""

    def __init__(self, call: RankCall, take_over: Callable[[LineCall], None], learn: Callable[[Reply], None]) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self.later = LaterAnswer()
        self._call = call
        self._take_over = take_over
        self._learn = learn
        self._own = threading.Lock()
        self._handed_over = False
        """Whether the loop completes it, or it is being completed."""

    def took(self, answer: bytes | None) -> None:
        """Take the answer; None: the line broke before."""
        if answer is None:
            self.later.future.set_exception(LineBrokenError())
            self.hand_over()
            return
        reply = Reply.unpacked(answer)
        with self._own:
            # A refusal may mean another incarnation, or an error of the call: the loop has the rules.
            plain = reply.refused is None and not self._handed_over
            self._handed_over |= plain
        if plain:
            self._learn(reply)
            self.set_result(reply)
        else:
            self.later.future.set_result(reply)
            self.hand_over()

    def hand_over(self) -> None:
        """Hand the call to the client's loop; only the first time."""
        with self._own:
            if self._handed_over:
                return
            self._handed_over = True
        self._take_over(self)

    def result(self, timeout: float | None = None) -> Reply:
        """Return the reply; raises CallError, and TimeoutError after `timeout` seconds."""
        return super().result(self._wait(timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the call's CallError; None when it was answered."""
        return super().exception(self._wait(timeout))

    def _wait(self, timeout: float | None) -> float | None:
        """Wait until the call has ended, or `timeout` has passed; returns the seconds that are left of that."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self.done() and (end is None or time.monotonic() < end):
            call_seconds_left = self._call.seconds_left
            if call_seconds_left is not None and call_seconds_left <= 0:
                # The loop tells the callee, and words the error.
                self.hand_over()
                call_seconds_left = None
            bounds = [
                SLICE_S,
                *(x for x in (call_seconds_left, None if end is None else end - time.monotonic()) if x is not None),
            ]
            with suppress(TimeoutError):
                super().exception(max(0.0, min(bounds)))
        return None if end is None else max(0.0, end - time.monotonic())

    def add_done_callback(self, fn: Callable[[Future[Reply]], object]) -> None:
        """Call back at the end, in the client's loop: callbacks may take long, and the reader has other calls."""
        self.hand_over()
        super().add_done_callback(fn)

    @staticmethod
    def fetch_together(
        calls: Sequence[LineCall], seconds_left: Callable[[], float | None], check: Callable[[], None]
    ) -> None:
        """Wait until each call has ended; `check`, run as answers come, raises the first error.

        Raises:
            TimeoutError: `left()`, in seconds, came to 0 before.
        """
        bound = seconds_left()
        wait(calls, TOGETHER_S if bound is None else min(TOGETHER_S, bound))
        while waiting := [call for call in calls if not call.done()]:
            check()
            bounds = [
                SLICE_S,
                *(x for x in (seconds_left(), *(call._call.seconds_left for call in waiting)) if x is not None),
            ]
            if not wait(waiting, max(0.0, min(bounds)), FIRST_COMPLETED).done and seconds_left() == 0:
                raise TimeoutError
            for call in waiting:
                if (call_seconds_left := call._call.seconds_left) is not None and call_seconds_left <= 0:
                    call.hand_over()
