"""The callee's side of a stream: a thread runs the generator, at most a window of items ahead of the caller."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from dljob.runtime.process import activities
from dljob.runtime.process.loop import settle
from dljob.runtime.process.messages import Call

UNHEARD_S = 600.0
"""Seconds that a stream waits for its caller to take an item before it ends with an error, unless the caller's timeout
is longer."""


class CutOffError(Exception):
    """The rank ended before all items of its stream were taken."""


class HandedOverError(Exception):
    """The rank ends by order, and its stream goes on elsewhere; `state` is what it hands over, pickled, if anything."""

    def __init__(self, state: bytes) -> None:
        super().__init__()
        self.state = state


class StreamProducer:
    """One stream. `pack` pickles an item; `ended` is called once when the generator has ended.

    Items that the caller does not take for `patience_s` seconds are dropped; `lapsed` receives the error that replaces
    them.
    """

    def __init__(
        self,
        items: Any,
        window: int,
        pack: Callable[[Any], Any],
        ended: Callable[[], None],
        patience_s: float,
        *,
        lapsed: Callable[[BaseException], None] = lambda _: None,
        state: Callable[[], bytes] | None = None,
        call: Call | None = None,
    ) -> None:
        self.call = call
        """The call that opened it."""
        self._items = items
        self._window = window
        self._pack = pack
        self._ended = ended
        self._patience_s = patience_s
        self._lapsed = lapsed
        self._state_of = state
        self._draining = False
        self._state: bytes | None = None
        """What the stream handed over; None: it was not."""
        self._changed = threading.Condition()
        self._buffer: deque[Any] = deque()
        self._handed = 0
        self._exhausted = False
        self._closed = False
        self._cut = False
        self._told = False
        """The caller has received the end, or the error in its place."""
        self._moved = time.monotonic()
        """When an item was last produced, taken or asked for (monotonic seconds)."""
        self._error: BaseException | None = None
        # In the context of the call: what the generator waits for belongs to it.
        context = activities.context()
        threading.Thread(target=context.run, args=(self._run,), name="dljob-stream", daemon=True).start()

    def take(self, timeout_s: float | None) -> tuple[list[Any], bool] | None:
        """Take the items that are ready, at least one: `(items, whether the stream is over)`; None after the timeout.

        A caller that takes has used the items of its last take, so that room for as many is free. It receives half a
        window at most: the generator fills the other half meanwhile. Raises the generator's exception once its items
        were taken, CutOffError when the rank ended before, and HandedOverError when it is to go on elsewhere.
        """
        with self._changed:
            self._handed = 0
            self._moved = time.monotonic()
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._buffer or self._exhausted or self._closed, timeout_s):
                return None
            self._moved = time.monotonic()
            if self._cut:
                raise CutOffError
            # Half a window: the generator fills the other half while the caller uses this one.
            count = min(len(self._buffer), max(1, self._window // 2))
            items = [self._buffer.popleft() for _ in range(count)]
            self._handed = count
            handed_over = self._state is not None and not self._closed
            over = not self._buffer and (self._exhausted or self._closed) and not handed_over
            # The items before an error come first; the error waits for the next take.
            fails = over and self._error is not None and not self._closed
            self._told = (over and not (fails and items)) or (handed_over and not items)
            self._changed.notify_all()
            if self._state is not None and handed_over and not items:
                raise HandedOverError(self._state)
            if self._error is not None and fails and not items:
                raise self._error
            return items, over and not fails

    def drain(self) -> None:
        """Stop the generator at its next item, if the stream can go on elsewhere; its caller still takes the items."""
        with self._changed:
            self._draining = self._state_of is not None
            self._changed.notify_all()

    def wait_taken(self, timeout_s: float) -> bool:
        """Wait until the caller has all of a stream that drains; False after `timeout_s` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._told or self._closed or not self._draining, timeout_s)

    def close(self, *, cut: bool = False) -> None:
        """Drop all items and close the generator at its next one.

        `cut`: the rank ends; a caller that still takes gets CutOffError, not the end of a complete stream.
        """
        with self._changed:
            # A stream that was closed, or whose items were all taken, is complete, even if its rank fails.
            self._cut = self._cut or (cut and not self._closed and not (self._exhausted and not self._buffer))
            self._closed = True
            self._buffer.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        patient = True
        activities.moved_here()
        try:
            for item in _iterate(self._items):
                # Outside the lock: pickling an item may take long, and takes of earlier items go on.
                packed = self._pack(item)
                with self._changed:
                    self._buffer.append(packed)
                    self._moved = time.monotonic()
                    self._changed.notify_all()
                    activities.progressed()
                    with activities.paused("its caller"):
                        patient = self._await(self._room)
                if not patient or self._closed:
                    break
                if self._draining and self._state_of is not None:
                    # Before the generator is closed, which may drop what is to be handed over.
                    self._state = self._state_of()
                    break
        except BaseException as error:  # noqa: BLE001 - the caller receives it; this process goes on
            self._error = error
        finally:
            self._shut()
        # The thread stays until the caller has the end, so that items which nobody takes are dropped in time.
        if patient:
            with self._changed:
                self._await(lambda: self._told or self._closed)

    def _await(self, is_ready: Callable[[], bool]) -> bool:
        """Wait for the caller; False, with all items dropped, when it took nothing for `patience_s` seconds."""
        while not is_ready():
            seconds_left = self._moved + self._patience_s - time.monotonic()
            if seconds_left <= 0:
                self._lapse()
                return False
            self._changed.wait(seconds_left)
        return True

    def _lapse(self) -> None:
        """Replace the items by an error: a caller that returns must not take this for the end of a complete stream."""
        message = (
            f"nobody took an item of the stream for {self._patience_s:g} s: it was closed, and what was left dropped"
        )
        self._error = self._error or TimeoutError(message)
        self._buffer.clear()
        self._lapsed(self._error)

    def _room(self) -> bool:
        return self._closed or self._draining or len(self._buffer) + self._handed < self._window

    def _shut(self) -> None:
        close = getattr(self._items, "close", None) or getattr(self._items, "aclose", None)
        try:
            if close is not None:
                settle(close())
        except BaseException as error:  # noqa: BLE001 - the same
            self._error = self._error or error
        with self._changed:
            self._exhausted = True
            self._moved = time.monotonic()
            self._changed.notify_all()
        self._ended()


def _iterate(items: Any) -> Iterator[Any]:
    """Iterate over a generator, an asynchronous one or any iterable."""
    if not hasattr(items, "__anext__"):
        yield from items
        return
    while True:
        try:
            yield settle(_next(items))
        except StopAsyncIteration:
            return


async def _next(items: AsyncIterator[Any]) -> Any:
    return await items.__anext__()
