"""The callee's side of calls between roles: waits for `setup`, finds the method, runs it, answers in bytes."""

from __future__ import annotations

import difflib
import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dljob.calls.mark import Card, RpcMark
from dljob.master.views import Outcome
from dljob.runtime import wire
from dljob.runtime.feeds import UNHEARD_S, CutOffError, Feed
from dljob.runtime.loop import settle
from dljob.runtime.messages import CARD, CLOSE, PULL, Call, Refusal, Reply
from dljob.runtime.outcome import user_traceback
from dljob.runtime.rpc import mark_of, parameters_of

_ASKED = (CARD, PULL, CLOSE)
LAPSED = 1000
"""Of how many streams that nobody took it is known why they are over."""


class Callee:
    """The object whose methods other roles may call."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._changed = threading.Condition()
        self._open = False
        self._object: Any = None
        self._closed = ""
        self._cut = False
        self._running = 0
        self._slots: dict[str, threading.Semaphore] = {}
        self._feeds: dict[str, Feed] = {}
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

    def _begun(self) -> bool:
        """One more call runs, unless the rank ended while this one was read or waited for its turn."""
        with self._changed:
            self._running += not self._closed
            return not self._closed

    def answer(self, call: Call, payload: bytes, common: bytes = b"", *, stale: bool = False) -> Reply:
        """Run a call; always a Reply, whatever the method does."""
        name = f"{self._role}/{call.rank}"
        if stale:
            return _refuse(Refusal.ENDED, f"{name} is another process now")
        with self._changed:
            in_time = self._changed.wait_for(lambda: self._open or self._closed, call.timeout_s)
        if self._closed:
            return _refuse(Refusal.ENDED, f"{name} {self._closed}")
        if not in_time:
            return _refuse(Refusal.LATE, f"{name} was not set up within {call.timeout_s:g} s")
        if call.method in _ASKED:
            return self._asked(call, payload.decode(), name)
        found = self._find(call.method, name)
        return found if isinstance(found, Reply) else self._run(found, call, payload, common, name)

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
            return _refuse(Refusal.NOT_AGAIN, f"{name}: there is no such stream, or not all of it any more")
        return self._next(feed, key, call, name)

    def _next(self, feed: Feed, key: str, call: Call, name: str) -> Reply:
        try:
            taken = feed.take(call.timeout_s)
        except CutOffError:
            return _refuse(Refusal.NOT_AGAIN, f"{name} {self._closed}, and the stream with it")
        except BaseException as error:  # noqa: BLE001 - the caller hears of it
            self._drop(key)
            return self._failed(error, name, idempotent=False)
        if taken is None:
            return _refuse(Refusal.LATE, f"{name} made no item within {call.timeout_s:g} s")
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
            return _refuse(Refusal.NO_METHOD, f"{name} runs a function: only classes have methods to call")
        try:
            return Reply(payload=wire.dump(card_of(self._object), f"the card of {name}"), idempotent=True)
        except Exception as error:  # noqa: BLE001 - a mesh of users' making may raise
            return _refuse(Refusal.NO_METHOD, f"{name}: its mesh cannot be read: {type(error).__name__}: {error}")

    def _find(self, method: str, name: str) -> Reply | RpcMark:
        mark = mark_of(type(self._object), method)
        if mark is not None:
            return mark
        kind = type(self._object).__name__
        if self._object is None:
            return _refuse(Refusal.NO_METHOD, f"{name} runs a function: only classes have methods to call")
        if hasattr(self._object, method):
            return _refuse(
                Refusal.NO_METHOD, f"{name}: {kind}.{method} may not be called by other roles: decorate it with @rpc"
            )
        offered = [n for n in dir(type(self._object)) if mark_of(type(self._object), n)]
        close = difflib.get_close_matches(method, offered, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has: {', '.join(offered) or 'none'}"
        return _refuse(Refusal.NO_METHOD, f"{name}: {kind} has no @rpc method {method!r}; {hint}")

    def _run(self, mark: RpcMark, call: Call, payload: bytes, common: bytes, name: str) -> Reply:
        if call.again and not mark.idempotent:
            return _refuse(Refusal.NOT_AGAIN, f"{name}.{call.method} is not declared idempotent")
        try:
            args, kwargs = wire.arguments(payload, common)
        except Exception as error:  # noqa: BLE001 - unpickling runs whatever the arguments' classes do
            said = f"{name}.{call.method}: the arguments cannot be read here: {type(error).__name__}: {error}"
            return _refuse(Refusal.BAD_ARGUMENTS, said, user_traceback(error))
        slot = self._slot(call.method, mark)
        if slot is not None and not slot.acquire(timeout=call.timeout_s):
            return _refuse(Refusal.LATE, f"{name}.{call.method} was busy for {call.timeout_s:g} s")
        if not self._begun():
            if slot is not None:
                slot.release()
            return _refuse(Refusal.ENDED, f"{name} {self._closed}")
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
            return _refuse(Refusal.CUT_OFF, f"{name} starts again; {said}", trace)
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
            feed = Feed(items, max(1, call.window), lambda item: wire.dump(item, what), ended, patience, lapsed=lapsed)
            self._feeds[call.id] = feed
            closed = bool(self._closed)
        if closed:
            feed.close(cut=True)
        return Reply(payload=wire.dump(call.id, what))

    def _slot(self, method: str, mark: RpcMark) -> threading.Semaphore | None:
        if mark.concurrency is None:
            return None
        with self._changed:
            return self._slots.setdefault(method, threading.Semaphore(mark.concurrency))


def _refuse(why: Refusal, message: str, traceback: str = "") -> Reply:
    return Reply(error_type="CallError", message=message, traceback=traceback, refused=why)


def _text(error: BaseException) -> str:
    try:
        return str(error)[:2000]
    except Exception:  # noqa: BLE001 - a user's __str__ may raise
        return "(its message cannot be shown)"


def card_of(instance: Any) -> Card:
    """What callers are to know of a rank's class: its @rpc methods, and its mesh, as a mapping or a DeviceMesh."""
    cls = type(instance)
    marks = {name: mark_of(cls, name) for name in dir(cls)}
    methods = {n: replace(mark, parameters=parameters_of(cls, n)) for n, mark in marks.items() if mark is not None}
    mesh = getattr(instance, "mesh", None)
    names = getattr(mesh, "mesh_dim_names", None)
    if mesh is not None and names:
        return Card(methods, dict(zip(names, mesh.shape, strict=True)))
    return Card(methods, dict(mesh) if isinstance(mesh, Mapping) else {})
