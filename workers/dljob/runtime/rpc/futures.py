"""Results of role calls: `CallFuture` for a value, `FutureSequence` for a batch item by item, `AsCompleted`.

`Invocation` is what they share: the requests that were sent, and how their answers become the value.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, overload

from dljob.calls import collect
from dljob.calls.dispatch import CallPlan
from dljob.calls.mark import RpcMark, parse_timeout
from dljob.errors import ErrorOrigin, RemoteError, UsageError
from dljob.runtime.process import wire
from dljob.runtime.process.activities import AwaitedTask, Target, Waiting
from dljob.runtime.process.error_origin import ends_at_caller
from dljob.runtime.process.messages import Reply
from dljob.runtime.process.wait_clocks import Note, WaitClock, standing_still
from dljob.runtime.process.worker_context import RankCall
from dljob.runtime.rpc.arrivals import Arrivals
from dljob.telemetry.wording import counted

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call of a role after its requests were sent: one future for each request, in the plan's order."""

    role: str
    method: str
    mark: RpcMark
    sent: CallPlan
    """The plan without its arguments, which a future must not keep."""
    futures: tuple[Future[Reply], ...]
    left_future: Future[None] | None = None
    """Streams under `least_loaded` only: completed when the stream ends, as it loads its rank until then."""
    requests: tuple[RankCall, ...] = ()
    """Streams that resume only: the requests as they were sent."""
    prefix: tuple[bytes, ...] = ()
    """Streams that resume only: items, still pickled, that the caller had before the call."""
    note: Note = lambda _name, _value: None
    """Notes a value of the caller's rank."""
    ids: tuple[str, ...] = ()
    """Ids of the requests, as their callees know them; empty where the rank's host has sent them."""

    @property
    def name(self) -> str:
        """`rollout.generate`, for errors."""
        return f"{self.role}.{self.method}"

    def standing_still(self) -> WaitClock:
        """Return the clock for the time in which a thread waits for its answers."""
        return standing_still(self.role, self.note)

    def unanswered(self) -> list[Target]:
        """Return the ranks that have not answered."""
        sends, ids = self.sent.sends, self.ids or ("",) * len(self.futures)
        # Not `done()`: of a call by Ray it would ask Ray, in a thread that only looks.
        pairs = zip(sends, ids, self.futures, strict=True)
        return [(self.role, send.rank, name) for send, name, future in pairs if not Future.done(future)]

    def waiting(self) -> Waiting:
        """Return the wait of a thread for its answers."""
        return Waiting("call", self.role, self.method, self.unanswered)

    def awaiting(self) -> AwaitedTask:
        """Return the wait of a coroutine for its answers."""
        return AwaitedTask("call", self.role, self.method, self.unanswered)

    @property
    def received(self) -> list[int]:
        """Indices of the requests whose answers the caller receives."""
        return [number for number, send in enumerate(self.sent.sends) if not send.discards_answer]

    @property
    def shares(self) -> tuple[int, ...]:
        """Number of rows that each wanted request was given."""
        return self.sent.shard_sizes.rows_per_shard if self.sent.shard_sizes else ()

    @property
    def comes_at_once(self) -> bool:
        """Whether the value is there without any answer: there is none, or it yields the answers as they come."""
        return self.mark.collect in ("none", "as_completed")

    def value(self) -> Any:
        """Return the call's value by its `collect`; waits for answers that have not arrived."""
        match self.mark.collect:
            case "none":
                return None
            case "as_completed":
                return AsCompleted(self)
            case how:
                return collect.merge_answers(
                    how, self.sent, [self.answer(number) for number in self.received], self.name
                )

    def answer(self, number: int) -> Any:
        """Wait for the answer to one request; raises RemoteError with the callee's exception."""
        return self.read(number, self.futures[number].result())

    def read(self, number: int, reply: Reply) -> Any:
        """Unpickle the value of a reply; raises RemoteError with the callee's exception."""
        self._check(number, reply)
        try:
            return wire.load(reply.payload)
        except MemoryError:  # the caller's own
            raise
        except Exception as error:
            # Of a class whose instances do not come back from pickle, or that is not there in this process.
            rank = self.sent.sends[number].rank
            words = f"its answer cannot be read by the caller: {type(error).__name__}: {error}"
            origin = ErrorOrigin(f"{self.role}/{rank}", 0, wire.WireError.__name__, f"{self.method}: {words}", "")
            message = f"{self.role}/{rank}.{self.method}: {words}"
            raise RemoteError(message, role=self.role, rank=rank, remote_traceback="", origin=origin) from error

    def ended(self, number: int) -> None:
        """Wait for the end of a request without reading its value; raises RemoteError with the callee's exception."""
        self._check(number, self.futures[number].result())

    def check(self) -> None:
        """Raise the first error among the answers that have arrived, in the order of the requests."""
        for number, future in enumerate(self.futures):
            if future.done():
                self._check(number, future.result())

    def has_value(self) -> bool:
        """Whether `value` would return, or raise, at once."""
        # Its value needs no answer: `as_completed` waits when it is iterated.
        if self.comes_at_once:
            return True
        ended = [future.done() for future in self.futures]
        if all(ended):
            return True
        try:
            # An error that has arrived ends the wait, though other ranks still work.
            self.check()
        except Exception:  # noqa: BLE001 - whatever it is, it is the end of the wait
            return True
        return False

    def _check(self, number: int, reply: Reply) -> None:
        if not reply.error_type:
            return
        rank = self.sent.sends[number].rank
        raised = f"{self.role}/{rank}.{self.method} raised {reply.error_type}: "
        # These messages name the rank and method already.
        is_complete = reply.refused or reply.error_type == wire.WireError.__name__
        message = reply.message if is_complete else raised + reply.message
        origin = ErrorOrigin(*reply.origin) if reply.origin else None
        raise RemoteError(message, role=self.role, rank=rank, remote_traceback=reply.traceback, origin=origin)


