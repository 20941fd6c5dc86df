"""The caller's side of a stream that resumes: the arguments with the items that came, and the next callee."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeGuard

from dljob.calls.dispatch import CallPlan
from dljob.calls.mark import RpcMark
from dljob.calls.resumption import (
    ANY_RANK_DISPATCHES,
    HANDED_OVER_ARG,
    RECEIVED_ARG,
    VERSION_ARG,
    CalleeLoss,
    CalleeRank,
    GapError,
    ResumePlace,
    StreamProgress,
    WireItem,
    choose_callee,
)
from dljob.errors import CallError, CallTimeoutError, PeerLostError, UsageError
from dljob.runtime.process import wire
from dljob.runtime.process.messages import NotRun, Reply
from dljob.runtime.process.worker_context import RankCall, WorkerContext
from dljob.runtime.rpc.futures import Invocation
from dljob.telemetry.wording import counted

RESUMPTIONS = 20
"""Most resumptions of a stream."""
VERSION_POLL_S = 0.2
"""Seconds until callees that had another version are asked again."""
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
    if not mark.resume or RECEIVED_ARG not in kwargs:
        return ReceivedItems(), kwargs
    received = kwargs[RECEIVED_ARG]
    if not isinstance(received, list | tuple):
        raise UsageError(f"{RECEIVED_ARG}={received!r}: wanted the list of the items that came before")
    packed = tuple(wire.dump(item, f"item {number} of {RECEIVED_ARG}") for number, item in enumerate(received))
    return ReceivedItems(packed), {name: value for name, value in kwargs.items() if name != RECEIVED_ARG}


def with_prefix(mark: RpcMark, sent: CallPlan, prefix: ReceivedItems) -> CallPlan:
    """Return a plan whose requests carry the items that came before, whole; unchanged unless the method resumes."""
    if not mark.resume:
        return sent
    if any(send.discards_answer for send in sent.sends):
        raise UsageError(
            "it resumes, and goes to ranks that work in step: one of them could not go on alone",
            hint="dispatch it to one rank, as by dispatch='round_robin'; or without resume",
        )
    # After the plan: to be split among ranks like an argument would make no sense of them.
    return replace(sent, arguments=tuple((args, {**kwargs, RECEIVED_ARG: prefix}) for args, kwargs in sent.arguments))


@dataclass(frozen=True, slots=True)
class StreamItem:
    """An item of a stream that resumes, with its origin."""

    value: Any
    position: int
    """Its number in the whole stream, from 0."""
    version: Any
    """Version of each weight channel that its callee held, empty where it holds none; or its own `weights_version`."""
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
        self._free = not own_rank and started.mark.dispatch in ANY_RANK_DISPATCHES
        self.progress = StreamProgress(list(started.prefix))
        self._state = b""
        """What the last callee handed over, pickled."""
        self._same = started.mark.versions == "same"
        self.given_up: PeerLostError | None = None
        self.left = threading.Event()
        """Set when nobody wants the stream any more."""

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

    def opened(self, reply: tuple[str, int, str]) -> str:
        """Note who has taken the stream up; returns the stream's key there."""
        key, incarnation, code = reply
        before = self.progress.last_filled_segment
        if before is not None and before.code != code:
            message = f"{self._call.method}: {self.callee} goes on with other code than {before.callee} ran"
            self._context.log.warning("%s, from item %d on", message, len(self.progress.received))
        self.progress.begin_segment(self.callee, incarnation, code)
        return key

    def take(self, items: Sequence[Any]) -> list[ItemOrigin]:
        """Add items as they came; returns the new ones."""
        self._state = b""
        wire_items = [WireItem(*item) for item in items]
        usable = self.progress.items_of_one_version(wire_items) if self._same else wire_items
        try:
            if wire_items and not usable:
                raise GapError(f"its version changed to {wire_items[0].version!r}")
            return [ItemOrigin(self.callee, item) for item in self.progress.add_items(usable)]
        except GapError as error:
            # As if its callee were lost: it goes on from what came.
            call = self._call
            raise PeerLostError(
                f"{call.name}: {error}", role=call.role, rank=call.rank, incarnation=self.incarnation, died=False
            ) from None

    def handed_over(self, state: bytes) -> PeerLostError:
        """Note the state that the callee hands over; returns its loss."""
        self._state = state
        call = self._call
        message = f"{call.name}: {self.callee} ends by order"
        return PeerLostError(message, role=call.role, rank=call.rank, incarnation=self.incarnation, died=False)

    def is_loss(self, error: BaseException) -> TypeGuard[CallError]:
        """Whether an error is the loss of its callee; any other would come again elsewhere, or is the caller's own."""
        # Not lost, but gone for good: only another rank can go on.
        is_gone_for_good = type(error) is CallError and self._free
        return (is_gone_for_good or isinstance(error, PeerLostError)) and not self._nowhere

    def lost(self, error: CallError, *, opened: bool) -> None:
        """Note a loss; `given_up` is the error that ends the stream, if it was one too many."""
        lost_incarnation = error.incarnation if isinstance(error, PeerLostError) else 0
        died = isinstance(error, PeerLostError) and error.died
        incarnation = self.incarnation if opened else lost_incarnation
        progress, call = self.progress, self._call
        progress.losses.append(CalleeLoss(call.rank, incarnation, len(progress.received), died, opened, error.message))
        events = f"`dljob events {self._context.job_name}` tells why each of them ended"
        if deaths := progress.poison_deaths(call.window):
            summary = "given up, as the request seems to kill its callees"
            self.given_up = self._error(summary, deaths, f"{events}; leave this request out")
        elif len(progress.losses) > RESUMPTIONS:
            summary = f"given up after {counted(RESUMPTIONS, 'resumption')}"
            self.given_up = self._error(summary, progress.losses, events)

    def _error(self, summary: str, losses: Sequence[CalleeLoss], hint: str) -> PeerLostError:
        call = self._call
        callees = [f"{call.role}/{x.rank} (incarnation {x.incarnation or '?'}) at item {x.position}" for x in losses]
        message = f"{call.role}.{call.method}: {summary}: {', '.join(callees)}; the last: {losses[-1].reason}"
        return PeerLostError(message, role=call.role, rank=call.rank, hint=hint)

    def go_on(self, error: CallError) -> Future[Reply]:
        """Open the stream at another callee; returns its answer, or `error` where there is no callee."""
        answer: Future[Reply] = Future()
        answer.set_running_or_notify_cancel()
        # PrimeMaster is asked first, and may be away: neither a coroutine nor a transport's thread may wait for it.
        threading.Thread(target=self._open, args=(error, answer), name="dljob-resume", daemon=True).start()
        return answer

    def _open(self, error: CallError, answer: Future[Reply]) -> None:
        try:
            answer.set_result(self._reopened(error))
        except BaseException as failed:  # noqa: BLE001 - whoever waits for the stream gets it
            answer.set_exception(failed)

    def _reopened(self, error: CallError) -> Reply:
        """Ask one callee after another, again and again where none has the version, until one takes the stream up."""
        timeout_s = self._first.timeout_s
        end = None if timeout_s is None else time.monotonic() + timeout_s
        refused: dict[int, str] = {}
        while True:
            place = self._place(refused)
            if place is None and not refused:
                self._nowhere = True
                raise error
            if place is None:
                if end is not None and time.monotonic() >= end:
                    raise self._no_version(tuple(refused.values()))
                # No process tells another when it loads weights; whoever leaves the stream ends the wait.
                if self.left.wait(VERSION_POLL_S):
                    raise error
                refused.clear()
                continue
            self._call = self._again(place, None if end is None else max(0.001, end - time.monotonic()))
            reply = self._context.calls.send(self._call).result()
            if reply.refused is not NotRun.OTHER_VERSION:
                return reply
            refused[place.rank] = reply.message

    def _no_version(self, reasons: Sequence[str]) -> CallTimeoutError:
        call, timeout_s = self._call, self._first.timeout_s
        message = f"{call.role}.{call.method}: nobody could go on within {timeout_s:g} s: {'; '.join(reasons)}"
        return CallTimeoutError(message, role=call.role, rank=call.rank, hint="versions='any' goes on with another one")

    def _place(self, refused: Collection[int]) -> ResumePlace | None:
        call, losses = self._call, self.progress.losses
        if not self._free:
            return None if call.rank in refused else ResumePlace(call.rank, losses[-1].incarnation)
        wait_s = ASK_S if call.timeout_s is None else min(ASK_S, call.timeout_s)
        callee_rows = self._context.calls.ask("callees", [call.role], wait_s).result()
        descriptors = self._context.descriptors
        busy, turn = descriptors.in_flight(call.role), descriptors.turn(call.role)
        return choose_callee([CalleeRank(*row) for row in callee_rows], losses, busy, turn, refused)

    def _again(self, place: ResumePlace, timeout_s: float | None) -> RankCall:
        """Return the request with the items that came, for another callee."""
        old, made_by = self._first, self.progress.last_filled_segment
        args, kwargs = wire.arguments(old.payload, old.common)
        kwargs[RECEIVED_ARG] = ReceivedItems(tuple(self.progress.received))
        if self._same and made_by is not None:
            kwargs[VERSION_ARG] = made_by.version, made_by.code
        if self._state:
            kwargs[HANDED_OVER_ARG] = self._state
        payload = wire.dump((args, kwargs), f"{old.name}: the items that came before")
        return RankCall(
            *(old.role, place.rank, old.method, payload, timeout_s),
            idempotent=False,
            window=old.window,
            after=place.after_incarnation,
            once=True,
        )
