"""Virtual time: an agenda of what happens when, and an asyncio loop on it for the coroutines of one operator.

All operators of a story share one agenda, each has a loop of its own: a crash stops one loop between two callbacks, and
the others go on. Nothing waits, so a story of an hour takes milliseconds, and the same seed runs the same callbacks.
"""

from __future__ import annotations

import asyncio
from asyncio.events import (
    _get_running_loop,  # pyright: ignore[reportPrivateUsage] - asyncio exports both, for loops such as this one
    _set_running_loop,  # pyright: ignore[reportPrivateUsage] - the same
)
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from heapq import heappop, heappush
from random import Random
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Callback: TypeAlias = Callable[..., object]


class Agenda:
    """What happens when, in the order of virtual time; what is due at the same moment keeps the order of its coming."""

    def __init__(self, now: float, rng: Random) -> None:
        self.now = now
        self.rng = rng
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = 0

    def after(self, delay: float, do: Callable[[], object]) -> None:
        """Do something in so many seconds."""
        self.at(self.now + delay, do)

    def at(self, when: float, do: Callable[[], object]) -> None:
        """Do something then."""
        self._order += 1
        heappush(self._due, (when, self._order, do))

    def soon(self, span: tuple[float, float], do: Callable[[], object]) -> None:
        """Do something within a span of seconds, more often early than late."""
        low, high = span
        self.after(low + (high - low) * self.rng.random() ** 2, do)

    def run(self, until: float, enough: Callable[[], bool]) -> None:
        """Let time pass, to a moment or until it is enough."""
        while self._due and self._due[0][0] <= until and not enough():
            when, _, do = heappop(self._due)
            # Something due in the past happens now: time never goes back.
            self.now = max(self.now, when)
            do()
        if not enough():
            self.now = max(self.now, until)


class VirtualLoop(asyncio.AbstractEventLoop):
    """An asyncio loop on an agenda's clock: tasks, futures, sleeps and timeouts, but neither files nor threads."""

    def __init__(self, agenda: Agenda, failed: Callable[[str], None]) -> None:
        """Start without work; `failed` receives the words of an exception that a callback lets out."""
        self._agenda = agenda
        self._failed = failed
        self._ready: deque[asyncio.Handle] = deque()
        self._planned = self._runs = False
        """Whether the agenda holds the next turn of this loop, and whether it has its turn now."""
        self._stopped = False
        self._outer = _get_running_loop()

    def kill(self, main: asyncio.Task[Any]) -> None:
        """Stop before the next callback, as a crash does; then cancel `main` and all that it waits for."""
        self._stopped = True
        if self._runs:
            # Called from one of its own callbacks: unwind it after the present turn.
            self._agenda.at(self._agenda.now, lambda: self.bury(main))
        else:
            self.bury(main)

    def bury(self, main: asyncio.Task[Any]) -> None:
        """Unwind the tasks of a loop that is stopped: a coroutine that is collected half-way complains."""
        if not main.done():
            main.cancel()
            self._turn(buried=True)

    def _turn(self, *, buried: bool = False) -> None:
        """Run all that is ready, and what becomes ready meanwhile."""
        self._planned, self._runs = False, True
        _set_running_loop(self)
        ready = self._ready
        try:
            while ready and (buried or not self._stopped):
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()  # noqa: SLF001 - as every loop does
        finally:
            self._runs = False
            _set_running_loop(self._outer)

    # -- what asyncio asks of a loop

    def time(self) -> float:
        """Return the agenda's time."""
        return self._agenda.now

    def get_debug(self) -> bool:
        """Return False: no task notes where it was made."""
        return False

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Start a coroutine."""
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_soon(self, callback: Callback, *args: object, context: Context | None = None) -> asyncio.Handle:
        """Call back at the present moment, after what is due before."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        # One turn runs everything that becomes ready before it.
        if not (self._planned or self._runs):
            self._planned = True
            self._agenda.at(self._agenda.now, self._turn)
        return handle

    def call_later(
        self, delay: float, callback: Callback, *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call back in so many seconds."""
        return self.call_at(self._agenda.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callback, *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call back then."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._agenda.at(when, lambda: self._fire(handle))
        return handle

    def _fire(self, handle: asyncio.TimerHandle) -> None:
        if not (handle.cancelled() or self._stopped):
            self._ready.append(handle)
            self._turn()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Ignore a cancelled timer: it does nothing when it is due."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an exception that a callback let out; tasks that a crash left unfinished are no such thing."""
        error = context.get("exception")
        if error is not None and not self._stopped:
            self._failed(f"{type(error).__name__}: {error}")
