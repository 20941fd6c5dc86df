"""The caller's side of role calls, in a process that has Ray.

A process has one event loop, in a thread of its own, for all its calls. PrimeMaster names a callee's incarnation once;
calls then go from process to process, so that they continue while PrimeMaster restarts.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import threading
import time
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import ray
from ray import exceptions as rx

from dljob.calls.pending import Fate
from dljob.calls.trace_rows import OK
from dljob.errors import CallError, JobEndingError, PeerLostError, UnreachableError
from dljob.ray_private import known_dead
from dljob.runtime.backend.masters import NotCommandingError, find_master
from dljob.runtime.process.messages import (
    ANSWERS,
    BATCH,
    CANCEL,
    CLOSE,
    GROUPS,
    KEEPER,
    PULL,
    Call,
    JobInfo,
    NotRun,
    Peer,
    Reply,
)
from dljob.runtime.process.wire import LARGE
from dljob.runtime.process.worker_context import FOR_ANSWER, RankCall
from dljob.runtime.rpc import storage_actors
from dljob.runtime.rpc.call_lines import CallLines
from dljob.runtime.rpc.call_trace import RankTrace
from dljob.runtime.rpc.direct import DirectCall, UnawaitedCalls, unpacked
from dljob.runtime.rpc.kept_answers import AnswerCollector
from dljob.runtime.rpc.large_args import store
from dljob.runtime.rpc.line_call import LineBrokenError, LineCall
from dljob.runtime.rpc.own_process import check_process
from dljob.telemetry.wording import counted

RETRY_S = 0.1
"""Pause before PrimeMaster, or a process that could not be reached, is asked again."""
EXPLAIN_S = 2.0
"""Seconds that the caller of a lost call waits for PrimeMaster to say why the callee was ended."""
CANCEL_S, CANCEL_LEAST_S = 1.0, 0.1
"""Seconds that a late call waits for the answer to its cancel: its timeout plus CANCEL_LEAST_S, at most CANCEL_S. A
short deadline is not stretched tenfold to word its error better."""
LOSSES = (
    *(rx.RayActorError, rx.ObjectLostError, rx.WorkerCrashedError),
    *(rx.OutOfMemoryError, rx.NodeDiedError, rx.LocalRayletDiedError),
)
"""Ray's errors for a process that is gone, or whose answer is."""

T = TypeVar("T")


class LateError(Exception):
    """The deadline of a call passed; `at` is when, in seconds of the monotonic clock."""

    def __init__(self) -> None:
        super().__init__()
        self.at = time.monotonic()


def invoke(handle: Any, method: str, message: bytes, payload: Sequence[Any]) -> Any:
    """Send a message to a host's actor, to the threads that serve this kind of call; returns Ray's reference."""
    group = GROUPS.get(method)
    remote = handle.invoke if group is None else handle.invoke.options(concurrency_group=group)
    return remote.remote(message, *payload)


SENT, PARKED, AGAIN, LOST = range(4)
"""Places in the counts of a method: calls sent, those that wait for their callee now, sent again, and lost."""
METHODS = 100
"""Most methods that a client counts."""


class CallCounts:
    """Counts and times of a client's calls to methods of roles, and the storage actors that it uses, for the samples.

    Not exact to a call: threads count without a lock, which would cost more than the count. `under_way` is exact.
    """

    def __init__(self) -> None:
        self.methods: dict[str, list[int]] = {}
        self.took_s: dict[str, float] = {}
        """Method -> seconds that its ended calls took together."""
        self.under_way: dict[int, tuple[str, float]] = {}
        """`id` of a call that has not ended -> its method, and when it began (`time.monotonic`)."""
        self.stores: set[str] = set()

    def add(self, call: RankCall, which: int, change: int = 1) -> str | None:
        """Count a call in one of the four places; return the name of its method, None where it is not counted."""
        if call.role.startswith(KEEPER):
            self.stores.add(call.role)
            return None
        if call.method in GROUPS:
            return None
        name = ".".join(_method(call))
        counts = self.methods.get(name)
        if counts is None:
            if len(self.methods) >= METHODS:
                return None
            counts = self.methods[name] = [0, 0, 0, 0]
        counts[which] += change
        return name

    def begin(self, call: RankCall) -> None:
        """Count a call that is made now."""
        name = self.add(call, SENT)
        if name is not None:
            self.under_way[id(call)] = name, time.monotonic()

    def end(self, call: RankCall) -> None:
        """Count the end of a call, with or without an answer."""
        begun = self.under_way.pop(id(call), None)
        if begun is not None:
            name, begun_at = begun
            self.took_s[name] = self.took_s.get(name, 0.0) + time.monotonic() - begun_at


