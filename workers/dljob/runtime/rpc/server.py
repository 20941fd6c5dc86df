"""The callee's side of role calls: wait for `setup`, find the method, run it, pickle the answer."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import functools
import inspect
import sys
import threading
import time
from asyncio import Semaphore
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import astuple, replace
from typing import Any

from dljob.calls.batch import Arguments
from dljob.calls.mark import RpcMark, ServiceDescriptor
from dljob.calls.pending import Fate, PendingCalls
from dljob.errors import RemoteError
from dljob.master.state.views import Outcome
from dljob.runtime.process import wire
from dljob.runtime.process.activities import CallActivity, is_behind_weights, line_of_call
from dljob.runtime.process.error_origin import is_job_ending
from dljob.runtime.process.loop import settle, user_loop
from dljob.runtime.process.messages import BATCH, CANCEL, CLOSE, DESCRIBE, KNOWN_S, PULL, Call, NotRun, Reply
from dljob.runtime.process.outcome import code_line, origin_of, user_traceback
from dljob.runtime.process.worker_context import FOR_ANSWER
from dljob.runtime.rpc.call_trace import RankTrace
from dljob.runtime.rpc.caller_watch import AskEnded, Caller, CallerWatch
from dljob.runtime.rpc.mapped import packed, unpacked_calls
from dljob.runtime.rpc.resumed import ResumedCall, Stamp, code_of
from dljob.runtime.rpc.rpc import mark_of, parameters_of
from dljob.runtime.rpc.stream_producer import UNHEARD_S, CutOffError, HandedOverError, StreamProducer
from dljob.telemetry.wording import counted

_HOST_METHODS = (DESCRIBE, PULL, CLOSE)
LOOK_S = 1.0
"""Most seconds that a pull without an item keeps its thread: streams may be more than the threads that serve them; and
until a call that waits for weights looks again."""
LONG_ON_ITS_WAY = 256 * 2**20
"""Bytes of an answer that may take seconds on its way."""
PLACES = 100
"""Places of errors whose number is remembered."""
LAPSED = 1000
"""Number of dropped streams whose error is kept for a caller that still comes."""


class RpcServer:
    """Serves the @rpc methods of a rank's object; thread-safe, since each call has a thread of its own."""

    def __init__(
        self,
        role: str,
        code_dir: str = "",
        ask_ended: AskEnded | None = None,
        why_behind: Callable[[Call], str] = lambda _: "",
    ) -> None:
        """Serve nothing yet. `ask_ended` asks which callers have ended; None: nobody knows.

        `why_behind` says why the rank's weights are too old for a call, by what its caller has published.
        """
        self._role = role
        self._code_dir = code_dir
        self._why_behind = why_behind
        self._error_log = CallErrorLog()
        self.trace: RankTrace | None = None
        """Where its calls are recorded; None where they are not traced."""
        # One lock for all: what a call waits for (setup, the end, a cancel) is changed under it.
        self._changed = threading.Condition()
        self._open = False
        self._hold_reason = ""
        """Why calls wait, but of methods that take any weights; empty: they are served."""
        self._object: Any = None
        self._closed = ""
        self._cut = False
        self._draining = False
        self._finishing = False
        self._running = 0
        self._served_s = self._begun = 0.0
        """Seconds in which a call ran, up to the last moment without one; and when the present ones began."""
        self._pending = PendingCalls()
        self._slots: dict[str, threading.Semaphore] = {}
        self._turns: dict[str, Semaphore] = {}
        """The places of `async` methods."""
        self._unread: dict[str, Call] = {}
        """Calls under way whose answers nobody reads."""
        self._answer_sizes: dict[str, int] = {}
        """Call id -> bytes of its answer, of the last answers that take long on their way."""
        self._streams: dict[str, StreamProducer] = {}
        self._lapsed: dict[str, Reply] = {}
        """Stream key -> the error to answer with, of streams that were closed because their callers took no items."""
        self._callers = CallerWatch(ask_ended, self._stream_callers, self._end_callers)
        self._ended_callers: dict[str, int] = {}
        """Caller -> its newest incarnation that has ended."""

    def open(self, instance: Any) -> None:
        """Begin to serve an object whose `setup` is done; waiting calls continue."""
        with self._changed:
            self._object, self._open = instance, True
            self._changed.notify_all()

    def hold(self, reason: str) -> None:
        """Keep calls waiting for a reason, but of methods that take any weights; serve them again without one."""
        with self._changed:
            self._hold_reason = reason
            self._changed.notify_all()

    def recheck_weights(self) -> None:
        """Have waiting calls look again at the rank's weights."""
        with self._changed:
            self._changed.notify_all()

    def close(self, outcome: Outcome, *, cut: bool = False) -> None:
        """Refuse waiting and later calls, since the rank has ended; running calls go on to their end.

        `cut`: the rank is being broken off, and a call that fails from now on is answered as lost, not as failed.
        """
        with self._changed:
            self._closed = "ended well" if outcome.ok else f"ended: {outcome.message}"
            self._cut = self._cut or cut
            self._changed.notify_all()
            streams = list(self._streams.values())
        # Outside the lock: a producer that ends calls back into `_ended`, which takes it.
        for stream in streams:
            stream.close(cut=True)

    def drain(self, timeout_s: float) -> bool:
        """Stop streams that resume, and wait until their callers have the items that were made; False if it was late.

        Their later calls are refused: they go elsewhere.
        """
        end = time.monotonic() + timeout_s
        with self._changed:
            self._draining = True
            streams = list(self._streams.values())
        for stream in streams:
            stream.drain()
        return all(stream.wait_taken(max(0.0, end - time.monotonic())) for stream in streams)

    def finish(self, timeout_s: float) -> bool:
        """Take no further calls, and wait until those that came have their answers; False if it was late.

        For a rank that its role gives up. Streams that resume go elsewhere, all others go on to their end.
        """
        end = time.monotonic() + timeout_s
        with self._changed:
            # Callers hear of the smaller role at this moment: what they sent before shall not fail.
            self._changed.wait_for(lambda: self._closed, min(KNOWN_S, timeout_s))
            self._finishing = True
        self.drain(max(0.0, end - time.monotonic()))
        with self._changed:
            return self._changed.wait_for(self._is_done, max(0.0, end - time.monotonic()))

    @property
    def under_way(self) -> int | None:
        """Number of calls that run or wait for their turn, open streams included; None before the first one."""
        with self._changed:
            if not self._pending.last_numbers:
                return None
            return self._running + sum(not begun for begun in self._pending.has_begun.values())

    @property
    def served_ms(self) -> int | None:
        """Milliseconds in which at least one call ran, open streams included; None before the first one."""
        with self._changed:
            now = time.monotonic() - self._begun if self._running else 0.0
            return round((self._served_s + now) * 1000) if self._begun else None

    def _is_done(self) -> bool:
        return bool(self._closed) or not (self._running or self._pending.has_begun or self._streams)

    def wait_idle(self) -> None:
        """Block until no call runs."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)

    def _begin(self, call: Call, name: str) -> Reply | None:
        """Count a call as running; returns a refusal when the rank ended, or the caller gave up, while it waited."""
        with self._changed:
            if self._closed:
                return _refuse(NotRun.ENDED, f"{name} {self._closed}")
            # A cancel that came while the call waited for its turn: its caller has been told "not run".
            if not self._pending.begin(call.id):
                return _cancelled(name)
            if not self._running:
                self._begun = time.monotonic()
            self._running += 1
        if call.traced and self.trace is not None:
            self.trace.began(call)
        return None

    def answer(self, call: Call, payload: bytes, shared_args: bytes = b"", *, stale: bool = False) -> Reply:
        """Run a call to its end; returns a Reply whatever the method does."""
        reply = self.begin_answer(call, payload, shared_args, stale=stale)
        return reply.result() if isinstance(reply, Future) else reply

    def begin_answer(
        self, call: Call, payload: bytes, shared_args: bytes = b"", *, stale: bool = False
    ) -> Reply | Future[Reply]:
        """Run a call, whose timeout includes waiting for `setup` and a turn.

        Returns a Reply whatever the method does; of an `async` method its future: it waits and runs without a thread.
        """
        name = f"{self._role}/{call.rank}"
        if stale:
            return _refuse(NotRun.ENDED, f"{name} is another process now")
        # Before `setup`: a cancel waits for nothing, least of all for the thing that the cancelled call waits for.
        if call.method == CANCEL:
            return self._cancel(call.id)
        if call.method in _HOST_METHODS:
            return self._not_up(call, name) or self._answer_host(call, payload.decode(), name)
        # One deadline for all that the call waits for here, `setup` and its turn included (ADR 63).
        end = None if call.timeout_s is None else time.monotonic() + call.timeout_s
        with self._changed:
            if self._finishing:
                return _refuse(NotRun.ENDED, f"{name} is about to leave: its role goes on without it")
            if not self._pending.arrive(call.id):
                return _cancelled(name)
            if call.quiet:
                self._unread[call.id] = call
        activity: CallActivity | None = None
        reply: Reply | Future[Reply] | None = None
        try:
            body: bytes | list[bytes] = payload
            if call.method == BATCH:
                method, body = unpacked_calls(payload)
                call = replace(call, method=method)
            activity = CallActivity(call.id, call.method, call.caller)
            activity.note_wait("" if self._open else "setup")
            refused = self._not_up(call, name)
            target = refused or self._find(call.method, name)
            if isinstance(target, RpcMark) and not target.any_weights:
                target = self._not_fresh(activity, call, name, end) or target
            reply = (
                target if isinstance(target, Reply) else self._run(activity, target, call, body, shared_args, end=end)
            )
            return reply
        finally:
            if isinstance(reply, Future):
                reply.add_done_callback(lambda _: self._leave(call, activity))
            else:
                self._leave(call, activity)

    def _leave(self, call: Call, activity: CallActivity | None) -> None:
        """Note that a call has its answer."""
        if activity is not None and call.id not in self._streams:
            activity.end()
        with self._changed:
            self._pending.end(call.id)
            self._unread.pop(call.id, None)
            self._changed.notify_all()

    def _not_up(self, call: Call, name: str) -> Reply | None:
        """Wait for `setup`; returns a refusal when it is not done in time, or the rank ended."""
        with self._changed:
            in_time = self._changed.wait_for(lambda: self._open or self._closed, call.timeout_s)
        if self._closed:
            return _refuse(NotRun.ENDED, f"{name} {self._closed}")
        return None if in_time else _refuse(NotRun.LATE, f"for {name} to be set up, not run")

    def _not_fresh(self, activity: CallActivity, call: Call, name: str, end: float | None) -> Reply | None:
        """Wait for weights that are not stale; returns a refusal when they do not come in time, or the rank ended.

        PrimeMaster holds calls once it knows of a version. Until then a call of the publisher itself waits by what it
        brings along.
        """
        if not self._hold_reason and not (call.published and self._why_behind(call)):
            return None
        activity.note_wait("weights")
        with self._changed:
            while not self._closed and (reason := self._hold_reason or self._why_behind(call)):
                wait_s = LOOK_S if end is None else min(LOOK_S, end - time.monotonic())
                if wait_s <= 0:
                    return _refuse(NotRun.LATE, f"for the weights of {name}, not run: {reason}")
                self._changed.wait(wait_s)
        return _refuse(NotRun.ENDED, f"{name} {self._closed}") if self._closed else None

    def _cancel(self, call: str) -> Reply:
        """Withdraw a call whose caller gave up: it never starts, or its stream is closed.

        Answers with its `Fate`, and as the message the line at which it, or the call that it waits for, is; the size
        of an answer that may still be on its way; why its weights are stale.
        """
        with self._changed:
            fate = self._pending.cancel(call)
            if fate is Fate.UNKNOWN and (size := self._answer_sizes.get(call)) is not None:
                return Reply(payload=Fate.ANSWERED.encode(), message=f"{size / 2**30:.1f} GiB")
            if fate is Fate.NOT_RUN and self._hold_reason and is_behind_weights(call):
                return Reply(payload=Fate.STALE.encode(), message=self._hold_reason)
            # A stream is known by the id of the call that opened it, so a late cancel finds what it opened.
            stream = self._streams.pop(call, None)
        if stream is not None:
            stream.close()
        return Reply(payload=fate.encode(), message=line_of_call(call) if fate is not Fate.UNKNOWN else "")

    def _answer_host(self, call: Call, key: str, name: str) -> Reply:
        """Answer a call to the host itself: describe the service, pull items of a stream, close it."""
        if call.method == DESCRIBE:
            return self._describe(name)
        goes_on = call.method == PULL and not call.again  # a repeated pull: the items of the lost answer are gone
        with self._changed:
            stream = self._streams.get(key) if goes_on else self._streams.pop(key, None)
        if stream is not None and not goes_on:
            stream.close()
        if call.method == CLOSE:
            return Reply(payload=wire.dump(None, name))
        # Its caller was slow, not wrong: it hears why the items are gone.
        if stream is None and key in self._lapsed:
            return self._lapsed[key]
        if stream is None or not goes_on:
            return _refuse(NotRun.NOT_AGAIN, f"{name}: there is no such stream, or not all of it any more")
        return self._next(stream, key, call, name)

    def _next(self, stream: StreamProducer, key: str, call: Call, name: str) -> Reply:
        try:
            delivery = stream.take(LOOK_S if call.timeout_s is None else min(LOOK_S, call.timeout_s))
        except HandedOverError as handed:
            self._drop(key)
            return Reply(payload=wire.dump(((), False, handed.state), name))
        except CutOffError:
            return _refuse(NotRun.NOT_AGAIN, f"{name} {self._closed}, and the stream with it")
        except BaseException as error:  # noqa: BLE001 - the caller receives it
            self._drop(key)
            return self._failed(error, stream.call or call, idempotent=False)
        if delivery is None and call.timeout_s is not None and call.timeout_s <= LOOK_S:
            return _refuse(NotRun.LATE, f"for an item of {name}")
        # Nothing yet: its caller asks again, after those who wait for a thread.
        delivery = delivery or ([], False)
        if delivery[1]:
            self._drop(key)
        return Reply(payload=wire.dump(delivery, name))

    def _drop(self, key: str) -> None:
        with self._changed:
            self._streams.pop(key, None)
            self._changed.notify_all()

    def _lapse(self, key: str, reply: Reply) -> None:
        """Keep the error of a dropped stream for its caller, which may have died or may still come."""
        with self._changed:
            self._streams.pop(key, None)
            self._lapsed[key] = reply
            if len(self._lapsed) > LAPSED:
                # The oldest one: a dict keeps the order of insertion.
                del self._lapsed[next(iter(self._lapsed))]

    def _stream_callers(self) -> set[Caller]:
        """Return the ranks whose streams are open."""
        with self._changed:
            return {caller for stream in self._streams.values() if (caller := _caller(stream.call)) is not None}

    def _end_callers(self, ended: Iterable[Caller]) -> None:
        """Close the streams of callers that have ended: nobody takes their items, and others wait for their places."""
        with self._changed:
            for role, rank, incarnation in ended:
                name = f"{role}/{rank}"
                self._ended_callers[name] = max(incarnation, self._ended_callers.get(name, 0))
            keys = [key for key, stream in self._streams.items() if self._has_ended_caller(stream.call)]
            streams = [self._streams.pop(key) for key in keys]
            self._changed.notify_all()
        for stream in streams:
            stream.close()

    def _has_ended_caller(self, call: Call | None) -> bool:
        return call is not None and 0 < call.caller_incarnation <= self._ended_callers.get(call.caller, 0)

    def _describe(self, name: str) -> Reply:
        if self._object is None:
            return _refuse(NotRun.NO_METHOD, f"{name} runs a function: only classes have methods to call")
        try:
            return Reply(payload=wire.dump(describe(self._object), f"the card of {name}"), idempotent=True)
        except Exception as error:  # noqa: BLE001 - `mesh` is user code
            return _refuse(NotRun.NO_METHOD, f"{name}: its mesh cannot be read: {type(error).__name__}: {error}")

    def _find(self, method: str, name: str) -> Reply | RpcMark:
        mark = mark_of(type(self._object), method)
        if mark is not None:
            return mark
        kind = type(self._object).__name__
        if self._object is None:
            return _refuse(NotRun.NO_METHOD, f"{name} runs a function: only classes have methods to call")
        if hasattr(self._object, method):
            return _refuse(
                NotRun.NO_METHOD, f"{name}: {kind}.{method} may not be called by other roles: decorate it with @rpc"
            )
        offered = [n for n in dir(type(self._object)) if mark_of(type(self._object), n)]
        close = difflib.get_close_matches(method, offered, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has: {', '.join(offered) or 'none'}"
        return _refuse(NotRun.NO_METHOD, f"{name}: {kind} has no @rpc method {method!r}; {hint}")

    def _run(
        self,
        activity: CallActivity,
        mark: RpcMark,
        call: Call,
        payload: bytes | list[bytes],
        shared_args: bytes,
        *,
        end: float | None,
    ) -> Reply | Future[Reply]:
        """Run a call, or those of a batch one after another: its answer has a reply for each."""
        name = f"{self._role}/{call.rank}"
        # The caller could not know, as no answer of the method ever reached it: the callee decides.
        if call.again and not mark.idempotent:
            return _refuse(NotRun.NOT_AGAIN, f"{name}.{call.method} is not declared idempotent")
        full_name = f"{name}.{call.method}"
        payloads = payload if isinstance(payload, list) else [payload]
        batch = [_unpickle_arguments(part, shared_args, full_name) for part in payloads]
        if isinstance(payload, bytes) and isinstance(batch[0], Reply):
            return batch[0]
        if mark.resume and self._draining:  # a stream that resumes goes to another callee
            return _refuse(NotRun.ENDED, f"{name} is about to end")
        is_single = isinstance(payload, bytes) and not mark.stream
        if is_single and inspect.iscoroutinefunction(getattr(type(self._object), call.method)):
            coroutine = self._run_coroutine(activity, mark, call, batch[0], end=end)
            return asyncio.run_coroutine_threadsafe(coroutine, user_loop())
        # The turn comes before `_begin`: a call that waits for it is not running, and can still be cancelled.
        slot = self._slot(call.method, mark)
        activity.note_wait(call.method if slot is not None else "")
        if slot is not None and not slot.acquire(timeout=None if end is None else max(0.0, end - time.monotonic())):
            return _cancelled(name)
        unwanted = mark.stream and self._has_ended_caller(call)  # it waited for longer than its caller lived
        if refused := _cancelled(name) if unwanted else self._begin(call, name):
            if slot is not None:
                slot.release()
            return refused
        activity.note_wait("")
        with activity:
            if mark.stream and isinstance(payload, bytes) and not isinstance(batch[0], Reply):
                return self._open_stream(mark, call, batch[0], functools.partial(self._stream_ended, slot, activity))
            try:
                if isinstance(payload, bytes):
                    return self._value(mark, call, batch[0], full_name)
                return self._values(mark, call, batch, full_name, end=end)
            finally:
                self._ended(slot)

    async def _run_coroutine(
        self, activity: CallActivity, mark: RpcMark, call: Call, arguments: Arguments | Reply, *, end: float | None
    ) -> Reply:
        """Run a call of an `async` method on the loop of the user's coroutines, where it waits for its turn, too."""
        name = f"{self._role}/{call.rank}"
        slot = None if mark.concurrency is None else self._turns.setdefault(call.method, Semaphore(mark.concurrency))
        activity.note_wait(call.method if slot is not None else "")
        if slot is not None:
            try:
                await asyncio.wait_for(slot.acquire(), None if end is None else max(0.0, end - time.monotonic()))
            except TimeoutError:
                return _cancelled(name)
        try:
            if refused := self._begin(call, name):
                return refused
            activity.note_wait("")
            try:
                with activity:
                    activity.activity.task = asyncio.current_task()
                    return await self._awaited_value(mark, call, arguments, f"{name}.{call.method}")
            finally:
                self._ended(None)
        finally:
            if slot is not None:
                slot.release()

    async def _awaited_value(self, mark: RpcMark, call: Call, arguments: Arguments | Reply, name: str) -> Reply:
        """Await the method; returns a Reply whatever it does."""
        if isinstance(arguments, Reply):
            return arguments
        args, kwargs = arguments
        try:
            value = await getattr(self._object, call.method)(*args, **kwargs)
            # In a thread: a large one takes long, and the other coroutines go on.
            dump = functools.partial(wire.dump, value, f"the result of {name}")
            payload = b"" if call.quiet else await asyncio.to_thread(dump)
            self._note_size(call, payload)
            return Reply(payload=payload, idempotent=mark.idempotent)
        except BaseException as error:  # noqa: BLE001 - the caller receives it; this process goes on
            return self._failed(error, call, idempotent=mark.idempotent)

    def _values(
        self, mark: RpcMark, call: Call, batch: Sequence[Arguments | Reply], name: str, *, end: float | None
    ) -> Reply:
        replies: list[Reply] = []
        for arguments in batch:
            # Its caller has given up the batch, and would read no answer.
            if (end is not None and time.monotonic() >= end) or call.id in self._pending.cancelled:
                ran = f"{self._role}/{call.rank} has run {len(replies)} of the request's {counted(len(batch), 'call')}"
                return _refuse(NotRun.LATE, f"{FOR_ANSWER}; {ran}, and runs no more")
            replies.append(reply := self._value(mark, call, arguments, name))
            if reply.refused is NotRun.CUT_OFF:
                return reply
        return Reply(payload=packed(replies), idempotent=mark.idempotent)

    def _value(self, mark: RpcMark, call: Call, arguments: Arguments | Reply, name: str) -> Reply:
        """Run the method once; returns a Reply whatever it does."""
        if isinstance(arguments, Reply):
            return arguments
        args, kwargs = arguments
        try:
            value = settle(getattr(self._object, call.method)(*args, **kwargs))
            # The caller discards it, and a result that cannot be pickled is no error then.
            payload = b"" if call.quiet else wire.dump(value, f"the result of {name}")
            self._note_size(call, payload)
            return Reply(payload=payload, idempotent=mark.idempotent)
        except BaseException as error:  # noqa: BLE001 - the caller receives it; this process goes on
            return self._failed(error, call, idempotent=mark.idempotent)

    def _note_size(self, call: Call, payload: bytes) -> None:
        if len(payload) >= LONG_ON_ITS_WAY:
            with self._changed:
                self._answer_sizes[call.id] = len(payload)
                if len(self._answer_sizes) > PLACES:
                    del self._answer_sizes[next(iter(self._answer_sizes))]

    def unread_calls(self) -> list[str]:
        """Return the calls under way, as "note of trainer/0", whose answers nobody reads: nobody hears of their end."""
        with self._changed:
            return [f"{call.method} of {call.caller}" for call in self._unread.values()]

    def _ended(self, slot: threading.Semaphore | None) -> None:
        with self._changed:
            self._running -= 1
            if not self._running:
                self._served_s += time.monotonic() - self._begun
            self._changed.notify_all()
        if slot is not None:
            slot.release()

    def _stream_ended(self, slot: threading.Semaphore | None, activity: CallActivity) -> None:
        self._ended(slot)
        activity.end()

    def _failed(self, error: BaseException, call: Call, *, idempotent: bool) -> Reply:
        """Return the reply to a call whose method raised, and log the error here, where its line is."""
        rank, message, trace = f"{self._role}/{call.rank}", _text(error), user_traceback(error)
        # The rank is being broken off: the error comes from that, and not from the method.
        if self._cut:
            return _refuse(NotRun.CUT_OFF, f"{rank} starts again; {message}", trace)
        line = code_line(getattr(type(self._object), call.method, None), self._code_dir)
        incarnation, code_dir = call.incarnation, self._code_dir
        origin = origin_of(error, rank=rank, incarnation=incarnation, code_dir=code_dir, line=line)
        if not is_job_ending(error):
            self._error_log.write(call, trace, (type(error).__name__, origin.frame))
        return Reply(b"", type(error).__name__, message, trace, None, idempotent, astuple(origin))

    def _open_stream(self, mark: RpcMark, call: Call, arguments: Arguments, ended: Callable[[], None]) -> Reply:
        """Start a stream; the answer is the key by which its items are pulled."""
        name = f"{self._role}/{call.rank}"
        description = f"an item of {name}.{call.method}"
        args, kwargs = arguments
        resumed = ResumedCall(self._object, mark, call.method, dict(kwargs)) if mark.resume else None
        if resumed is not None and (mismatch := resumed.other_version(name)):
            ended()
            return _refuse(NotRun.OTHER_VERSION, mismatch)
        try:
            items = getattr(self._object, call.method)(*args, **kwargs) if resumed is None else resumed.begin(args)
            if not (hasattr(items, "__anext__") or hasattr(items, "__iter__")):
                raise TypeError(f"{call.method} is a stream and gave {type(items).__name__}: wanted a generator")
        except BaseException as error:  # noqa: BLE001 - the caller receives it; this process goes on
            ended()
            return self._failed(error, call, idempotent=False)
        patience = UNHEARD_S if call.timeout_s is None else max(UNHEARD_S, call.timeout_s)

        def lapsed(error: BaseException) -> None:
            self._lapse(call.id, self._failed(error, call, idempotent=False))

        def pack(item: Any) -> bytes:
            return wire.dump(item, description)

        stamped = pack if resumed is None else Stamp(resumed, pack)
        state = None if resumed is None else resumed.state
        with self._changed:
            try:
                stream = StreamProducer(
                    items, max(1, call.window), stamped, ended, patience, lapsed=lapsed, state=state, call=call
                )
            except RuntimeError as error:  # no thread is left for it
                ended()
                return self._failed(error, call, idempotent=False)
            self._streams[call.id] = stream
            # All of it may have happened while the generator was made: nothing else would close it.
            closed, unwanted = bool(self._closed), call.id in self._pending.cancelled
            if unwanted:  # nobody has its key, and so nobody would close it
                del self._streams[call.id]
            draining = self._draining
        self._callers.start()
        if draining:
            stream.drain()
        if closed or unwanted:
            stream.close(cut=closed)
        key = (call.id, call.incarnation, code_of(type(self._object))) if mark.resume else call.id
        return Reply(payload=wire.dump(key, description))

    def _slot(self, method: str, mark: RpcMark) -> threading.Semaphore | None:
        if mark.concurrency is None:
            return None
        with self._changed:
            return self._slots.setdefault(method, threading.Semaphore(mark.concurrency))