class AsCompleted:
    """Iterator over the answers of a call as they arrive: `(rank, answer)`, with `for` or `async for`.

    A rank's error is raised in its turn, even where its answer is discarded; iteration can go on after it.
    """

    def __init__(self, started: Invocation) -> None:
        self._started = started
        self._left = len(started.futures)
        self._coming = Arrivals(started.futures)

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return self

    @ends_at_caller
    def __next__(self) -> tuple[int, Any]:
        while True:
            self._begin(StopIteration())
            try:
                with self._started.standing_still(), self._started.waiting():
                    number = self._coming.wait()
            except BaseException:
                self._left += 1
                raise
            if pair := self._pair(number):
                return pair

    def __aiter__(self) -> AsCompleted:
        return self

    async def __anext__(self) -> tuple[int, Any]:
        with ends_at_caller:
            while True:
                self._begin(StopAsyncIteration())
                try:
                    with self._started.awaiting():
                        number = await self._coming.coming()
                except BaseException:
                    self._left += 1
                    raise
                if pair := self._pair(number):
                    return pair

    def _begin(self, end: Exception) -> None:
        """Claim one answer before waiting for it, so that two iterating threads do not wait for the same last one."""
        if not self._left:
            raise end
        self._left -= 1

    def _pair(self, number: int) -> tuple[int, Any] | None:
        """Return the rank and its answer; None for a request whose answer is discarded."""
        send = self._started.sent.sends[number]
        if send.discards_answer:
            self._started.ended(number)
            return None
        return send.rank, self._started.answer(number)


