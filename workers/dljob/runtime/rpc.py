"""Calls between roles: `@rpc` on the callee's methods, `RoleGroup(...)` in the caller.

A call is sent at most once, unless it is declared idempotent; it waits while the callee restarts, within its deadline.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, overload

from dljob.errors import RemoteError, UsageError
from dljob.runtime import wire
from dljob.runtime.context import Outgoing, WorkerContext, current_worker
from dljob.runtime.messages import Reply

DEFAULT_TIMEOUT_S = 1800.0
"""A call's deadline unless `.options(timeout=...)` says otherwise; as long as torch's for collectives."""

_MARK = "__dljob_rpc__"

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RpcMark:
    """What `@rpc` wrote on a method."""

    idempotent: bool = False
    concurrency: int | None = None


@overload
def rpc(method: F) -> F: ...
@overload
def rpc(*, idempotent: bool = False, concurrency: int | None = None) -> Callable[[F], F]: ...
def rpc(method: Any = None, *, idempotent: bool = False, concurrency: int | None = None) -> Any:
    """Let other roles call a method of a worker class.

    Args:
        method: the method, when used without parentheses.
        idempotent: a call that was lost with its process may be run again in the next one.
        concurrency: how many calls of it may run at once in a rank; None: as many as come.
    """
    if concurrency is not None and (isinstance(concurrency, bool) or concurrency < 1):
        raise UsageError(f"@rpc(concurrency={concurrency!r}): wanted a whole number from 1")

    def mark(function: Any) -> Any:
        if not callable(function):
            raise UsageError(f"@rpc goes on a method, got {type(function).__name__}")
        setattr(function, _MARK, RpcMark(idempotent, concurrency))
        return function

    return mark if method is None else mark(method)


def mark_of(cls: type, name: str) -> RpcMark | None:
    """What `@rpc` says of a class's method, also when a subclass overrides it without the decorator; else None."""
    for base in cls.__mro__:
        mark = getattr(base.__dict__.get(name), _MARK, None)
        if mark is not None:
            return mark
    return None


