"""A call of a role that has been sent: what went where, and how the answers become its value."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from dljob.calls import collect
from dljob.calls.dispatch import Dispatched
from dljob.calls.mark import RpcMark
from dljob.errors import RemoteError
from dljob.runtime.process import wire
from dljob.runtime.process.messages import Reply
from dljob.runtime.rpc.arrivals import Arrivals


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call that is under way to one or more ranks; `futures` are those of its sends, in their order."""

    role: str
    method: str
    mark: RpcMark
    sent: Dispatched
    futures: tuple[Future[Reply], ...]
    left: Future[None] | None = None
    """To be done when a stream is over, where that counts: it is under way in its rank until then."""

    @property
    def name(self) -> str:
        """As in `rollout.generate`."""
        return f"{self.role}.{self.method}"

    @property
    def wanted(self) -> list[int]:
        """The numbers of the sends whose answers are wanted."""
        return [number for number, send in enumerate(self.sent.sends) if not send.quiet]

    @property
    def shares(self) -> tuple[int, ...]:
        """How many rows each of them was given."""
        return self.sent.shares.each if self.sent.shares else ()

    @property
    def comes_at_once(self) -> bool:
        """Whether its value needs no answer: nobody waits for one, or who has it takes them as they come."""
        return self.mark.collect in ("none", "as_completed")

    def value(self) -> Any:
        """The value of the call, once its answers are there."""
        match self.mark.collect:
            case "none":
                return None
            case "as_completed":
                return AsCompleted(self)
            case how:
                return collect.merge(how, self.sent, [self.answer(number) for number in self.wanted], self.name)

    def answer(self, number: int) -> Any:
        """What one rank answered; waits for it, and raises what it raised."""
        return self.read(number, self.futures[number].result())

    def read(self, number: int, reply: Reply) -> Any:
        """The value of a reply of the rank of a send; raises what it raised."""
        self._check(number, reply)
        return wire.load(reply.payload)

    def ended(self, number: int) -> None:
        """Wait for a rank whose answer is not wanted; raises what it raised."""
        self._check(number, self.futures[number].result())

    def check(self) -> None:
        """Raise the first error, in the order of the sends, among the answers that are there."""
        for number, future in enumerate(self.futures):
            if future.done():
                self._check(number, future.result())

    def over(self) -> bool:
        """Whether all answers are there, or one that is an error."""
        if self.comes_at_once:
            return True
        ended = [future.done() for future in self.futures]
        if all(ended):
            return True
        try:
            self.check()
        except Exception:  # noqa: BLE001 - whatever it is, it is the end of the wait
            return True
        return False

    def _check(self, number: int, reply: Reply) -> None:
        if not reply.error_type:
            return
        rank = self.sent.sends[number].rank
        what = f"{self.role}/{rank}.{self.method} raised {reply.error_type}: "
        whole = reply.refused or reply.error_type == wire.WireError.__name__
        said = reply.message if whole else what + reply.message
        raise RemoteError(said, role=self.role, rank=rank, remote_traceback=reply.traceback)


class AsCompleted:
    """The answers of a call as they come: (rank, answer), the fastest first; `for`, or `async for`.

    An error of a rank is raised in its turn, also of one whose answer is not wanted; the others can be taken after it.
    """

    def __init__(self, started: Invocation) -> None:
        self._started = started
        self._left = len(started.futures)
        self._coming = Arrivals(started.futures)

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return self

    def __next__(self) -> tuple[int, Any]:
        while True:
            self._begin(StopIteration())
            try:
                number = self._coming.wait()
            except BaseException:
                self._left += 1
                raise
            if pair := self._pair(number):
                return pair

    def __aiter__(self) -> AsCompleted:
        return self

    async def __anext__(self) -> tuple[int, Any]:
        while True:
            self._begin(StopAsyncIteration())
            try:
                number = await self._coming.coming()
            except BaseException:
                self._left += 1
                raise
            if pair := self._pair(number):
                return pair

    def _begin(self, end: Exception) -> None:
        """One less is left for others, unless who waits for it is called away."""
        if not self._left:
            raise end
        self._left -= 1

    def _pair(self, number: int) -> tuple[int, Any] | None:
        """None of a rank that has done its part and answers nothing."""
        send = self._started.sent.sends[number]
        if send.quiet:
            self._started.ended(number)
            return None
        return send.rank, self._started.answer(number)