class CallFuture(Generic[T]):
    """The future of a role call: `await` it in a coroutine, or call `.result()` in a thread."""

    def __init__(self, started: Future[Invocation], call_name: str) -> None:
        self._started = started
        self._what = call_name

    @ends_at_caller
    def result(self, timeout: float | None = None) -> T:
        """Wait for the value; raises what the call raised, TimeoutError after `timeout` seconds (the call goes on)."""
        return self.answered(timeout).value()

    def answered(self, timeout: float | None = None) -> Invocation:
        """Wait as `result` does, and return the call with its answers unread."""
        remaining = _Countdown(timeout)
        try:
            started = begun(self._started, self._what, remaining())
            if not started.comes_at_once:
                fetch(started, remaining)
        except FutureTimeout:
            if self.done():
                raise
            raise TimeoutError(f"{self._what}: no answer yet after {timeout:g} s; the call goes on") from None
        return started

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the call's end, good or bad; False when `timeout` seconds passed before."""
        countdown = _Countdown(timeout)
        try:
            started = begun(self._started, self._what, countdown())
            if not started.comes_at_once:
                fetch(started, countdown)
        except FutureTimeout:
            return self.done()
        except Exception:  # noqa: BLE001 - `result` raises it
            return True
        return True

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        if not self._started.done():
            return False
        return self._started.exception() is not None or self._started.result().has_value()

    def __await__(self) -> Generator[Any, None, T]:
        with ends_at_caller:
            started = yield from _begun(self._started, self._what).__await__()
            if not started.comes_at_once:
                with started.awaiting():
                    yield from _all(started).__await__()
            return started.value()


class FutureSequence(Sequence[T]):
    """The results of a batch that several ranks share; an item is available once its rank has answered."""

    def __init__(self, started: Future[Invocation], size: int, call_name: str) -> None:
        self._call: CallFuture[Any] = CallFuture(started, call_name)
        self._started = started
        self._size = size
        self._what = call_name
        self._chunks: dict[int, Sequence[T]] = {}
        """Index of a request -> its items, of the answers that were read."""

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    @ends_at_caller
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(f"{self._what} has items 0 to {self._size - 1}, not {index}")
        # Not all answers are needed for one item: only the rank that has it is waited for.
        at = index % self._size
        started = begun(self._started, self._what)
        for number, chunk in zip(started.received, started.shares, strict=True):
            if at < chunk:
                return self._chunk(started, number, chunk)[at]
            at -= chunk
        raise AssertionError("shares do not add up")

    def __iter__(self) -> Iterator[T]:
        """Yield the items in order, each rank's once it has answered; raises the first error of any rank at once."""
        with ends_at_caller:
            started = begun(self._started, self._what)
            coming = Arrivals(started.futures)
            for number, chunk in zip(started.received, started.shares, strict=True):
                # Any answer may be an error, also one of a rank whose items come later.
                while not started.futures[number].done():
                    with started.standing_still(), started.waiting():
                        coming.wait()
                    started.check()
                yield from self._chunk(started, number, chunk)
            # Quiet ranks and ranks without rows: their errors count, too.
            self._call.answered()

    @ends_at_caller
    def result(self, timeout: float | None = None) -> list[T]:
        """Wait for all items; raises what a rank raised, TimeoutError after `timeout` seconds."""
        started = self._call.answered(timeout)
        pairs = zip(started.received, started.shares, strict=True)
        return [item for number, chunk in pairs for item in self._chunk(started, number, chunk)]

    @ends_at_caller
    def wait(self, timeout: float | None = None) -> list[T]:
        """Return `result`; DLRover's unified API has this name for it."""
        return self.result(timeout)

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        return self._call.done()

    def __await__(self) -> Generator[Any, None, list[T]]:
        with ends_at_caller:
            started = yield from _begun(self._started, self._what).__await__()
            with started.awaiting():
                yield from _all(started).__await__()
            return self.result()

    def _chunk(self, started: Invocation, number: int, size: int) -> Sequence[T]:
        """Return the items of one rank; raises UsageError when it answered another number than it was given rows."""
        if number in self._chunks:
            return self._chunks[number]
        with started.standing_still(), started.waiting():
            answer = started.answer(number)
        if not hasattr(answer, "__len__") or len(answer) != size:
            got = counted(len(answer), "item") if hasattr(answer, "__len__") else type(answer).__name__
            rank = started.sent.sends[number].rank
            raise UsageError(
                f"{self._what}: {started.role}/{rank} was given {counted(size, 'item')} and answered {got}"
            )
        # The first of two threads that unpickle the same answer: both get the same items.
        return self._chunks.setdefault(number, answer)


