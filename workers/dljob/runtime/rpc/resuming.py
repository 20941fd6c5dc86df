"""The caller's side of a stream that resumes: the arguments with the items that came, and the next callee."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeGuard

from dljob.calls.dispatch import Dispatched
from dljob.calls.mark import RpcMark
from dljob.calls.resumption import (
    FREE,
    RECEIVED,
    CalleeLoss,
    CalleeRank,
    GapError,
    ResumePlace,
    StreamProgress,
    WireItem,
    choose,
)
from dljob.errors import CallError, PeerLostError, UsageError
from dljob.runtime.process import wire
from dljob.runtime.process.messages import Reply
from dljob.runtime.process.worker_context import RankCall, WorkerContext
from dljob.runtime.rpc.futures import Invocation
from dljob.telemetry.wording import counted

RESUMPTIONS = 20
"""Most resumptions of a stream."""
ASK_S = 30.0
"""Seconds for PrimeMaster to say which callees are ready, if the call has no earlier deadline."""


@dataclass(frozen=True, slots=True)
class ReceivedItems:
    """Items that came before, still pickled: they are unpickled in the callee alone, as a list."""

    packed: tuple[bytes, ...] = ()

    def __reduce__(self) -> tuple[Callable[..., list[Any]], tuple[tuple[bytes, ...]]]:
        return _unpacked, (self.packed,)


def _unpacked(packed: tuple[bytes, ...]) -> list[Any]:
    return [wire.load(item) for item in packed]


def split_prefix(mark: RpcMark, kwargs: Mapping[str, Any]) -> tuple[ReceivedItems, Mapping[str, Any]]:
    """Take the items that a caller has from elsewhere out of its keyword arguments; empty unless the method resumes."""
    if not mark.resume or RECEIVED not in kwargs:
        return ReceivedItems(), kwargs
    if not isinstance(kwargs[RECEIVED], list | tuple):
        raise UsageError(f"{RECEIVED}={kwargs[RECEIVED]!r}: wanted the list of the items that came before")
    packed = tuple(wire.dump(item, f"item {number} of {RECEIVED}") for number, item in enumerate(kwargs[RECEIVED]))
    return ReceivedItems(packed), {name: value for name, value in kwargs.items() if name != RECEIVED}


def with_prefix(mark: RpcMark, sent: Dispatched, prefix: ReceivedItems) -> Dispatched:
    """Return a plan whose requests carry the items that came before, whole; unchanged unless the method resumes."""
    if not mark.resume:
        return sent
    if any(send.quiet for send in sent.sends):
        raise UsageError(
            "it resumes, and goes to ranks that work in step: one of them could not go on alone",
            hint="dispatch it to one rank, as by dispatch='round_robin'; or without resume",
        )
    # After the plan: to be split among ranks like an argument would make no sense of them.
    return replace(sent, arguments=tuple((args, {**kwargs, RECEIVED: prefix}) for args, kwargs in sent.arguments))


@dataclass(frozen=True, slots=True)
class StreamItem:
    """An item of a stream that resumes, with its origin."""

    value: Any
    position: int
    """Its number in the whole stream, from 0."""
    version: Mapping[str, int]
    """Version of each weight channel that its callee held; empty where it holds none."""
    callee: str
    """The rank that made it, as in "rollout/1"."""


class ItemOrigin(NamedTuple):
    """An item, still pickled, and the rank that made it."""

    callee: str
    item: WireItem

    def read(self) -> StreamItem:
        """Return the item as a caller sees it."""
        return StreamItem(wire.load(self.item.packed), self.item.position, self.item.version, self.callee)


class ResumingRequest:
    """One request of a stream: what came, and where it goes on after a loss."""

    def __init__(self, context: WorkerContext, started: Invocation, number: int, *, own_rank: bool) -> None:
        self._context = context
        self._first = self._call = started.requests[number]
        self._nowhere = False
        """All ranks that could serve it are gone for good."""
        # A handle of one rank means that rank, whatever the method's dispatch.
        self._free = not own_rank and started.mark.dispatch in FREE
        self.progress = StreamProgress(list(started.prefix))
        self.given_up: PeerLostError | None = None

    @property
    def rank(self) -> int:
        """The rank that serves it now."""
        return self._call.rank

    @property
    def callee(self) -> str:
        """That rank's name."""
        return f"{self._call.role}/{self._call.rank}"

    @property
    def incarnation(self) -> int:
        """The incarnation of that rank, once it has taken the stream up."""
        return self.progress.segments[-1].incarnation

    def opened(self, said: tuple[str, int]) -> str:
        """Note who has taken the stream up; returns the stream's key there."""
        key, incarnation = said
        self.progress.begin(self.callee, incarnation)
        return key

    def take(self, items: Sequence[Any]) -> list[ItemOrigin]:
        """Add items as they came; returns the new ones."""
        try:
            return [ItemOrigin(self.callee, item) for item in self.progress.take([WireItem(*item) for item in items])]
        except GapError as error:
            # As if its callee were lost: it goes on from what came.
            call = self._call
            raise PeerLostError(
                f"{call.name}: {error}", role=call.role, rank=call.rank, incarnation=self.incarnation, died=False
            ) from None

    def is_loss(self, error: BaseException) -> TypeGuard[CallError]:
        """Whether an error is the loss of its callee; any other would come again elsewhere, or is the caller's own."""
        # Not lost, but gone for good: only another rank can go on.
        gone = type(error) is CallError and self._free
        return (gone or isinstance(error, PeerLostError)) and not self._nowhere

    def lost(self, error: CallError, *, opened: bool) -> None:
        """Note a loss; `given_up` is the error that ends the stream, if it was one too many."""
        told = error.incarnation if isinstance(error, PeerLostError) else 0
        died = isinstance(error, PeerLostError) and error.died
        incarnation = self.incarnation if opened else told
        progress, call = self.progress, self._call
        progress.losses.append(CalleeLoss(call.rank, incarnation, len(progress.received), died, opened, error.message))
        events = f"`dljob events {self._context.job_name}` tells why each of them ended"
        if deaths := progress.poisoned(call.window):
            said = "given up, as the request seems to kill its callees"
            self.given_up = self._error(said, deaths, f"{events}; leave this request out")
        elif len(progress.losses) > RESUMPTIONS:
            said = f"given up after {counted(RESUMPTIONS, 'resumption')}"
            self.given_up = self._error(said, progress.losses, events)

    def _error(self, said: str, losses: Sequence[CalleeLoss], hint: str) -> PeerLostError:
        call = self._call
        who = [f"{call.role}/{x.rank} (incarnation {x.incarnation or '?'}) at item {x.position}" for x in losses]
        whole = f"{call.role}.{call.method}: {said}: {', '.join(who)}; the last: {losses[-1].why}"
        return PeerLostError(whole, role=call.role, rank=call.rank, hint=hint)

    def go_on(self, error: CallError) -> Future[Reply]:
        """Open the stream at another callee; returns its answer, or `error` where there is no callee."""
        answer: Future[Reply] = Future()
        answer.set_running_or_notify_cancel()
        # PrimeMaster is asked first, and may be away: neither a coroutine nor a transport's thread may wait for it.
        threading.Thread(target=self._open, args=(error, answer), name="dljob-resume", daemon=True).start()
        return answer

    def _open(self, error: CallError, answer: Future[Reply]) -> None:
        try:
            place = self._place()
            if place is None:
                self._nowhere = True
                raise error
            self._call = self._again(place)
            answer.set_result(self._context.calls.send(self._call).result())
        except BaseException as failed:  # noqa: BLE001 - whoever waits for the stream gets it
            answer.set_exception(failed)

    def _place(self) -> ResumePlace | None:
        call = self._call
        if not self._free:
            return ResumePlace(call.rank, self.progress.losses[-1].incarnation)
        wait_s = ASK_S if call.timeout_s is None else min(ASK_S, call.timeout_s)
        told = self._context.calls.ask("callees", [call.role], wait_s).result()
        descriptors = self._context.descriptors
        callees = [CalleeRank(*each) for each in told]
        return choose(callees, self.progress.losses, descriptors.in_flight(call.role), descriptors.turn(call.role))

    def _again(self, place: ResumePlace) -> RankCall:
        """Return the request with the items that came, for another callee."""
        old = self._first
        args, kwargs = wire.arguments(old.payload, old.common)
        kwargs[RECEIVED] = ReceivedItems(tuple(self.progress.received))
        payload = wire.dump((args, kwargs), f"{old.name}: the items that came before")
        return RankCall(
            *(old.role, place.rank, old.method, payload, old.timeout_s),
            idempotent=False,
            window=old.window,
            after=place.after,
            once=True,
        )
