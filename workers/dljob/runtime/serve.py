"""The callee's side of calls between roles: waits for `setup`, finds the method, runs it, answers in bytes."""

from __future__ import annotations

import difflib
import threading
from typing import Any

from dljob.master.views import Outcome
from dljob.runtime import wire
from dljob.runtime.loop import settle
from dljob.runtime.messages import Call, Refusal, Reply
from dljob.runtime.outcome import user_traceback
from dljob.runtime.rpc import RpcMark, mark_of


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

    def wait_idle(self) -> None:
        """Wait until no call runs."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)

    def _count(self, change: int) -> None:
        with self._changed:
            self._running += change
            self._changed.notify_all()

    def answer(self, call: Call, payload: bytes, *, stale: bool = False) -> Reply:
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
        found = self._find(call.method, name)
        return found if isinstance(found, Reply) else self._run(found, call, payload, name)

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

    def _run(self, mark: RpcMark, call: Call, payload: bytes, name: str) -> Reply:
        if call.again and not mark.idempotent:
            return _refuse(Refusal.NOT_AGAIN, f"{name}.{call.method} is not declared idempotent")
        try:
            args, kwargs = wire.load(payload)
        except Exception as error:  # noqa: BLE001 - unpickling runs whatever the arguments' classes do
            said = f"{name}.{call.method}: the arguments cannot be read here: {type(error).__name__}: {error}"
            return _refuse(Refusal.BAD_ARGUMENTS, said, user_traceback(error))
        slot = self._slot(call.method, mark)
        if slot is not None and not slot.acquire(timeout=call.timeout_s):
            return _refuse(Refusal.LATE, f"{name}.{call.method} was busy for {call.timeout_s:g} s")
        self._count(1)
        try:
            value = settle(getattr(self._object, call.method)(*args, **kwargs))
            payload = wire.dump(value, f"the result of {name}.{call.method}")
            return Reply(payload=payload, idempotent=mark.idempotent)
        except BaseException as error:  # noqa: BLE001 - the caller hears of it; this process goes on
            if self._cut:
                return _refuse(Refusal.CUT_OFF, f"{name} starts again; {_text(error)}", user_traceback(error))
            return Reply(
                error_type=type(error).__name__,
                message=_text(error),
                traceback=user_traceback(error),
                idempotent=mark.idempotent,
            )
        finally:
            self._count(-1)
            if slot is not None:
                slot.release()

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
