"""A call that went straight to its callee from the thread that made it; the answer is fetched by who waits for it.

That saves two hops between threads and a loop, half of what a call costs beside Ray. Whatever is not a plain answer
(the callee died, it restarts, the deadline passed), and whoever wants to be called back, is for `RpcClient`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import ray
from ray.exceptions import GetTimeoutError, RayError

from dljob.runtime.process.messages import GROUPS, Reply

SLICE_S = 0.5
"""How long a thread waits inside of Ray before it comes by in Python, where it can be interrupted."""
UNASKED_S = 0.05
"""A call is left to the loop when it took so long; then the loop's share of the cost is nothing beside it."""
TOGETHER_S = 0.02
"""How long the answers of many ranks are waited for together; after that one by one."""


def unpacked(answer: bytes | Reply) -> Reply:
    """A reply, which is packed unless it is large."""
    return Reply.unpacked(answer) if isinstance(answer, bytes) else answer


def invoked(handle: Any, method: str, message: bytes, payload: Sequence[Any]) -> Any:
    """Send a call to its host, to the threads that answer calls of its kind."""
    group = GROUPS.get(method)
    invoke = handle.invoke if group is None else handle.invoke.options(concurrency_group=group)
    return invoke.remote(message, *payload)


class Sent(Protocol):
    """What the router knows of a call under way."""

    @property
    def left(self) -> float | None:
        """Seconds to its deadline."""
        ...


class UnawaitedCalls:
    """Calls that nobody asks about: after a moment the loop takes them over, so that what is lost is sent again.

    A caller may do something else for minutes before it wants its answer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: deque[tuple[float, weakref.ref[DirectCall]]] = deque()
        self._looks = False

    def add(self, call: DirectCall, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to count its time."""
        with self._lock:
            self._calls.append((time.monotonic(), weakref.ref(call)))
            if self._looks:
                return
            self._looks = True
        loop.call_soon_threadsafe(self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        old: list[weakref.ref[DirectCall]] = []
        with self._lock:
            before = time.monotonic() - UNASKED_S
            while self._calls and self._calls[0][0] <= before:
                old.append(self._calls.popleft()[1])
            self._looks = bool(self._calls)
            if self._looks:
                loop.call_later(UNASKED_S, self._look, loop)
        for each in old:
            call = each()
            if call is not None:
                call.hand_over()


class DirectCall(Future[Reply]):
    """A future that looks for its answer when it is asked, and only then."""

    def __init__(
        self, ref: Any, sending: Sent, take_over: Callable[[DirectCall], None], learn: Callable[[Reply], None]
    ) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self.ref = ref
        self._sending = sending
        self._take_over = take_over
        self._learn = learn
        self._own = threading.Lock()
        self._handed_over = False

    def result(self, timeout: float | None = None) -> Reply:
        """The reply; raises CallError."""
        return super().result(self._look(timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The CallError, once it is over."""
        return super().exception(self._look(timeout))

    def done(self) -> bool:
        """Whether the answer is there."""
        if not self._handed_over and not super().done() and ray.wait([self.ref], timeout=0)[0]:
            self.fetch()
        return super().done()

    def add_done_callback(self, fn: Callable[[Future[Reply]], object]) -> None:
        """Call back at the end: the loop waits for the answer then."""
        self.hand_over()
        super().add_done_callback(fn)

    def hand_over(self) -> None:
        """Leave it to the loop."""
        with self._own:
            if self._handed_over or super().done():
                return
            self._handed_over = True
        self._take_over(self)

    def fetch(self) -> None:
        """Take the answer, which is there; one that is not plain is for the loop."""
        try:
            reply = unpacked(ray.get(self.ref))
        except (RayError, ValueError):
            self.hand_over()
            return
        self._took(reply)

    def _took(self, reply: Reply) -> None:
        if reply.refused is not None:
            self.hand_over()
            return
        with self._own:
            if not self._handed_over and not super().done():
                self._learn(reply)
                self.set_result(reply)

    def _look(self, timeout: float | None) -> float | None:
        """Wait in Ray until the answer is there, or it is for the loop; what is left of the timeout."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self._handed_over and not super().done():
            bounds = [
                SLICE_S,
                *(x for x in (self._sending.left, None if end is None else end - time.monotonic()) if x is not None),
            ]
            try:
                reply = unpacked(ray.get(self.ref, timeout=max(0.0, min(bounds))))
            except GetTimeoutError:
                left = self._sending.left
                if left is not None and left <= 0:
                    self.hand_over()
                elif end is not None and end <= time.monotonic():
                    break
            except (RayError, ValueError):
                self.hand_over()
            else:
                self._took(reply)
        return None if end is None else max(0.0, end - time.monotonic())

    def __del__(self) -> None:
        """Nobody looks any more; a call that is idempotent is still sent again when its callee dies with it."""
        with contextlib.suppress(Exception):  # at the end of the process nothing may be there any more
            self.hand_over()

    @staticmethod
    def fetch_together(
        calls: Sequence[DirectCall], left: Callable[[], float | None], check: Callable[[], None]
    ) -> None:
        """Wait until all are over, or the loop's; `check`, called as they come, raises the first error.

        Raises:
            TimeoutError: in time they were not.
        """
        if not DirectCall._all_at_once(calls, left()):
            while waiting := [call for call in calls if not call._handed_over and not Future.done(call)]:
                bounds = [SLICE_S, *(x for x in (left(), *(call._sending.left for call in waiting)) if x is not None)]
                refs = [call.ref for call in waiting]
                found, _ = ray.wait(refs, num_returns=1, timeout=max(0.0, min(bounds)))
                if not found and left() == 0:
                    raise TimeoutError
                DirectCall._take(waiting, found)
                check()

    @staticmethod
    def _all_at_once(calls: Sequence[DirectCall], left: float | None) -> bool:
        """Whether all answered soon, which is the rule: one question to Ray, not one for each."""
        try:
            answers = ray.get(
                [call.ref for call in calls], timeout=TOGETHER_S if left is None else min(TOGETHER_S, left)
            )
        except (RayError, ValueError):
            return False
        for call, answer in zip(calls, answers, strict=True):
            call._took(unpacked(answer))
        return True

    @staticmethod
    def _take(waiting: Sequence[DirectCall], found: Sequence[Any]) -> None:
        by_ref = {call.ref: call for call in waiting}
        try:
            for ref, reply in zip(found, ray.get(list(found)), strict=True):
                by_ref[ref]._took(unpacked(reply))
        except (RayError, ValueError):
            for ref in found:
                by_ref[ref].fetch()
        for call in waiting:
            if (left := call._sending.left) is not None and left <= 0:
                call.hand_over()
