"""The callee's side of calls between roles: waits for `setup`, finds the method, runs it, answers in bytes."""

from __future__ import annotations

import difflib
import functools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dljob.calls.mark import RpcMark, ServiceDescriptor
from dljob.calls.pending import PendingCalls
from dljob.master.state.views import Outcome
from dljob.runtime.process import wire
from dljob.runtime.process.loop import settle
from dljob.runtime.process.messages import CANCEL, CARD, CLOSE, PULL, Call, NotRun, Reply
from dljob.runtime.process.outcome import user_traceback
from dljob.runtime.rpc.rpc import mark_of, parameters_of
from dljob.runtime.rpc.stream_producer import UNHEARD_S, CutOffError, StreamProducer

_ASKED = (CARD, PULL, CLOSE)
LAPSED = 1000
"""Of how many streams that nobody took it is known why they are over."""


class RpcServer:
    """The object whose methods other roles may call."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._changed = threading.Condition()
        self._open = False
        self._object: Any = None
        self._closed = ""
        self._cut = False
        self._running = 0
        self._pending = PendingCalls()
        self._slots: dict[str, threading.Semaphore] = {}
        self._feeds: dict[str, StreamProducer] = {}
        self._lapsed: dict[str, Reply] = {}
        """Key -> what to say, of streams that were closed because nobody took their items."""

    def open(self, instance: Any) -> None:
        """`setup` is done: calls that wait go on."""
        with self._changed:
            self._object, self._open = instance, True
            self._changed.notify_all()

    def close(self, outcome: Outcome, *, cut: bool = False) -> None:
        """The rank ended: calls that wait, and later ones, are refused. Calls that run go on to their end.

        `cut`: what they need is broken off; a call that fails from now on is told to its caller as lost.
        """
        with self._changed:
            self._closed = "ended well" if outcome.ok else f"ended: {outcome.message}"
            self._cut = self._cut or cut
            self._changed.notify_all()
            feeds = list(self._feeds.values())
        for feed in feeds:
            feed.close(cut=True)

    def wait_idle(self) -> None:
        """Wait until no call runs."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)

    def _begin(self, call: Call, name: str) -> Reply | None:
        """One more call runs, unless the rank ended or the caller gave up while it was read or waited for its turn."""
        with self._changed:
            if self._closed:
                return _refuse(NotRun.ENDED, f"{name} {self._closed}")
            if not self._pending.begin(call.id):
                return _cancelled(name)
            self._running += 1
            return None

    def answer(self, call: Call, payload: bytes, common: bytes = b"", *, stale: bool = False) -> Reply:
        """Run a call; always a Reply, whatever the method does. All that it waits for here counts on its timeout."""
        name = f"{self._role}/{call.rank}"
        if stale:
            return _refuse(NotRun.ENDED, f"{name} is another process now")
        if call.method == CANCEL:
            return self._cancel(call.id)
        if call.method in _ASKED:
            return self._not_up(call, name) or self._asked(call, payload.decode(), name)
        end = None if call.timeout_s is None else time.monotonic() + call.timeout_s
        with self._changed:
            if not self._pending.arrive(call.id):
                return _cancelled(name)
        try:
            refused = self._not_up(call, name)
            found = refused or self._find(call.method, name)
            return found if isinstance(found, Reply) else self._run(found, call, payload, common, end=end)
        finally:
            with self._changed:
                self._pending.end(call.id)

    def _not_up(self, call: Call, name: str) -> Reply | None:
        """Wait for `setup`; a refusal when it is not done in time, or the rank ended."""
        with self._changed:
            in_time = self._changed.wait_for(lambda: self._open or self._closed, call.timeout_s)
        if self._closed:
            return _refuse(NotRun.ENDED, f"{name} {self._closed}")
        return None if in_time else _refuse(NotRun.LATE, f"for {name} to be set up, not run")

    def _cancel(self, call: str) -> Reply:
        """The caller of a call has given up: it does not begin any more; a stream that nobody will take is closed."""
        with self._changed:
            fate = self._pending.cancel(call)
            feed = self._feeds.pop(call, None)
        if feed is not None:
            feed.close()
        return Reply(payload=fate.encode())

    def _asked(self, call: Call, key: str, name: str) -> Reply:
        """What is asked of the host itself: the card, the next items of a stream, no more of them."""
        if call.method == CARD:
            return self._card(name)
        goes_on = call.method == PULL and not call.again  # else items went with an answer that was lost
        with self._changed:
            feed = self._feeds.get(key) if goes_on else self._feeds.pop(key, None)
        if feed is not None and not goes_on:
            feed.close()
        if call.method == CLOSE:
            return Reply(payload=wire.dump(None, name))
        if feed is None and key in self._lapsed:
            return self._lapsed[key]
        if feed is None or not goes_on:
            return _refuse(NotRun.NOT_AGAIN, f"{name}: there is no such stream, or not all of it any more")
        return self._next(feed, key, call, name)

    def _next(self, feed: StreamProducer, key: str, call: Call, name: str) -> Reply:
        try:
            taken = feed.take(call.timeout_s)
        except CutOffError:
            return _refuse(NotRun.NOT_AGAIN, f"{name} {self._closed}, and the stream with it")
        except BaseException as error:  # noqa: BLE001 - the caller hears of it
            self._drop(key)
            return self._failed(error, name, idempotent=False)
        if taken is None:
            return _refuse(NotRun.LATE, f"for an item of {name}")
        if taken[1]:
            self._drop(key)
        return Reply(payload=wire.dump(taken, name))

    def _drop(self, key: str) -> None:
        with self._changed:
            self._feeds.pop(key, None)

    def _lapse(self, key: str, said: Reply) -> None:
        """A stream's items were dropped: the caller, which may have died, is told why if it comes after all."""
        with self._changed:
            self._feeds.pop(key, None)
            self._lapsed[key] = said
            if len(self._lapsed) > LAPSED:
                del self._lapsed[next(iter(self._lapsed))]

    def _card(self, name: str) -> Reply:
        if self._object is None:
            return _refuse(NotRun.NO_METHOD, f"{name} runs a function: only classes have methods to call")
        try:
            return Reply(payload=wire.dump(card_of(self._object), f"the card of {name}"), idempotent=True)
        except Exception as error:  # noqa: BLE001 - a mesh of users' making may raise
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

    def _run(self, mark: RpcMark, call: Call, payload: bytes, common: bytes, *, end: float | None) -> Reply:
        name = f"{self._role}/{call.rank}"
        if call.again and not mark.idempotent:
            return _refuse(NotRun.NOT_AGAIN, f"{name}.{call.method} is not declared idempotent")
        try:
            args, kwargs = wire.arguments(payload, common)
        except Exception as error:  # noqa: BLE001 - unpickling runs whatever the arguments' classes do
            said = f"{name}.{call.method}: the arguments cannot be read here: {type(error).__name__}: {error}"
            return _refuse(NotRun.BAD_ARGUMENTS, said, user_traceback(error))
        slot = self._slot(call.method, mark)
        if slot is not None and not slot.acquire(timeout=None if end is None else max(0.0, end - time.monotonic())):
            return _cancelled(name)
        if refused := self._begin(call, name):
            if slot is not None:
                slot.release()
            return refused
        ended = functools.partial(self._ended, slot)
        if mark.stream:
            return self._open_feed(call, args, kwargs, name, ended)
        try:
            value = settle(getattr(self._object, call.method)(*args, **kwargs))
            payload = b"" if call.quiet else wire.dump(value, f"the result of {name}.{call.method}")
            return Reply(payload=payload, idempotent=mark.idempotent)
        except BaseException as error:  # noqa: BLE001 - the caller hears of it; this process goes on
            return self._failed(error, name, idempotent=mark.idempotent)
        finally:
            ended()

    def _ended(self, slot: threading.Semaphore | None) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()
        if slot is not None:
            slot.release()

    def _failed(self, error: BaseException, name: str, *, idempotent: bool) -> Reply:
        said, trace = _text(error), user_traceback(error)
        if self._cut:
            return _refuse(NotRun.CUT_OFF, f"{name} starts again; {said}", trace)
        return Reply(error_type=type(error).__name__, message=said, traceback=trace, idempotent=idempotent)

    def _open_feed(
        self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, ended: Callable[[], None]
    ) -> Reply:
        """Start a stream; the answer is the key by which its items are taken."""
        what = f"an item of {name}.{call.method}"
        try:
            items = getattr(self._object, call.method)(*args, **kwargs)
            if not (hasattr(items, "__anext__") or hasattr(items, "__iter__")):
                raise TypeError(f"{call.method} is a stream and gave {type(items).__name__}: wanted a generator")
        except BaseException as error:  # noqa: BLE001 - the caller hears of it; this process goes on
            ended()
            return self._failed(error, name, idempotent=False)
        patience = UNHEARD_S if call.timeout_s is None else max(UNHEARD_S, call.timeout_s)

        def lapsed(error: BaseException) -> None:
            self._lapse(call.id, self._failed(error, name, idempotent=False))

        with self._changed:
            feed = StreamProducer(
                items, max(1, call.window), lambda item: wire.dump(item, what), ended, patience, lapsed=lapsed
            )
            self._feeds[call.id] = feed
            closed, unwanted = bool(self._closed), call.id in self._pending.cancelled
        if closed or unwanted:
            feed.close(cut=closed)
        return Reply(payload=wire.dump(call.id, what))

    def _slot(self, method: str, mark: RpcMark) -> threading.Semaphore | None:
        if mark.concurrency is None:
            return None
        with self._changed:
            return self._slots.setdefault(method, threading.Semaphore(mark.concurrency))


def _refuse(why: NotRun, message: str, traceback: str = "") -> Reply:
    return Reply(error_type="CallError", message=message, traceback=traceback, refused=why)


def _cancelled(name: str) -> Reply:
    """What becomes of a call that nobody waits for any more; its caller may still hear it."""
    return _refuse(NotRun.LATE, f"in the queue of {name}, not run")


def _text(error: BaseException) -> str:
    try:
        return str(error)[:2000]
    except Exception:  # noqa: BLE001 - a user's __str__ may raise
        return "(its message cannot be shown)"


def card_of(instance: Any) -> ServiceDescriptor:
    """What callers are to know of a rank's class: its @rpc methods, and its mesh, as a mapping or a DeviceMesh."""
    cls = type(instance)
    marks = {name: mark_of(cls, name) for name in dir(cls)}
    methods = {n: replace(mark, parameters=parameters_of(cls, n)) for n, mark in marks.items() if mark is not None}
    mesh = getattr(instance, "mesh", None)
    names = getattr(mesh, "mesh_dim_names", None)
    if mesh is not None and names:
        return ServiceDescriptor(methods, dict(zip(names, mesh.shape, strict=True)))
    return ServiceDescriptor(methods, dict(mesh) if isinstance(mesh, Mapping) else {})
