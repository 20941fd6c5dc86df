"""The caller's side of a stream: items of one rank, or of several ranks in the order in which they arrive."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from queue import SimpleQueue
from typing import Any

from dljob.errors import RemoteError
from dljob.runtime.process import wire
from dljob.runtime.process.messages import CLOSE, PULL, Reply
from dljob.runtime.process.worker_context import RankCall
from dljob.runtime.rpc import sending
from dljob.runtime.rpc.arrivals import Arrivals
from dljob.runtime.rpc.futures import Invocation


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
        self._ids: dict[int, str] = {}
        self._turn: deque[int] = deque()
        """Requests whose ready items are all in this process: each rank is asked for more once these are used up."""
        self._closed = False
        # Before the first request: `__del__` needs it from then on.
        self._forgotten = _forgotten()
        self._opened = sending.begin(target, method, args, kwargs, stream=True)
        self._started: Invocation | None = None

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        if self._started is None:
            self._begin(self._opened.result())
        while not self._ready():
            self._arrived(self._arrivals.wait())
        return self._item(StopIteration())

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        if self._closed:
            raise StopAsyncIteration
        if self._started is None:
            self._begin(await asyncio.wrap_future(self._opened))
        while not self._ready():
            self._arrived(await self._arrivals.coming())
        return self._item(StopAsyncIteration())

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the stream: its generators are closed in the callees. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        if self._started is None:
            self._opened.add_done_callback(_close_all(self._send))
        # Generators whose key is known are closed now, those still opening once their key arrives.
        for number, key in self._ids.items():
            self._send(number, CLOSE, key)
        for number in self._pulls.keys() - self._ids.keys():
            self._pulls[number].add_done_callback(_close_one(self._send, number))
        # Items that have arrived are dropped: a closed stream gives none.
        for kept in (self._ids, self._pulls, self._items, self._turn):
            kept.clear()
        _leave(self._started)

    def __del__(self) -> None:
        """Leave closing to a thread: the collector may have interrupted one that holds a lock which a send needs."""
        with contextlib.suppress(AttributeError):  # `__init__` raised before it was set
            self._forgotten.put(self)

    def _begin(self, started: Invocation) -> None:
        self._started = started
        for number, opening in enumerate(started.futures):
            self._pulls[number] = opening
            self._arrivals.add(number, opening)

    def _ready(self) -> bool:
        """Whether an item or the end is at hand; asks ranks whose items are used up for more."""
        if self._items:
            return True
        # Asked only when the items are used up: a rank counts them as used, and makes as many more.
        while self._turn:
            number = self._turn.popleft()
            self._pulls[number] = self._send(number, PULL, self._ids[number])
            self._arrivals.add(number, self._pulls[number])
        return not self._pulls

    def _item(self, end: Exception) -> Any:
        if not self._items:
            raise end
        return wire.load(self._items.popleft())

    def _arrived(self, number: int) -> None:
        """Handle a rank's answer: the key of its new generator, or items."""
        started, answer = self._started, self._pulls.pop(number, None)
        if started is None or answer is None:
            return
        try:
            said = started.read(number, answer.result())
        except BaseException as error:
            if isinstance(error, RemoteError):  # other errors leave the generator open: `close` sends CLOSE by its id
                self._ids.pop(number, None)
            self.close()
            raise
        # The answer to the opening is the generator's key, and has no items.
        if number not in self._ids:
            self._ids[number] = said
            self._turn.append(number)
            return
        items, over = said
        if not started.sent.sends[
            number
        ].quiet:  # a quiet rank works in step with the others, and its items are discarded
            self._items.extend(items)
        if over:
            del self._ids[number]
            if not self._ids and not self._pulls:
                _leave(started)
        else:
            self._turn.append(number)

    def _send(self, number: int, what: str, key: str) -> Future[Reply]:
        # Each pull has the method's whole timeout: it bounds the wait for an item, not the stream.
        rank, timeout = self._of.sent.sends[number].rank, self._of.mark.timeout_s
        out = RankCall(self._of.role, rank, what, key.encode(), timeout, idempotent=False, label=self._method)
        return self._target.context.calls.send(out)

    @property
    def _of(self) -> Invocation:
        """The invocation, once its requests are sent."""
        return self._started or self._opened.result()


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


_Send = Callable[[int, str, str], object]


def _leave(started: Invocation | None) -> None:
    """Mark the stream as ended for `least_loaded`."""
    if started is not None and started.left is not None:
        with contextlib.suppress(InvalidStateError):  # it has ended already
            started.left.set_result(None)


def _close_all(send: _Send) -> Callable[[Future[Invocation]], None]:
    """Return the callback that closes a stream which was dropped before its requests were sent."""

    def opened(done: Future[Invocation]) -> None:
        if done.exception() is None:
            _leave(done.result())
            for number, answer in enumerate(done.result().futures):
                answer.add_done_callback(_close_one(send, number))

    return opened


def _close_one(send: _Send, number: int) -> Callable[[Future[Reply]], None]:
    """Return the callback that closes one rank's generator, once its key is known."""

    def pass_on(done: Future[Reply]) -> None:
        if done.exception() is None and not done.result().error_type:
            send(number, CLOSE, wire.load(done.result().payload))

    return pass_on