class RpcClient:
    """Carries the calls of one process over Ray; `caller` names the calling rank."""

    def __init__(self, job: JobInfo, caller: str, trace: RankTrace | None = None) -> None:
        self._job = job
        self._caller = caller
        self._trace = trace
        self.incarnation = 0
        """The caller's incarnation; 0: it is no rank, or has not been started."""
        self.pid = os.getpid()
        self.counts = CallCounts()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ids = itertools.count(1)
        self._peers: dict[tuple[str, int], Peer] = {}
        self._handles: dict[str, Any] = {}
        self._idempotent: dict[tuple[str, str], bool] = {}
        self.sizes: dict[str, int] = {}
        self.numbers: dict[str, tuple[int, ...]] = {}
        self.incarnations: dict[str, int] = {}
        # Part of each call's id: a caller that restarted counts from 1 again, and its ids must not repeat.
        self._process = secrets.token_hex(4)
        self._master: Any = None
        self._unasked = UnawaitedCalls()
        self._lines = CallLines(job.uid)
        self._collectors: dict[str, AnswerCollector] = {}
        self._by_ray: set[tuple[str, str]] = set()
        """(role, method) of methods with large answers, which Ray maps without a copy."""

    def send(self, call: RankCall) -> Future[Reply]:
        """Start a call; return the future of its reply. Raises UsageError as `send_all`."""
        return self.send_all((call,))[0]

    def send_all(self, calls: Sequence[RankCall]) -> list[Future[Reply]]:
        """Start the calls of some ranks, all or none; return the futures of their replies.

        Raises:
            UsageError: Ray's store has no room for their large arguments, or this is a forked child; none was sent.
        """
        check_process(self.pid, calls[0].name if calls else "a call")
        # In the calling thread: storing large arguments on the loop would hold up all other calls. All of them first:
        # ranks that work together must not wait for one whose arguments find no room.
        store(calls)
        return [self._start(call) for call in calls]

    def _start(self, call: RankCall) -> Future[Reply]:
        """Start a call whose large arguments are stored.

        This thread sends it if the callee's actor is known and not known to be dead; else the event loop does.
        """
        number = self._name(call)
        if self._trace is not None:
            self._trace.begin(call, number)
        self.counts.begin(call)
        peer = self._peers.get((call.role, call.rank))
        handle = None if peer is None else self._handles.get(peer.actor)
        # Looking up a callee, or waiting for a restart, takes long: that is for the loop.
        if peer is None or handle is None or known_dead(handle) or not call.fits(peer.incarnation):
            return asyncio.run_coroutine_threadsafe(self._run(call), self._running_loop())
        self._sends(call)
        message = self._message(call, peer)
        if not call.stored and call.method not in GROUPS and _method(call) not in self._by_ray:
            by_line = LineCall(
                call,
                lambda future: self._take_over(future, call, peer, self._later(future, call, peer)),
                lambda reply: self._direct_answer(call, reply),
            )
            if self._lines.send(peer.actor, message, by_line.took):
                self._unasked.add(by_line, self._running_loop())
                return by_line
        answer = invoke(handle, call.method, message, call.stored)
        direct = DirectCall(
            answer,
            call,
            lambda future, ref: self._take_over(future, call, peer, ref),
            lambda reply: self._direct_answer(call, reply),
        )
        self._unasked.add(direct, self._running_loop())
        return direct

    def _name(self, call: RankCall) -> int:
        """Give a call the next id; return the number in it."""
        number = next(self._ids)
        call.id = f"{self._caller}:{self._process}:{number}"
        return number

    async def _later(self, by_line: LineCall, call: RankCall, peer: Peer) -> Any:
        """Wait for the answer of a call that was sent by a line; raises Ray's error if its callee is gone."""
        try:
            return await by_line.later
        except LineBrokenError:
            fate = ""
            with suppress(TimeoutError):
                fate, _ = await self._withdrawn(call, peer, CANCEL_S)
        # The callee refuses the id that was withdrawn from now on.
        self._name(call)
        handle = await self._handle(peer)
        if fate == Fate.NOT_RUN and handle is not None:
            self._sends(call)
            return await invoke(handle, call.method, self._message(call, peer), ())
        # It lives, and may have run the call: as when Ray has lost its connection.
        raise rx.ActorUnavailableError("the connection for its calls broke", None)

    def keeper(self, address: str) -> Any:
        """Return the storage actor at an address, for code that passes it object references itself.

        Raises:
            UsageError: This is a forked child.
        """
        check_process(self.pid, address.removeprefix(KEEPER))
        self.counts.stores.add(address)
        return storage_actors.storage_actor(self._job, address)[1]

    def _direct_answer(self, call: RankCall, reply: Reply) -> None:
        self.counts.end(call)
        self._learn(call, reply)
        if len(reply.payload) >= LARGE:
            self._by_ray.add(_method(call))
        if self._trace is not None:
            self._trace.ended(call, reply.error_type or OK, len(reply.payload))
        call.free()

    def _learn(self, call: RankCall, reply: Reply) -> None:
        # A refusal says nothing about the method: its `idempotent` is only the default.
        if reply.refused is not None:
            return
        # Remembered for a later loss, when the callee that knows it is gone.
        self._idempotent[call.role, call.method] = reply.idempotent

    def _take_over(self, future: Future[Reply], call: RankCall, peer: Peer, answer: Awaitable[Any]) -> None:
        """Continue on the loop a call that a thread has sent."""
        work = asyncio.run_coroutine_threadsafe(self._run(call, peer, answer), self._running_loop())

        def copy_result(done: Future[Reply]) -> None:
            error = done.exception()
            if error is None:
                future.set_result(done.result())
            else:
                future.set_exception(error)

        work.add_done_callback(copy_result)

    def ask(self, method: str, args: Sequence[Any], timeout_s: float) -> Future[Any]:
        """Call a method of PrimeMaster; the question is repeated while PrimeMaster restarts.

        The future raises UnreachableError after `timeout_s` seconds, and whatever the method raises.

        Raises:
            UsageError: This is a forked child.
        """
        check_process(self.pid, f"the question {method!r} to PrimeMaster")
        return asyncio.run_coroutine_threadsafe(self._ask(method, args, timeout_s), self._running_loop())

    async def _ask(self, method: str, args: Sequence[Any], timeout_s: float) -> Any:
        end = time.monotonic() + timeout_s
        last_error: object = "it is not there"
        while (seconds_left := end - time.monotonic()) > 0:
            try:
                master = await self._prime()
                return await asyncio.wait_for(_plain(getattr(master, method).remote(*args)), seconds_left)
            except (rx.RayError, ValueError) as error:
                if isinstance(error, rx.RayTaskError) and not isinstance(error.cause, NotCommandingError):
                    raise error.cause or error from None
                # The handle may be of a master that died: it is looked up by name again.
                self._master, last_error = None, error
                await asyncio.sleep(min(RETRY_S, seconds_left))
            except TimeoutError:
                break
        raise UnreachableError(
            f"PrimeMaster of job {self._job.name} gave no answer within {timeout_s:g} s: {last_error}"
        )

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        # Made at the first call, under a lock: several threads of a rank may make it at once.
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="dljob-calls", daemon=True).start()
            return self._loop

    # -- one call

    async def _run(self, call: RankCall, peer: Peer | None = None, answer: Awaitable[Any] | None = None) -> Reply:
        """Send a call to one incarnation after another until one answers; `answer`: it was sent to `peer` already."""
        try:
            return await self._traced(call, peer, answer)
        finally:
            self.counts.end(call)
            call.free()

    async def _traced(self, call: RankCall, peer: Peer | None, answer: Awaitable[Any] | None) -> Reply:
        if self._trace is None:
            return await self._sent_until_answered(call, peer, answer)
        self._trace.follow(call, is_sent=answer is not None)
        try:
            reply = await self._sent_until_answered(call, peer, answer)
        except BaseException as error:
            self._trace.ended(call, type(error).__name__)
            raise
        self._trace.ended(call, reply.error_type or OK, len(reply.payload))
        return reply

    async def _sent_until_answered(self, call: RankCall, peer: Peer | None, answer: Awaitable[Any] | None) -> Reply:
        is_second = False
        try:
            while True:
                try:
                    if peer is None or answer is None:
                        peer = await self._peer(call)
                        answer = await self._send_once(call, peer)
                    reply = None if answer is None else await self._answered(call, peer, answer)
                except LateError:
                    if peer is None or not await self._restart_callee(call, peer):
                        raise
                    self._lose_late(call, peer, is_second=is_second)
                    is_second, reply = True, None
                # Awaited once: from here on a further turn sends the call again.
                answer = None
                # A stream lives in one incarnation: its later calls have no other to go to.
                if reply is None and (call.once or call.method in (PULL, CLOSE)):
                    raise call.lost_with(peer)
                if reply is not None:
                    self._learn(call, reply)
                    return reply
        except PeerLostError as lost:
            lost.__suppress_context__ = True  # that it was late, the message says
            self.counts.add(call, LOST)
            if (lost.died or call.tried) and not call.once and not call.role.startswith(KEEPER):
                await self._explain(lost, call.after or lost.incarnation)
            raise
        except LateError as late:
            hint = f"dljob logs {self._job.name} --role {call.role} --rank {call.rank} shows what it does"
            raise call.late(late.at, hint) from None

    async def _send_once(self, call: RankCall, peer: Peer) -> Awaitable[Any] | None:
        """Send a call to one incarnation; None when that one has ended."""
        handle = await self._in_time(self._handle(peer), call)
        # Known without a send: a call to a dead actor would only come back as lost, and count as tried.
        if handle is None or known_dead(handle):
            call.died = False
            self._forget(call, peer)
            return None
        self._sends(call)
        return invoke(handle, call.method, self._message(call, peer), call.stored)

    def _sends(self, call: RankCall) -> None:
        """Note that a call is being sent."""
        call.waiting = FOR_ANSWER
        if call.span is not None:
            call.span.sends += 1
            call.span.sent = time.monotonic()

    def _message(self, call: RankCall, peer: Peer) -> bytes:
        return Call(
            call.id,
            call.rank,
            peer.incarnation,
            call.method,
            call.seconds_left,
            self._caller,
            again=call.again,
            quiet=call.quiet,
            window=call.window,
            traced=call.span is not None and call.span.is_shown,
            caller_incarnation=self.incarnation,
            published=call.published,
        ).packed(b"" if call.stored else call.payload)

    async def _answered(self, call: RankCall, peer: Peer, answer: Awaitable[Any]) -> Reply | None:
        """Wait for the answer of one incarnation; None when the call must go to a later one."""
        try:
            reply = unpacked(await self._in_time(answer, call))
            if reply.refused is NotRun.RUNS:
                reply = await self._in_time(self._collector(peer, call.rank).answer(call.id), call)
        except LateError:
            call.waiting = await self._cancel(call, peer)
            raise
        except rx.RayTaskError as error:
            raise CallError(
                f"{call.name} failed in its host: {error.cause or error}", role=call.role, rank=call.rank
            ) from None
        except LOSSES as error:
            await self._handle_loss(call, peer, error)
            return None
        except rx.RayError as error:  # a full store, an answer that cannot be read: a second send would fail the same
            raise CallError(
                f"{call.name}: its answer cannot be fetched: {type(error).__name__}: {error}",
                role=call.role,
                rank=call.rank,
            ) from error
        return self._judge(call, peer, reply)

    def _collector(self, peer: Peer, rank: int) -> AnswerCollector:
        """Return what fetches the answers of a callee's `async` methods. Called on the loop."""

        async def fetch() -> bytes:
            handle = await self._handle(peer)
            if handle is None:
                raise rx.ActorDiedError
            process = f"{self._caller}:{self._process}"
            message = Call(process, rank, peer.incarnation, ANSWERS, None, self._caller).packed(b"")
            return unpacked(await _plain(invoke(handle, ANSWERS, message, ()))).payload

        if peer.actor not in self._collectors:
            self._collectors[peer.actor] = AnswerCollector(fetch)
        return self._collectors[peer.actor]

    async def _cancel(self, call: RankCall, peer: Peer) -> str:
        """Tell the callee that its caller has given up; return the state of the call, for the caller's error."""
        handle = self._handles.get(peer.actor)
        # Pulls, descriptors and storage actors are not cancelled: a pull takes nothing from a closed stream (ADR 63).
        if handle is None or call.method in GROUPS or call.role.startswith(KEEPER):
            return call.waiting
        callee_name = f"{call.role}/{call.rank}"
        # The caller is late already, and must not wait long to hear why.
        within_s = min(CANCEL_S, CANCEL_LEAST_S + (call.timeout_s or 0))
        try:
            fate, line = await self._withdrawn(call, peer, within_s)
        except (TimeoutError, ValueError, rx.RayError):
            return f"{FOR_ANSWER}; {callee_name} does not say whether it runs"
        if fate == Fate.ANSWERED:
            return f"for the {line} of its answer, which {callee_name} has sent"
        if fate == Fate.STALE:
            return f"for the weights of {callee_name}, not run: {line}"
        call.callee_line = (peer.incarnation, line) if line else None
        place = f", now at {line}" if line else ""
        match fate:
            case Fate.NOT_RUN:
                return f"in the queue of {callee_name}, not run{f'; {callee_name} is busy at {line}' if line else ''}"
            case Fate.BEGUN if call.method == BATCH:
                return (
                    f"{FOR_ANSWER}; {callee_name} ends the call that it is at, and runs no more of the request{place}"
                )
            case Fate.BEGUN:
                return f"{FOR_ANSWER}; {callee_name} runs it to its end{place}"
            case _:  # a later incarnation answered, which knows nothing of this call
                return f"{FOR_ANSWER}; it may have run"

    async def _withdrawn(self, call: RankCall, peer: Peer, within_s: float) -> tuple[str, str]:
        """Withdraw a call at its callee, by Ray; return its `Fate`, and the line of what runs or keeps it there.

        Raises TimeoutError, and Ray's errors.
        """
        message = Call(call.id, call.rank, peer.incarnation, CANCEL, CANCEL_S, self._caller).packed(b"")
        handle = await self._handle(peer)
        if handle is None:
            raise rx.ActorDiedError
        reply = unpacked(await asyncio.wait_for(_plain(invoke(handle, CANCEL, message, ())), within_s))
        return reply.payload.decode(), reply.message

    def _judge(self, call: RankCall, peer: Peer, reply: Reply) -> Reply | None:
        """Return the reply for the caller; None when the call must go to a later incarnation."""
        match reply.refused:
            case NotRun.ENDED:
                call.died = False
                self._forget(call, peer)
                return None
            case NotRun.BY_RAY:
                self._by_ray.add(_method(call))
                # Where it is not kept any more, it must not run again.
                call.again, call.tried = not call.idempotent, True
                return None
            case NotRun.LATE:
                call.waiting = reply.message
                raise LateError
            case NotRun.CUT_OFF:
                call.died = False
                self._may_go_again(call, peer)
                self._forget(call, peer)
                return None
            case NotRun.NOT_AGAIN:
                call.died = False
                # It was lost with an earlier process, where there was one: this one only refuses it.
                raise call.lost_with(replace(peer, incarnation=call.after or peer.incarnation))
            case _:
                return reply

    async def _handle_loss(self, call: RankCall, peer: Peer, error: rx.RayError) -> None:
        """Handle a loss: the callee died with the call, cannot be reached, or lives and its answer is lost.

        Returns when the call may be sent again; raises PeerLostError when it may not.
        """
        # A death needs no further words; any other loss is reported with Ray's.
        died = isinstance(error, rx.RayActorError)
        call.died = died
        call.lost = "" if died else f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"
        self._may_go_again(call, peer)
        if died and not isinstance(error, rx.ActorUnavailableError):
            self._forget(call, peer)
        else:
            # The same incarnation may still live: PrimeMaster is asked again, and may name it again.
            self._peers.pop((call.role, call.rank), None)
            await self._pause(call)

    async def _restart_callee(self, call: RankCall, peer: Peer) -> bool:
        """Have a callee that runs a late call restarted, where its method says so; whether its incarnation ends."""
        runs = call.method == PULL or call.waiting.startswith(FOR_ANSWER)
        if not (call.restarts_callee and runs and call.fits(peer.incarnation)):
            return False
        reason = f"it did not answer {call.label or call.method}() of {self._caller} within {call.timeout_s:g} s"
        line = "" if call.callee_line is None else call.callee_line[1]
        question = (call.role, call.rank, peer.incarnation), reason, line, self._caller
        with suppress(UnreachableError, AttributeError):  # AttributeError: a PrimeMaster of an earlier version
            return await self._ask("late_callee", question, EXPLAIN_S)
        return False

    def _lose_late(self, call: RankCall, peer: Peer, *, is_second: bool) -> None:
        """Handle the loss of a late call with its callee: it goes once more to the next one, or is lost."""
        self._forget(call, peer)
        if is_second:  # it is the call, not the process
            raise call.lost_with(peer)
        self._may_go_again(call, peer)
        call.started = time.monotonic()

    async def _explain(self, lost: PeerLostError, incarnation: int) -> None:
        """Add to a loss the sentence of the hang for which PrimeMaster ended that incarnation, where it did."""
        if self._master is None:
            return  # it restarts: the caller need not wait for it to hear of its loss
        # AttributeError: a PrimeMaster of an earlier version, which knows of no such question.
        with suppress(TimeoutError, ValueError, AttributeError, rx.RayError):
            question = self._master.hang_of.remote(lost.role, lost.rank, incarnation)
            hang = await asyncio.wait_for(_plain(question), EXPLAIN_S)
            lost.message += f"; it hung: {hang}" if hang else ""

    def _may_go_again(self, call: RankCall, peer: Peer) -> None:
        """Mark a call that may have run as sent again; raises PeerLostError where its method is not idempotent.

        A method that never answered this process is not known to be either: the callee decides (`Call.again`).
        """
        idempotent = call.idempotent or self._idempotent.get((call.role, call.method))
        if idempotent is False or call.once:
            self._forget(call, peer)
            raise call.lost_with(peer)
        # `again` asks the callee to refuse what is not idempotent; a caller that declared it so overrides the method.
        call.again, call.tried = not call.idempotent, True
        self.counts.add(call, AGAIN)

    # -- who is who

    async def _peer(self, call: RankCall) -> Peer:
        """Return the callee's living incarnation; waits until there is one."""
        key = (call.role, call.rank)
        known = self._peers.get(key)
        # Not the incarnation that the call was lost with, which another call may have named meanwhile.
        if known is not None and call.fits(known.incarnation):
            return known
        if call.role.startswith(KEEPER):
            return await self._storage_actor(call)
        # Its incarnation was lost by another call: there is no other to wait for.
        if call.only:
            raise call.lost_with(Peer(call.role, call.rank, call.only, "", ready=False))
        self.counts.add(call, PARKED)
        begun = time.monotonic()
        try:
            return await self._ready_peer(call, key)
        finally:
            self.counts.add(call, PARKED, -1)
            if call.span is not None:
                call.span.parked += time.monotonic() - begun

    async def _ready_peer(self, call: RankCall, key: tuple[str, int]) -> Peer:
        # Parked in PrimeMaster, not polled: the answer comes as soon as the rank is ready.
        call.waiting = f"for {call.role}/{call.rank} to be " + ("back" if call.after else "ready")
        while True:
            try:
                master = await self._in_time(self._prime(), call)
                peer: Peer = await self._in_time(master.await_peer.remote(call.role, call.rank, call.after), call)
            except (rx.RayError, ValueError):
                # PrimeMaster restarts, or its name is not there yet.
                self._master = None
                await self._pause(call)
                continue
            self._note_size(call, peer)
            # A call that may have run is reported as lost, not as one without a callee.
            if peer.gone_reason and call.again:
                raise call.lost_with(peer)
            if peer.gone_reason:
                error_type = JobEndingError if peer.job_ends else CallError
                raise error_type(f"{call.name}: {peer.gone_reason}", role=call.role, rank=call.rank)
            if peer.ready and peer.actor and peer.incarnation > call.after:
                self._peers[key] = peer
                # A restart of rank 0 makes the role's descriptor stale: its methods or its mesh may have changed.
                if call.rank == (self.numbers.get(call.role) or (0,))[0]:
                    self.incarnations[call.role] = peer.incarnation
                return peer
            await self._pause(call)

    async def _storage_actor(self, call: RankCall) -> Peer:
        """Return the storage actor at an address. It has no incarnation; each later actor counts as the next one."""
        call.waiting = "for what keeps it to be there"
        while True:
            # Its actor is created by name at once, so a loss that repeats must not become a busy loop.
            if call.after:
                await self._pause(call)
            try:
                name, handle = await self._in_time(
                    asyncio.to_thread(storage_actors.storage_actor, self._job, call.role), call
                )
            except (rx.RayError, ValueError):
                await self._pause(call)
                continue
            peer = Peer(call.role, call.rank, call.after + 1, name, ready=True)
            self._peers[call.role, call.rank], self._handles[name] = peer, handle
            return peer

    def _note_size(self, call: RankCall, peer: Peer) -> None:
        """Learn the role's size; raises CallError when the call was made for another number of ranks.

        Such a call would reach only some of the ranks, or ranks that are gone.
        """
        if peer.size:
            self.numbers[call.role] = peer.numbers
            self.sizes[call.role] = peer.size
        if call.ranks and peer.size not in (0, call.ranks):
            size = counted(peer.size, "rank")
            message = f"{call.name}: {call.role} has {size} now, and the call was made for {call.ranks}"
            hint = "make it again: the next one knows; what other ranks were sent, they may have run"
            raise CallError(message, role=call.role, rank=call.rank, hint=hint)

    def _forget(self, call: RankCall, peer: Peer) -> None:
        """Drop an incarnation that has ended: this call and later ones go to the next."""
        key = (call.role, call.rank)
        known = self._peers.get(key)
        # Another call may have learned the next incarnation meanwhile, which stays.
        if known is not None and known.incarnation <= peer.incarnation:
            del self._peers[key]
            self._handles.pop(peer.actor, None)
        call.after = max(call.after, peer.incarnation)

    async def _handle(self, peer: Peer) -> Any:
        """Return the handle of a callee's actor; None when the actor is gone."""
        if peer.actor not in self._handles:
            try:
                # In a thread: the look-up asks Ray's GCS, and blocks while that restarts.
                handle = await asyncio.to_thread(ray.get_actor, peer.actor, self._job.namespace)
            except (ValueError, rx.RayError):
                return None
            self._handles[peer.actor] = handle
        return self._handles.get(peer.actor)

    async def _prime(self) -> Any:
        if self._master is None:
            self._master = await asyncio.to_thread(find_master, self._job)
        return self._master

    # -- time

    async def _in_time(self, answer: Awaitable[T], call: RankCall) -> T:
        try:
            seconds_left = call.seconds_left
            if seconds_left is not None and seconds_left <= 0:
                raise LateError
            return await asyncio.wait_for(_plain(answer), seconds_left)
        except TimeoutError:
            raise LateError from None
        finally:
            # Python warns of a coroutine that nobody awaited, as where the time was over before.
            if asyncio.iscoroutine(answer):
                answer.close()

    async def _pause(self, call: RankCall) -> None:
        seconds_left = call.seconds_left
        if seconds_left is not None and seconds_left <= 0:
            raise LateError
        await asyncio.sleep(RETRY_S if seconds_left is None else min(RETRY_S, seconds_left))


def _method(call: RankCall) -> tuple[str, str]:
    """Return role and method of a call; of a batch those of its calls."""
    return call.role, call.label or call.method


async def _plain(answer: Awaitable[T]) -> T:
    """Wrap any awaitable in a coroutine: `wait_for` accepts Ray's references only in this form."""
    return await answer