class CallErrorLog:
    """Writes into the rank's log what its methods raise: a traceback of each place once, later ones as a count.

    A caller may go on after an error and meet it again with each item, and a call whose answer was lost is sent again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str, str], int] = {}
        """Method, type and place of an error -> how often it was raised."""

    def write(self, call: Call, trace: str, place: tuple[str, str]) -> None:
        """Write an error of a call; `place` is its type and the line where it began."""
        key = (call.method, *place)
        with self._lock:
            count = self._counts[key] = self._counts.get(key, 0) + 1
            if len(self._counts) > PLACES:
                # The oldest one: a dict keeps the order of insertion.
                del self._counts[next(iter(self._counts))]
        if count == 1:
            words = f"called by {call.caller}, raised:\n{trace.rstrip()}"
        elif count & (count - 1) == 0:  # at 2, 4, 8 ...
            words = f"called by {call.caller}, raised {place[0]} again at {place[1]}: {count} times by now"
        else:
            return
        with contextlib.suppress(OSError, ValueError):  # the disk is full, or stderr closed: its caller has it all
            print(f"[dljob] {call.method}, {words}", file=sys.stderr, flush=True)  # noqa: T201 - into the rank's log


def _caller(call: Call | None) -> Caller | None:
    """Return the rank that has made a call; None where no rank has."""
    if call is None or not call.caller_incarnation:
        return None
    role, _, rank = call.caller.rpartition("/")
    return role, int(rank), call.caller_incarnation


def _refuse(reason: NotRun, message: str, traceback: str = "") -> Reply:
    return Reply(error_type="CallError", message=message, traceback=traceback, refused=reason)


def _unpickle_arguments(payload: bytes, shared_args: bytes, name: str) -> Arguments | Reply:
    """Unpickle the arguments of a call; those that all ranks of it share may come apart. Else return a refusal."""
    try:
        return wire.arguments(payload, shared_args)
    except Exception as error:  # noqa: BLE001 - unpickling runs whatever the arguments' classes do
        message = f"{name}: the arguments cannot be read here: {type(error).__name__}: {error}"
        return _refuse(NotRun.BAD_ARGUMENTS, message, user_traceback(error))


def _cancelled(name: str) -> Reply:
    """Return the refusal of a call that was withdrawn or late; its caller may still be there to read it."""
    return _refuse(NotRun.LATE, f"in the queue of {name}, not run")


def _text(error: BaseException) -> str:
    try:
        # Without the remote traceback of an error of a further call, which the traceback here has.
        return (error.message if isinstance(error, RemoteError) else str(error))[:2000]
    except Exception:  # noqa: BLE001 - a user's __str__ may raise
        return "(its message cannot be shown)"


def has_methods(cls: type) -> bool:
    """Whether other roles can call methods of a class."""
    return any(mark_of(cls, name) for name in dir(cls))


def describe(instance: Any) -> ServiceDescriptor:
    """Return the descriptor of a rank's class: its @rpc methods, and its `mesh`, given as a mapping or a DeviceMesh."""
    cls = type(instance)
    marks = {name: mark_of(cls, name) for name in dir(cls)}
    methods = {n: replace(mark, parameters=parameters_of(cls, n)) for n, mark in marks.items() if mark is not None}
    return ServiceDescriptor(methods, declared_mesh(instance))


def declared_mesh(instance: Any) -> dict[str, int]:
    """Return axis -> size of the `mesh` of a rank's object; empty without one."""
    mesh = getattr(instance, "mesh", None)
    names = getattr(mesh, "mesh_dim_names", None)
    if mesh is not None and names:
        return dict(zip(names, mesh.shape, strict=True))
    return dict(mesh) if isinstance(mesh, Mapping) else {}