class _Countdown:
    """Countdown of a timeout: calling it gives the seconds that are left, None without a timeout."""

    def __init__(self, timeout: float | None) -> None:
        seconds = parse_timeout(timeout)
        self._end = None if seconds is None else time.monotonic() + seconds

    def __call__(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())


def fetch(started: Invocation, remaining: _Countdown) -> None:
    """Wait for all answers; raises the first error as soon as it arrives, FutureTimeout when the time is over."""
    with started.standing_still(), started.waiting():
        _fetch(started, remaining)


def begun(started: Future[T], call_name: str, timeout: float | None = None) -> T:
    """Wait until a call's requests are sent: its callee is asked for its methods first, once it is up.

    Raises:
        FutureTimeout: they were not sent within `timeout` seconds.
    """
    if started.done():
        return started.result()
    with Waiting("call", *_callee(call_name), lambda: ()):
        return started.result(timeout)


async def _begun(started: Future[Invocation], call_name: str) -> Invocation:
    if started.done():
        return started.result()
    with AwaitedTask("call", *_callee(call_name), lambda: ()):
        return await asyncio.wrap_future(started)


def _callee(call_name: str) -> tuple[str, str]:
    """Return (role or rank, method) of a call's name."""
    name, _, method = call_name.rpartition(".")
    return name, method


def _fetch(started: Invocation, remaining: _Countdown) -> None:
    futures = started.futures
    # Answers of direct calls are asked of Ray together: one question for each would dominate a call of many ranks.
    together = getattr(futures[0], "fetch_together", None)
    if len(futures) == 1:
        futures[0].result(remaining())
    elif together is not None and len({type(future) for future in futures}) == 1:
        together(futures, remaining, started.check)
    under_way = [future for future in futures if not future.done()]
    started.check()
    # In the order of arrival, so that the first error is raised at once and not after slower ranks.
    coming = Arrivals(under_way)
    for _ in under_way:
        coming.take().result(remaining())
        started.check()


async def _all(started: Invocation) -> None:
    coming = Arrivals(started.futures)
    for _ in started.futures:
        await asyncio.wrap_future(coming.take())
        started.check()


def ready(value: Any) -> Future[Any]:
    """Return a future that is completed with a value."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def then(first: Future[Any], make: Any) -> Future[Any]:
    """Return the future of `make(value of first)`; it raises what `first` or `make` raises."""
    result: Future[Any] = Future()
    # Running from the start: a future that asyncio wraps would else be cancelled with its awaiting task.
    result.set_running_or_notify_cancel()
    first.add_done_callback(lambda done: _finish(result, make, done))
    return result


def then_in_thread(first: Future[Any], make: Any) -> Future[Any]:
    """Return the future of `then`, for a `make` that takes long: the thread that completes `first` has other work.

    One thread does such work, in the order in which it comes.
    """
    result: Future[Any] = Future()
    result.set_running_or_notify_cancel()
    work = _long_work(os.getpid())
    first.add_done_callback(lambda done: work.put(lambda: _finish(result, make, done)))
    return result


def _finish(result: Future[Any], make: Any, done: Future[Any]) -> None:
    try:
        result.set_result(make(done.result()))
    except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the answer
        result.set_exception(error)


@functools.cache
def _long_work(pid: int) -> SimpleQueue[Callable[[], None]]:
    """Return the queue of long work of process `pid`; a forked process has none of its parent's threads."""
    del pid
    works: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def run() -> None:
        while True:
            # No name has it: the arguments of a call would else stay until the next one.
            works.get()()

    threading.Thread(target=run, name="dljob-begin", daemon=True).start()
    return works
