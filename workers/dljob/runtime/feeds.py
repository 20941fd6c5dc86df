"""The callee's side of streams: a generator runs in a thread of its own, at most a window ahead of its caller."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from dljob.runtime.loop import settle

UNHEARD_S = 600.0
"""After so long without a caller who takes anything, or its deadline where that is longer, a stream is over."""


class Feed:
    """One stream. `pack` makes bytes of an item; `ended` is called once when the generator is over."""

    def __init__(
        self, items: Any, window: int, pack: Callable[[Any], bytes], ended: Callable[[], None], patience_s: float
    ) -> None:
        self._items = items
        self._window = window
        self._pack = pack
        self._ended = ended
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._made: deque[bytes] = deque()
        self._handed = 0
        self._over = False
        self._closed = False
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="dljob-stream", daemon=True).start()

    def take(self, timeout_s: float | None) -> tuple[list[bytes], bool] | None:
        """The items that are made, one at least, and whether that was all; None when none came in time.

        Who takes has used up what was handed before: so much more may be made. It is handed half a window at most, so
        that the rest is made meanwhile. Raises what the generator raised, once its items were taken.
        """
        with self._changed:
            self._handed = 0
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._made or self._over or self._closed, timeout_s):
                return None
            count = min(len(self._made), max(1, self._window // 2))
            taken = [self._made.popleft() for _ in range(count)]
            self._handed = count
            over = not self._made and (self._over or self._closed)
            if over and not taken and self._error is not None:
                raise self._error
            return taken, over and (self._error is None or self._closed)

    def close(self) -> None:
        """Nobody takes any more: the generator is closed at its next item."""
        with self._changed:
            self._closed = True
            self._made.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            for item in _iterate(self._items):
                packed = self._pack(item)
                with self._changed:
                    self._made.append(packed)
                    self._changed.notify_all()
                    room = self._changed.wait_for(self._room, self._patience_s)
                if not room or self._closed:
                    break
        except BaseException as error:  # noqa: BLE001 - the caller hears of it; this process goes on
            self._error = error
        finally:
            self._shut()

    def _room(self) -> bool:
        return self._closed or len(self._made) + self._handed < self._window

    def _shut(self) -> None:
        close = getattr(self._items, "close", None) or getattr(self._items, "aclose", None)
        try:
            if close is not None:
                settle(close())
        except BaseException as error:  # noqa: BLE001 - the same
            self._error = self._error or error
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._ended()


def _iterate(items: Any) -> Iterator[Any]:
    """The items of a generator, an asynchronous one among them, or of anything that can be iterated."""
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
