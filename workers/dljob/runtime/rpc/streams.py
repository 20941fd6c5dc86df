"""The caller's side of a stream: items of one rank, or of several ranks in the order in which they arrive."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from dljob.calls.resumption import StreamSegment
from dljob.errors import RemoteError, UsageError
from dljob.runtime.process import wire
from dljob.runtime.process.activities import AwaitedTask, Target, Waiting
from dljob.runtime.process.error_origin import ends_at_caller
from dljob.runtime.process.messages import CLOSE, PULL, Reply
from dljob.runtime.process.worker_context import RankCall
from dljob.runtime.rpc import sending
from dljob.runtime.rpc.arrivals import Arrivals
from dljob.runtime.rpc.futures import Invocation, begun
from dljob.runtime.rpc.resuming import ResumingRequest, StreamItem


class Stream:
    """Iterator over the items of a stream, with `for` or `async for`. A rank pauses when it is a window ahead.

    A rank's error is raised after its items and ends the stream. `close`, or a `with` block, ends it early.
    """

    def __init__(
        self, target: sending.CallTarget, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self._target = target
        self._method = method
        self._items: deque[Any] = deque()
        self._arrivals = Arrivals()
        self._pulls: dict[int, Future[Reply]] = {}
        self._asked: dict[int, float] = {}
        """When the present wait for an item of a request began, in seconds of the monotonic clock."""
        self._ids: dict[int, str] = {}
        self._resuming: dict[int, ResumingRequest] = {}
        """Requests that go on elsewhere when their callee is lost; none unless the method resumes."""
        self._turn: deque[int] = deque()
        """Requests whose ready items are all in this process: each rank is asked for more once these are used up."""
        self._closed = False
        # Another thread may close it while this one moves a request on, whose new generator must be closed too.
        self._lock = threading.RLock()
        # Before the first request: `__del__` needs it from then on.
        self._forgotten = _forgotten()
        self._opened = sending.begin(target, method, args, kwargs, stream=True)
        self._started: Invocation | None = None

    def __iter__(self) -> Stream:
        return self

    @ends_at_caller
    def __next__(self) -> Any:
        return _value(self._next())

    def _next(self) -> Any:
        """Wait for the next item, still pickled; raises StopIteration at the end."""
        if self._closed:
            raise StopIteration
        if self._started is None:
            self._begin(begun(self._opened, f"{self._target.name}.{self._method}"))
        if not self._ready():
            # One wait for the item, however often a callee answers that it has none yet.
            wait = Waiting("call", self._invocation.role, self._method, self._unanswered)
            with self._opened.result().standing_still(), wait:
                while not self._ready():
                    self._arrived(self._arrivals.wait())
        return self._item(StopIteration())

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        with ends_at_caller:
            return _value(await self._anext())

    async def _anext(self) -> Any:
        if self._closed:
            raise StopAsyncIteration
        if self._started is None:
            self._begin(await asyncio.wrap_future(self._opened))
        if not self._ready():
            with AwaitedTask("call", self._invocation.role, self._method, self._unanswered):
                while not self._ready():
                    self._arrived(await self._arrivals.coming())
        return self._item(StopAsyncIteration())

    def _unanswered(self) -> list[Target]:
        """Return the ranks whose next item has not come."""
        sends = self._invocation.sent.sends
        return [(self._invocation.role, sends[number].rank, self._ids.get(number, "")) for number in list(self._pulls)]

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def items(self) -> StreamItems:
        """Return the iterator over items with their position, version and callee, of a stream that resumes."""
        return StreamItems(self)

    @property
    def segments(self) -> tuple[StreamSegment, ...]:
        """The parts of which the items so far consist, each of one process and version; of a stream that resumes."""
        return tuple(
            segment for request in self._resuming.values() for segment in request.progress.segments if segment.count
        )

    def close(self) -> None:
        """End the stream: its generators are closed in the callees. Closing twice is fine."""
        with self._lock:
            if not self._closed:
                self._close()

    def _close(self) -> None:
        self._closed = True
        if self._started is None:
            self._opened.add_done_callback(self._close_unbegun)
        for request in self._resuming.values():
            request.left.set()
        # Generators whose key is known are closed now, those still opening once their key arrives.
        for number, key in self._ids.items():
            self._send(number, CLOSE, key)
        for number in self._pulls.keys() - self._ids.keys():
            self._pulls[number].add_done_callback(functools.partial(self._close_opened, number))
        # Items that have arrived are dropped: a closed stream gives none.
        for table in (self._ids, self._pulls, self._items, self._turn):
            table.clear()
        _mark_finished(self._started)

    def __del__(self) -> None:
        """Leave closing to a thread: the collector may have interrupted one that holds a lock which a send needs."""
        with contextlib.suppress(AttributeError):  # `__init__` raised before it was set
            self._forgotten.put(self)

    def _begin(self, started: Invocation) -> None:
        self._started = started
        if started.mark.resume:
            context, own_rank = self._target.context, self._target.rank is not None
            self._resuming = {
                n: ResumingRequest(context, started, n, own_rank=own_rank) for n in range(len(started.requests))
            }
        for number, opening in enumerate(started.futures):
            self._pulls[number] = opening
            self._arrivals.add(number, opening)

    def _ready(self) -> bool:
        """Whether an item or the end is at hand; asks ranks whose items are used up for more."""
        if self._items:
            return True
        # Asked only when the items are used up: a rank counts them as used, and makes as many more.
        with self._lock:
            while self._turn:
                number = self._turn.popleft()
                self._pulls[number] = self._send(number, PULL, self._ids[number])
                self._arrivals.add(number, self._pulls[number])
            return not self._pulls

    def _item(self, end: Exception) -> Any:
        if not self._items:
            raise end
        return self._items.popleft()

    def _arrived(self, number: int) -> None:
        """Handle a rank's answer: the key of its new generator, or items."""
        with self._lock:
            self._handle(number)

    def _handle(self, number: int) -> None:
        invocation, answer = self._started, self._pulls.pop(number, None)
        if invocation is None or answer is None:  # the stream was closed meanwhile
            return
        resuming = self._resuming.get(number)
        try:
            reply = invocation.read(number, answer.result())
            if resuming is not None:
                reply = self._accept_reply(number, resuming, reply)
        except BaseException as error:
            if self._resume_elsewhere(number, error):
                return
            if isinstance(error, RemoteError):  # other errors leave the generator open: `close` sends CLOSE by its id
                self._ids.pop(number, None)
            self.close()
            raise
        # The answer to the opening is the generator's key, and has no items.
        if number not in self._ids:
            self._ids[number] = reply
            self._turn.append(number)
            return
        self._add_items(number, invocation, reply[0], over=reply[1])

    def _add_items(self, number: int, started: Invocation, items: Sequence[Any], *, over: bool) -> None:
        """Handle the answer to a pull: items, or none yet, and whether the stream is over."""
        # Without any the same wait goes on: its callee has other streams to look at, too.
        if items or over:
            self._asked.pop(number, None)
        # A quiet rank works in step with the others, and its items are discarded.
        if not started.sent.sends[number].discards_answer:
            self._items.extend(items)
        if over:
            del self._ids[number]
            if not self._ids and not self._pulls:
                _mark_finished(started)
        else:
            self._turn.append(number)

    def _accept_reply(self, number: int, resuming: ResumingRequest, reply: Any) -> Any:
        """Return what a callee of a stream that resumes says, as that of a plain one would: a key, or items."""
        if number not in self._ids:
            return self._note_new_callee(number, reply)
        items, over, *state = reply
        if state:
            raise resuming.handed_over(state[0])
        new_items = resuming.take(items)
        # Left out: items of another version than the caller wants, which somebody else makes again.
        return new_items, over and len(new_items) == len(items)

    def _resume_elsewhere(self, number: int, error: BaseException) -> bool:
        """Whether a request goes on elsewhere after an error; its new opening is under way then.

        Raises:
            PeerLostError: it was lost once too often.
        """
        resuming = self._resuming.get(number)
        if resuming is None or not resuming.is_loss(error):
            return False
        resuming.lost(error, opened=number in self._ids)
        if resuming.given_up is not None:
            self.close()
            raise resuming.given_up from error
        key = self._ids.pop(number, None)
        self._asked.pop(number, None)
        # Its process may live, and would keep the items for a while.
        if key is not None:
            self._send(number, CLOSE, key)
        self._pulls[number] = resuming.go_on(error)
        self._arrivals.add(number, self._pulls[number])
        return True

    def _send(self, number: int, method: str, key: str) -> Future[Reply]:
        # Each pull has the method's whole timeout: it bounds the wait for an item, not the stream.
        rank, timeout = self._invocation.sent.sends[number].rank, self._invocation.mark.timeout_s
        # Of a stream that resumes, pulls wait for no later process: it goes on elsewhere meanwhile.
        only = self._resuming[number].incarnation if self._resuming else 0
        request = RankCall(
            *(self._invocation.role, rank, method, key.encode(), timeout),
            idempotent=False,
            label=self._method,
            only=only,
        )
        if method == PULL:
            request.restarts_callee = self._invocation.mark.on_timeout == "restart"
            request.started = self._asked.setdefault(number, request.started)
        return self._target.context.calls.send(request)

    def _note_new_callee(self, number: int, reply: Any) -> str:
        """Note which rank has taken the request up; returns the generator's key there."""
        resuming, invocation = self._resuming[number], self._invocation
        sends = invocation.sent.sends
        if resuming.rank != sends[number].rank:
            now = (*sends[:number], replace(sends[number], rank=resuming.rank), *sends[number + 1 :])
            _mark_finished(invocation)
            left_future = None if invocation.left_future is None else sending.load(self._target, resuming.rank)
            self._started = replace(invocation, sent=replace(invocation.sent, sends=now), left_future=left_future)
        return resuming.opened(reply)

    def _close_unbegun(self, done: Future[Invocation]) -> None:
        """Close a stream that was dropped before its requests were sent."""
        if done.exception() is None:
            started = done.result()
            _mark_finished(started)
            self._begin(started)
            for number, answer in enumerate(started.futures):
                answer.add_done_callback(functools.partial(self._close_opened, number))

    def _close_opened(self, number: int, done: Future[Reply]) -> None:
        """Close the generator of one request, once its key is known."""
        if done.exception() is None and not done.result().error_type:
            key = wire.load(done.result().payload)
            self._send(number, CLOSE, self._note_new_callee(number, key) if self._resuming else key)
            # It may have moved after the stream was left.
            _mark_finished(self._started)

    @property
    def _invocation(self) -> Invocation:
        """The invocation, once its requests are sent."""
        return self._started or self._opened.result()


