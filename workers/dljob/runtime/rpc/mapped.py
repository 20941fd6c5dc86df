"""Calls of one method of one rank that travel together, each with an answer or error of its own (`Rank.map`)."""

from __future__ import annotations

import asyncio
import marshal
import threading
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from dljob.runtime.process.error_origin import ends_at_caller
from dljob.runtime.process.messages import Reply
from dljob.runtime.rpc.futures import Invocation, then

T = TypeVar("T")


class CallBatch:
    """A request with several calls, and its one answer, which has a reply for each."""

    def __init__(self, started: Invocation, many: int, call_name: str) -> None:
        self.started = started
        self.call_name = call_name
        self._many = many
        self._lock = threading.Lock()
        self._replies: list[Reply] | None = None
        self._ended: Future[None] | None = None

    @property
    def future(self) -> Future[Reply]:
        """The future of the answer."""
        return self.started.futures[0]

    def ended(self) -> Future[None]:
        """Return a future of the answer's arrival, which a cancelled coroutine does not cancel for the others."""
        with self._lock:
            if self._ended is None:
                self._ended = then(self.future, lambda _: None)
            return self._ended

    def replies(self, timeout: float | None = None) -> list[Reply]:
        """Wait for the answer; raises CallError where it is lost, and TimeoutError after `timeout` seconds."""
        if self._replies is not None:
            return self._replies
        with self.started.standing_still(), self.started.waiting():
            try:
                self.future.exception(timeout)
            except TimeoutError:
                if not self.future.done():
                    message = f"{self.call_name}: no answer yet after {timeout:g} s; the call goes on"
                    raise TimeoutError(message) from None
        batch_reply = self.future.result(0)
        with self._lock:
            if self._replies is None:
                # A batch that could not be run at all has one error for each of its calls.
                self._replies = [batch_reply] * self._many if batch_reply.error_type else unpacked(batch_reply.payload)
        return self._replies


class MappedFuture(Generic[T]):
    """The future of one call of a batch: `await` it in a coroutine, or call `.result()` in a thread."""

    __slots__ = ("_batch", "_number")

    def __init__(self, batch: CallBatch, number: int) -> None:
        self._batch = batch
        self._number = number

    @ends_at_caller
    def result(self, timeout: float | None = None) -> T:
        """Wait for the value; raises what the call raised, TimeoutError after `timeout` seconds (the call goes on)."""
        return self._batch.started.read(0, self._batch.replies(timeout)[self._number])

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the call's end, good or bad; False when `timeout` seconds passed before."""
        try:
            self._batch.replies(timeout)
        except Exception:  # noqa: BLE001 - `result` raises it
            return self.done()
        return True

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        return self._batch.future.done()

    def __await__(self) -> Generator[Any, None, T]:
        with ends_at_caller:
            with self._batch.started.awaiting():
                yield from asyncio.wrap_future(self._batch.ended()).__await__()
            return self.result()


def packed(replies: list[Reply]) -> bytes:
    """Encode the replies of a batch."""
    return marshal.dumps([reply.packed() for reply in replies])


def unpacked(payload: bytes) -> list[Reply]:
    """Decode the result of `packed`."""
    return [Reply.unpacked(packed_reply) for packed_reply in marshal.loads(payload)]  # noqa: S302 - from a process of the same job


def packed_calls(method: str, payloads: list[bytes]) -> bytes:
    """Encode the calls of a batch: a method, and the pickled arguments of each call."""
    return marshal.dumps((method, payloads))


def unpacked_calls(payload: bytes) -> tuple[str, list[bytes]]:
    """Decode the result of `packed_calls`."""
    method, payloads = marshal.loads(payload)  # noqa: S302 - from a process of the same job
    return method, payloads
