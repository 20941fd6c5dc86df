"""What a caller holds: `CallFuture`, to be awaited or asked for its result, and `FutureSequence`, item by item."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Generic, TypeVar, overload

from dljob.calls.mark import seconds
from dljob.errors import UsageError
from dljob.runtime.rpc.arrivals import Arrivals
from dljob.runtime.rpc.invocation import Invocation
from dljob.telemetry.wording import counted

T = TypeVar("T")


class CallFuture(Generic[T]):
    """A call that is under way: `await` it in a coroutine, or `.result()` it in a thread."""

    def __init__(self, started: Future[Invocation], what: str) -> None:
        self._started = started
        self._what = what

    def result(self, timeout: float | None = None) -> T:
        """The answer; raises what the call raised, TimeoutError when there is none after `timeout` seconds."""
        return self.answered(timeout).value()

    def answered(self, timeout: float | None = None) -> Invocation:
        """The call once its answers are there, not read yet; raises as `result` does."""
        left = _Left(timeout)
        try:
            started = self._started.result(left())
            if not started.comes_at_once:
                fetch(started, left)
        except FutureTimeout:
            if self.done():
                raise
            raise TimeoutError(f"{self._what}: no answer yet after {timeout:g} s; the call goes on") from None
        return started

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, good or bad; False when it did not come within `timeout` seconds."""
        left = _Left(timeout)
        try:
            started = self._started.result(left())
            if not started.comes_at_once:
                fetch(started, left)
        except FutureTimeout:
            return self.done()
        except Exception:  # noqa: BLE001 - `result` raises it
            return True
        return True

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        if not self._started.done():
            return False
        return self._started.exception() is not None or self._started.result().over()

    def __await__(self) -> Generator[Any, None, T]:
        started = yield from asyncio.wrap_future(self._started).__await__()
        if not started.comes_at_once:
            yield from _all(started).__await__()
        return started.value()


class FutureSequence(Sequence[T]):
    """The items of a batch that several ranks work on. An item is there as soon as the rank that has it answered."""

    def __init__(self, started: Future[Invocation], size: int, what: str) -> None:
        self._call: CallFuture[Any] = CallFuture(started, what)
        self._started = started
        self._size = size
        self._what = what
        self._chunks: dict[int, Sequence[T]] = {}
        """What was read of the answers: number of the send -> its items."""

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(f"{self._what} has items 0 to {self._size - 1}, not {index}")
        at = index % self._size
        started = self._started.result()
        for number, chunk in zip(started.wanted, started.shares, strict=True):
            if at < chunk:
                return self._chunk(started, number, chunk)[at]
            at -= chunk
        raise AssertionError("shares do not add up")

    def __iter__(self) -> Iterator[T]:
        """The items, those of a rank once it has answered; the first error of any rank as soon as it is there."""
        started = self._started.result()
        coming = Arrivals(started.futures)
        for number, chunk in zip(started.wanted, started.shares, strict=True):
            while not started.futures[number].done():
                coming.wait()
                started.check()
            yield from self._chunk(started, number, chunk)
        self._call.answered()

    def result(self, timeout: float | None = None) -> list[T]:
        """All items, once all are there; raises what a rank raised, TimeoutError after `timeout` seconds."""
        started = self._call.answered(timeout)
        pairs = zip(started.wanted, started.shares, strict=True)
        return [item for number, chunk in pairs for item in self._chunk(started, number, chunk)]

    def wait(self, timeout: float | None = None) -> list[T]:
        """`result`, under the name that DLRover's unified API has for it."""
        return self.result(timeout)

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        return self._call.done()

    def __await__(self) -> Generator[Any, None, list[T]]:
        started = yield from asyncio.wrap_future(self._started).__await__()
        yield from _all(started).__await__()
        return self.result()

    def _chunk(self, started: Invocation, number: int, size: int) -> Sequence[T]:
        """What one rank answered: as many items as it was given."""
        if number in self._chunks:
            return self._chunks[number]
        answer = started.answer(number)
        if not hasattr(answer, "__len__") or len(answer) != size:
            got = counted(len(answer), "item") if hasattr(answer, "__len__") else type(answer).__name__
            rank = started.sent.sends[number].rank
            raise UsageError(
                f"{self._what}: {started.role}/{rank} was given {counted(size, 'item')} and answered {got}"
            )
        return self._chunks.setdefault(number, answer)


class _Left:
    """Seconds of a timeout that are left."""

    def __init__(self, timeout: float | None) -> None:
        left = seconds(timeout)
        self._end = None if left is None else time.monotonic() + left

    def __call__(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())


def fetch(started: Invocation, left: _Left) -> None:
    """Wait until all answers are there, or one that is an error, which is raised; FutureTimeout when time is over."""
    futures = started.futures
    together = getattr(futures[0], "fetch_together", None)
    if len(futures) == 1:
        futures[0].result(left())
    elif together is not None and all(hasattr(future, "fetch_together") for future in futures):
        together(futures, left, started.check)
    under_way = [future for future in futures if not future.done()]
    started.check()
    coming = Arrivals(under_way)
    for _ in under_way:
        coming.take().result(left())
        started.check()


async def _all(started: Invocation) -> None:
    coming = Arrivals(started.futures)
    for _ in started.futures:
        await asyncio.wrap_future(coming.take())
        started.check()


def ready(value: Any) -> Future[Any]:
    """A future that has its value."""
    made: Future[Any] = Future()
    made.set_result(value)
    return made


def then(first: Future[Any], make: Any) -> Future[Any]:
    """A future of what is made of another one's value; an error of either is its own."""
    made: Future[Any] = Future()
    made.set_running_or_notify_cancel()

    def finish(done: Future[Any]) -> None:
        try:
            made.set_result(make(done.result()))
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the answer
            made.set_exception(error)

    first.add_done_callback(finish)
    return made