def _value(item: Any) -> Any:
    """Return an item as it was yielded."""
    return wire.load(item if isinstance(item, bytes) else item.item.packed)


class StreamItems:
    """Iterator over the items of a stream that resumes, each with its position, its version and its callee."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __iter__(self) -> StreamItems:
        return self

    @ends_at_caller
    def __next__(self) -> StreamItem:
        return _origin(self._stream._next())

    def __aiter__(self) -> StreamItems:
        return self

    async def __anext__(self) -> StreamItem:
        with ends_at_caller:
            return _origin(await self._stream._anext())


def _origin(item: Any) -> StreamItem:
    if isinstance(item, bytes):
        raise UsageError(
            "items(): only a stream that resumes knows its items' origin", hint="@rpc(stream=True, resume='prefix')"
        )
    return item.read()


@functools.cache
def _forgotten() -> SimpleQueue[Stream]:
    """Return the queue of dropped streams, which a thread closes; its `put` is reentrant, as a collector needs."""
    streams: SimpleQueue[Stream] = SimpleQueue()

    def close() -> None:
        while True:
            with contextlib.suppress(Exception):  # its ranks may be gone, and nobody waits for the result
                streams.get().close()

    threading.Thread(target=close, name="dljob-streams", daemon=True).start()
    return streams


def _mark_finished(started: Invocation | None) -> None:
    """Mark the stream as ended for `least_loaded`."""
    if started is not None and started.left_future is not None:
        with contextlib.suppress(InvalidStateError):  # it has ended already
            started.left_future.set_result(None)
