"""Process of a simulated operator as its surroundings see it: alive or crashed, with a loop, waits and long polls."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from dljob_operator.testing.api_server import Body
from dljob_operator.testing.virtual_time import Agenda, VirtualLoop


class SimulatedProcess(ABC):
    """A process of the operator; `SimulatedOperator` is what runs in it."""

    def __init__(self, agenda: Agenda, number: int, broken: Callable[[str], None]) -> None:
        """Start the process.

        Args:
            agenda: virtual time.
            number: counts the operators of a story.
            broken: hears that an exception ended a callback.
        """
        self.number = number
        self.alive = True
        self.loses = ""
        """The kind of which its watch loses the next deletion."""
        self.late: dict[str, float] = {}
        """Kind -> until when its watch is silent."""
        self.loop = VirtualLoop(agenda, lambda words: broken(f"raised: {words}"))
        self._agenda = agenda
        self._waiting: list[asyncio.Future[None]] = []
        """Long polls that are unanswered."""

    @abstractmethod
    def end(self) -> None:
        """Crash between two callbacks."""

    # -- its watches

    @abstractmethod
    def past(self, kind: str) -> list[Body] | None:
        """Return the objects of the first list of a kind, if that list is to be old."""

    @abstractmethod
    def hear(self, kind: str, body: Body, *, is_deleted: bool) -> None:
        """Let a watch bring a change, after a delay and in order."""

    # -- its calls

    @abstractmethod
    async def travel(self, *, reads: bool = False) -> None:
        """Wait while a message travels; the operator may crash meanwhile, unless it only `reads` from a head."""

    async def sleep(self, seconds: float) -> None:
        """Wait; after a crash, for ever."""
        waiting = self.loop.create_future()
        if self.alive:
            # Without `asyncio.sleep`, whose timer is one more callback: most of what a story waits for is calls.
            self._agenda.after(seconds, partial(_wake, waiting))
        await waiting

    async def news(self, until: float) -> None:
        """Wait until something happens at a head, or until then."""
        waiting = self.loop.create_future()
        self._waiting.append(waiting)
        timer = self.loop.call_at(until, self.tell, waiting)
        try:
            await waiting
        finally:
            timer.cancel()

    def tell(self, *only: asyncio.Future[None]) -> None:
        """End all long polls, or only these."""
        woken, self._waiting = (
            only or self._waiting,
            [waiting for waiting in self._waiting if only and waiting not in only],
        )
        for waiting in woken:
            _wake(waiting)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