class CallFuture(Generic[T]):
    """A call that is under way: `await` it in a coroutine, or `.result()` it in a thread."""

    def __init__(self, future: Future[Any], read: Callable[[Any], T], what: str) -> None:
        self._future = future
        self._read = read
        self._what = what

    def result(self, timeout: float | None = None) -> T:
        """The answer; raises what the call raised, TimeoutError when there is none after `timeout` seconds."""
        try:
            return self._read(self._future.result(timeout))
        except FutureTimeout:
            if self._future.done():
                raise
            raise TimeoutError(f"{self._what}: no answer yet after {timeout:g} s; the call goes on") from None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, good or bad; False when it did not come within `timeout` seconds."""
        try:
            self._future.exception(timeout)
        except FutureTimeout:
            return False
        return True

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        return self._future.done()

    def __await__(self) -> Generator[Any, None, T]:
        payload = yield from asyncio.wrap_future(self._future).__await__()
        return self._read(payload)


@dataclass(frozen=True, slots=True)
class _Options:
    timeout_s: float | None = DEFAULT_TIMEOUT_S
    idempotent: bool = False


class Rank:
    """One rank of a role, as a callee."""

    def __init__(self, context: WorkerContext, role: str, rank: int, options: _Options) -> None:
        self._context = context
        self._options = options
        self.role = role
        self.rank = rank

    def call(self, method: str, *args: Any, **kwargs: Any) -> CallFuture[Any]:
        """Call an @rpc method of this rank."""
        payload = _pack(f"{self.role}/{self.rank}.{method}", args, kwargs)
        return CallFuture(self._send(method, payload), wire.load, f"{self.role}/{self.rank}.{method}")

    def options(self, **changes: Any) -> Rank:
        """The same rank with other options: `timeout` in seconds (None: no deadline), `idempotent`."""
        return Rank(self._context, self.role, self.rank, _changed(self._options, changes))

    def _send(self, method: str, payload: bytes) -> Future[bytes]:
        options = self._options
        sent = self._context.calls.send(
            Outgoing(self.role, self.rank, method, payload, options.timeout_s, options.idempotent)
        )
        return _then(sent, lambda reply: _good(reply, self.role, self.rank, method))


class RoleGroup(Sequence[Rank]):
    """All ranks of a role, as callees: `RoleGroup("rollout").call("generate", prompts)`."""

    def __init__(self, role: str, *, _options: _Options | None = None) -> None:
        self._context = current_worker()
        peers = self._context.peers
        if role not in peers:
            raise UsageError(f"RoleGroup({role!r}): no such role", hint=f"this job has: {', '.join(sorted(peers))}")
        self.role = role
        self._options = _options or _Options()

    def __len__(self) -> int:
        return self._context.peers[self.role]

    @overload
    def __getitem__(self, index: int) -> Rank: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Rank]: ...
    def __getitem__(self, index: int | slice) -> Rank | Sequence[Rank]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.role} has ranks 0 to {len(self) - 1}, not {index}")
        return Rank(self._context, self.role, index % len(self), self._options)

    def __iter__(self) -> Iterator[Rank]:
        return (self[i] for i in range(len(self)))

    def call(self, method: str, *args: Any, **kwargs: Any) -> CallFuture[list[Any]]:
        """Call an @rpc method of all ranks; the results come in the order of ranks, the first error ends the wait."""
        payload = _pack(f"{self.role}.{method}", args, kwargs)
        sent = _gather([rank._send(method, payload) for rank in self])
        return CallFuture(sent, lambda payloads: [wire.load(p) for p in payloads], f"{self.role}.{method}")

    def call_rank0(self, method: str, *args: Any, **kwargs: Any) -> CallFuture[Any]:
        """Call an @rpc method of rank 0."""
        return self[0].call(method, *args, **kwargs)

    def options(self, **changes: Any) -> RoleGroup:
        """The same role with other options: `timeout` in seconds (None: no deadline), `idempotent`."""
        return RoleGroup(self.role, _options=_changed(self._options, changes))


def _changed(options: _Options, changes: dict[str, Any]) -> _Options:
    unknown = set(changes) - {"timeout", "idempotent"}
    if unknown:
        raise UsageError(f"options({sorted(unknown)[0]}=...): unknown option", hint="there are: timeout, idempotent")
    if "timeout" in changes:
        timeout = changes["timeout"]
        if timeout is not None and not timeout > 0:
            raise UsageError(f"options(timeout={timeout!r}): wanted seconds above 0, or None for no deadline")
        options = replace(options, timeout_s=None if timeout is None else float(timeout))
    if "idempotent" in changes:
        options = replace(options, idempotent=bool(changes["idempotent"]))
    return options


def _pack(what: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    parts = itertools.chain(((f"argument {i}", a) for i, a in enumerate(args, 1)), kwargs.items())
    return wire.dump((args, kwargs), what, tuple(parts))


def _good(reply: Reply, role: str, rank: int, method: str) -> bytes:
    """The pickled result; raises what the callee raised."""
    if not reply.error_type:
        return reply.payload
    what = f"{role}/{rank}.{method} raised {reply.error_type}: "
    said = reply.message if reply.refused or reply.error_type == wire.WireError.__name__ else what + reply.message
    raise RemoteError(said, role=role, rank=rank, remote_traceback=reply.traceback)


def _then(future: Future[Reply], convert: Callable[[Reply], bytes]) -> Future[bytes]:
    """A future of the converted answer."""
    made: Future[bytes] = Future()
    made.set_running_or_notify_cancel()

    def finish(done: Future[Reply]) -> None:
        try:
            made.set_result(convert(done.result()))
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the answer
            made.set_exception(error)

    future.add_done_callback(finish)
    return made


def _gather(futures: list[Future[bytes]]) -> Future[list[bytes]]:
    """A future of all results; the first error is its own at once."""
    made: Future[list[bytes]] = Future()
    made.set_running_or_notify_cancel()
    lock = threading.Lock()
    left = len(futures)

    def finish(done: Future[bytes]) -> None:
        nonlocal left
        error = done.exception()
        with lock:
            left -= 1
            if made.done():
                return
            if error is not None:
                made.set_exception(error)
            elif left == 0:
                made.set_result([f.result() for f in futures])

    for future in futures:
        future.add_done_callback(finish)
    return made
