"""Slow calls: requests and answers that take up to hours, longer than their caller waits or lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from dljob_operator.testing.simulated_process import SimulatedProcess
from dljob_operator.testing.virtual_time import Agenda

T = TypeVar("T")
HUNG_S = 40.0
"""Longest wait for one call, in seconds: the patience of the operator's clients is 30 s at most (dljob.kube)."""


@dataclass(frozen=True, slots=True)
class SlowCall:
    """Seconds that the request of a call travels, and its answer."""

    request: float = 0.0
    answer: float = 0.0


class SlowCalls:
    """Slow calls of a story: those that are due, and the requests under way."""

    def __init__(self, agenda: Agenda, broken: Callable[[str], None]) -> None:
        """Start without any; `broken` hears of a call that its operator waits for beyond HUNG_S."""
        self.due: dict[tuple[str, bool], list[SlowCall]] = {
            (target, reads): [] for target in ("api", "head") for reads in (True, False)
        }
        """(Where calls go, whether they only read) -> the next ones that are slow."""
        self.arriving = False
        """Whether what happens now is the work of a slow request, whose reason may be over."""
        self.made = set[str]()
        """The uids of RayClusters that slow requests made."""
        self._agenda = agenda
        self._broken = broken
        self._under_way: dict[int, Callable[[], None]] = {}
        self._sent = 0

    def take(self, target: str, *, reads: bool) -> SlowCall | None:
        """Return how slow the next call to there is; None: it is not."""
        slow_calls = self.due[target, reads]
        return slow_calls.pop(0) if slow_calls else None

    def send(self, seconds: float, arrive: Callable[[], None]) -> None:
        """Let a request arrive in so many seconds, whether or not its caller is still there."""
        self._sent += 1
        number = self._sent
        self._under_way[number] = arrive
        self._agenda.after(seconds, lambda: self._arrive(number))

    def _arrive(self, number: int) -> None:
        arrive = self._under_way.pop(number, None)
        if arrive is not None:
            self.arriving = True
            arrive()
            self.arriving = False

    def end(self) -> None:
        """Let all requests under way arrive now, and no later call be slow."""
        for slow_calls in self.due.values():
            slow_calls.clear()
        for number in list(self._under_way):
            self._arrive(number)

    async def wait(self, operator: SimulatedProcess, limit: float, call: Awaitable[T], call_name: str) -> T:
        """Wait for a call as long as its caller is ready to. Raises TimeoutError."""
        over = False

        def look() -> None:
            if operator.alive and not over:
                self._broken(
                    f"hung: operator {operator.number} waits {HUNG_S:g} s for {call_name}, and other jobs with it"
                )

        self._agenda.after(HUNG_S, look)
        try:
            async with asyncio.timeout(limit):
                return await call
        finally:
            over = True


async def arrival(operator: SimulatedProcess, calls: SlowCalls, slow: SlowCall, do: Callable[[], T]) -> T:
    """Make a slow call: do it once its request has arrived, and return the answer when that has travelled back."""
    done: asyncio.Future[T] = operator.loop.create_future()

    def arrive() -> None:
        try:
            answer = do()
        except Exception as error:  # noqa: BLE001 - the refusal of a call is its caller's, who may have given up
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(answer)

    calls.send(slow.request, arrive)
    answer = await done
    await operator.sleep(slow.answer)
    return answer
