"""The fast path of a call: the calling thread sends it, and fetches the answer itself when it asks for the result.

That saves two switches between the thread and the client's loop, half of a call's cost beside Ray's own. Everything
else goes to the loop of `RpcClient`: a callee that died or restarts, a deadline that passed, a callback.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import ray
from ray.exceptions import GetTimeoutError, RayError

from dljob.runtime.process.messages import Reply
from dljob.runtime.process.worker_context import RankCall

SLICE_S = 0.5
"""Seconds that a thread stays inside Ray at a time: only between two waits can Python interrupt it."""
UNASKED_S = 0.05
"""Age in seconds at which an unawaited call goes to the loop, whose cost is small beside a call of that length."""
TOGETHER_S = 0.02
"""Seconds that one request to Ray waits for the answers of all ranks; the rest are then awaited one by one."""


def unpacked(answer: bytes | Reply) -> Reply:
    """Return the reply in an answer; small ones arrive packed, large ones as an object that Ray maps without a copy."""
    return Reply.unpacked(answer) if isinstance(answer, bytes) else answer


class SentCall(Protocol):
    """A call that a thread has sent."""

    def hand_over(self) -> None:
        """Hand the call to `RpcClient`'s event loop, which waits for the answer; only the first time."""


class UnawaitedCalls:
    """Calls that no thread waits for yet. After `UNASKED_S` the loop takes them over, and resends lost ones.

    Without it a caller that works for minutes before it asks would learn of a dead callee only then.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: deque[tuple[float, weakref.ref[SentCall]]] = deque()
        self._is_watching = False

    def add(self, call: SentCall, loop: asyncio.AbstractEventLoop) -> None:
        """Count a call's age from now on."""
        with self._lock:
            # A weak reference: a future that was dropped goes to the loop by `__del__`, and must not be kept for this.
            self._calls.append((time.monotonic(), weakref.ref(call)))
            if self._is_watching:
                return
            self._is_watching = True
        # One timer for all calls: it stops when none is left.
        loop.call_soon_threadsafe(self._poll, loop)

    def _poll(self, loop: asyncio.AbstractEventLoop) -> None:
        old: list[weakref.ref[SentCall]] = []
        with self._lock:
            before = time.monotonic() - UNASKED_S
            while self._calls and self._calls[0][0] <= before:
                old.append(self._calls.popleft()[1])
            self._is_watching = bool(self._calls)
            if self._is_watching:
                loop.call_later(UNASKED_S, self._poll, loop)
        for call_ref in old:
            call = call_ref()
            if call is not None:
                call.hand_over()


class DirectCall(Future[Reply]):
    """A call's future. It fetches the answer from Ray only when its result is asked for."""

    def __init__(
        self, ref: Any, call: RankCall, take_over: Callable[[DirectCall, Any], None], learn: Callable[[Reply], None]
    ) -> None:
        super().__init__()
        # A future that can be cancelled would be, by an awaiting task, while its call runs on.
        self.set_running_or_notify_cancel()
        self.ref = ref
        """Ray's reference to the answer while it is fetched from here; None once it came, or the loop waits for it.

        Ray's store keeps the answer for as long as anybody has the reference.
        """
        self._call = call
        self._take_over = take_over
        self._learn = learn
        self._own = threading.Lock()

    def result(self, timeout: float | None = None) -> Reply:
        """Return the reply; raises CallError, and TimeoutError after `timeout` seconds."""
        return super().result(self._poll(timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the call's CallError; None when it was answered."""
        return super().exception(self._poll(timeout))

    def done(self) -> bool:
        """Whether the call has ended; looks at Ray without waiting."""
        if (ref := self.ref) is not None and ray.wait([ref], timeout=0)[0]:
            self._fetch(ref)
        return super().done()

    def add_done_callback(self, fn: Callable[[Future[Reply]], object]) -> None:
        """Call back at the end. The loop waits for the answer then, since no thread does."""
        self.hand_over()
        super().add_done_callback(fn)

    def hand_over(self) -> None:
        """Hand the call to `RpcClient`'s event loop, which waits for the answer; only the first time."""
        with self._own:
            ref, self.ref = self.ref, None
        if ref is not None:
            self._take_over(self, ref)

    def _fetch(self, ref: Any) -> None:
        """Read the answer, which has arrived; a loss goes to the loop."""
        try:
            reply = unpacked(ray.get(ref))
        except (RayError, ValueError):
            self.hand_over()
            return
        self._took(reply)

    def _took(self, reply: Reply) -> None:
        # A refusal may mean another incarnation, or an error of the call: the loop has the rules.
        if reply.refused is not None:
            self.hand_over()
            return
        # A thread may read the answer just as the loop takes the call: the first of the two sets the result.
        with self._own:
            if self.ref is not None:
                self._learn(reply)
                self.set_result(reply)
                self.ref = None

    def _poll(self, timeout: float | None) -> float | None:
        """Wait in Ray until the call has ended or belongs to the loop; returns the seconds left."""
        end = None if timeout is None else time.monotonic() + timeout
        while (ref := self.ref) is not None:
            bounds = [
                SLICE_S,
                *(
                    x
                    for x in (self._call.seconds_left, None if end is None else end - time.monotonic())
                    if x is not None
                ),
            ]
            try:
                reply = unpacked(ray.get(ref, timeout=max(0.0, min(bounds))))
            except GetTimeoutError:
                seconds_left = self._call.seconds_left
                # The call's own deadline, which the loop reports, after it has told the callee.
                if seconds_left is not None and seconds_left <= 0:
                    self.hand_over()
                elif end is not None and end <= time.monotonic():
                    break
            except (RayError, ValueError):
                self.hand_over()
            else:
                self._took(reply)
        return None if end is None else max(0.0, end - time.monotonic())

    def __del__(self) -> None:
        """Hand a future that was dropped to the loop: an idempotent call is sent again when its callee dies."""
        with contextlib.suppress(Exception):  # at the end of the process nothing may be there any more
            self.hand_over()

    @staticmethod
    def fetch_together(
        calls: Sequence[DirectCall], seconds_left: Callable[[], float | None], check: Callable[[], None]
    ) -> None:
        """Wait until each call has ended or belongs to the loop; `check`, run as answers come, raises the first error.

        Raises:
            TimeoutError: `left()`, in seconds, came to 0 before.
        """
        bound, waiting = seconds_left(), DirectCall._waiting(calls)
        # The usual case, which costs one question to Ray for all ranks.
        DirectCall._take(waiting, list(waiting), TOGETHER_S if bound is None else min(TOGETHER_S, bound))
        while waiting := DirectCall._waiting(calls):
            bounds = [
                SLICE_S,
                *(
                    x
                    for x in (seconds_left(), *(call._call.seconds_left for call in waiting.values()))
                    if x is not None
                ),
            ]
            ready_refs, _ = ray.wait(list(waiting), num_returns=1, timeout=max(0.0, min(bounds)))
            if not ready_refs and seconds_left() == 0:
                raise TimeoutError
            if not DirectCall._take(waiting, ready_refs):
                for ref in ready_refs:
                    waiting[ref]._fetch(ref)
            for call in waiting.values():
                if (call_seconds_left := call._call.seconds_left) is not None and call_seconds_left <= 0:
                    call.hand_over()
            check()

    @staticmethod
    def _waiting(calls: Sequence[DirectCall]) -> dict[Any, DirectCall]:
        """Return the calls that have not ended, nor belong to the loop, by their references."""
        return {ref: call for call in calls if (ref := call.ref) is not None}

    @staticmethod
    def _take(waiting: Mapping[Any, DirectCall], refs: Sequence[Any], timeout: float | None = None) -> bool:
        """Read the answers at some references; False where not all of them come within `timeout` seconds."""
        try:
            answers = ray.get(list(refs), timeout=timeout)
        except (RayError, ValueError):
            return False
        for ref, answer in zip(refs, answers, strict=True):
            waiting[ref]._took(unpacked(answer))
        return True
